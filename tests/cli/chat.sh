#!/usr/bin/env bash
# fusebox chat, run --chat and --stop, on the storyteller with a chat template beside it.
. tests/cli/lib.sh

model=$work/model
mkdir "$model"
cp models/storyteller/*.json "$model"
ln -s "$PWD/models/storyteller/model.safetensors" "$model/model.safetensors"
template='{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if tools %}{{ tools|tojson }}{% endif %}{% if add_generation_prompt %}answer{{ extra }}:{% endif %}'
jq --arg t "$template" '.chat_template = $t | .eos_token = "<|endoftext|>"' models/storyteller/tokenizer_config.json >"$model/tokenizer_config.json"
messages=$work/messages.json
echo '[{"role":"system","content":"S"},{"role":"user","content":"Hi<|endoftext|>"}]' >"$messages"

# ---- what the model would see
succeeds "render" chat "$model" --render "$messages"
is "render: the text" "$(cat "$work/out")" 'system: S<|endoftext|>user: Hi<|endoftext|><|endoftext|>answer:'
succeeds "render: ids" chat "$model" --render "$messages" --ids
is "render: special tokens are the template's alone" "$(tr ' ' '\n' <"$work/out" | grep -cx 0)" 2
succeeds "render: options" chat "$model" --render "$messages" --no-generation-prompt --tools <(echo '[{"a": 1}]')
is "render: tools" "$(cat "$work/out")" 'system: S<|endoftext|>user: Hi<|endoftext|><|endoftext|>[{"a": 1}]'
succeeds "render: variables" chat "$model" --render "$messages" --variables '{"extra": "!"}'
matches "render: the variable" "$work/out" 'answer!:$'
printf '{{ messages|length }}\n' >"$work/own.jinja"
succeeds "render: a template" chat --render "$messages" --template "$work/own.jinja"
is "render: its text" "$(cat "$work/out")" 2
refuses "a model without a template" 2 'model: no chat template' chat models/storyteller --render "$messages"
refuses "a chat without a template" 2 'model: no chat template' chat models/storyteller
echo '[{"role": 1}]' >"$work/bad.json"
refuses "bad messages" 2 'messages\[0\]: role: 1' chat "$model" --render "$work/bad.json"
refuses "no messages" 2 '.*none.json: No such file' chat "$model" --render "$work/none.json"
printf '{{ a.b }}' >"$work/own.jinja"
refuses "a bad template" 2 "chat template: line 1: 'a' is undefined" chat "$model" --render "$messages" --template "$work/own.jinja"
refuses "ids without render" 2 '--tools.*only with --render' chat "$model" --ids
refuses "a context that is too large" 2 '--ctx: 999999' chat "$model" --ctx 999999

# ---- a conversation, without a terminal
talk() { # talk LINES ARGUMENT...
    local lines=$1
    shift
    status=0
    printf '%b' "$lines" | "$FUSEBOX" chat "$model" --temp 0 -n 8 "$@" >"$work/out" 2>"$work/err" || status=$?
}
talk 'Once upon a time\nAnd then\n/stats\n'
is "chat: exit status" "$status" 0
is "chat: two answers" "$(grep -c . "$work/out")" 2
matches "chat: the cache is kept" "$work/err" '^last prompt +[0-9]+ tokens, [1-9][0-9]* of them kept'
first=$(grep -m 1 . "$work/out")
talk 'Other\n/reset\nOnce upon a time\n'
is "chat: a kept cache changes nothing" "$(grep . "$work/out" | tail -n 1)" "$first"
talk 'a\n/reset\n/system S\nOnce\n//b\n/nonsense\n/help\n/save '"$work/saved.json"'\n/save '"$work/saved.json"'\n/exit\nnever\n'
is "chat: what was saved" "$(jq -c '[.[] | [.role, .content]] | map(select(.[0] != "assistant"))' "$work/saved.json")" \
    '[["system","S"],["user","Once"],["user","/b"]]'
matches "chat: unknown command" "$work/err" 'no such command'
matches "chat: help" "$work/err" '^/system TEXT '
matches "chat: a file is not replaced" "$work/err" 'not saved'
succeeds "chat: --render reads what was saved" chat "$model" --render "$work/saved.json"
talk 'One two three four five six\nOne two three four five six\nOne two three four five six\nshort\n' --ctx 64
is "chat: a full context: exit status" "$status" 0
is "chat: a full context: all are answered" "$(grep -c . "$work/out")" 4
matches "chat: a full context is said" "$work/err" 'oldest turns are forgotten'
talk "$(printf 'word %.0s' {1..200})"'\nshort\n' --ctx 64
matches "chat: a message that is too long" "$work/err" 'the message has [0-9]+ tokens, the context 64: not sent'
is "chat: and the next one is answered" "$(grep -c . "$work/out")" 1

# ---- on a terminal: a line can be edited, and Ctrl-D ends
(sleep 1; printf 'Onxe\b\bce\nA'; sleep 1; printf '\003'; sleep 0.5; printf '\004') |
    timeout 30 script -qec "'$FUSEBOX' chat '$model' --temp 0 -n 4" /dev/null >"$work/out" 2>&1
is "terminal: exit status" "$?" 0
matches "terminal: a prompt" "$work/out" '^> '

# ---- run
succeeds "run --chat" run "$model" --chat --system S -p "Hi<|endoftext|>" -n 4 --temp 0 --json
ids=$("$FUSEBOX" chat "$model" --render "$messages" --ids)
is "run --chat: the prompt's tokens" "$(jq .prompt_tokens "$work/out")" "$(wc -w <<<"$ids")"
refuses "run --system alone" 2 '--system: S \(only with --chat\)' run "$model" --system S -p a
succeeds "run: a text" run "$model" -p "Once upon a time" -n 40 --temp 0
text=$(cat "$work/out")
stop=${text:30:9}
succeeds "run --stop" run "$model" -p "Once upon a time" -n 40 --temp 0 --stop zzzz --stop "$stop"
is "run --stop: up to the text" "$(cat "$work/out")" "${text%%"$stop"*}"
succeeds "run --stop --json" run "$model" -p "Once upon a time" -n 40 --temp 0 --stop "$stop" --json
is "run --stop --json: why" "$(jq -r .stop "$work/out")" text
is "run --stop --json: the text" "$(jq -j .text "$work/out")" "${text%%"$stop"*}"
refuses "run --stop: empty" 2 '--stop: ""' run "$model" -p a --stop ""
# A model whose first token ends the text.
first_id=$("$FUSEBOX" run "$model" -p "Once upon a time" -n 1 --temp 0 --json | jq '.tokens[0]')
jq --argjson id "$first_id" '.eos_token_id = [0, $id]' models/storyteller/generation_config.json >"$model/generation_config.json"
fusebox run "$model" -p "Once upon a time" --temp 0
is "run: a text that ends at once: one line" "$(wc -l <"$work/err")" 1
matches "run: it says what to do" "$work/err" 'chat template \(try --chat'
printf 'a\0{{ messages }}' >"$work/nul"
echo '[]' >"$work/none.json"
refuses "a template with a NUL" 2 '.*/nul: a NUL inside' chat --template "$work/nul" --render "$work/none.json"
finish
