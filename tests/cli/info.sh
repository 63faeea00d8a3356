#!/usr/bin/env bash
# fusebox info, --help and --version, and where the built-in model is found.
. tests/cli/lib.sh

# ---- info
succeeds "info" info
cp "$work/out" "$work/info"
matches "info: architecture" "$work/info" '^architecture +gpt_neox$'
matches "info: parameters, rounded and exact" "$work/info" '^parameters +8\.4 M \(8,[0-9]{3},[0-9]{3}\)$'
matches "info: bytes by dtype" "$work/info" '^weights +f16 +16\.8 MB \(16,[0-9]{3},[0-9]{3} bytes'
matches "info: context" "$work/info" '^context +512$'
for word in parallel gelu 0.25 10000 1e-05 untied; do matches "info: $word" "$work/info" "$word"; done
for op in embed layernorm linear rope attention gelu add; do matches "info: op $op" "$work/info" "(^|[^a-z])$op"; done
succeeds "info MODEL" info tests/data/golden/llama-gqa-tied
matches "info MODEL: architecture" "$work/out" '^architecture +llama$'
succeeds "info of a .gguf file" info tests/data/gguf/neox-parallel-q8_0.gguf
matches "info of a .gguf file: architecture" "$work/out" '^architecture +gpt_neox$'
matches "info of a .gguf file: quantised weights" "$work/out" '^weights +q8_0 +200\.2 kB \(200,192 bytes, 188,416 parameters\)$'
matches "info of a .gguf file: vectors" "$work/out" '^weights +f32 +10\.5 kB'
refuses "info of a file that is none" 2 'models/storyteller/README.md: does not start with "GGUF"$' info models/storyteller/README.md
succeeds "info --json" info --json
is "info --json: one line" "$(wc -l <"$work/out")" 1
is "info --json: layers" "$(member layers "$work/out")" 8
is "info --json: architecture" "$(member architecture "$work/out")" '"gpt_neox"'

# ---- help
fusebox
is "no arguments: exit status 2, nothing on stdout" "$status $(wc -c <"$work/out")" "2 0"
matches "no arguments: usage on stderr" "$work/err" '^usage: fusebox'
succeeds "--help" --help
cp "$work/out" "$work/help"
for command in run info verify; do
    matches "--help names $command" "$work/help" "^  $command +[A-Z]"
    succeeds "$command --help" "$command" --help
    matches "$command --help: usage" "$work/out" "^usage: fusebox $command "
    matches "$command --help: options" "$work/out" '^ +--json  '
    cp "$work/out" "$work/long"
    succeeds "help $command" help "$command"
    holds "help $command is $command --help" cmp "$work/out" "$work/long"
done
fusebox run -n 3 --temp 0.1 -h
matches "run -h shows defaults, not what was given" "$work/out" '--temp T .*default 0\.7\)'
succeeds "--version" --version
matches "--version" "$work/out" '^fusebox [0-9]+\.[0-9]+\.[0-9]+$'

# ---- the built-in model is found from the program's place
root=$PWD
is "from another directory" "$(cd / && "$FUSEBOX" run --temp 0 -n 2 -p "Once upon a")" " time,"
mkdir -p "$work/links" "$work/prefix/bin" "$work/prefix/share/fusebox/models" "$work/alone/bin"
ln -s "$FUSEBOX" "$work/links/fb"
is "through a symbolic link" "$(cd "$work" && links/fb run --temp 0 -n 2 -p "Once upon a")" " time,"
cp "$FUSEBOX" "$work/prefix/bin/fusebox"
cp -r models/storyteller "$work/prefix/share/fusebox/models/"
is "installed under a prefix" "$(cd / && "$work/prefix/bin/fusebox" run --temp 0 -n 2 -p "Once upon a")" " time,"
cp "$FUSEBOX" "$work/alone/bin/fusebox"
FUSEBOX=$work/alone/bin/fusebox refuses "without the model: where it looked" 2 \
    "built-in model: not found \(looked for $work/alone/share/fusebox/models/storyteller, " run -n 1
is "without the model: MODEL works" "$("$work/alone/bin/fusebox" run "$root/models/storyteller" --temp 0 -n 2 -p "Once upon a")" \
    " time,"
finish
