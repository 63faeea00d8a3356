#!/usr/bin/env bash
# fusebox profile: where the time of a step goes.
. tests/cli/lib.sh
export XDG_CACHE_HOME="$work/cache" FUSEBOX_CUDA_LIBRARY=none

# Which fuses pay is the planner's to say, by what it measures: here all of them.
succeeds "profile" profile --threads 1 --prompt 16 --gen 16 --fuse all
for row in 'embed' 'down_add' 'head_screen' 'between ops' 'wall'; do
    matches "profile: $row" "$work/out" "^$row +"
done
matches "profile: fuses joined" "$work/out" '^bias_act\+qkv_up\+norm_linear +8 '
matches "profile: the machine's bandwidth" "$work/out" 'GB/s$'

matches "profile: a type that would be faster" "$work/out" '^note: weights are f16; as q8_0 a step would read 0\.5[0-9] times as much '
fusebox quantize models/storyteller "$work/story.gguf" --type q4_0 >/dev/null
succeeds "profile of Q4_0" profile "$work/story.gguf" --threads 1 --prompt 8 --gen 8
is "profile of Q4_0: no type is faster" "$(grep -c 'weights are' "$work/out")" 0

# The shares of the rows are the wall time.
adds_up() { # adds_up NAME ARGUMENT...
    local name=$1
    shift
    succeeds "$name" profile "$@"
    local sum
    sum=$(awk '/^wall /{exit} {for (i = 1; i <= NF; i++) if ($i ~ /^[0-9.]+%$/) {sum += $i; break}} END {printf "%d", sum}' "$work/out")
    if [ "$sum" -ge 95 ] && [ "$sum" -le 105 ]; then ok "$name: shares add up"; else
        not_ok "$name: shares add up" "$sum% of the wall time: $(head -c 600 "$work/out")"
    fi
}
adds_up "decode, plain" --fuse none --threads 1 --prompt 8 --gen 16
adds_up "decode, two threads" --threads 2 --prompt 8 --gen 16
adds_up "prefill" --prefill --threads 1 --prompt 150
adds_up "llama" tests/data/golden/llama-gqa-tied --threads 1
adds_up "gpt2" tests/data/golden/gpt2 --threads 1 --act f16

fusebox profile --fuse none --threads 1 --prompt 8 --gen 8
matches "plain ops" "$work/out" '^attn_scores +8 '
is "plain ops: no fuse" "$(grep -c head_ "$work/out")" 0

succeeds "--json" profile --json --threads 1 --prompt 8 --gen 8
is "--json: one line" "$(wc -l <"$work/out")" 1
is "--json: phase" "$(member phase "$work/out")" '"decode"'
is "--json: layers" "$(member layers "$work/out")" 8
holds "--json: well formed" python3 -c 'import json,sys; p=json.load(open(sys.argv[1]))["profile"]
s=sum(o["seconds"] for o in p["ops"])+p["between"]
assert abs(s-p["wall"]) <= 0.05*p["wall"], (s,p["wall"])
assert all(o["bytes"] > 0 and o["calls"] > 0 for o in p["ops"])' "$work/out"

refuses "too long" 2 'prompt and gen: 612 tokens \(the model.s context is 512\)' profile --prompt 600 --gen 12
refuses "an unknown fuse" 2 'fuse: "nope"' profile --fuse nope
refuses "no steps" 2 '--gen: 0 ' profile --gen 0

# ---- a measurement that cannot be true: something else ran meanwhile
for file in "$work"/cache/fusebox/machine-*-1-*-f32.json; do
    jq -c '.bandwidth |= map([.[0], 1e8])' "$file" >"$work/slow" && mv "$work/slow" "$file"
done
succeeds "a slow machine" profile --threads 1 --prompt 8 --gen 16
matches "a slow machine: the note" "$work/out" '^note: this step read at [0-9.]+ GB/s: the machine was measured while '
succeeds "a slow machine: plan" plan --threads 1 --prompt 8 --gen 16
matches "a slow machine: plan's note" "$work/out" '^note: this step read at '
succeeds "measured again" plan --threads 1 --prompt 8 --gen 16 --calibrate

# ---- a GPU, emulated
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
[ -f "$library" ] || finish
FUSEBOX_CUDA_LIBRARY=$library
adds_up "cuda" tests/data/golden/neox-parallel --backend cuda --prompt 4 --gen 4
matches "cuda: the device" "$work/out" '^decode steps at positions 4 to 7, Emulated GPU, sm_90, mean of the faster 2$'
matches "cuda: of max" "$work/out" '^rope_kv +3 .*% +[0-9.]+ ?k?B +[0-9.]+ +[0-9]+% +[0-9.]+x$'
adds_up "cuda: prefill" tests/data/golden/neox-parallel --backend cuda --prefill --prompt 12
finish
