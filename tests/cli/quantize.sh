#!/usr/bin/env bash
# fusebox quantize: sizes, errors, refusals; the whole file or none.
. tests/cli/lib.sh
out="$work/files"
mkdir "$out"
slow=${FUSEBOX_TESTS_SLOW:-}
one_file() { is "$1: nothing else is left" "$(ls "$out" | wc -l)" "$2"; }

for type in f16 q8_0 q4_0; do
    succeeds "$type" quantize "$out/$type.gguf" --type $type
    size=$(stat -c %s "$out/$type.gguf" | sed -E ':a;s/^([0-9]+)([0-9]{3})/\1,\2/;ta')
    matches "$type: the file's size" "$work/out" "^file +.*/$type.gguf, $size bytes$"
    matches "$type: matrices" "$work/out" "^ffn_up.weight +$type +8 "
    matches "$type: vectors" "$work/out" "^ffn_norm.bias +f32 +8 +8.2 kB +exact *$"
    [ $type = q4_0 ] && biases=corrected count=32 || biases=exact count=0
    matches "$type: biases" "$work/out" "^ffn_up.bias +f32 +8 +32.8 kB +$biases *$"
    matches "$type: biases are counted" "$work/out" "^biases corrected +$count$"
    is "$type: a GGUF file of version 3" "$(od -An -tx1 -N8 "$out/$type.gguf" | tr -d ' ')" 4747554603000000
done
one_file "three files" 3

# Bits a weight: 16 and a little for vectors in f32, 8.5 and 4.5 for blocks of 32 with a scale.
bits() { fusebox quantize "$out/$1.gguf" --type "$1" --force --json && member bits_per_weight "$work/out"; }
in_range() { awk -v x="$1" -v low="$2" -v high="$3" 'BEGIN { exit !(x > low && x < high) }'; }
holds "f16: bits a weight" in_range "$(bits f16)" 16 16.1
holds "q8_0: bits a weight" in_range "$(bits q8_0)" 8.5 8.65
holds "q4_0: bits a weight" in_range "$(bits q4_0)" 4.5 4.65

succeeds "--json" quantize "$out/json.gguf" --type q4_0 --keep-head q8_0 --json
is "--json: one line" "$(wc -l <"$work/out")" 1
is "--json: file size" "$(member file_bytes "$work/out")" "$(stat -c %s "$out/json.gguf")"
is "--json: type" "$(member type "$work/out")" '"q4_0"'
is "--json: head" "$(member head "$work/out")" '"q8_0"'
holds "--json: well formed, and the errors are those of 4 and 8 bits" python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
t = {x["name"]: x for x in r["tensors"]}
assert t["output.weight"]["type"] == "q8_0" and 0.004 < t["output.weight"]["rel"] < 0.007, t["output.weight"]
assert t["ffn_up.weight"]["type"] == "q4_0" and 0.07 < t["ffn_up.weight"]["rel"] < 0.11, t["ffn_up.weight"]
assert sum(x["weights"] for x in r["tensors"]) == r["weights"] == 8415744, r["weights"]
assert r["biases_corrected"] == 32 == sum(x["corrected"] for x in r["tensors"]), r["biases_corrected"]
assert sum(x["bytes"] for x in r["tensors"]) == r["weight_bytes"]' "$work/out"
succeeds "the head in f16" quantize "$out/head.gguf" --type q8_0 --keep-head f16
matches "the head in f16: only it" "$work/out" '^output.weight +f16 '
matches "the head in f16: not the embedding" "$work/out" '^token_embd.weight +q8_0 '

# The same bytes each time, and from the file as from the directory.
fusebox quantize "$out/again.gguf" --type q8_0
holds "two runs are identical" cmp "$out/q8_0.gguf" "$out/again.gguf"
succeeds "a .gguf file in" quantize "$out/f16.gguf" "$out/again.gguf" --type q8_0 --force
holds "a .gguf file in: identical" cmp "$out/q8_0.gguf" "$out/again.gguf"
succeeds "a .gguf file onto itself" quantize "$out/again.gguf" "$out/again.gguf" --type q8_0 --force
holds "a .gguf file onto itself: identical" cmp "$out/q8_0.gguf" "$out/again.gguf"

