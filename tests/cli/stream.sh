#!/usr/bin/env bash
# Caches that forget: run --stream, --cache, verify of streams.
. tests/cli/lib.sh

prompt="Once upon a time there was a poor woodcutter who"

# ---- before anything is forgotten, a stream is what a dense run is
fusebox run --temp 0 -n 64 -p "$prompt" --fuse none
cp "$work/out" "$work/wanted"
for cache in "--cache sinks" "--cache window" "--stream" "--cache sinks --sinks 0"; do
    # shellcheck disable=SC2086
    fusebox run --temp 0 -n 64 -p "$prompt" --fuse none $cache
    holds "$cache: the same text as long as nothing is forgotten" cmp "$work/out" "$work/wanted"
done
fusebox run --temp 0 -n 64 -p "$prompt" --cache sinks --window 20
differs "a small window gives another text" "$(cat "$work/out")" "$(cat "$work/wanted")"

# ---- beyond the context
succeeds "--stream -n 1500" run --stream -n 1500 --seed 3 -p "$prompt" --json
is "--stream: all of them" "$(jq '.tokens | length' "$work/out")" 1500
succeeds "a prompt longer than the cache" run --stream -n 20 --temp 0 -f tests/data/oz.txt --kv f32
cp "$work/out" "$work/long"
for threads in 1 3; do
    succeeds "the same on $threads threads" run --stream -n 20 --temp 0 -f tests/data/oz.txt --kv f32 --threads "$threads"
    holds "the same text" cmp "$work/out" "$work/long"
done
fusebox run --stream -n 5 --stats -p "$prompt"
holds "--stats: the cache" grep -qE '^cache +sinks: 4 first and 507 last tokens' "$work/err"

# ---- without end, until it is stopped
"$FUSEBOX" run --stream --seed 5 -p "$prompt" >"$work/out" 2>"$work/err" &
endless=$!
for _ in $(seq 300); do
    [ "$(wc -c <"$work/out")" -gt 3000 ] && break
    sleep 0.2
done
kill -INT $endless
wait $endless
is "endless: exit status after Ctrl-C" $? 130
holds "endless: more text than the context has" test "$(wc -c <"$work/out")" -gt 3000

# ---- an end token is a new paragraph
cp -rL models/storyteller "$work/ends"
id=$("$FUSEBOX" run "$work/ends" --temp 0 -n 3 -p "$prompt" --json | jq '.tokens[2]')
jq -c ".eos_token_id = $id" models/storyteller/config.json >"$work/ends/config.json"
[ ! -f "$work/ends/generation_config.json" ] || rm "$work/ends/generation_config.json"
fusebox run "$work/ends" --temp 0 -n 20 -p "$prompt" --json
is "an end token ends a run" "$(jq -c '[.stop, (.tokens | length)]' "$work/out")" '["end",2]'
fusebox run "$work/ends" --stream --temp 0 -n 20 -p "$prompt" --json
is "and not a stream" "$(jq -c '[.stop, (.tokens | length), .tokens[2]]' "$work/out")" "[\"length\",20,$id]"
holds "which has a paragraph there" jq -e '.text | contains("\n\n")' "$work/out"

# ---- verify
for name in neox-parallel llama-gqa-tied; do
    golden=tests/data/golden/streaming/$name.safetensors
    for spec in none all "all --exact" "all --isa portable" "none --isa ref"; do
        # shellcheck disable=SC2086
        succeeds "golden, $name, $spec" verify tests/data/golden/$name --golden "$golden" --fuse $spec
        holds "golden, $name, $spec: verified" grep -q '^verified: .*79 tokens' "$work/out"
    done
    succeeds "golden, $name, f16" verify tests/data/golden/$name --golden "$golden" --act f16
    succeeds "golden, $name: JSON" verify tests/data/golden/$name --golden "$golden" --json
    holds "golden, $name: JSON holds" jq -e '.ok and .caches[0].sinks == 2 and .caches[0].window == 10 and
        .caches[0].logits_max_abs < 1e-4' "$work/out"
    for act in f32 f16 bf16; do
        succeeds "fuses on a ring, $name, $act" verify tests/data/golden/$name --cache sinks --sinks 3 --act "$act"
    done
    succeeds "fuses on a ring, $name: exact" verify tests/data/golden/$name --cache sinks --exact
    succeeds "fuses on a ring, $name: window" verify tests/data/golden/$name --cache window --window 5
done

# ---- refusals
refuses "sinks of a dense cache" 2 "--sinks: 3 \(only with --cache sinks\)$" run --sinks 3
refuses "window of a dense cache" 2 "--window: 3 \(only with --cache window or sinks\)$" run --window 3
refuses "a stream and a dense cache" 2 "--stream: with --cache dense \(window or sinks" run --stream --cache dense
refuses "endless JSON" 2 "--json: with --stream \(give -n N" run --stream --json
refuses "a window beyond the context" 2 "window: 600 \(1 to 508: with 4 sinks at most the model's context, 512\)$" \
    run --stream --window 600
refuses "too many sinks" 2 "sinks: 512 \(0 to 511: with a window at most the model's context, 512\)$" \
    run --stream --sinks 512
refuses "an unknown cache" 2 "--cache: .*dense, window, sinks" run --cache sparse
refuses "learned positions" 2 "cache: sinks \(this model has learned positions" verify tests/data/golden/gpt2 --cache sinks
refuses "a golden and a cache" 2 "--cache, --sinks, --window: with --golden \(a golden says which cache it is for\)$" verify --cache sinks \
    --golden tests/data/golden/streaming/storyteller-oz.safetensors
refuses "a golden and a window" 2 "--cache, --sinks, --window: with --golden" verify --window 3 \
    --golden tests/data/golden/streaming/storyteller-oz.safetensors
refuses "sinks that leave nothing to forget" 2 "sinks: 70 \(at most 68 of the 72 tokens that are compared\)$" \
    verify tests/data/golden/neox-parallel --cache sinks --sinks 70
refuses "another model's golden" 2 ".*tensor input_ids: id " verify tests/data/golden/neox-parallel \
    --golden tests/data/golden/streaming/storyteller-oz.safetensors

finish
