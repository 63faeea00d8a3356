#!/usr/bin/env bash
# fusebox verify: the goldens hold, the fuses are proven, and what must not hold fails.
. tests/cli/lib.sh

goldens=tests/data/golden
for case in neox-parallel neox-serial llama-gqa-tied llama-mha gpt2; do
    succeeds "$case" verify $goldens/$case --golden $goldens/$case/golden.safetensors
    matches "$case: greedy" "$work/out" '^greedy +32 of 32 tokens equal'
    is "$case: the last line" "$(tail -n 1 "$work/out" | cut -d: -f1)" verified
done
succeeds "storyteller" verify --golden $goldens/storyteller/golden.safetensors
matches "storyteller: a row a layer" "$work/out" '^8( +[0-9.e-]+){4} +ok$'
matches "storyteller: logits" "$work/out" '^logits( +[0-9.e-]+){4} +ok$'
matches "storyteller: greedy" "$work/out" '^greedy +64 of 64 tokens equal'

case=$goldens/neox-parallel
succeeds "--json" verify $case --golden $case/golden.safetensors --json
is "--json: one line" "$(wc -l <"$work/out")" 1
matches "--json: ok" "$work/out" '^\{"ok":true,'
matches "--json: layers" "$work/out" '"layers":\[\{"layer":0,"max_abs":[0-9.e-]+,"rel":[0-9.e-]+,'
matches "--json: logits_max_abs" "$work/out" '"logits_max_abs":[0-9.e-]+,'
is "--json: greedy_match" "$(member greedy_match "$work/out")" true
for options in "--act f16" "--act bf16" "--threads 1" "--isa portable" "--isa ref" "--kv f16" "--kv bf16"; do
    succeeds "$options" verify $case --golden $case/golden.safetensors $options
done

# The last bytes of a checkpoint are weights in float16: make some of them 1.0 (0x3c00).
mkdir "$work/wrong"
cp $goldens/llama-mha/config.json "$work/wrong/"
cp $goldens/llama-mha/model.safetensors "$work/wrong/"
size=$(stat -c %s "$work/wrong/model.safetensors")
for i in $(seq 200); do printf '\0\074'; done |
    dd of="$work/wrong/model.safetensors" bs=1 seek=$((size - 4000)) conv=notrunc status=none
fusebox verify "$work/wrong" --golden $goldens/llama-mha/golden.safetensors
is "damaged weights: exit status" "$status" 1
is "damaged weights: the last line" "$(tail -n 1 "$work/out" | cut -d: -f1)" FAILED
fusebox verify "$work/wrong" --golden $goldens/llama-mha/golden.safetensors --json
is "damaged weights, --json: exit status" "$status" 1
matches "damaged weights, --json" "$work/out" '^\{"ok":false,'
# NaN (0x7e00) instead: no comparison with it may pass.
for i in $(seq 200); do printf '\0\176'; done |
    dd of="$work/wrong/model.safetensors" bs=1 seek=$((size - 4000)) conv=notrunc status=none
fusebox verify "$work/wrong" --golden $goldens/llama-mha/golden.safetensors --json
is "NaN weights: exit status" "$status" 1
matches "NaN weights: null in JSON" "$work/out" '^\{"ok":false,.*"max_abs":null'

# ---- without a golden: the fuses against the plain program
for case in neox-parallel neox-serial llama-gqa-tied gpt2; do
    succeeds "$case: fuses" verify $goldens/$case
    is "$case: fuses: the last line" "$(tail -n 1 "$work/out" | cut -d: -f1)" verified
    matches "$case: fuses: all" "$work/out" '^all +tol .* ok$'
    matches "$case: fuses: auto" "$work/out" '^auto .* ok$'
done
case=$goldens/neox-parallel
matches "fuses: a row" "$work/out" '^down_add +bit +identical +0\.00e\+00 +0\.00e\+00 .* 150 / 150 +ok$'
matches "fuses: greedy" "$work/out" '^greedy +25 tokens equal$'
for act in f32 f16 bf16; do
    succeeds "--exact --act $act" verify $case --exact --act $act --json
    is "--exact --act $act: one line" "$(wc -l <"$work/out")" 1
    is "--exact --act $act: ok" "$(member ok "$work/out")" true
    matches "--exact --act $act: attn_flash" "$work/out" \
        '"name":"attn_flash","class":"bit","bit_identical":true,"max_abs":0,"bound":0,"vs_f64_plain":[0-9.e-]+,"vs_f64_fused":[0-9.e-]+,"calls":75,"calls_expected":75,"ok":true'
    is "--exact --act $act: greedy_match" "$(member greedy_match "$work/out")" true
    is "--exact --act $act: perplexity" "$(member perplexity_fused "$work/out")" "$(member perplexity_plain "$work/out")"
    holds "--exact --act $act: nothing differs" bash -c "! grep -q '\"bit_identical\":false' '$work/out'"
done
succeeds "--fuse LIST" verify $case --fuse add_norm,bias_act --json
is "--fuse LIST: each, then all of it" "$(grep -oE '"name":"[^"]*"' "$work/out" | cut -d: -f2 | tr '\n' ' ')" \
    '"bias_act" "add_norm" "add_norm,bias_act" '
fusebox verify $case --fuse swiglu_vec
is "a fuse with nothing to do: exit status" "$status" 1
matches "a fuse with nothing to do" "$work/out" '^swiglu_vec .* FAILED: does not apply: no gated MLP'
is "a fuse with nothing to do: the last line" "$(tail -n 1 "$work/out" | cut -d: -f1)" FAILED
refuses "--fuse none" 2 'fuse: "none" \(at least one' verify $case --fuse none
refuses "--fuse: an unknown name" 2 'fuse: "add4" .*add3' verify $case --fuse add4
fusebox verify "$work/wrong" --json
is "NaN weights, fuses: exit status" "$status" 1
matches "NaN weights, fuses" "$work/out" '^\{"ok":false,"fuses":\[\{"name":"head_screen",.*"max_abs":null'
succeeds "fuses under a golden" verify $case --golden $case/golden.safetensors --fuse all,-attn_flash

refuses "a golden that is not there" 2 '.*/nothing\.safetensors: ' verify $case --golden "$work/nothing.safetensors"
refuses "another model's golden" 2 '' verify $case --golden $goldens/storyteller/golden.safetensors
refuses "a file that is no golden" 2 '' verify $case --golden $case/model.safetensors
finish
