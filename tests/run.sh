#!/usr/bin/env bash
# Builds and runs the tests; `make test` calls it. Usage: tests/run.sh STAGE...
#
#     unit      the cmocka programs, the checks of the command line and those of the server
#     install   the library as somebody else sees it: installed, found by pkg-config, its example built and run
#     fuzz      each libFuzzer target for FUZZ_SECONDS (5)
#     san       unit under AddressSanitizer and UndefinedBehaviorSanitizer
#     tsan      what threads share, under ThreadSanitizer: pool, turns, sessions, the server
#     lint      layout and static checks
#
# A program that passes is one line; one that fails shows its output. Lines that begin with # say what is being done.
# The last two lines are the seconds of each stage and `N passed, N failed`, which counts single cmocka tests and checks.
# The exit status is 0 only if something ran and nothing failed.
set -u
cd "$(dirname "$0")/.."

: "${MAKE:=make}" "${BUILD:=build}" "${FUZZ_SECONDS:=5}" "${TEST_SECONDS:=300}"
# CI logs want plain text, and a test's verdict must not depend on the caller's locale.
export LC_ALL=C.UTF-8 CMOCKA_MESSAGE_OUTPUT=TAP
# With a GPU the CUDA backend is built for one architecture: three take three times as long, and 90a, whose machine code is
# not made of the PTX for 90, twice as long.
export CUDA_ARCH=${CUDA_ARCH:-90}
# What is not about the GPU runs on the CPU, whatever the machine has; tests of the CUDA backend name their library.
export FUSEBOX_CUDA_LIBRARY=${FUSEBOX_CUDA_LIBRARY:-none}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# A child that starts threads is part of a test.
export TSAN_OPTIONS=${TSAN_OPTIONS:-die_after_fork=0}

passed=0
failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log

good() {
    passed=$((passed + 1))
    echo "ok - $1"
}
bad() { # bad NAME: also shows $log
    failed=$((failed + 1))
    echo "not ok - $1"
    tail -n 200 "$log" | sed 's/^/    /'
}
check() { # check NAME COMMAND...: one check, passed if the command succeeds
    local name=$1
    shift
    if "$@" >"$log" 2>&1; then good "$name"; else bad "$name"; fi
}

# Counts what make says that it compiles or links: a line every 15 s, or, on a terminal, one that changes.
progress() { # progress LABEL TOTAL
    local label=$1 total=$2 count=0 start=$SECONDS last=$SECONDS line
    while IFS= read -r line; do
        [[ $line == "  "[A-Z]* ]] || continue
        count=$((count + 1))
        if [ -t 1 ]; then
            printf '\r# building %s: %d of %d files, %d s' "$label" $count "$total" $((SECONDS - start))
        elif [ $((SECONDS - last)) -ge 15 ]; then
            last=$SECONDS
            echo "# building $label: $count of $total files, $((SECONDS - start)) s"
        fi
    done
    [ $count -eq 0 ] && return
    if [ -t 1 ]; then printf '\r\033[K'; fi
    echo "# built $label: $count files, $((SECONDS - start)) s"
}

build() { # build LABEL DIR ARGUMENT...: into DIR; inside a parallel make its job slots are used
    local label=$1 dir=$2 jobs=-j$(nproc) total
    shift 2
    case ${MAKEFLAGS:-} in *jobserver* | *-j*) jobs= ;; esac
    total=$("$MAKE" --no-print-directory -n BUILD="$dir" "$@" 2>/dev/null | grep -c "^printf '  %-3s")
    if [ "$total" -gt 0 ]; then echo "# building $label: $total files"; fi
    "$MAKE" --no-print-directory -s $jobs BUILD="$dir" "$@" 2>&1 | tee "$log" | progress "$label" "$total"
    return "${PIPESTATUS[0]}"
}

count() { grep -cE "$1" "$log"; }

