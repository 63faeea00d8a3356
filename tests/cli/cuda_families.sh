#!/usr/bin/env bash
# --backend cuda, with the emulated device, for families of models beyond those of cuda.sh. Other activation types are for a
# real device (tests/gpu/run.sh).
. tests/cli/lib.sh

goldens=tests/data/golden
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
[ -f "$library" ] || { echo "# not run: the emulated device is not built here"; finish; }
export FUSEBOX_CUDA_LIBRARY=$(realpath "$library")
for case in mistral-window qwen2 qwen2-window qwen3 gemma2 gemma3 gemma3-old phi3 phi3-long smollm3 olmo2 granite stablelm mixtral qwen3-moe; do
    succeeds "$case" verify $goldens/$case --golden $goldens/$case/golden.safetensors --backend cuda --fuse all
    matches "$case: greedy" "$work/out" '^greedy +32 of 32 tokens equal'
done
succeeds "gemma3: fuses, f16" verify $goldens/gemma3 --backend cuda --act f16 --fuse norm_add
succeeds "mixtral: fuses, bf16" verify $goldens/mixtral --backend cuda --act bf16 --fuse router,experts
finish
