#!/usr/bin/env bash
# fusebox bench --cache. Nothing here depends on how fast anything is.
. tests/cli/lib.sh

model=tests/data/golden/llama-gqa-tied
stream="$model --cache sinks --sinks 4 --window 12"
row='[0-9.]+ \([0-9.]+ to [0-9.]+\) +[0-9.]+ +[0-9.]+ kB +[0-9.]+ MB +[0-9.]+$'

succeeds "bench --cache sinks" bench $stream --gen 300
matches "bench --cache: what was measured" "$work/out" \
    "^$model: cache sinks 4 \+ window 12, gen 300, fuse auto, [0-9]+ threads?, [a-z0-9]+, act f32, kv f16\$"
matches "bench --cache: the check" "$work/out" '^check: 16 of 16 greedy tokens as with a dense cache, before any is forgotten$'
for position in 16 32 64 128 256 300; do matches "bench --cache: after $position tokens" "$work/out" "^$position +$row"; done
is "bench --cache: no other lines" "$(grep -cE "^[0-9]+ +$row" "$work/out")" 6
matches "bench --cache: recomputing" "$work/out" \
    '^recomputing the window at each step costs [0-9.]+ ms a token: the stream is [0-9.]+x (faster|slower)$'
is "bench --cache: the cache does not grow" \
    "$(grep -E "^[0-9]+ +$row" "$work/out" | grep -oE '[0-9.]+ kB' | sort -u | wc -l)" 1

succeeds "bench --cache window" bench $model --cache window --window 20 --gen 40 --fuse none --threads 1
matches "bench --cache window: what was measured" "$work/out" ': cache window, window 20, gen 40, fuse none, 1 thread, '
is "bench --cache window: lines" "$(grep -oE '^[0-9]+' "$work/out" | paste -sd,)" 20,40

succeeds "bench --cache dense" bench $model --cache dense --gen 1000
is "bench --cache dense: lines up to the context" "$(grep -oE '^[0-9]+' "$work/out" | paste -sd,)" 8,16,32,64,120
matches "bench --cache dense: says why" "$work/out" "^a dense cache ends at the model's context, 128 tokens\$"
holds "bench --cache dense: nothing to compare" test -z "$(grep -E '^(check|recomputing)' "$work/out")"
succeeds "bench --cache dense: GPT-2" bench tests/data/golden/gpt2 --cache dense

succeeds "bench --cache --json" bench $stream --gen 300 --json --fuse all
is "bench --cache --json: one line" "$(wc -l <"$work/out")" 1
json() { # json NAME FILTER: true for what was written
    holds "bench --cache --json: $1" jq -e "$2" "$work/out"
}
json "where it ran" '.ok and (.machine.cores >= 1) and (.machine.memory_bytes > 0) and (.date | startswith("20")) and (.commit | length > 0)'
json "what ran" '[.model, .fuse, .cache, .sinks, .window, .gen, .steps, .tokens_checked, .act, .kv] ==
    ["'$model'", "all", "sinks", 4, 12, 300, 16, 16, "f32", "f16"]'
json "positions" '[.lines[].position] == [16, 32, 64, 128, 256, 300]'
json "times" 'all(.lines[].tpot_ms, .recompute.tpot_ms; 0 < .p10 and .p10 <= .median and .median <= .p90) and all(.lines[]; .ttft_ms > 0)'
json "tokens a second" 'all(.lines[]; .tokens_per_s * .tpot_ms.median / 1000 - 1 | fabs < 1e-6)'
json "memory" '([.lines[].cache_bytes] | unique | length) == 1 and all(.lines[]; .rss_bytes > 1000000)'
json "the ratio is that to the last line" '.ratio * .lines[-1].tpot_ms.median / .recompute.tpot_ms.median - 1 | fabs < 1e-6'
succeeds "bench --cache dense --json" bench $model --cache dense --json
json "dense: nothing to compare" 'has("recompute") and .recompute == null and has("ratio") and .ratio == null and .sinks == 0 and .window == 0 and .tokens_checked == 0'

succeeds "bench --help" bench --help
for option in cache sinks window; do matches "bench --help: --$option" "$work/out" "^ +--$option "; done
matches "bench --help: what --cache does" "$work/out" 'With --cache no fuses are compared: one greedy stream'

# ---- Ctrl-C: no report, no message, at once. The stream would take hours.
"$FUSEBOX" bench $stream --gen 100000000 >"$work/out" 2>"$work/err" </dev/null &
pid=$!
for i in $(seq 50); do # until it catches the signal: bit 2 of SigCgt
    caught=$(sed -n 's/^SigCgt:\t//p' /proc/$pid/status)
    [ $((0x${caught:-0} & 2)) -ne 0 ] && break || sleep 0.1
done
kill -INT $pid
for i in $(seq 100); do kill -0 $pid 2>/dev/null && sleep 0.1 || break; done
kill -KILL $pid 2>/dev/null
status=0
wait $pid || status=$?
is "bench --cache: Ctrl-C: exit status" "$status" 130
is "bench --cache: Ctrl-C: no output" "$(cat "$work/out" "$work/err")" ""

# ---- what is refused
refuses "bench --cache: GPT-2" 2 'cache: sinks \(this model has learned positions, 128 of them' bench tests/data/golden/gpt2 --cache sinks
refuses "bench --cache: unknown" 2 '--cache: ring \(dense, window, sinks\)$' bench --cache ring
refuses "bench --cache: --compare" 2 '--compare \(not with --cache: one stream is timed, with the fuses of --fuse\)$' bench $stream --compare none
refuses "bench --cache: --ops" 2 '--ops \(not with --cache: ' bench $stream --ops
refuses "bench --cache: --turns" 2 '--turns \(not with --cache: ' bench $stream --turns
refuses "bench --cache: --reps" 2 '--reps \(not with --cache: ' bench $stream --reps 3
refuses "bench --cache: --prompt" 2 '--prompt \(not with --cache: ' bench $stream --prompt 3
refuses "bench --cache: too few tokens" 2 'gen: 15 tokens \(at least 16, which fill the cache\)$' bench $stream --gen 15
refuses "bench --cache: a window beyond the context" 2 'window: 125 \(1 to 124: ' bench $model --cache sinks --window 125
refuses "bench --cache: unknown fuse" 2 'fuse: "nothing" \(' bench $stream --fuse nothing
refuses "bench --cache window: --sinks" 2 '--sinks: 4 \(only with --cache sinks\)$' bench $model --cache window --sinks 4
refuses "bench --cache dense: --window" 2 '--window: 9 \(only with --cache window or sinks\)$' bench $model --cache dense --window 9
refuses "bench: --sinks alone" 2 '--sinks \(only with --cache\)$' bench $model --sinks 4
refuses "bench: --window alone" 2 '--window \(only with --cache\)$' bench $model --window 4
finish