# Runs one test program and adds up the lines `ok` and `not ok` that it prints (TAP). What does not report all the
# tests that it announced, or ends badly without naming one, has crashed: one more failure.
program() { # program NAME COMMAND...
    local name=$1 start=$EPOCHREALTIME status=0 ok notok skipped announced note=
    shift
    local early=$scratch/early/${name//\//.} ms
    if [ -n "$early_pid" ]; then
        while [ ! -f "$early.status" ] && kill -0 "$early_pid" 2>/dev/null; do sleep 0.1; done
    fi
    if [ -f "$early.status" ]; then
        cp "$early.log" "$log"
        read -r status ms <"$early.status"
    else
        timeout -k 10 "$TEST_SECONDS" "$@" >"$log" 2>&1 </dev/null || status=$?
        ms=$(((${EPOCHREALTIME/./} - ${start/./}) / 1000))
    fi
    skipped=$(count '^not ok [0-9]+ # SKIP')
    ok=$(count '^ok ')
    notok=$(($(count '^not ok ') - skipped))
    announced=$(sed -nE 's/^1\.\.([0-9]+)$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
        note="killed after $TEST_SECONDS s"
    elif [ $status -ne 0 ] && [ $notok -eq 0 ]; then
        note="exit status $status"
    elif [ "$announced" -gt 0 ] && [ "$announced" -ne $((ok + notok + skipped)) ]; then
        note="ended after $((ok + notok + skipped)) of $announced tests"
    elif [ $((ok + notok + skipped)) -eq 0 ]; then
        note="no test ran"
    fi
    [ -z "$note" ] || notok=$((notok + 1))
    passed=$((passed + ok))
    failed=$((failed + notok))
    if [ $notok -eq 0 ]; then
        [ "$skipped" -eq 0 ] || note=", $skipped skipped: $(sed -nE 's/^not ok [0-9]+ # SKIP //p' "$log" | paste -sd' ')"
        printf 'ok - %s (%d, %d.%d s%s)\n' "$name" $ok $((ms / 1000)) $((ms % 1000 / 100)) "$note"
    else
        echo "not ok - $name: $notok failed${note:+ ($note)}"
        tail -n 200 "$log" | sed 's/^/    /'
    fi
}

# What is not timed runs early, as many programs at once as there are cores, and `program` waits for each. Those that
# take longest come first: at the end all cores have something left to do.
early_pid=
longest='serve/test_(load|hostile|heavy|page)|cli/(batch|batch_gpu|draft|draft_gpu|cuda|cuda_families|plan_gpu|quantize|step|stream_oz|quant_ppl|files|ppl_stream|verify)\.sh|backend/cuda/test_(host|fused|rows|window)|backend/cpu/test_attention|run/test_(soak|prefix|scheduler_mix|session|families|stream)|verify/test_(fusion|quantised|curve|sensitivity|verify)|oom/test_commands'
# What measures times, or how threads take turns, runs alone. The soak compares times side by side.
alone='cli/(bench|bench_cpu|bench_stream|plan|profile|memory)\.sh|base/test_(pool|turn)\.c|tests/(bench|plan)/|cli/test_busy\.c|run/test_(cancel|shared|threads)\.c'
alone_sanitized='cli/(bench|plan|profile)'
# What takes long and needs little: mixed load for two minutes, beside all that runs early.
beside='serve/test_soak'
longest_first() {
    local all
    all=$(cat)
    grep -E "$longest" <<<"$all"
    grep -vE "$longest" <<<"$all"
}
run_early() { # run_early LABEL DIR < sources
    local sources
    sources=$(cat)
    mkdir -p "$scratch/early"
    grep -E "$beside" <<<"$sources" | run_each 1 "$1" "$2" &
    grep -vE "$beside" <<<"$sources" | run_each "$(nproc)" "$1" "$2"
    wait
}
run_each() { # run_each COUNT LABEL DIR < sources: so many at a time
    FUSEBOX=$(realpath "$3")/fusebox SCRATCH=$scratch LABEL=$2 DIR=$3 TEST_SECONDS=$TEST_SECONDS xargs -r -P "$1" -I{} bash -c '
        source={} name=${source#tests/} status=0 start=$EPOCHREALTIME
        name="$LABEL: ${name%.c}" at=$SCRATCH/early/${name//\//.} command=$DIR/${source%.c}
        case $source in *.sh) command="bash $source" ;; *.py) command="python3 -B $source" ;; esac
        timeout -k 10 "$TEST_SECONDS" $command >"$at.log" 2>&1 </dev/null || status=$?
        echo "$status $(((${EPOCHREALTIME/./} - ${start/./}) / 1000))" >"$at.writing"
        mv "$at.writing" "$at.status"'
}

unit() { # unit DIR LABEL ARGUMENT...
    local dir=$1 label=$2 source name sources scripts early alone=$alone
    shift 2
    build "$label" "$dir" "$@" tests || { bad "$label: build"; return; }
    sources=$(find tests -name 'test_*.c' | sort)
    scripts=$(find tests/cli -name '*.sh' ! -name lib.sh | sort; find tests/serve -name 'test_*.py' | sort)
    if [ "$label" = san ]; then
        echo "# san: backend/cuda: not run: the emulated device changes stacks, which the sanitizers do not follow"
        echo "# san: cli/batch_gpu.sh, cli/draft_gpu.sh, cli/cuda.sh, cli/cuda_families.sh, cli/plan_gpu.sh, cli/step.sh, cli/stream_oz.sh: not run: the first six for the same reason, the last is minutes of what stream.sh does"
        echo "# san: run/test_soak: not run: memory and times of a long stream, which here are not the program's own"
        echo "# san: cli/batch.sh, cli/draft.sh: not run: they compare bits, for minutes; run/test_scheduler, test_scheduler_long and test_draft run the same code"
        sources=$(grep -vE 'backend/cuda/|run/test_soak' <<<"$sources")
        scripts=$(grep -vE 'cli/(batch|batch_gpu|draft|draft_gpu|cuda|cuda_families|plan_gpu|step|stream_oz)\.sh' <<<"$scripts")
        alone=$alone_sanitized
        export FUSEBOX_TESTS_SLOW=1 # a check that only has to take a while needs less work for it
    fi
    early=$(grep -vE "$alone" <<<"$scripts"$'\n'"$sources" | longest_first)
    echo "# running $label: $(wc -l <<<"$early") programs, $(nproc) at a time, then $(grep -cvxFf <(echo "$early") <<<"$sources"$'\n'"$scripts") one by one"
    run_early "$label" "$dir" <<<"$early" &
    early_pid=$!
    for source in $early; do run_one "$label" "$dir" "$source"; done
    wait "$early_pid"
    early_pid=
    for source in $(grep -vxFf <(echo "$early") <<<"$sources"$'\n'"$scripts"); do run_one "$label" "$dir" "$source"; done
    unset FUSEBOX_TESTS_SLOW
}

run_one() { # run_one LABEL DIR SOURCE
    local name=${3#tests/}
    case $3 in
    *.sh) FUSEBOX=$(realpath "$2")/fusebox program "$1: $name" bash "$3" ;;
    *.py) FUSEBOX=$(realpath "$2")/fusebox program "$1: $name" python3 -B "$3" ;;
    *) program "$1: ${name%.c}" "$2/${3%.c}" ;;
    esac
}

