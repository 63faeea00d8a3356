#!/usr/bin/env bash
# Everything that needs a GPU, in one command. Usage: tests/gpu/run.sh [STAGE...]   (all of them, in this order)
#
#     build      make, unless programs are given (below)
#     kernels    every kernel against the reference, fused ones against plain ones; sessions in several threads; a scheduler whose plan changes
#     ops        single ops on a caller's memory and stream, against the reference; captured in graphs
#     python     python/tests/torch on the GPU; what runs on the CPU alone, make test-python runs
#     goldens    the reference answers with the planner's fuses, in three activation types
#     proofs     each fuse against the plain program
#     step       the layers of a step in one kernel: the bits of the same ops, launched one by one
#     batch      random mixtures of requests: every answer has the bits that it has alone; the first token after a cached prompt
#     draft      texts with guesses (n-grams, smaller weights, a smaller model, a script) have the bits of one by one
#     streams    the goldens of streams, decoded under a graph; fuses on a ring; 100,000 tokens
#     agree      CPU and GPU layer by layer on every golden, plain and with all fuses
#     twice      two runs give the same bytes
#     memcheck   compute-sanitizer: accesses out of bounds, every buffer an allocation of its own
#     racecheck  compute-sanitizer: races in shared memory, on fewer cases
#     hf         a Pythia-2.8B-shaped model against Hugging Face in float32 and float16
#     bench      bench/gpu.py
#     draft-bench  bench/draft_gpu.py: steps of 2 to 8 rows over one of 1 row; acceptance by a script against its prediction
#     torch-bench  bench/torch_decode.py and the scripts of examples/python, each of which checks before it times
#
# Where the C libraries to build with are missing, give programs that were built elsewhere:
#     FUSEBOX=path/to/fusebox   with libfusebox_cuda.so beside it, or in FUSEBOX_CUDA_LIBRARY
#     TESTS=dir                 of the test programs: dir/backend/cuda/test_linear, …  (default: FUSEBOX's folder/tests)
#     build/python/files        of `make python-files`, or the package installed: for python and torch-bench
# ARCH=90a builds for one architecture only. CASES="gpt2 …" takes these goldens only. OUT=dir keeps logs and results (default: a new folder, which is named).
# DECODE_ARGS goes to bench/torch_decode.py: --no-compile saves minutes. Stages that need what is not here are skipped.
#
# A stage that takes longer than its budget fails. The last lines are a table; the exit status is 0 if no stage failed.
set -u
cd "$(dirname "$0")/../.."

: "${BUILD:=build}" "${ARCH:=90a}" "${OUT:=$(mktemp -d "${TMPDIR:-/tmp}/fusebox-gpu.XXXXXX")}"
mkdir -p "$OUT"
given=${FUSEBOX:-}
: "${FUSEBOX:=$BUILD/fusebox}"
: "${TESTS:=$(dirname "$FUSEBOX")/tests}"
export FUSEBOX_CUDA_LIBRARY=${FUSEBOX_CUDA_LIBRARY:-$(realpath -m "$(dirname "$FUSEBOX")/libfusebox_cuda.so")}
export LC_ALL=C.UTF-8 CMOCKA_MESSAGE_OUTPUT=TAP FUSEBOX TESTS OUT BUILD ARCH
goldens=tests/data/golden
cases=${CASES:-$(cd $goldens && for f in */golden.safetensors; do echo "${f%/*}"; done)}
model_of() { [ "$1" = storyteller ] && echo models/storyteller || echo "$goldens/$1"; }
cores=$(nproc)

# ---- helpers: each stage prints what it does, and returns 0, 1 or (skipped) 77 ------------------------------------------

# all COMMAND < lines: runs COMMAND LINE for each, as many at a time as there are cores; fails if one does.
all() { xargs -r -d '\n' -P "$cores" -I{} bash -c "$1 {}"; }

