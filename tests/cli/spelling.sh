#!/usr/bin/env bash
# Mistyped words name the ones that were meant; llama.cpp's spellings work, or say what to use; a prompt needs no -p.
. tests/cli/lib.sh

text=" had a very good time" # after the golden's prompt, greedy
prompt="Once upon a time there was a poor woodcutter who"
greedy() { # greedy NAME ARGUMENT...: five greedy tokens after the golden's prompt, and nothing on stderr
    local name=$1
    shift
    succeeds "$name" run --temp 0 -n 5 "$@"
    is "$name: the text" "$(cat "$work/out")" "$text"
}

# ---- words that were meant
refuses "a command" 2 'unknown command: rnu \(did you mean run\? see fusebox --help\)$' rnu
refuses "a command, longer" 2 'unknown command: quantise \(did you mean quantize\?' quantise
refuses "a command of others" 2 'unknown command: perplexity \(did you mean ppl\?' perplexity
refuses "help for a command" 2 'unknown command: prfile \(did you mean profile\?' help prfile
refuses "a model instead of a command" 2 'unknown command: models/storyteller \(did you mean fusebox run models/storyteller\?' models/storyteller
refuses "an option" 2 'unknown option: --sed \(did you mean --seed\? see fusebox run --help\)$' run --sed 1
refuses "an option: letters swapped" 2 'unknown option: --tepm \(did you mean --temp\?' run --tepm 1
refuses "an option: its beginning" 2 'unknown option: --repeat \(did you mean --repeat-penalty\?' run --repeat 1
refuses "an option of others, mistyped" 2 'unknown option: --temprature \(did you mean --temp\?' run --temprature 1
refuses "an option with a value" 2 'unknown option: --thraeds \(did you mean --threads\?' bench --thraeds=2
refuses "an option of another command" 2 'unknown option: --golden \(an option of fusebox verify; see fusebox run --help\)$' run --golden x
refuses "nothing is near" 2 'unknown option: --walk \(see fusebox run --help\)$' run --walk
refuses "too long to be near" 2 'unknown option: --x{200} \(see fusebox run --help\)$' run "--$(printf 'x%.0s' $(seq 200))"
refuses "nothing at all" 2 'unknown option: -- \(see' run --=1

# ---- llama.cpp's spellings
greedy "-m" -m models/storyteller -p "$prompt"
greedy "-m behind a prompt" "$prompt" -m models/storyteller
greedy "--model=" --model=models/storyteller -p "$prompt"
greedy "-m twice: the last" -m nothing -m models/storyteller -p "$prompt"
greedy "-ngl 0" -ngl 0 -p "$prompt"
greedy "-ngl 99" -ngl 99 -p "$prompt"
greedy "--n-gpu-layers=all" --n-gpu-layers=all -p "$prompt"
greedy "-t, -s, -c" -t 2 -s 1 -c 64 -p "$prompt"
greedy "-t2, -c64" -t2 -c64 -p "$prompt"
greedy "--ctx-size" --ctx-size 64 -p "$prompt"
greedy "-ctk f16" -ctk f16 -ctv f16 -p "$prompt"
succeeds "--n-predict, --temperature" run --n-predict 5 --temperature 0 -p "$prompt"
is "--n-predict, --temperature: the text" "$(cat "$work/out")" "$text"
noted() { # noted REGEX ARGUMENT...: the text, and one line on stderr
    local regex=$1
    shift
    fusebox run --temp 0 -n 5 -p "$prompt" "$@"
    is "$*: the text" "$status$(cat "$work/out")" "0$text"
    is "$*: one line" "$(wc -l <"$work/err")" 1
    matches "$*: the note" "$work/err" "^fusebox: note: $regex"
}
noted '-fa: ignored \(attention is a fuse' -fa
noted '-fa: ignored' -fa on
noted '-b: ignored' -b 512
noted '-ub: ignored' -ub 512
noted '--no-mmap: ignored \(files are always mapped\)$' --no-mmap
noted '-no-cnv: ignored' -no-cnv
noted '--color: ignored' --color
succeeds "--seed -1" run --seed 7 --seed -1 -n 1 --json -p "$prompt"
differs "--seed -1: another" "$(member seed "$work/out")" 7
refuses "--seed -2" 2 '--seed: -2 \(0 to ' run --seed -2
succeeds "--top-k 0" run --top-k 0 --seed 3 -n 8 -p "$prompt"
mv "$work/out" "$work/off"
succeeds "--top-k -1" run --top-k -1 --seed 3 -n 8 -p "$prompt"
is "--top-k -1: off" "$(cat "$work/out")" "$(cat "$work/off")"
refuses "-st" 2 'unknown option: -st \(--single-turn of fusebox chat; see fusebox run --help\)$' run -st
refuses "-i" 2 'unknown option: -i \(fusebox chat talks in turns\)$' run -i
refuses "-e" 2 "unknown option: -e \(a shell writes line breaks: -p \\$'one" run -e
refuses "-mu" 2 'unknown option: -mu \(nothing is downloaded: hf download ORG/NAME' run -mu https://example.org/x
refuses "-ngl x" 2 '-ngl: x \(a number of layers, all or auto\)$' run -ngl x
refuses "-ngl without a number" 2 '-ngl: no value' run -ngl
refuses "-m without a value" 2 '-m: no value \(needs MODEL\)$' run -m
refuses "--temperature hot" 2 '--temperature: hot \(0 to 100\)$' run --temperature hot
refuses "--temperature elsewhere" 2 'unknown option: --temperature \(see fusebox info --help\)$' info --temperature 1
refuses "-fa elsewhere" 2 'unknown option: -fa \(see fusebox info --help\)$' info -fa
succeeds "info -m" info -m models/storyteller
succeeds "bench as llama-bench" bench -m models/storyteller -p 8 -n 4 -r 1 -t 1