# The functions that the headers declare, and those that the shared library lets others see, must be the same.
exports_match() { # exports_match LIBRARY HEADER...
    local library=$1
    shift
    diff <(sed -nE 's/^FB_API .*[ *](fb_[a-z0-9_]+)\(.*/\1/p' "$@" | sort) \
        <(nm -D --defined-only "$library" | awk '{ print $3 }' | sort) >"$scratch/exports" && return
    echo "declared (<) and exported (>) functions differ:"
    cat "$scratch/exports"
    return 1
}

# Each installed header alone, as C11 and as C++17, with more warnings than its users have.
header_compiles() { # header_compiles NAME FLAG...
    local strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only"
    echo "#include <$1>" >"$scratch/header.c"
    shift
    ${CC:-cc} -std=c11 $strict "$@" "$scratch/header.c" && ${CXX:-g++} -std=c++17 $strict "$@" -x c++ "$scratch/header.c"
}

install_stage() {
    local root=$scratch/root prefix=/usr/local cuda= flags libs example name kind
    # Where no GPU is, nobody runs what nvcc makes. That the sources compile, and link, is seen without optimising them.
    [ -e /dev/nvidiactl ] || cuda=CUDA=0
    build install "$BUILD" all $cuda || { bad "install: build"; return; }
    if [ -n "$cuda" ]; then
        if ! build cuda "$BUILD" cuda-compiles; then
            bad "install: the CUDA sources compile"
        elif [ -f "$BUILD/tests/libfusebox_cuda_compiled.so" ]; then
            good "install: the CUDA sources compile"
        else
            echo "# install: the CUDA sources: not compiled: nvcc is not here"
        fi
    fi
    check "install: make install" "$MAKE" --no-print-directory -s BUILD="$BUILD" $cuda DESTDIR="$root" PREFIX=$prefix install
    check "install: exports" exports_match "$root$prefix/lib/libfusebox.so" include/*.h
    export PKG_CONFIG_PATH=$root$prefix/lib/pkgconfig
    flags=$(pkg-config --define-variable=prefix="$root$prefix" --cflags fusebox)
    libs=$(pkg-config --define-variable=prefix="$root$prefix" --libs --static fusebox)
    for name in $(cd include && echo *.h); do
        check "install: $name as C and as C++" header_compiles "$name" $flags
    done
    check "install: short structs: build" \
        ${CC:-cc} -std=c11 -Wall -Wextra -Werror tests/api/short_structs.c -o "$scratch/short_structs" $libs
    check "install: short structs: run" env LD_LIBRARY_PATH="$root$prefix/lib" \
        "$scratch/short_structs" "$root$prefix/share/fusebox/models/storyteller"
    for example in examples/*.c; do
        name=$(basename "$example" .c)
        for kind in shared static; do
            [ $kind = shared ] || libs=${libs/-lfusebox/-l:libfusebox.a}
            check "install: $name, $kind: build" \
                ${CC:-cc} -std=c11 -Wall -Wextra -Werror $flags "$example" -o "$scratch/$name" $libs
            check "install: $name, $kind: run" \
                env LD_LIBRARY_PATH="$root$prefix/lib" bash -c '"$@" | grep -q ..' _ \
                "$scratch/$name" "$root$prefix/share/fusebox/models/storyteller" "Once upon a time"
        done
    done
    unset PKG_CONFIG_PATH
}

can_link() { # can_link COMPILER FLAG: whether this compiler has the flag's run-time library
    echo 'int LLVMFuzzerTestOneInput(void) { return 0; } __attribute__((weak)) int main(void) { return 0; }' |
        "$1" "$2" -x c - -o "$scratch/probe" 2>/dev/null
}

# With clang where it is there, so that the suite has run as two compilers understand it.
san_stage() {
    if can_link clang -fsanitize=address; then
        unit "$BUILD/san-clang" san SAN=1 CC=clang
    else
        unit "$BUILD/san" san SAN=1
    fi
}

# Addresses as the sanitizer expects them: with many random bits it refuses to start.
tsan_stage() {
    local compiler fixed=
    setarch "$(uname -m)" -R true 2>/dev/null && fixed="setarch $(uname -m) -R"
    for compiler in clang "${CC:-cc}"; do
        can_link "$compiler" -fsanitize=thread && $fixed "$scratch/probe" && break
        compiler=
    done
    if [ -z "$compiler" ]; then
        echo "# tsan: not run: no compiler here has ThreadSanitizer"
        return
    fi
    local name programs="base/test_pool base/test_turn run/test_shared run/test_cancel run/test_threads run/test_replan"
    build tsan "$BUILD/tsan" TSAN=1 CC="$compiler" "$BUILD/tsan/fusebox" $(printf "$BUILD/tsan/tests/%s " $programs) || { bad "tsan: build"; return; }
    for name in $programs; do program "tsan: $name" $fixed "$BUILD/tsan/tests/$name"; done
    program "tsan: serve/test_soak.py" env FUSEBOX="$(realpath "$BUILD/tsan")/fusebox" FUSEBOX_TESTS_SLOW=1 SOAK_SECONDS=5 \
        $fixed python3 -B tests/serve/test_soak.py
}

fuzz_stage() {
    local source name
    if ! can_link clang -fsanitize=fuzzer; then
        echo "# fuzz: not run: clang with libFuzzer is not here"
        return
    fi
    build fuzz "$BUILD/fuzz" FUZZ=1 CC=clang fuzzers || { bad "fuzz: build"; return; }
    mkdir -p "$scratch/fuzz"
    for source in tests/fuzz/fuzz_*.c; do basename "$source" .c; done |
        SCRATCH=$scratch BUILD=$BUILD FUZZ_SECONDS=$FUZZ_SECONDS xargs -P "$(nproc)" -I{} bash -c '
            name={} at=$SCRATCH/fuzz/{} status=0
            mkdir -p "$at.corpus"
            "$BUILD/fuzz/$name" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 \
                -max_len=65536 -dict=tests/fuzz/json.dict -artifact_prefix="$BUILD/fuzz/$name-" -print_final_stats=1 \
                "$at.corpus" "tests/fuzz/corpus/${name#fuzz_}" >"$at.log" 2>&1 || status=$?
            echo $status >"$at.status"'
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        check "fuzz: $name" bash -c "cat '$scratch/fuzz/$name.log'; exit \$(cat '$scratch/fuzz/$name.status')"
        sed -nE 's/^stat::number_of_executed_units: +/#     inputs: /p' "$log"
    done
}

seconds=
for stage; do
    start=$SECONDS
    case $stage in
    unit) unit "$BUILD" unit ;;
    install) install_stage ;;
    fuzz) fuzz_stage ;;
    san) san_stage ;;
    tsan) tsan_stage ;;
    lint) check "lint" "$MAKE" --no-print-directory -s BUILD="$BUILD" lint ;;
    *)
        echo "tests/run.sh: unknown stage: $stage (unit, install, fuzz, san, tsan, lint)" >&2
        exit 2
        ;;
    esac
    seconds+="${seconds:+, }$stage $((SECONDS - start))"
done
echo "# seconds: $seconds; all $SECONDS"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
