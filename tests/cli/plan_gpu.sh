#!/usr/bin/env bash
# fusebox plan of a GPU, on the emulated device: the same report, of launches. What it predicts is not judged.
. tests/cli/lib.sh
export XDG_CACHE_HOME="$work/cache"

library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
if [ ! -f "$library" ]; then
    echo "not ok 1 # SKIP the emulated device: it is not built here"
    finish
fi
export FUSEBOX_CUDA_LIBRARY=$library
gpu="--backend cuda --prompt 4 --gen 4"
succeeds "cuda" plan tests/data/golden/neox-parallel $gpu --svg "$work/gpu.svg"
cp "$work/out" "$work/plan"
matches "cuda: the machine" "$work/plan" '^Emulated GPU, sm_90: .* TFLOP/s, a launch [0-9.]+ us, in a graph [0-9.]+ us, a small kernel [0-9.]+ us$'
matches "cuda: the layer before" "$work/plan" '^before: 15 launches and .*B a layer$'
matches "cuda: a verdict" "$work/plan" '^rope_kv +(keep|leave) .*saves .* and 2 launches: .* at best; (kept|left)'
matches "cuda: graph" "$work/plan" "^graph +(keep|leave) .*launches a step's 49 ops as one: .* at best; (kept|left)"
matches "cuda: predicted against measured" "$work/plan" '^plan +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%$'
is "cuda: no barriers, no threads" "$(grep -cE 'barrier|thread' "$work/plan" "$work/gpu.svg" | paste -sd' ')" "$work/plan:0 $work/gpu.svg:0"
holds "cuda: svg" xmllint --noout "$work/gpu.svg"
is "cuda: svg: numbers" "$(grep -cE 'nan|inf' "$work/gpu.svg")" 0
file=$(find "$work/cache/fusebox" -name 'gpu-Emulated-GPU-sm_90-f32.json')
holds "cuda: cache: one file" test -f "$file"
cp "$file" "$work/kept"
succeeds "cuda: quantised" plan tests/data/gguf/neox-parallel-q8_0.gguf $gpu --json
holds "cuda: cache: used" cmp "$file" "$work/kept"
matches "cuda: quant_gemm" "$work/out" '4 matmuls quantise their activations online, instead of reading 4 already quantised that one matmul each use; '
holds "cuda: --json" python3 -c 'import json,sys; p=json.load(open(sys.argv[1])); m=p["machine"]
assert m["gpu"] == "Emulated GPU" and "threads" not in m and m["launch_s"] > 0 and m["small_s"] > 0
assert len(m["bandwidth"]) == 11 and all(b["bytes_per_s"] > 0 for b in m["bandwidth"])
assert p["none"]["launches_a_layer"] == 19 and p["plan"]["predicted"] <= p["none"]["predicted"]' "$work/out"
echo '{"version": 1' >"$file"
succeeds "cuda: cache: a damaged file is measured anew" plan tests/data/golden/llama-gqa-tied $gpu --fuse all,-graph
matches "cuda: cache: and replaced" "$file" '"logit_s"'
matches "cuda: --fuse" "$work/out" '^graph +leave '
succeeds "cuda: a session plans with it" verify tests/data/golden/gpt2 --golden tests/data/golden/gpt2/golden.safetensors --backend cuda
finish