one_program() { # one_program NAME COMMAND...: shows what failed, or one line
    local name=$1 log=$OUT/$1.log status=0
    shift
    "$@" >"$log" 2>&1 || status=$?
    if [ $status -eq 0 ] && ! grep -E '^not ok' "$log" | grep -qv '# SKIP'; then
        echo "ok - $name ($(grep -cE '^ok' "$log"))"
    else
        echo "not ok - $name: exit status $status"
        grep -vE '^ok|^1\.\.' "$log" | tail -n 20 | sed 's/^/    /'
        return 1
    fi
}
one_kernel() { one_program "$PREFIX$1" $WRAPPER "$TESTS/backend/cuda/test_$1"; }
one_golden() { # one_golden CASE FUSE ACT
    one_program "golden-$1-$2-$3" "$FUSEBOX" verify "$MODEL" --golden $goldens/$1/golden.safetensors --backend cuda --fuse "$2" --act "$3"
}
golden_line() { MODEL=$(model_of "$1") one_golden "$@"; }
proof_line() { # proof_line MODEL ACT OPTION...
    local model=$1 act=$2
    shift 2
    one_program "proof-$(basename "$model")-$act${*:+-}$(echo "$*" | tr -d ' ')" "$FUSEBOX" verify "$model" --backend cuda --act "$act" "$@"
}
stream_line() { # stream_line CASE FUSE ACT OPTION...
    local case=$1 fuse=$2 act=$3
    shift 3
    MODEL=$(model_of "${case%-oz}") one_program "stream-$case-$fuse-$act${*:+-}$(echo "$*" | tr -d ' ')" "$FUSEBOX" verify "$(model_of "${case%-oz}")" \
        --golden $goldens/streaming/$case.safetensors --backend cuda --fuse "$fuse" --act "$act" "$@"
}
batch_line() { # batch_line MODEL OPTION...
    local model=$1
    shift
    one_program "batch-$(basename "$model")-$(echo "$*" | tr -d ' ')" "$FUSEBOX" verify "$model" --batch --backend cuda "$@"
}
draft_line() { # draft_line MODEL SOURCE ACT SEED OPTION...
    local model=$1 source=$2 act=$3 seed=$4
    shift 4
    one_program "draft-$(basename "$model")-$(basename "$source")-$act${*:+-}$(echo "$*" | tr -d ' /')" "$FUSEBOX" verify "$model" --draft "$source" \
        --backend cuda --act "$act" --seed "$seed" "$@"
}
step_line() { # step_line MODEL LAUNCHES OPTION...: of a step; compute-sanitizer in $WRAPPER
    local model=$1 launches=$2 name
    shift 2
    name=$PREFIX$(basename "$model")-$(echo "$*" | tr -d ' ')
    one_program "$name" $WRAPPER "$FUSEBOX" bench "$model" --backend cuda --compare all+-step,all --reps 1 --json "$@" || return 1
    [ "$(grep -oE '"bit_identical": *true' "$OUT/$name.log" | wc -l)" -eq 2 ] && grep -qE "\"barriers_per_step\": *$launches\b" "$OUT/$name.log" && return
    echo "not ok - $name: other bits, or not one kernel"
    return 1
}
# torch_missing MODULE...: true, and says which, if torch, a GPU or a module is not here; what crashes is here, and fails.
torch_missing() {
    python3 - "$@" <<'CHECK'
import importlib, sys
for name in ("torch", *sys.argv[1:]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}")
        sys.exit(0)
if sys.modules["torch"].cuda.is_available():
    sys.exit(1)
print("PyTorch finds no GPU")
CHECK
}
one_pytest() { # one_pytest FILE: all but the tests of the CPU; the last line says how many
    local name
    name=python-$(basename "$1" .py)
    one_program "$name" python3 -m pytest -c python/pyproject.toml -p no:cacheprovider -k "not cpu" "$1" || return 1
    echo "    $(tail -n 1 "$OUT/$name.log")"
}
one_script() { # one_script FILE ARGUMENT...
    local name
    name=torch-bench-$(basename "$1" .py)
    one_program "$name" python3 -B "$@"
}
export goldens
export -f step_line draft_line one_program one_kernel one_golden golden_line proof_line stream_line batch_line model_of one_pytest

families="fused linear attention norm rope embed activation quantize elementwise experts experts_many rows blocks candidates"

# ---- the stages -------------------------------------------------------------------------------------------------------

