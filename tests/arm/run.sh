#!/usr/bin/env bash
# The kernels for ARM under qemu-user; `make test-arm` calls it. Usage: BUILD=build/arm tests/arm/run.sh NAME...
# NAME is a program of tests/backend/cpu. Then the answers of Hugging Face, with each of the instruction sets.
set -u
cd "$(dirname "$0")/../.."
export LC_ALL=C.UTF-8 CMOCKA_MESSAGE_OUTPUT=TAP QEMU_LD_PREFIX=${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}
export LD_LIBRARY_PATH=${ARM_LIBRARIES:-/usr/lib/aarch64-linux-gnu} FUSEBOX_CUDA_LIBRARY=none
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
arm() { LD_LIBRARY_PATH= qemu-aarch64 -cpu max -E LD_LIBRARY_PATH="$LD_LIBRARY_PATH" "$@"; }
try() { # try NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    if arm "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok - arm: $name ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        echo "not ok - arm: $name"
        tail -n 40 "$log" | sed 's/^/    /'
    fi
}
for name in "$@"; do try "backend/cpu/test_$name" "$BUILD/tests/backend/cpu/test_$name"; done
work=$(mktemp -d)
trap 'rm -rf "$log" "$work"' EXIT
arm "$BUILD/fusebox" quantize tests/data/golden/llama-mha "$work/q4_0.gguf" --type q4_0 >/dev/null
for isa in dotprod neon portable; do
    for case in neox-parallel llama-gqa-tied gpt2; do
        try "verify --golden $case --isa $isa" "$BUILD/fusebox" verify tests/data/golden/$case \
            --golden tests/data/golden/$case/golden.safetensors --isa $isa
    done
    try "verify Q4_0 --isa $isa" "$BUILD/fusebox" verify "$work/q4_0.gguf" --isa $isa
done
echo "$passed passed, $failed failed"
[ "$passed" -gt 0 ] && [ "$failed" -eq 0 ]
