#!/usr/bin/env bash
# What files, arguments and models say never steers a terminal: control characters and overrides of the direction of text
# are shown as escapes. A terminal that is dumb gets no colours and no cursor movements.
. tests/cli/lib.sh

# Bytes that steer: C0 but newline, DEL, C1, marks and overrides of direction, in UTF-8.
steers() { LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]' "$1"; }
calm() { # calm NAME FILE
    if steers "$2"; then not_ok "$1" "raw: $(head -c 300 "$2" | od -An -c | tr -s ' \n' ' ')"; else ok "$1"; fi
}
evil=$'a\e[31mb\x7f\u009bc\u0085\u202ed\u2066e\u2069\u200ff\u061cg'
shown='a\x1b[31mb\x7f\u009bc\u0085\u202ed\u2066e\u2069\u200ff\u061cg'
printf '%s' "$evil" >"$work/evil"
holds "the check finds what it looks for" steers "$work/evil"

# ---- names in messages
said() { # said NAME ARGUMENT...: refused in one line that has $shown
    local name=$1
    shift
    fusebox "$@"
    is "$name: one line" "$(wc -l <"$work/err")" 1
    calm "$name: nothing raw" "$work/err"
    holds "$name: shown" grep -qF -- "$shown" "$work/err"
}
said "an option" run "--$evil"
said "a value" run --act "$evil"
said "a path" info "$work/$evil.gguf"
said "a prompt's file" run -f "$work/$evil"
said "a fuse" run --fuse "$evil" -p a
said "a cache" ppl -f README.md --cache "$evil"
said "a picture's path" ppl -f README.md --cache sinks --svg "$work/none/$evil"
said "bytes that are no UTF-8" info $'\xff\x9b'"$evil"
holds "bytes that are no UTF-8: shown" grep -qF '\xff\x9b' "$work/err"
cp -r models/storyteller "$work/named"
chmod -R u+w "$work/named"
jq --arg evil "$evil" '.model_type = $evil | .architectures = [$evil]' models/storyteller/config.json >"$work/named/config.json"
said "an architecture" info "$work/named"
jq --arg evil "$evil" '.hidden_act = $evil' models/storyteller/config.json >"$work/named/config.json"
said "an activation" info "$work/named"

# ---- names in reports: a model and a file whose paths are bad
mkdir "$work/$evil"
cp models/storyteller/* "$work/$evil"
for command in info fuses "bench --gen 2 --prompt 2 --reps 1"; do
    fusebox $command "$work/$evil"
    is "$command: a path: exit status" "$status" 0
    calm "$command: a path: nothing raw" "$work/out"
    holds "$command: a path: shown" grep -qF -- "$shown" "$work/out"
done
fusebox quantize "$work/$evil" "$work/$evil/out.gguf"
is "quantize: exit status" "$status" 0
calm "quantize: nothing raw" "$work/out"
is "quantize: both paths" "$(grep -cF -- "$shown" "$work/out")" 2
holds "quantize: the file has the name that was given" test -s "$work/$evil/out.gguf"
fusebox info "$work/$evil/out.gguf"
calm "info: a model's name: nothing raw" "$work/out"
fusebox info --json "$work/$evil"
calm "info --json: nothing raw" "$work/out"
is "info --json: the same path" "$(jq -r .model "$work/out")" "$work/$evil"

# ---- a model that says ESC for a full stop and BEL for a comma
cp -r models/storyteller "$work/rude"
chmod -R u+w "$work/rude"
jq '.model.vocab as $v | .model.vocab["."] = $v["ě"] | .model.vocab["ě"] = $v["."] |
    .model.vocab[","] = $v["ć"] | .model.vocab["ć"] = $v[","]' models/storyteller/tokenizer.json >"$work/rude/tokenizer.json"
story=(run --temp 0 -n 60 -p "Once upon a time")
fusebox "${story[@]}" models/storyteller
tr .,  '\033\007' <"$work/out" >"$work/wanted"
fusebox "${story[@]}" "$work/rude"
holds "to a file: the bytes of the model" cmp "$work/out" "$work/wanted"
holds "to a file: control characters are among them" steers "$work/out"
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    on_terminal() { script -qec "$1" /dev/null </dev/null | tr -d '\r' >"$work/screen"; } # its line ends are \r\n
    sed 's/\x1b/\\x1b/g; s/\x07/\\x07/g' "$work/wanted" >"$work/escaped"
    on_terminal "TERM=dumb '$FUSEBOX' run --temp 0 -n 60 -p 'Once upon a time' '$work/rude'"
    calm "terminal: nothing raw" "$work/screen"
    is "terminal: shown" "$(cat "$work/screen")" "Once upon a time$(cat "$work/escaped")"
    printf 'Two\n\tlines: %s' "$evil" >"$work/prompt"
    on_terminal "TERM=dumb '$FUSEBOX' run --temp 0 -n 2 -f '$work/prompt'"
    calm "terminal: a prompt: nothing raw" "$work/screen"
    holds "terminal: a prompt: lines and tabs stay" grep -qF $'\tlines: '"$shown" "$work/screen"
    on_terminal "TERM=xterm '$FUSEBOX' run --temp 0 -n 2 -p a"
    holds "terminal: colours" grep -qF $'\e[2ma\e[0m' "$work/screen"
    # Neither colours nor cursor movements, also in the progress of a long prompt.
    head -c 2000 README.md >"$work/short"
    long=$(printf 'once upon a time %.0s' $(seq 30))
    for how in TERM=dumb NO_COLOR=1 "-u TERM"; do
        for command in "run --temp 0 -n 2 -p '$long'" "ppl -f $work/short" "bench --gen 2 --prompt 2 --reps 2" \
            "quantize '$work/$how.gguf'"; do
            script -qec "env $how '$FUSEBOX' $command" /dev/null </dev/null | sed 's/\r$//' >"$work/screen"
            calm "terminal: $how: ${command%% *}" "$work/screen"
        done
    done
else
    echo "not ok 1 # SKIP checks on a terminal: no pseudo-terminal here"
fi
finish
