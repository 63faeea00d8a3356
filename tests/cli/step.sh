#!/usr/bin/env bash
# `step`, on the emulated device: the layers of a step in one kernel give the bits of the same ops, launched one by one.
. tests/cli/lib.sh

goldens=tests/data/golden
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
if [ ! -f "$library" ]; then
    echo "not ok 1 # SKIP the emulated device: it is not built here"
    finish
fi
export FUSEBOX_CUDA_LIBRARY=$library
in_one() { # in_one NAME MODEL LAUNCHES OPTION...: launches of a step, the other way and so
    local name=$1 model=$2 launches=$3
    shift 3
    succeeds "$name: step" bench "$model" --backend cuda --compare all+-step,all --reps 1 --json "$@"
    is "$name: step: the same bits" "$(grep -oE '"bit_identical": *true' "$work/out" | wc -l)" 2
    is "$name: step: launches" "$(grep -oE '"barriers_per_step": *[0-9]+' "$work/out" | grep -oE '[0-9]+$' | paste -sd ' ')" "$launches"
}
in_one gpt2 $goldens/gpt2 "23 6" --act f16 --prompt 9 --gen 3
in_one llama-gqa-tied $goldens/llama-gqa-tied "22 5" --act f16 --prompt 9 --gen 3
in_one llama-linear-sharded $goldens/llama-linear-sharded "22 5" --act bf16 --kv bf16 --prompt 9 --gen 3
FUSEBOX_EMULATE_SMS=60 in_one "more blocks than rows" $goldens/llama-linear-sharded "22 5" --act bf16 --kv bf16 --prompt 3 --gen 2
holds "a model of several pieces a row" python3 -B bench/make_checkpoint.py "$work/wide" --shape wide
in_one "several pieces a row" "$work/wide" "8 5" --act f16 --prompt 3 --gen 2
for type in q4_0 q8_0 q4_k_m; do
    fusebox quantize "$work/wide" "$work/wide-$type.gguf" --type $type
    in_one "several pieces a row, $type" "$work/wide-$type.gguf" "8 5" --act f16 --prompt 3 --gen 2
done
# Q4_0 and Q8_0, which have layouts of their own alone, become records beside each other.
mix() { # mix OUT FILE OTHER PART...: FILE with the tensors of OTHER whose names contain a PART
    local out=$1 file=$2
    shift 2
    holds "mix $(basename "$out")" python3 -B tests/support/gguf_edit.py mix "$file" "$out" "$@"
}
mix "$work/wide-mixed.gguf" "$work/wide-q4_0.gguf" "$work/wide-q8_0.gguf" ffn_down
in_one "several pieces a row, q4_0 and q8_0" "$work/wide-mixed.gguf" "8 5" --act f16 --prompt 3 --gen 2
FUSEBOX_EMULATE_SHARED=101376 in_one "99 KB" "$work/wide" "8 8" --act f16 --prompt 3 --gen 2
holds "a model with heads of 80" python3 -B bench/make_checkpoint.py "$work/heads" --shape heads-80
in_one "heads of 80" "$work/heads" "12 5" --act f16 --prompt 26 --gen 3
holds "a model with a long context" python3 -B bench/make_checkpoint.py "$work/tiny" --shape tiny
in_one "two splits of a context" "$work/tiny" "12 5" --act f16 --prompt 127 --gen 4
# A mix: its types change within a layer and from layer to layer. As in files of llama.cpp for a model whose rows are no
# whole blocks of 256, K types have Q8_0 and Q4_0 beside them.
for type in q4_k_m q8_0 q4_0; do
    fusebox quantize models/storyteller "$work/storyteller-$type.gguf" --type $type
done
mix "$work/storyteller-8.gguf" "$work/storyteller-q4_k_m.gguf" "$work/storyteller-q8_0.gguf" attn_output blk.3.
mix "$work/storyteller.gguf" "$work/storyteller-8.gguf" "$work/storyteller-q4_0.gguf" blk.1.ffn blk.2.attn_qkv
in_one "several layers, q4_k_m with q8_0 and q4_0" "$work/storyteller.gguf" "36 5" --act f16 --prompt 3 --gen 2
# What its kernel does not have is launched: other types, an older device, less shared memory.
in_one "f32 weights" $goldens/neox-old-nobias "16 16" --act f16 --prompt 3 --gen 2
FUSEBOX_EMULATE_MAJOR=8 in_one "sm_80" $goldens/neox-serial "22 22" --act f16 --prompt 3 --gen 2
fusebox verify $goldens/neox-serial --backend cuda --act f16 --fuse head_argmax,step --json
matches "verify: step" "$work/out" '"name":"step","class":"tol",.*"calls":24'
# Asked for by name where it has nothing to do: refused, with figures that were measured.
fusebox verify $goldens/gpt2 --backend cpu --fuse step
is "verify: step alone: exit status" "$status" 1
matches "verify: step alone: why" "$work/out" '^step .*does not apply: only on the cuda backend'
matches "verify: step alone: the last row ran" "$work/out" '^step .*switched on, never ran'
finish
