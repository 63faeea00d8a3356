#!/usr/bin/env bash
# Guesses of the next tokens on the emulated device: verify --draft, with fewer and shorter texts, because each takes seconds.
. tests/cli/lib.sh

goldens=tests/data/golden
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
if [ ! -f "$library" ]; then
    echo "not ok 1 # SKIP the emulated device: it is not built here"
    finish
fi
export FUSEBOX_CUDA_LIBRARY=$library
on_gpu() { # on_gpu NAME MODEL SOURCE OPTION...
    local name=$1 model=$2 source=$3
    shift 3
    succeeds "cuda: $name, $(basename "$source") $*" verify "$model" --backend cuda --draft "$source" -n 6 -p 12 --rounds 0 --seed 3 "$@"
}
on_gpu llama-gqa-tied $goldens/llama-gqa-tied q4 --act f16
layers=$(jq .num_hidden_layers $goldens/neox-parallel/config.json)
python3 -B tests/support/fewer_layers.py $goldens/neox-parallel "$work/smaller" $((layers - 1))
on_gpu neox-parallel $goldens/neox-parallel "$work/smaller" --act bf16 --golden $goldens/neox-parallel/golden.safetensors
on_gpu gpt2 $goldens/gpt2 scripted --act f16
on_gpu gpt2 $goldens/gpt2 scripted --act f32
on_gpu qwen3-moe $goldens/qwen3-moe ngram --act bf16
succeeds "write a golden as Q8_0" quantize $goldens/neox-serial "$work/neox-serial.gguf"
on_gpu "Q8_0" "$work/neox-serial.gguf" q4 --act f16
on_gpu mistral-window $goldens/mistral-window scripted --act f16
succeeds "cuda: in batches" verify $goldens/gpt2 --backend cuda --draft scripted -n 2 --rounds 1 --seed 20 --act f16
finish