# What was written runs, and f16 weights are the model's own.
succeeds "f16 runs" run "$out/f16.gguf" -p "Once upon a time" --temp 0 -n 24
cp "$work/out" "$work/f16"
fusebox run -p "Once upon a time" --temp 0 -n 24
holds "f16 runs: the same text" cmp "$work/out" "$work/f16"

# Each architecture; rows that are no whole blocks stay in f16 and are named.
for model in neox-serial llama-mha llama-gqa-tied gpt2; do
    succeeds "$model" quantize tests/data/golden/$model "$out/$model.gguf" --type q4_0
    fusebox quantize tests/data/golden/$model "$out/$model.gguf" --type f16 --force
    succeeds "$model: holds" verify "$out/$model.gguf" --golden tests/data/golden/$model/golden.safetensors
done
succeeds "no whole blocks" quantize tests/data/golden/llama-llama3-bias "$out/rows.gguf"
matches "no whole blocks: named" "$work/out" '^attn_q.weight +f16 .*no whole blocks of q8_0$'
matches "no whole blocks: only where it is so" "$work/out" '^attn_output.weight +f16 .*no whole blocks of q8_0$|^attn_output.weight +q8_0 '
# Every type and mix, in any case. Matrices of 256 columns; the mixes have a head of q6_k. Under sanitizers a smaller model: the
# same code, and no figures.
for pair in q6_k:6.56 q5_k:5.50 Q5_K_M:5.9 q5_K_S:5.6 q5_1:6.00 q5_0:5.50 q4_k:4.50 Q4_K_M:5.2 q4_k_s:4.8 q4_1:5.00 iq4_nl:4.50 IQ4_XS:4.6 \
    mxfp4:4.25 q3_k:3.44 Q3_K_L:4.8 q3_K_M:4.3 q3_k_s:3.8 q2_K:3.5; do
    type=${pair%:*}
    if [ -n "$slow" ]; then
        succeeds "$type" quantize tests/data/golden/neox-parallel "$out/type.gguf" --type $type --force
        succeeds "$type: runs" bench "$out/type.gguf" --prompt 4 --gen 2 --reps 1
        continue
    fi
    succeeds "$type" quantize "$out/type.gguf" --type $type --force --json
    bits=$(member bits_per_weight "$work/out")
    holds "$type: $bits bits a weight" in_range "$bits" "${pair#*:}" "$(echo "${pair#*:} + 0.2" | bc)"
    succeeds "$type: runs" run "$out/type.gguf" -p "Once upon a time" --temp 0 -n 8
done
succeeds "a mix" quantize "$out/type.gguf" --type q4_k_m --force
matches "a mix: the head" "$work/out" '^output.weight +q6_k '
matches "a mix: the embedding" "$work/out" '^token_embd.weight +q4_k '
matches "a mix: half of the layers" "$work/out" '^ffn_down.weight +q6_k +4 '
matches "a mix: the other half" "$work/out" '^ffn_down.weight +q4_k +4 '
succeeds "a mix with another head" quantize "$out/type.gguf" --type q4_K_M --keep-head q8_0 --force
matches "a mix with another head: it is there" "$work/out" '^output.weight +q8_0 '
# Rows of 64 are whole blocks of 32, not of 256.
succeeds "blocks of 256" quantize tests/data/golden/llama-mha "$out/type.gguf" --type q4_K_M --force
matches "blocks of 256: blocks of 32 instead" "$work/out" '^ffn_up.weight +q5_0 .* rows are no whole blocks of q4_k$'
# With a text: the same bytes each time. Columns make up for each other's errors: 46.5 of 44.2; by themselves it was 56.4.
# Under sanitizers a short text, once.
text=tests/data/oz.txt
[ -z "$slow" ] || { text=$work/text && head -c 1500 tests/data/oz.txt >"$text"; }
succeeds "--calibrate" quantize "$out/type.gguf" --type q3_k --calibrate "$text" --force
matches "--calibrate: the head" "$work/out" '^output.weight +q6_k '
matches "--calibrate: the embedding" "$work/out" '^token_embd.weight +q6_k '
matches "--calibrate: the others" "$work/out" '^ffn_down.weight +q3_k +8 '
matches "--calibrate: biases" "$work/out" '^biases corrected +32$'
if [ -z "$slow" ]; then
    matches "--calibrate: the text's perplexity" "$work/out" '^perplexity +44\.[0-9]{4} before, 4[5-7]\.[0-9]{4} after, of the text.s [0-9]+ tokens$'
    fusebox quantize "$out/again.gguf" --type q3_k --calibrate "$text" --force --json
    holds "--calibrate: identical" cmp "$out/type.gguf" "$out/again.gguf"
    holds "--calibrate: --json" python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
assert r["head"] == "q6_k" and r["text"] == "tests/data/oz.txt" and r["text_tokens"] > 2000 and r["perplexity_before"] < r["perplexity"]
assert r["experts_own"] == r["experts_shared"] == r["experts_plain"] == 0' "$work/out"
    # The head as asked, and the embedding with it. Types of more bits keep theirs.
    head -c 1500 "$text" >"$work/short"
    succeeds "--calibrate with a head" quantize "$out/type.gguf" --type q4_0 --keep-head q4_0 --calibrate "$work/short" --force
    matches "--calibrate with a head: it is there" "$work/out" '^output.weight +q4_0 '
    matches "--calibrate with a head: the embedding" "$work/out" '^token_embd.weight +q4_0 '
    succeeds "--calibrate of q8_0" quantize "$out/type.gguf" --type q8_0 --calibrate "$work/short" --force
    matches "--calibrate of q8_0: the head" "$work/out" '^output.weight +q8_0 '
fi
refuses "--calibrate: no text" 2 'none.txt: No such file' quantize "$out/type.gguf" --force --calibrate none.txt
refuses "--calibrate: too short a text" 2 'text: ' quantize "$out/type.gguf" --force --calibrate /dev/null
succeeds "a directory with a slash" quantize tests/data/golden/gpt2/ "$out/slash.gguf"

rm -f "$out"/*
refuses "no arguments" 2 'OUT.gguf: none given' quantize
refuses "an unknown type" 2 '--type: q4_k_x \(f16, q8_0, q6_k, q5_K_M, .*\)$' quantize "$out/x.gguf" --type q4_k_x
refuses "a mix for the head" 2 '--keep-head: q4_K_M \(f16, q8_0, q6_k, q5_k, .*\)$' quantize "$out/x.gguf" --keep-head q4_K_M
refuses "an unknown head" 2 '--keep-head: f32 ' quantize "$out/x.gguf" --keep-head f32
refuses "too many arguments" 2 '' quantize a b c
refuses "no model" 2 'none: No such file' quantize none "$out/x.gguf"
refuses "no folder" 2 '.*/none/x.gguf: No such file' quantize "$out/none/x.gguf"
refuses "a folder as the file" 2 'OUT.gguf: .*/files \(give the name of a file; MODEL comes before it\)$' quantize "$out" --force
refuses "a device as the file" 2 '/dev/null: not a regular file' quantize /dev/null --force
refuses "an activation without a name" 2 'activation: gelu \(' quantize tests/data/golden/gpt2-inner "$out/x.gguf"
one_file "refusals" 0

echo precious >"$out/x.gguf"
refuses "an existing file" 2 '.*/x.gguf: the file exists' quantize "$out/x.gguf"
is "an existing file stays" "$(cat "$out/x.gguf")" precious
succeeds "--force" quantize "$out/x.gguf" --force
is "--force: replaced" "$(head -c 4 "$out/x.gguf")" GGUF
one_file "--force" 1

# A disk that is full half-way leaves the old file, and nothing else.
echo precious >"$out/x.gguf"
status=0
(ulimit -f 1024; exec "$FUSEBOX" quantize "$out/x.gguf" --force) >"$work/out" 2>"$work/err" </dev/null || status=$?
refused "a full disk" 1 '.*/x.gguf: File too large'
is "a full disk: the old file stays" "$(cat "$out/x.gguf")" precious
one_file "a full disk" 1
finish
