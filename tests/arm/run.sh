#!/usr/bin/env bash
# The kernels for ARM under qemu-user; `make test-arm` calls it. Usage: BUILD=build/arm tests/arm/run.sh NAME...
#
# NAME is a test program. After them come quantised models and the answers of Hugging Face, with each of the instruction
# sets. As many run at a time as there are cores: nothing here measures time. The last line is `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
# Loader and C library are those of libc6:arm64. The cross compiler has them too, but of another version: with the
# loader of one and the library of the other, pthread_create never returns.
export LC_ALL=C.UTF-8 CMOCKA_MESSAGE_OUTPUT=TAP QEMU_LD_PREFIX=${QEMU_LD_PREFIX:-/} FUSEBOX_CUDA_LIBRARY=none BUILD
export TEST_SECONDS=${TEST_SECONDS:-900}
unset LD_LIBRARY_PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

arm() { timeout -k 10 "$TEST_SECONDS" qemu-aarch64 -cpu max "$@"; }
try() { # try "NAME: COMMAND": prints one line, and what the command said if it failed
    local name=${1%%: *} log seconds status
    log=$(mktemp "$work/XXXXXX")
    TIMEFORMAT=%U
    seconds=$({ time eval "arm \"\$BUILD\"/${1#*: }" >"$log" 2>&1 </dev/null; } 2>&1; exit $?)
    status=$?
    if [ $status -eq 0 ]; then
        echo "ok - arm: $name ($seconds s of a core)"
    else
        printf 'not ok - arm: %s (status %d, %s s of a core)\n%s\n' "$name" $status "$seconds" \
            "$(tail -n 40 "$log" | sed 's/^/    /')"
    fi
}
export -f arm try
export work

# neox-parallel has rows of 256, the blocks of K types.
models=tests/arm/models goldens=tests/data/golden
for pair in q4_0:llama-mha iq4_nl:llama-mha q4_K_M:neox-parallel; do
    arm "$BUILD/$models" quantize "$goldens/${pair#*:}" "${pair%:*}" "$work/${pair%:*}.gguf" >"$work/quantize" 2>&1 ||
        cat "$work/quantize"
done
# Each instruction set gives the reference answers. Fuses are proven for each type with i8mm, and for one type with each
# other set: four seconds each. The sets differ in products, which test_linear, test_packed and test_experts check.
checks() { # checks NAME...
    local name isa
    for name; do echo "$name: tests/$name"; done
    for name in q4_0 iq4_nl q4_K_M; do echo "$name, fuses, i8mm: $models fuses $work/$name.gguf i8mm"; done
    echo "q4_K_M, fuses, dotprod: $models fuses $work/q4_K_M.gguf dotprod"
    echo "iq4_nl, fuses, neon: $models fuses $work/iq4_nl.gguf neon"
    echo "q4_0, fuses, portable: $models fuses $work/q4_0.gguf portable"
    # Rows of several requests, which SMMLA multiplies by two, and each alone.
    for name in q4_0 q4_K_M; do echo "$name, batches, i8mm: $models batch $work/$name.gguf i8mm"; done
    for isa in i8mm dotprod neon portable; do
        for name in neox-parallel llama-gqa-tied gpt2; do
            echo "$name, reference answer, $isa: $models golden $goldens/$name $isa"
        done
    done
}
checks "$@" >"$work/checks"
xargs -P "$(nproc)" -d '\n' -I{} bash -c 'try "$1"' _ {} <"$work/checks" | tee "$work/said"

passed=$(grep -c '^ok - arm: ' "$work/said") all=$(wc -l <"$work/checks")
echo "$passed passed, $((all - passed)) failed"
[ "$passed" -gt 0 ] && [ "$passed" -eq "$all" ]
