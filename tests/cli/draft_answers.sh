#!/usr/bin/env bash
# Guesses in run --batch and chat: the answers without them, and what is said of them.
. tests/cli/lib.sh

# ---- several answers at once
for options in "--seed 3" "--temp 0" "--seed 4 --stop the"; do
    # shellcheck disable=SC2086
    succeeds "batch $options" run -p "Once upon a time" -n 50 --batch 4 --json $options
    cp "$work/out" "$work/plain"
    # shellcheck disable=SC2086
    succeeds "batch $options, with guesses" run -p "Once upon a time" -n 50 --batch 4 --json $options --draft q4 --draft-tokens 4
    is "batch $options: the same answers" "$(jq -c .answers "$work/out")" "$(jq -c .answers "$work/plain")"
    holds "batch $options: guesses were kept, and others were not" jq -e '.kept > 0 and .drafted > .kept' "$work/out"
    is "batch $options: without a draft nothing is said of guesses" "$(jq 'has("kept")' "$work/plain")" false
done
fusebox run -p "Once upon a time" -n 50 --batch 2 --stats --draft q4 --draft-tokens 4
matches "batch --stats: what was kept" "$work/err" '^draft            q4: [0-9.]+ tokens a step, [0-9]+ of [0-9]+ guesses kept \([0-9]+%\)$'

# ---- one answer
succeeds "run --json with guesses" run -p "Once upon a time" -n 50 --seed 3 --json --draft q4 --draft-tokens 4
holds "run --json: guesses were kept" jq -e '.stats.kept > 5 and .stats.drafted > .stats.kept' "$work/out"
succeeds "run --json, all guesses right" run -p "Once upon a time" -n 50 --seed 3 --json --draft models/storyteller --draft-tokens 7
holds "run --json: tokens of a step share its time" jq -e '.stats.tpot_ms > 0.01' "$work/out"

# ---- a chat
template=$work/template
printf '{%% for m in messages %%}{{ m.role }}: {{ m.content }}\n{%% endfor %%}answer:' >"$template"
talk() { # talk ARGUMENT...: two messages, and /stats
    printf 'Tell me a story.\nGo on.\n/stats\n' | "$FUSEBOX" chat models/storyteller --template "$template" -n 60 --seed 1 "$@" >"$work/out" 2>"$work/err"
}
talk
cp "$work/out" "$work/plain"
holds "chat without guesses" grep -q . "$work/plain"
talk --draft q4 --draft-tokens 4
is "chat: the same answers" "$(cat "$work/out")" "$(cat "$work/plain")"
matches "chat: /stats says what was kept" "$work/err" '^draft            q4: [0-9.]+ tokens a step, [1-9][0-9]* of [0-9]+ guesses kept'
talk --temp 0 --stop " the"
cp "$work/out" "$work/plain"
talk --temp 0 --stop " the" --draft q4 --draft-tokens 7
is "chat --stop: the same answers" "$(cat "$work/out")" "$(cat "$work/plain")"
finish
