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

# ---- whether there is a template
succeeds "info" info "$model"
matches "info: where the template is from" "$work/out" '^chat template +tokenizer_config.json$'
succeeds "info: none" info models/storyteller
matches "info: no template" "$work/out" '^chat template +none$'
succeeds "info --json" info "$model" --json
is "info --json: where the template is from" "$(jq -c .chat_templates "$work/out")" '{"default":"tokenizer_config.json"}'
"$FUSEBOX" quantize "$model" "$work/small.gguf" >"$work/out" 2>&1
succeeds "info: a GGUF file" info "$work/small.gguf"
matches "info: a GGUF file's template" "$work/out" '^chat template +tokenizer.chat_template$'
mkdir "$work/two"
ln -s "$model"/*.safetensors "$model"/*.json "$work/two"
rm "$work/two/tokenizer_config.json"
jq '.chat_template = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]' "$model/tokenizer_config.json" >"$work/two/tokenizer_config.json"
succeeds "info: two templates" info "$work/two"
matches "info: their names" "$work/out" '^chat template +tokenizer_config.json: default, tool_use$'

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
succeeds "render: a template, as llama.cpp spells it" chat --render "$messages" --chat-template-file "$work/own.jinja"
is "render: its text, too" "$(cat "$work/out")" 2
no_template='model: no chat template \(it was not made for chats\): --template FILE gives one$'
refuses "a model without a template" 2 "$no_template" chat models/storyteller --render "$messages"
refuses "a chat without a template" 2 "$no_template" chat models/storyteller
refuses "run --chat without a template" 2 "$no_template" run models/storyteller --chat -p Hi
echo '[{"role": 1}]' >"$work/bad.json"
refuses "bad messages" 2 '.*/bad.json: messages\[0\]: role: 1' chat "$model" --render "$work/bad.json"
bad() { # bad NAME JSON REGEX: these messages are refused, and the file is blamed
    echo "$2" >"$work/bad.json"
    refuses "bad messages: $1" 2 ".*/bad.json: $3" chat "$model" --render "$work/bad.json"
}
bad "no role" '[{"content":"a"}]' 'messages\[0\]: role: missing \(expected a text\)$'
bad "no content" '[{"role":"system","content":"a"},{"role":"user","contnet":"a"}]' 'messages\[1\]: content: missing '
bad "content null" '[{"role":"user","content":null}]' 'messages\[0\]: content: null '
bad "content a number" '[{"role":"assistant","content":1}]' 'messages\[0\]: content: 1 \(expected a text, or a list of parts\)$'
bad "a part that is none" '[{"role":"user","content":["a",1]}]' 'messages\[0\]: content\[1\]: 1 '
bad "tool_calls" '[{"role":"assistant","tool_calls":1}]' 'messages\[0\]: tool_calls: 1 \(expected a list\)$'
bad "cut" '[{"role":' 'messages: not JSON: premature end'
bad "an object" '{"message":[]}' 'messages: not a JSON array \(nor an object with the key "messages"\)$'
bad "not a list" '{"messages":1}' 'messages: 1 \(expected a JSON array\)$'
bad "tools not a list" '{"messages":[],"tools":1}' 'messages: tools: 1 \(expected a JSON array\)$'
echo '[{"role":"assistant","tool_calls":[]},{"role":"tool","content":{"sun":true}},{"role":"narrator","mood":1}]' >"$work/good.json"
succeeds "messages without content" chat "$model" --render "$work/good.json"
refuses "bad tools" 2 '/dev/fd/[0-9]+: tools: not a JSON array$' chat "$model" --render "$messages" --tools <(echo '{}')
echo '{"model":"m","messages":[{"role":"user","content":"Hi"}],"tools":[{"b":2}]}' >"$work/request.json"
succeeds "a request with messages and tools" chat "$model" --render "$work/request.json"
is "a request: the text" "$(cat "$work/out")" 'user: Hi<|endoftext|>[{"b": 2}]answer:'
succeeds "a request and --tools" chat "$model" --render "$work/request.json" --tools <(echo '[{"a": 1}]')
is "a request and --tools: the option's" "$(cat "$work/out")" 'user: Hi<|endoftext|>[{"a": 1}]answer:'
refuses "no messages" 2 '.*none.json: No such file' chat "$model" --render "$work/none.json"
printf '{{ a.b }}' >"$work/own.jinja"
refuses "a bad template" 2 "chat template: line 1: 'a' is undefined" chat "$model" --render "$messages" --template "$work/own.jinja"
printf "{{ ('a' * 100000) * 100000 }}" >"$work/own.jinja"
refuses "a template that takes too much memory" 2 'chat template: line 1: it takes too much memory \(at most 268435456 bytes\)$' chat "$model" --render "$messages" --template "$work/own.jinja"
printf '{%% set r = range(99999) %%}\n{%% for a in r %%}{{ -1 in r }}{%% endfor %%}' >"$work/own.jinja"
refuses "a template that takes too long" 2 'chat template: line 2: it takes too long \(at most 20971520 steps\)$' chat "$model" --render "$messages" --template "$work/own.jinja"
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
is "chat: and the exit status tells it" "$status" 2
fusebox chat "$model" "$(printf 'word %.0s' {1..200})" --ctx 64
is "a message of the command line that is too long: exit status" "$status" 2
printf "{{ raise_exception('no') if messages[0].content == 'Bad' }}{{ messages[0].content }}" >"$work/picky.jinja"
talk 'Bad\nOnce\n' --template "$work/picky.jinja"
is "chat: a message that the template refuses: exit status, the next one" "$status $(grep -c . "$work/out")" "2 1"