# ---- a prompt without -p
greedy "a prompt alone" "$prompt"
greedy "a prompt behind MODEL" models/storyteller "$prompt"
greedy "a prompt before MODEL" "$prompt" models/storyteller
succeeds "one word behind MODEL" run models/storyteller Once -n 1 --seed 1
refuses "one word alone" 2 'MODEL: Once: no such file or folder \(if it is the prompt: -p "Once"\)$' run Once
refuses "a word and a prompt" 2 'Once: No such file' run Once -p x
refuses "a mistyped path" 2 'models/storytelle: ' run models/storytelle "$prompt"
refuses "a mistyped path with a space" 2 "$work/my models/x.gguf: No such file" run "$work/my models/x.gguf"
refuses "a mistyped file with a space" 2 'my x.gguf: No such file' run "my x.gguf"
refuses "two prompts" 2 'prompt: given twice, the second time as c d' run "a b" "c d"
refuses "a prompt and -p" 2 'prompt: given twice, the second time as a b' run -p c "a b"
cp -r models/storyteller "$work/with space"
greedy "a folder with a space is MODEL" "$work/with space" "$prompt"

# ---- -n and -c
fusebox run --temp 0 -n 600 --json -p "$prompt"
is "-n beyond the context: cut" "$status$(member stop "$work/out")" '0"context"'
is "-n beyond the context: the note" "$(cat "$work/err")" \
    "fusebox: note: -n: 600, cut to 497 (the model's context is 512, the prompt has 15)"
succeeds "-n -1" run --temp 0 -n -1 -c 32 --json -p "$prompt"
is "-n -1: to the end of -c" "$(member stop "$work/out") $(jq '.tokens | length' "$work/out")" '"context" 17'
succeeds "-n -2" run --temp 0 -n -2 -c 32 --json -p "$prompt"
is "-n -2: to the end of -c" "$(member stop "$work/out") $(jq '.tokens | length' "$work/out")" '"context" 17'
refuses "-n -3" 2 '-n: -3 \(-1 to 1000000000\)$' run -n -3 -p a
fusebox run --temp 0 -n 20 -c 32 --json -p "$prompt"
is "-n beyond -c" "$status$(cat "$work/err")" "0fusebox: note: -n: 20, cut to 17 (--ctx is 32, the prompt has 15)"
fusebox run --temp 0 -n 5 -c 4096 -p "$prompt"
is "-c beyond the context" "$(cat "$work/out")$(cat "$work/err")" "${text}fusebox: note: --ctx: 4096, cut to 512 (the model's context)"
succeeds "-c 0" run --temp 0 -n 5 -c 0 -p "$prompt"
refuses "-c below the prompt" 2 'prompt: 15 tokens \(--ctx is 8; ' run -c 8 -p "$prompt"
refuses "-c with sinks" 2 '--ctx: 64 \(not with --cache sinks: ' run -c 64 --cache sinks -p a
refuses "--json without an end" 2 '--json: with --stream \(give -n N' run --stream --json -n -1
finish
