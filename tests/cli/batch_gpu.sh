#!/usr/bin/env bash
# Several sequences at once on the emulated device: verify --batch, with every way that a row can be computed.
. tests/cli/lib.sh

goldens=tests/data/golden
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
if [ ! -f "$library" ]; then
    echo "not ok 1 # SKIP the emulated device: it is not built here"
    finish
fi
export FUSEBOX_CUDA_LIBRARY=$library
# Seeds of small mixtures: 5 answers; 6 that share beginnings; 14, of which 8 are put back.
together() { # together NAME MODEL SEED OPTION...
    local name=$1 model=$2 seed=$3
    shift 3
    succeeds "$name, seed $seed" verify "$model" --batch --backend cuda --rounds 1 --seed "$seed" "$@"
}
together llama-gqa-tied $goldens/llama-gqa-tied 24 --act f16
matches "the prefix cache was used" "$work/out" '^tokens from the prefix cache +[1-9]'
matches "fuses were switched" "$work/out" '^fuses switched meanwhile +[1-9]'
matches "logits of prompts were compared" "$work/out" '^compared with them alone .* and [1-9][0-9]* of prompts'
together neox-parallel $goldens/neox-parallel 7 --act bf16
matches "answers were put back" "$work/out" '^answers put back +[1-9]'
together gpt2 $goldens/gpt2 20 --act f16 --fuse all
together gemma2 $goldens/gemma2 24 --act f16
matches "gemma2: the prefix cache was used" "$work/out" '^tokens from the prefix cache +[1-9]'
together mixtral $goldens/mixtral 20 --act f16
together mistral-window $goldens/mistral-window 24 --act f16
matches "mistral-window: the prefix cache was used" "$work/out" '^tokens from the prefix cache +[1-9]'
together "qwen3, float32" $goldens/qwen3 20 --act f32
together "plain ops" $goldens/llama-mha 20 --act f16 --fuse none
together exact $goldens/neox-serial 20 --act f16 --exact
together "no step" $goldens/llama-gqa-tied 20 --act f16 --fuse all,-step
matches "its fuses were switched" "$work/out" '^fuses switched meanwhile +[1-9]'
together "no graph" $goldens/llama-gqa-tied 20 --act f16 --fuse all,-graph
holds "a model of several pieces a row" python3 -B bench/make_checkpoint.py "$work/wide" --shape wide
for type in q4_0 q8_0 q4_k_m; do
    succeeds "write $type" quantize "$work/wide" "$work/$type.gguf" --type $type
    together $type "$work/$type.gguf" 20 --act f16
done
finish
