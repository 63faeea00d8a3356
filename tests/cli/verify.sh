#!/usr/bin/env bash
# fusebox verify: the goldens hold, and what must not hold fails.
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
for options in "--act f16" "--act bf16" "--threads 1" "--isa portable" "--isa ref"; do
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

refuses "no --golden" 2 '--golden: missing \(see fusebox verify --help\)$' verify $case
refuses "a golden that is not there" 2 '.*/nothing\.safetensors: ' verify $case --golden "$work/nothing.safetensors"
refuses "another model's golden" 2 '' verify $case --golden $goldens/storyteller/golden.safetensors
refuses "a file that is no golden" 2 '' verify $case --golden $case/model.safetensors
finish