# ---- both outputs in one pipe: a note has a line of its own
printf 'Once\nThen\n' | "$FUSEBOX" chat "$model" --temp 0 -c 32 >"$work/both" 2>&1
is "one pipe: the notes" "$(grep -c 'context is full' "$work/both")" "$(grep -c '^(the context is full' "$work/both")"
matches "one pipe: they are there" "$work/both" '^\(the context is full: the answer ends here\)$'

# ---- a first message, and one turn only
first=$(printf 'Once upon a time\n' | "$FUSEBOX" chat "$model" --temp 0 -n 8)
succeeds "a message behind MODEL" chat "$model" "Once upon a time" --temp 0 -n 8
is "a message behind MODEL: its answer" "$(cat "$work/out")" "$first"
succeeds "-p" chat "$model" -p "Once upon a time" --temp 0 -n 8
is "-p: its answer" "$(cat "$work/out")" "$first"
talk 'One\nTwo\n' "Once upon a time"
is "a message behind MODEL: lines follow" "$(grep -c . "$work/out")" 3
talk 'One\nTwo\n' "Once upon a time" --single-turn
is "--single-turn" "$(cat "$work/out")" "$first"
talk '/stats\nOnce upon a time\nTwo\n' -st
is "-st: the first line" "$(cat "$work/out")" "$first"
refuses "a message with --render" 2 '--render: with a message ' chat "$model" --render "$messages" "Once upon"
refuses "-st with --render" 2 '--render: with --single-turn ' chat "$model" --render "$messages" -st
refuses "- as a message" 2 '-: not a message \(the lines of standard input are' chat "$model" -
refuses "two messages" 2 'prompt: given twice' chat "$model" "a b" -p c

# ---- llama.cpp's values
talk 'Once\n' -n -1 -c 32
is "-n -1: to the end of the context" "$status$(grep -c 'the context is full: the answer ends' "$work/err")" 01
talk 'Once\n' -n -2 -c 32
is "-n -2: the same" "$status$(grep -c 'the context is full: the answer ends' "$work/err")" 01
refuses "-n 0" 2 '--tokens: 0 \(1 or more; -1: what the context has left\)$' chat "$model" -n 0
talk '/stats\n' -c 0
matches "-c 0: the model's context" "$work/err" '0 of 512 tokens$'
refuses "-c 8" 2 "--ctx: 8 \\(16 or more; 0: the model's context\\)\$" chat "$model" -c 8
talk 'Once\n' --seed -1 --top-k -1
is "--seed -1, --top-k -1" "$status$(cat "$work/err")" 0

# ---- on a terminal: a line can be edited, and Ctrl-D ends
(sleep 1; printf 'Onxe\b\bce\nA'; sleep 1; printf '\003'; sleep 0.5; printf '\004') |
    timeout 30 script -qec "'$FUSEBOX' chat '$model' --temp 0 -n 4" /dev/null >"$work/out" 2>&1
is "terminal: exit status" "$?" 0
matches "terminal: a prompt" "$work/out" '^> '
timeout 30 script -qec "'$FUSEBOX' chat '$model' --temp 0 -n 4 -st 'Once upon'" /dev/null >"$work/out" 2>&1 </dev/null
is "terminal: one turn: exit status" "$?" 0
matches "terminal: one turn: the message is shown" "$work/out" '^> Once upon'

# ---- run
succeeds "run --chat" run "$model" --chat --system S -p "Hi<|endoftext|>" -n 4 --temp 0 --json
ids=$("$FUSEBOX" chat "$model" --render "$messages" --ids)
is "run --chat: the prompt's tokens" "$(jq .prompt_tokens "$work/out")" "$(wc -w <<<"$ids")"
printf '<|endoftext|>{{ messages[0].content }}{{ messages[1].content }}\n' >"$work/own.jinja"
succeeds "run --template" run models/storyteller --chat --template "$work/own.jinja" --system "Once upon" -p " a time" -n 4 --temp 0
mv "$work/out" "$work/templated"
succeeds "run without it" run models/storyteller -p "Once upon a time" -n 4 --temp 0
holds "run --template: the same text" cmp "$work/out" "$work/templated"
refuses "run --template alone" 2 '--template: x \(only with --chat\)' run "$model" --template x -p a
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
