#!/usr/bin/env bash
# bench/: the scripts are sound, and a tiny model goes all the way. llama.cpp is not needed here.
. tests/cli/lib.sh
export XDG_CACHE_HOME=$work/cache # it measures the machine anew

if ! command -v python3 >/dev/null; then
    echo "not ok 1 # SKIP the benchmark scripts: no python3 here"
    finish
fi
for script in bench/*.py; do
    holds "$script: compiles" python3 -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' "$script"
done

holds "checkpoint: tiny" python3 -B bench/make_checkpoint.py "$work/tiny" --shape tiny
succeeds "checkpoint: opens" info "$work/tiny"
matches "checkpoint: its shape" "$work/out" '^parameters .*165,632'
succeeds "checkpoint: runs" run "$work/tiny" -p abc -n 4 --temp 0 --json
is "checkpoint: an id is a byte" "$(member prompt_tokens "$work/out")" 3
succeeds "checkpoint: its fuses are proven" verify "$work/tiny"
cp -r "$work/tiny" "$work/again"
holds "checkpoint: again" python3 -B bench/make_checkpoint.py "$work/again" --shape tiny
holds "checkpoint: the same bytes" diff -r "$work/tiny" "$work/again"
holds "checkpoint: f32" python3 -B bench/make_checkpoint.py "$work/wide" --shape tiny --dtype f32
succeeds "checkpoint: f32 opens" info "$work/wide" --json
matches "checkpoint: f32 is stored" "$work/out" '"f32":\{"parameters":16[0-9]+'
holds "checkpoint: bf16" python3 -B bench/make_checkpoint.py "$work/half" --shape tiny --dtype bf16
holds "checkpoint: bf16 is f32, rounded" python3 -B - "$work/half" "$work/wide" <<'END'
import struct, sys
def data(folder):
    whole = open(folder + "/model.safetensors", "rb").read()
    return whole[8 + struct.unpack_from("<Q", whole)[0]:]
half, wide = (data(folder) for folder in sys.argv[1:])
count = len(half) // 2
half = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in struct.unpack(f"<{count}H", half)]
wide = struct.unpack(f"<{count}f", wide)
sys.exit(not all(abs(a - b) <= abs(b) / 256 for a, b in zip(half, wide)))
END
succeeds "checkpoint: bf16 runs" verify "$work/half" --act bf16

cpu() { # cpu ARGUMENT...: as fusebox() does
    status=0
    python3 -B bench/cpu.py --fusebox "$FUSEBOX" --no-llama --dir "$work/models" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}
cpu --shape tiny --type f16 --work decode@64,prefill@128 --reps 3 --threads 1 --json "$work/samples"
is "cpu.py: exit status" "$status: $(tail -n 1 "$work/err")" "0: tiny f16: prefill@128"
matches "cpu.py: the machine" "$work/out" ', 1 of [0-9]+ cores, 20[0-9-]+\. fusebox [0-9.]+ \(.*without llama\.cpp'
matches "cpu.py: decode" "$work/out" '^\| tiny \| f16 \| decode at 64 \| [0-9.]+ ms \([0-9.]+ to [0-9.]+\) \| [0-9]+% \|$'
matches "cpu.py: prefill" "$work/out" '^\| tiny \| f16 \| prefill of 128 \| [0-9.]+ tok/s \([0-9.]+ to [0-9.]+\) \|  \|$'
matches "cpu.py: bandwidth" "$work/out" '^Read bandwidth.* [0-9.]+ GB/s\.$'
holds "cpu.py --json: all samples" jq -e '.reps == 3 and .threads == [1] and ([.rows[] | .fusebox_ms | length] == [3, 3])
    and (.rows | all(.fusebox_ms | all(. > 0)))' "$work/samples"
# What a step reads grows with the context by k and v of 2 layers of 64 elements, in 2 or 4 bytes.
holds "cpu.py --json: bytes" jq -e '.rows[0].bytes | . > 200000 and . < 600000' "$work/samples"

cpu --shape tiny --type f16 --work batch@2 --reps 2 --threads 1 --json "$work/samples"
matches "cpu.py: batch" "$work/out" '^\| tiny \| f16 \| batch of 2 \| [0-9.]+ tok/s \([0-9.]+ to [0-9.]+\) \| [0-9]+% \|$'
holds "cpu.py: batch: samples" jq -e '.rows[0] | .sequences == 2 and (.fusebox_ms | length == 2 and all(. > 0))' "$work/samples"

cpu --shape tiny --type f16 --work decode@64 --reps 1 --threads 1,2 --json "$work/samples"
matches "cpu.py --threads: a row for each" "$work/out" '^\| tiny \| f16 \| 2 \| decode at 64 \|'
holds "cpu.py --threads: samples" jq -e '.threads == [1, 2] and [.rows[].threads] == [1, 2]' "$work/samples"
cpu --shape tiny --threads 1,none
is "cpu.py: no number of threads" "$status" 2

cpu --shape nothing
is "cpu.py: an unknown shape" "$status" 2
cpu --reps 0
is "cpu.py: no repetitions" "$status" 2
cpu --shape tiny --fusebox "$work/nothing"
is "cpu.py: no fusebox" "$status" 1
matches "cpu.py: no fusebox: says so" "$work/err" '^cpu.py: .*nothing'
finish
