#!/usr/bin/env bash
# fusebox tokenize: ids, pieces, JSON and back; of folders without weights and of files.
. tests/cli/lib.sh

steps=tests/data/tokenizer/steps
succeeds "ids of the storyteller" tokenize -p "Once upon a time"
is "ids of the storyteller: ids" "$(cat "$work/out")" "0 48 1717 587 260 564"
succeeds "without special tokens" tokenize --no-special -p "Once upon a time"
is "without special tokens: ids" "$(cat "$work/out")" "48 1717 587 260 564"
succeeds "back" tokenize --decode "48,1717 587 [260, 564]"
is "back: text" "$(cat "$work/out")" "Once upon a time"
is "back, from standard input" "$("$FUSEBOX" tokenize --no-special --decode - <<<"0 48 1717 587")" "Once upon"
is "text from standard input, without its last newline" "$("$FUSEBOX" tokenize --no-special - <<<"Once upon")" "48 1717 587"
is "a text alone" "$("$FUSEBOX" tokenize --no-special "Once upon")" "48 1717 587"
is "a text behind MODEL" "$("$FUSEBOX" tokenize models/storyteller --no-special Once)" "48 1717"
printf 'Once upon' >"$work/text"
is "text from a file" "$("$FUSEBOX" tokenize --no-special -f "$work/text")" "48 1717 587"
succeeds "no text" tokenize --no-special -p ""
is "no text: an empty line" "$(cat "$work/out")" ""

# ---- a vocabulary alone: GGUF without tensors, a folder with tokenizer.model, a tokenizer.json
succeeds "a GGUF file with only a vocabulary" tokenize tests/data/gguf/spm.gguf -p "Hello" --pieces
matches "a GGUF file with only a vocabulary: the begin token" "$work/out" '^ +1  <s>$'
matches "a GGUF file with only a vocabulary: a piece" "$work/out" '^ +[0-9]+  ll$'
succeeds "a folder with a tokenizer.model" tokenize "$steps/pieces-llama" --json -p "Hi é"
is "a folder with a tokenizer.model: count" "$(member count "$work/out")" "$(jq '.ids | length' "$work/out")"
is "a folder with a tokenizer.model: pieces" "$(jq -c .pieces "$work/out")" '["<s>","▁H","i","▁","é","</s>"]'
ids=$(jq -r '.ids | map(tostring) | join(" ")' "$work/out")
is "a folder with a tokenizer.model: back" "$("$FUSEBOX" tokenize "$steps/pieces-llama" --no-special --decode "$ids")" "Hi é"
succeeds "a tokenizer.json by its name" tokenize "$steps/t5.json" -p "a b"
succeeds "a tokenizer.model by its name" tokenize "$steps/pieces-bpe/tokenizer.model" -p "a b"

# ---- refusals
refuses "neither file in a folder" 2 'tests/data: neither tokenizer.json nor tokenizer.model$' tokenize tests/data -p x
refuses "a file that is none" 2 'models/storyteller/README.md: byte [0-9]+: ' tokenize models/storyteller/README.md -p x
refuses "no such file" 2 'nowhere: ' tokenize nowhere -p x
refuses "nothing to do" 2 'tokenize: what\? ' tokenize
refuses "two things to do" 2 'tokenize: what\? ' tokenize -p x --decode 1
refuses "a text and ids" 2 'tokenize: what\? ' tokenize "a b" --decode 1
refuses "two texts" 2 'prompt: given twice' tokenize "a b" "c d"
refuses "one word alone" 2 'MODEL: Once: no such file or folder \(if it is the prompt: -p "Once"\)$' tokenize Once
refuses "two forms" 2 'tokenize: several forms ' tokenize -p x --json --ids
refuses "special and not" 2 '--special: with --no-special ' tokenize -p x --special --no-special
refuses "ids that are none" 2 '--decode: x ' tokenize --decode "1,x"
refuses "an id that no token has" 2 'token id: 99999 \(0 to [0-9]+\)$' tokenize --decode 99999
finish
