#!/usr/bin/env bash
# fusebox bench. Nothing here depends on how fast anything is.
. tests/cli/lib.sh

small="--prompt 8 --gen 4 --reps 3"
model=tests/data/golden/neox-parallel

succeeds "bench: none and auto" bench $model $small
matches "bench: what was measured" "$work/out" "^$model: prompt 8, gen 4, 3 repetitions, [0-9]+ threads?, [a-z0-9]+, act f32, kv f16\$"
matches "bench: the check" "$work/out" '^check: auto against none: 5 of 5 greedy tokens equal, logits (bit-identical|within [0-9.e-]+)$'
for name in none auto; do matches "bench: decode of $name" "$work/out" "^$name +[0-9.]+ \([0-9.]+ to [0-9.]+\) +[0-9.]+ +[0-9]+( |\$)"; done
matches "bench: a ratio with its interval" "$work/out" '^auto .* [0-9.]+x \[[0-9.]+, [0-9.]+\]$'

succeeds "bench: + inside a spec" bench $model $small --compare none,all+-qkv_up,add3 --exact
matches "bench: the spec as it was given" "$work/out" '^check: all\+-qkv_up against none: 5 of 5 greedy tokens equal, logits bit-identical$'
succeeds "bench: one variant" bench $model $small --compare all --act bf16 --threads 1
succeeds "bench: the defaults fit a small context" bench $model --reps 1 --compare none
matches "bench: the defaults" "$work/out" ': prompt 64, gen 64, 1 repetition,'

succeeds "bench --json" bench $model $small --compare none,all --json --exact
is "bench --json: one line" "$(wc -l <"$work/out")" 1
for name in '"ok":true' '"machine":\{"cpu":("[^"]+"|null),"cores":[0-9]+,"memory_bytes":[0-9]+\}' '"version":"[0-9.]+"' '"commit":"[^"]+"' \
    '"date":"20[0-9-]+T[0-9:]+Z"' '"threads":[0-9]+' '"isa":"[a-z0-9]+"' '"act":"f32"' '"kv":"f16"' '"exact":true' '"prompt":8,"gen":4,"reps":3,"quiet":(true|false)' \
    '"fuse":"all","agrees":true,"tokens_equal":5,"bit_identical":true,"max_abs":0' \
    '"tpot_ms":\{"median":[0-9.e-]+,"p10":[0-9.e-]+,"p90":[0-9.e-]+,"samples":\[[0-9.e-]+,[0-9.e-]+,[0-9.e-]+\]\}' \
    '"tpot_ratio":\{"median":[0-9.e+-]+,"ci":\[[0-9.e+-]+,[0-9.e+-]+\],"confidence":0.75\}'; do
    matches "bench --json: $name" "$work/out" "$name"
done
holds "bench --json: is JSON with as many samples as repetitions" \
    jq -e '[.variants[] | .tpot_ms.samples, .ttft_ms.samples, .prefill_ms.samples | length] == [3,3,3,3,3,3]' "$work/out"

for model in neox-parallel llama-gqa-tied gpt2; do
    succeeds "bench --ops: $model" bench tests/data/golden/$model $small --ops
    matches "bench --ops: $model: decode" "$work/out" '^norm_linear +decode +[0-9.]+ +[0-9.]+ +[0-9.]+x \['
    matches "bench --ops: $model: prefill" "$work/out" '^norm_linear +prefill +[0-9.]+ +[0-9.]+ +[0-9.]+x \['
done
holds "bench --ops: only what applies" test -z "$(grep swiglu "$work/out")"
succeeds "bench --ops --json" bench tests/data/golden/gpt2 $small --ops --json
matches "bench --ops --json: an op" "$work/out" '"fuse":"bias_act","rows":1,"agrees":true,"bit_identical":true,"max_abs":0,"plain_us":\{"median":'

# ---- in turns with another program: each waits for the other
turns() { # turns LINES: as many lines on standard input
    status=0
    yes | head -n "$1" | "$FUSEBOX" bench $model $small --compare none --turns --json >"$work/out" 2>"$work/err" || status=$?
}
model=tests/data/golden/neox-parallel
turns 2
is "bench --turns: exit status" "$status" 0
is "bench --turns: every repetition, then the report" "$(cut -c 1-11 "$work/out" | paste -sd,)" 'turn 1 of 3,turn 2 of 3,turn 3 of 3,{"ok":true,'
turns 1
is "bench --turns: the other one has gone: exit status" "$status" 1
matches "bench --turns: the other one has gone" "$work/err" '^fusebox: bench: stopped after 2 of 3 repetitions$'
mkfifo "$work/turn"
"$FUSEBOX" bench $model $small --compare none --turns <"$work/turn" >"$work/out" 2>"$work/err" &
pid=$!
exec 3>"$work/turn"
for i in $(seq 100); do [ -s "$work/out" ] && break || sleep 0.1; done
sleep 0.3
is "bench --turns: waits" "$(cat "$work/out")" 'turn 1 of 3'
exec 3>&-
wait $pid

# ---- what is refused
refuses "bench: unknown fuse" 2 'fuse: "nothing" \(none, all, auto' bench $small --compare none,nothing
refuses "bench: an empty spec" 2 'fuse: "" \(' bench $small --compare none,
refuses "bench: --prompt 0" 2 '--prompt: 0 \(1 to ' bench --prompt 0
refuses "bench: --reps 0" 2 '--reps: 0 \(1 to 100000\)$' bench --reps 0
refuses "bench: beyond the context" 2 "prompt and gen: 500 and 64 tokens \(the model's context is 512\)\$" bench --prompt 500
refuses "bench: --fuse is --compare here" 2 '--fuse \(only with --cache or --batch: --compare has the fuses\)$' bench --fuse all
refuses "bench: too many variants" 2 '--compare: more than 32 variants' bench --compare "$(printf 'none,%.0s' $(seq 40))none"
refuses "bench: f64 needs ref" 2 'act: f64' bench $small --act f64
# ---- other programs on all CPUs, while it is timed: for long enough that the kernel's clock ticks
long="--prompt 64 --gen 64 --reps 5"
[ -z "${FUSEBOX_TESTS_SLOW:-}" ] || long="--prompt 16 --gen 16 --reps 1"
spinners=()
for _ in $(seq "$(nproc)"); do
    (while :; do :; done) &
    spinners+=($!)
done
fusebox bench $long
cp "$work/out" "$work/busy"
fusebox bench --ops $long --json
kill "${spinners[@]}"
wait "${spinners[@]}" 2>/dev/null
if [ "$(jq .machine_busy.other_percent "$work/out")" = null ]; then
    echo "not ok 1 # SKIP a busy machine: /proc/stat does not say so here, or it was too fast"
else
    matches "a busy machine: the note" "$work/busy" '^note: the machine was busy: other programs had [0-9]+% of the time of its [0-9]+ CPUs?$'
    holds "a busy machine: JSON" jq -e '.machine_busy | .busy and .other_percent > 10 and .other_percent <= 100 and .cpus > 0' "$work/out"
fi
finish
