#!/usr/bin/env bash
# --backend cuda, with the emulated device: the goldens hold, the fuses are proven, the tokens are the CPU's; and what
# is said where there is no device. Without the emulated library only the last.
. tests/cli/lib.sh

goldens=tests/data/golden
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
unset FUSEBOX_CUDA_LIBRARY

# ---- without a device
export FUSEBOX_CUDA_LIBRARY=none
refuses "an unknown backend" 2 'backend: "metal" \(auto, cpu, cuda, cuda:0' run --backend metal -p a
for name in cuda: cuda:x cuda:-1 cuda:1x cuda0 cuda:999 ""; do
    refuses "--backend '$name'" 2 'backend: .*\(auto, cpu, cuda, cuda:0' run --backend "$name" -p a
done
refuses "switched off" 1 'cuda: switched off \(its library is "none"\)$' run --backend cuda -p a
for command in bench "bench --ops" profile plan verify "ppl -f README.md"; do # each hands the choice on
    refuses "switched off: $command" 1 'cuda: switched off' $command --backend cuda
done
succeeds "switched off: auto is the CPU" run --backend auto -n 2 --temp 0 -p a
succeeds "switched off: cpu" run --backend cpu -n 2 --temp 0 -p a
FUSEBOX_CUDA_LIBRARY=$work/nothing.so
refuses "no such library" 1 'cuda: .*nothing\.so' run --backend cuda -p a
FUSEBOX_CUDA_LIBRARY=libm.so.6
refuses "a bare name is not looked for" 1 'cuda: .*/libm\.so\.6: ' run --backend cuda -p a
FUSEBOX_CUDA_LIBRARY=$(ldconfig -p 2>/dev/null | sed -nE 's/^\s*libm\.so\.6 .*=> //p' | head -n 1)
[ -z "$FUSEBOX_CUDA_LIBRARY" ] ||
    refuses "another library" 1 'cuda: .*libm\.so\.6: not a library of Fusebox$' run --backend cuda -p a

# ---- what lies in the working directory, or beside it, is never opened: not even for a program found by its bare name
mkdir -p "$work/lib" "$work/here/lib"
holds "a library that says when it is opened" ${CC:-cc} -shared -fPIC -x c -o "$work/lib/libfusebox_cuda.so" - \
    <<<'int puts(const char *); __attribute__((constructor)) static void opened(void) { puts("planted"); }'
for place in here here/lib .; do cp "$work/lib/libfusebox_cuda.so" "$work/$place/"; done
planted() { (unset FUSEBOX_CUDA_LIBRARY && cd "$work/here" && PATH=$(dirname "$(realpath "$FUSEBOX")"):$PATH command fusebox info --devices) 2>&1; }
is "a planted library" "$(planted | grep -c planted)" 0
FUSEBOX_CUDA_LIBRARY=$work/here/libfusebox_cuda.so
is "the same library, asked for" "$(fusebox info --devices && grep -c planted "$work/out")" 1

if [ ! -f "$library" ]; then
    echo "# the emulated library is not there: nothing else was checked"
    finish
fi
FUSEBOX_CUDA_LIBRARY=$library

# ---- devices that will not do
refuses "a device that is not there" 2 'backend: cuda:7 \(there is 1 device\)$' run --backend cuda:7 -p a
refuses "an instruction set" 2 'isa: portable \(only on the CPU, not with backend cuda\)$' run --backend cuda --isa portable -p a
refuses "float64" 2 'act: f64 \(only ' run --backend cuda --act f64 -p a
refuses "a float64 cache" 2 'kv: f64 \(only ' run --backend cuda --kv f64 -p a
export FUSEBOX_EMULATE_DEVICES=0
refuses "no device" 1 'cuda: no NVIDIA GPU' run --backend cuda -p a
succeeds "no device: auto is the CPU" run -n 2 --temp 0 -p a
unset FUSEBOX_EMULATE_DEVICES
export FUSEBOX_EMULATE_MAJOR=7
refuses "an old device" 2 'cuda: Emulated GPU: compute capability 7\.0 \(at least 8\.0\)$' run --backend cuda -p a
unset FUSEBOX_EMULATE_MAJOR
export FUSEBOX_EMULATE_MEMORY=100000
refuses "no memory for the weights" 1 'cuda: weights: [0-9.]+ MiB of device memory' verify --golden $goldens/storyteller/golden.safetensors --backend cuda
unset FUSEBOX_EMULATE_MEMORY
export FUSEBOX_EMULATE_FAIL=150
refuses "the device is lost" 1 'cuda: .*: the emulated device is lost$' verify $goldens/gpt2 --golden $goldens/gpt2/golden.safetensors --backend cuda
unset FUSEBOX_EMULATE_FAIL

# ---- the reference answers. A case takes seconds here: one of each architecture with all fuses, and one plain; the others,
# the planner's choice, and every fuse on its own, are for a real device (tests/gpu/run.sh).
golden() { # golden NAME CASE OPTION...
    local name=$1 case=$2
    shift 2
    succeeds "$name" verify "$goldens/$case" --golden "$goldens/$case/golden.safetensors" --backend cuda "$@"
    matches "$name: greedy" "$work/out" '^greedy +32 of 32 tokens equal'
}
for case in neox-parallel llama-gqa-tied gpt2; do golden "$case, all fuses" $case --fuse all; done
golden "llama-gqa-tied, plain" llama-gqa-tied --fuse none
for options in "--act f16"; do
    succeeds "golden $options" verify $goldens/neox-parallel --golden $goldens/neox-parallel/golden.safetensors --backend cuda $options
done

# ---- streams: a cache of sinks and a ring, in chunks and one by one; each way once
stream() { # stream CASE OPTION...
    local case=$1
    shift
    succeeds "a stream, $case $*" verify $goldens/$case --golden $goldens/streaming/$case.safetensors --backend cuda "$@"
    is "a stream, $case $*: the last line" "$(tail -n 1 "$work/out" | cut -d: -f1)" verified
}
stream neox-parallel --fuse none
stream llama-gqa-tied --fuse all
stream neox-parallel --fuse all --exact

# ---- fuses against the plain program
proof() { # proof NAME MODEL OPTION...
    local name=$1
    shift
    succeeds "$name" verify "$@" --backend cuda
    is "$name: the last line" "$(tail -n 1 "$work/out" | cut -d: -f1)" verified
}
proof "neox-parallel, f16: fuses" $goldens/neox-parallel --act f16 --fuse graph
matches "neox-parallel, f16: the graph" "$work/out" '^graph +bit +identical .* ok$'

# ---- quantised weights; floats in a layer, and in a projection of another
for type in q4_0 f16; do fusebox quantize $goldens/neox-parallel "$work/$type.gguf" --type $type; done
python3 tests/support/gguf_edit.py mix "$work/q4_0.gguf" "$work/mix.gguf" "$work/f16.gguf" blk.1. blk.2.ffn_up.weight
proof "q4_0 and f16: fuses" "$work/mix.gguf" --act f16 --fuse quant_gemm,qkv_up

# ---- tokens: the CPU's, twice, and with sampling
tell() { fusebox run -p "Once upon a time" -n 3 "$@" && cat "$work/out"; }
cpu=$(tell --temp 0 --backend cpu)
is "run: the CPU's tokens" "$(tell --temp 0 --backend cuda)" "$cpu"
is "run: auto finds the device" "$(fusebox run -p a -n 1 --temp 0 --json && member backend "$work/out")" '"cuda"'

# ---- times of single ops, which are checked before
holds "gpu_ops: heads are right" "$(dirname "$FUSEBOX")/bench/gpu_ops" --tiny --only head_argmax
finish