stage_build() {
    if [ -n "$given" ]; then
        echo "given: $FUSEBOX, $TESTS"
        [ -x "$FUSEBOX" ] && [ -f "$FUSEBOX_CUDA_LIBRARY" ] || { echo "not there: $FUSEBOX or $FUSEBOX_CUDA_LIBRARY"; return 1; }
        return 77
    fi
    make --no-print-directory -j"$cores" BUILD="$BUILD" CUDA_ARCH="$ARCH" all tests python-files
}
stage_kernels() {
    export PREFIX=kernel- WRAPPER= FUSEBOX_KERNELS_EVERY=${FUSEBOX_KERNELS_EVERY:-2}
    ls "$TESTS"/backend/cuda/test_linear >/dev/null || return 1
    printf '%s\n' $families threads replan prefix exact | all one_kernel
}
stage_ops() {
    local op status=0
    for op in norm elementwise linear rope attention quantize context; do one_program "op-$op" "$TESTS/ops/test_$op" || status=1; done
    return $status
}
stage_python() {
    export PYTHONPATH=$PWD/python/src${PYTHONPATH:+:$PYTHONPATH}
    torch_missing pytest transformers && return 77
    ls python/tests/torch/test_*.py | all one_pytest
}
stage_goldens() {
    for case in $cases; do
        for act in f32 f16 bf16; do echo "$case auto $act"; done
    done | all golden_line
}
stage_proofs() {
    local work=$OUT/quantised type
    mkdir -p "$work"
    for type in q8_0 q4_0; do "$FUSEBOX" quantize $goldens/neox-parallel "$work/$type.gguf" --type $type --force >/dev/null || return 1; done
    for act in f32 f16 bf16; do
        for case in neox-parallel neox-serial llama-gqa-tied llama-llama3-bias gpt2; do
            echo "$goldens/$case $act"
            echo "$goldens/$case $act --exact"
        done
        for type in q8_0 q4_0; do
            echo "$work/$type.gguf $act"
            echo "$work/$type.gguf $act --dot float"
        done
        echo "models/storyteller $act"
        for case in mistral-window qwen2 qwen3 gemma2 gemma3 phi3-long olmo2 granite smollm3 stablelm mixtral qwen3-moe; do
            echo "$goldens/$case $act"
        done
    done | all proof_line
}
step_cases() { # models whose layers one kernel does
    for case in neox-parallel neox-serial llama-gqa-tied llama-mha; do echo "$goldens/$case 5 --act f16 --prompt 12 --gen 12"; done
    echo "$goldens/gpt2 6 --act f16 --prompt 12 --gen 12"
    echo "$goldens/llama-linear-sharded 5 --act bf16 --kv bf16 --prompt 12 --gen 12"
}
stage_step() {
    local work=$OUT/quantised type
    export PREFIX=step- WRAPPER=
    mkdir -p "$work"
    python3 -B bench/make_checkpoint.py "$work/tiny" --shape tiny || return 1
    for type in q8_0 q4_0; do "$FUSEBOX" quantize models/storyteller "$work/storyteller-$type.gguf" --type $type --force >/dev/null || return 1; done
    {
        step_cases
        for prompt in 8 120 380; do echo "models/storyteller 5 --act f16 --prompt $prompt --gen 64"; done
        # More parts than blocks; a split of several tiles.
        for prompt in 5000 9000; do echo "$work/tiny 5 --act f16 --prompt $prompt --gen 40"; done
        for type in q8_0 q4_0; do
            for act in f16 bf16; do echo "$work/storyteller-$type.gguf 5 --act $act --kv $act --prompt 100 --gen 64"; done
        done
    } | all step_line
}
stage_streams() {
    for case in neox-parallel llama-gqa-tied; do
        for spec in "none f32" "all f32" "all f32 --exact" "all,-graph f32" "auto f16" "auto bf16"; do echo "$case $spec"; done
    done | all stream_line || return 1
    echo "storyteller-oz auto f32" | all stream_line || return 1
    for case in neox-parallel llama-gqa-tied; do
        for act in f32 f16; do
            echo "$goldens/$case $act --cache sinks --sinks 3"
            echo "$goldens/$case $act --cache window --exact"
        done
    done | all proof_line || return 1
    "$FUSEBOX" run --backend cuda --stream --seed 1 -n ${STREAM_TOKENS:-100000} -p "Once upon a time" --stats >"$OUT/endless.txt" || return 1
    "$FUSEBOX" bench --backend cuda --cache sinks --window 252 --gen ${STREAM_TOKENS:-100000}
}
stage_batch() {
    local case act type
    for type in q8_0 q4_0; do
        "$FUSEBOX" quantize models/storyteller "$OUT/$type.gguf" --type $type >/dev/null || return 1
    done
    {
        for case in $cases; do
            [ -f "$(model_of "$case")/config.json" ] || continue
            for act in f32 f16 bf16; do
                echo "$(model_of "$case") --act $act --rounds ${BATCH_ROUNDS:-4} --fuse all --seed $((${#case} + ${#act}))"
            done
            echo "$(model_of "$case") --act f16 --rounds 2 --seed 5"
        done
        for type in q8_0 q4_0; do
            for act in f32 f16 bf16; do echo "$OUT/$type.gguf --act $act --rounds 3 --seed 7"; done
            echo "$OUT/$type.gguf --act f16 --rounds 2 --dot float"
        done
        echo "models/storyteller --act f16 --rounds 2 --exact"
        echo "models/storyteller --act f16 --rounds 2 --fuse none"
        echo "models/storyteller --act f16 --rounds 2 --fuse all,-graph"
    } | all batch_line
}
stage_draft() {
    local work=$OUT/draft case act source seed=1 layers
    mkdir -p "$work"
    for type in q8_0 q4_0; do "$FUSEBOX" quantize models/storyteller "$work/$type.gguf" --type $type --force >/dev/null || return 1; done
    {
        for case in $cases; do
            [ -f "$(model_of "$case")/config.json" ] || continue
            layers=$(python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); print(c.get("num_hidden_layers", c.get("n_layer")) - 1)' "$(model_of "$case")/config.json")
            rm -rf "$work/$case"
            python3 -B tests/support/fewer_layers.py "$(model_of "$case")" "$work/$case" "$layers" || return 1
            for act in f32 f16 bf16; do
                for source in ngram q4 scripted "$work/$case"; do
                    # Rows that are no whole blocks cannot become smaller.
                    case $source-$case in q4-gpt2-inner | q4-llama-llama3-bias | q4-neox-old-nobias) continue ;; esac
                    echo "$(model_of "$case") $source $act $((seed++)) --golden $goldens/$case/golden.safetensors"
                done
            done
            echo "$(model_of "$case") scripted f16 $((seed++)) --fuse all,-graph"
            echo "$(model_of "$case") scripted f16 $((seed++)) --fuse all"
        done
        for act in f32 f16 bf16; do
            for type in q8_0 q4_0; do
                for source in ngram q4 scripted; do [ $source-$type = q4-q4_0 ] || echo "$work/$type.gguf $source $act $((seed++))"; done
            done
        done
        echo "models/storyteller q4 f16 $((seed++)) --gen 200 --rounds 10"
        echo "models/storyteller scripted f16 $((seed++)) --exact"
    } | all draft_line
}
# The promises of speed: verification of 2 to 8 rows over 1 row, and scripted acceptance against the prediction.
stage_draft-bench() {
    [ -f bench/draft_gpu.py ] || { echo "bench/draft_gpu.py is not here"; return 77; }
    python3 -B bench/draft_gpu.py --fusebox "$FUSEBOX" --out "$OUT/draft-bench" ${DRAFT_ARGS:-}
}
stage_agree() { python3 tests/gpu/agree.py --fusebox "$FUSEBOX" --only "$(echo $cases | tr ' ' ,)"; }
stage_twice() {
    local i act
    for i in 1 2; do
        for act in f32 f16 bf16; do
            "$FUSEBOX" run --backend cuda --act $act -p "Once upon a time" -n ${TWICE_TOKENS:-300} --temp 0 >"$OUT/greedy-$act.$i" || return 1
            "$FUSEBOX" run --backend cuda --act $act -p "Once upon a time" -n ${TWICE_TOKENS:-300} --seed 7 >"$OUT/drawn-$act.$i" || return 1
            [ $act = f16 ] || continue
            for case in $cases; do
                "$FUSEBOX" verify "$(model_of "$case")" --golden $goldens/$case/golden.safetensors --backend cuda --act $act --json
            done >"$OUT/goldens-$act.$i" || return 1
        done
    done
    for i in greedy-f32 greedy-f16 greedy-bf16 drawn-f32 drawn-f16 drawn-bf16 goldens-f16; do
        cmp "$OUT/$i.1" "$OUT/$i.2" || return 1
    done
    echo "seven files are identical"
}
sanitizer() { command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1; }
stage_memcheck() {
    local tool
    tool=$(sanitizer)
    [ -n "$tool" ] || { echo "compute-sanitizer is not here"; return 77; }
    export PREFIX=memcheck- WRAPPER="$tool --tool memcheck --error-exitcode 9" FUSEBOX_KERNELS_APART=1 FUSEBOX_KERNELS_EVERY=23
    printf '%s\n' $families | all one_kernel || return 1
    WRAPPER="$WRAPPER" one_program memcheck-run $WRAPPER "$FUSEBOX" verify $goldens/neox-parallel --golden $goldens/neox-parallel/golden.safetensors --backend cuda --act f16 || return 1
    step_cases | head -n 3 | all step_line
}
stage_racecheck() {
    local tool
    tool=$(sanitizer)
    [ -n "$tool" ] || { echo "compute-sanitizer is not here"; return 77; }
    export PREFIX=racecheck- WRAPPER="$tool --tool racecheck --error-exitcode 9" FUSEBOX_KERNELS_EVERY=293
    printf '%s\n' fused linear attention norm quantize | all one_kernel || return 1
    echo "$goldens/llama-gqa-tied 5 --act f16 --prompt 6 --gen 3" | all step_line
}
stage_hf() {
    python3 -c 'import torch, transformers, safetensors; assert torch.cuda.is_available()' || { echo "no PyTorch with a GPU here"; return 77; }
    python3 tests/gpu/with_hf.py --fusebox "$FUSEBOX" --shape "${HF_SHAPE:-neox-2.8b}" --folder "${HF_FOLDER:-/tmp/fusebox-hf}"
}
stage_bench() {
    [ -f bench/gpu.py ] || { echo "bench/gpu.py is not here"; return 77; }
    python3 bench/gpu.py --fusebox "$FUSEBOX" --out "$OUT/bench" ${BENCH_ARGS:-}
}
stage_torch-bench() {
    local status=0 name
    export PYTHONPATH=$PWD/python/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
    torch_missing transformers && return 77
    mkdir -p "$OUT/torch-bench"
    for name in layer_norm_residual mlp_strategies q4_0_fused_quantise triton_comparison gpt_neox_streaming; do
        one_script examples/python/$name.py --out "$OUT/torch-bench" || status=1
    done
    one_script bench/torch_decode.py --json "$OUT/torch-bench/torch_decode.json" ${DECODE_ARGS:-} || status=1
    return $status
}

