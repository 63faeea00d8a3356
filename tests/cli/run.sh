#!/usr/bin/env bash
# fusebox run with the built-in model.
. tests/cli/lib.sh

prompt="Once upon a time there was a poor woodcutter who"
# What Hugging Face transformers continues it with (tests/data/golden/storyteller/golden.json).
golden=" had a very good time in the morning. He had a wife and two children, but they had no children. The poor\
 children were very unhappy. The day of the maple was called Little Red Riding Hood, and the mother loved her grandmother\
 dear.
The next day the mother sent her children into"

# ---- text
fusebox run --temp 0 -n 64 -p "$prompt"
is "greedy: exit status" "$status" 0
printf '%s\n' "$golden" >"$work/wanted"
holds "greedy: the golden's text and a newline" cmp "$work/out" "$work/wanted"
is "greedy: nothing on stderr" "$(cat "$work/err")" ""

printf '%s\n' "$prompt" >"$work/prompt"
fusebox run --temp 0 -n 64 -f "$work/prompt"
holds "-f FILE: the same text" cmp "$work/out" "$work/wanted"
"$FUSEBOX" run --temp 0 -n 64 - <"$work/prompt" >"$work/out"
holds "-: the same text" cmp "$work/out" "$work/wanted"
"$FUSEBOX" run --temp=0 -n64 models/storyteller - <"$work/prompt" >"$work/out"
holds "MODEL and other spellings: the same text" cmp "$work/out" "$work/wanted"
fusebox run --temp 0 -n 64 --repeat-penalty 2 --top-k 3 --seed 5 -p "$prompt"
holds "greedy: no other sampling option matters" cmp "$work/out" "$work/wanted"

fusebox run -n 0 -p "$prompt"
is "-n 0: exit status and an empty line" "$status $(od -An -c "$work/out" | tr -d ' ')" '0 \n'
: >"$work/empty"
succeeds "no prompt: the begin token is enough" run -n 8 --seed 1
cp "$work/out" "$work/nothing"
succeeds "an empty file" run -n 8 --seed 1 -f "$work/empty"
holds "an empty file is no prompt" cmp "$work/out" "$work/nothing"

# ---- the same seed, the same text
seeded() { fusebox run -n 60 -p "$prompt" "$@" && cat "$work/out"; }
first=$(seeded --seed 7)
is "seed: the same text again" "$(seeded --seed 7)" "$first"
for threads in 1 2 3 5; do
    is "seed: the same text with $threads threads" "$(seeded --seed 7 --threads "$threads")" "$first"
done
differs "seed: another seed" "$(seeded --seed 8)" "$first"
differs "seed: random ones differ" "$(seeded --temp 1.5)" "$(seeded --temp 1.5)"
fusebox run -n 20 -p "$prompt" --json --temp 1.5
drawn=$(member seed "$work/out") text=$(member text "$work/out")
fusebox run -n 20 -p "$prompt" --json --temp 1.5 --seed "$drawn"
is "seed: the reported one repeats the text" "$(member text "$work/out")" "$text"

for act in f16 bf16; do succeeds "--act $act" run --temp 0 -n 16 -p "$prompt" --act "$act"; done
succeeds "--isa portable" run --temp 0 -n 64 -p "$prompt" --isa portable
holds "--isa portable: the golden's text" cmp "$work/out" "$work/wanted"

# ---- UTF-8: hot enough to get bytes of characters that never become whole
whole=1
for seed in 1 2 3 4; do
    fusebox run --temp 5 --top-k 0 --top-p 1 --min-p 0 -n 120 --seed "$seed" -p "Grüße, 王子"
    iconv -f utf-8 -t utf-16 "$work/out" >"$work/utf16" 2>&1 || whole=0
    fusebox run --temp 5 --top-k 0 --top-p 1 --min-p 0 -n 120 --seed "$seed" -p "Grüße, 王子" --json
    iconv -f utf-8 -t utf-16 "$work/out" >"$work/utf16" 2>&1 || whole=0
done
is "UTF-8: always whole characters" "$whole" 1
fusebox run -n 1 --seed 1 --json -p $'a\xff"\t\\b\xe2\x82'
matches "UTF-8: bytes that are none, in JSON" "$work/out" '^\{"prompt":"a\\ufffd\\"\\t\\\\b\\ufffd(\\ufffd)?","text"'