# ---- the run ------------------------------------------------------------------------------------------------------------

# Seconds that each may take, times SLOW.
budget() { echo $(($(seconds_of "$1") * ${SLOW:-1})); }
seconds_of() {
    case $1 in
    build) echo 420 ;; kernels) echo 150 ;; ops) echo 20 ;; python) echo 200 ;; goldens) echo 40 ;; proofs) echo 120 ;; step) echo 40 ;; streams) echo 120 ;; batch) echo 150 ;; draft) echo 300 ;; draft-bench) echo 180 ;; agree) echo 30 ;; twice) echo 60 ;;
    memcheck) echo 60 ;; racecheck) echo 60 ;; hf) echo 80 ;; bench) echo 170 ;; torch-bench) echo 400 ;;
    esac
}
stages="build kernels ops python goldens proofs step batch draft streams agree twice memcheck racecheck hf bench draft-bench torch-bench"
for stage in "$@"; do
    case " $stages " in *" $stage "*) ;; *) echo "tests/gpu/run.sh: unknown stage: $stage ($stages)" >&2; exit 2 ;; esac
done

if [ "${FUSEBOX_GPU_STAGE:-}" ]; then # the stage alone, in a process that can be killed with all its children
    stage_"$FUSEBOX_GPU_STAGE"
    exit
fi
failed=0
table=
for stage in ${@:-$stages}; do
    echo "== $stage"
    start=$EPOCHREALTIME status=0
    FUSEBOX_GPU_STAGE=$stage FUSEBOX=${given:-} timeout -k 5 "$(budget "$stage")" bash "$0" >"$OUT/$stage.txt" 2>&1 || status=$?
    seconds=$(((${EPOCHREALTIME/./} - ${start/./}) / 100000))
    case $status in
    0) verdict=pass ;;
    77) verdict=skipped ;;
    124 | 137) verdict="FAIL (over $(budget "$stage") s)" ;;
    *) verdict=FAIL ;;
    esac
    grep -vE '^ok' "$OUT/$stage.txt" | tail -n 60
    case $verdict in FAIL*) failed=1 ;; esac
    counted="$(grep -cE '^ok' "$OUT/$stage.txt") ok, $(grep -cE '^not ok' "$OUT/$stage.txt") not ok"
    table+=$(printf '%-11s %-20s %5d.%d s  %s' "$stage" "$verdict" $((seconds / 10)) $((seconds % 10)) "$counted")$'\n'
done
echo
printf '%-11s %-20s %8s\n' stage verdict time
printf '%s' "$table"
echo "logs: $OUT"
exit $failed