# ---- --json and --stats
fusebox run --temp 0 -n 8 -p "$prompt" --json
is "--json: one line" "$(wc -l <"$work/out")" 1
is "--json: text" "$(member text "$work/out")" '" had a very good time in the morning"'
matches "--json: tokens" "$work/out" '"prompt_tokens":15,"tokens":\[344,260,553,604,564,296,262,1040\],"stop":"length"'
for name in load_ms ttft_ms tpot_ms tokens_per_s peak_memory_bytes; do
    matches "--json: $name" "$work/out" "\"$name\":[0-9.e+]+[,}]"
done
fusebox run --temp 0 -n 8 -p "$prompt" --stats
is "--stats: the text alone on stdout" "$(cat "$work/out")" " had a very good time in the morning"
for name in load prompt 'first token' 'per token' speed 'peak memory' threads isa act seed; do
    matches "--stats: $name" "$work/err" "^$name +[^ ]"
done

# ---- without -n
fusebox run --temp 0 --json -p "$prompt"
matches "without -n: 256 tokens or an end" "$work/out" '"stop":"(length|end)"'
long=$(printf 'the king said %.0s' $(seq 130))
fusebox run --temp 0 --json -p "$long"
is "without -n: stops when the context is full" "$(member stop "$work/out")" '"context"'
tokens=$(grep -oE '"tokens":\[[^]]*' "$work/out" | tr ',' '\n' | wc -l)
is "without -n: the context is filled and no more" $(($(member prompt_tokens "$work/out") + tokens)) 512

# ---- the ends of a stream
"$FUSEBOX" run --temp 0 -p "$prompt" 2>"$work/err" | head -c 10 >"$work/out"
is "a closed pipe: what was read" "$(cat "$work/out")" " had a ver"
is "a closed pipe: no complaint" "$(cat "$work/err")" ""
(
    trap '' PIPE
    sleep 0.2 # the reader is gone before the first word
    "$FUSEBOX" run --temp 0 -p "$prompt" 2>"$work/err"
    echo $? >"$work/status"
) | true
is "a closed pipe, SIGPIPE ignored: no complaint" "$(cat "$work/status") $(cat "$work/err")" "1 "
if [ -w /dev/full ]; then
    for arguments in "run -n 4" "run -n 4 --json" "run --help" "info" "--version"; do
        status=0
        : >"$work/out"
        "$FUSEBOX" $arguments >/dev/full 2>"$work/err" || status=$?
        refused "a full disk: $arguments" 1 'standard output: No space left'
    done
else
    echo "not ok 1 # SKIP a full device: no /dev/full here"
fi

# ---- Ctrl-C: the slow kernels, so that it comes in the middle
interrupted() { # interrupted OPTION...: sends SIGINT when the first text has come out
    local pid
    : >"$work/out"
    "$FUSEBOX" run --isa ref --threads 1 --temp 0 -n 400 -p "$prompt" "$@" >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    for _ in $(seq 500); do
        [ ! -s "$work/out" ] || break
        sleep 0.02
    done
    kill -INT $pid
    status=0
    wait $pid || status=$?
}
interrupted --stats
is "Ctrl-C: exit status" "$status" 130
matches "Ctrl-C: the stats come" "$work/err" '^generated +[0-9]+ tokens, stopped by interrupt$'
is "Ctrl-C: a newline ends the text" "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" '\n'
text=$(cat "$work/out")
is "Ctrl-C: the text so far is right" "${text:0:${#golden}}" "${golden:0:${#text}}"

# ---- a terminal
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    on_terminal() { script -qec "$*" /dev/null </dev/null | tr -d '\r'; }
    is "terminal: the prompt in front" \
        "$(on_terminal "NO_COLOR=1 '$FUSEBOX' run --temp 0 -n 2 -p 'Once upon a time there was a poor woodcutter who'")" \
        "$prompt had a"
    is "terminal: the prompt is dim" "$(on_terminal "env -u NO_COLOR '$FUSEBOX' run --temp 0 -n 2 -p Once" | head -c 12)" \
        $'\033[2mOnce\033[0m'
    holds "terminal: a progress bar for a long prompt" grep -q 'of [0-9]* tokens' \
        <(on_terminal "'$FUSEBOX' run --temp 0 -n 2 -p '$long'")
else
    echo "not ok 1 # SKIP three checks on a terminal: no pseudo-terminal here"
fi
finish
