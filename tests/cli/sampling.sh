#!/usr/bin/env bash
# Biases, penalties and log-probabilities with the built-in model.
. tests/cli/lib.sh

prompt="Once upon a time there was a poor woodcutter who"
plain='[344,260,553,604,564,296,262,1040]' # tests/data/golden/storyteller/golden.json
tokens() { # tokens ARGUMENT...: eight greedy ones
    fusebox run --temp 0 -n 8 -p "$prompt" --json "$@"
    jq -c .tokens "$work/out"
}

# ---- biases
is "none" "$(tokens)" "$plain"
is "0 changes nothing" "$(tokens --logit-bias 344:0 --logit-bias 5+0)" "$plain"
banned=$(tokens --logit-bias 344:-inf --logit-bias 1556-inf)
is "banned: they do not come" "$(jq -c 'index(344), index(1556)' <<<"$banned" | xargs)" "null null"
differs "banned: the text changes" "$banned" "$plain"
is "banned: the report" "$(jq -c '.logit_bias' "$work/out")" '[{"id":344,"bias":null},{"id":1556,"bias":null}]'
is "+100: nothing else comes" "$(tokens --logit-bias 77:100)" '[77,77,77,77,77,77,77,77]'
is "llama.cpp's spelling" "$(tokens --logit-bias 77+100)" '[77,77,77,77,77,77,77,77]'
is "llama.cpp's letter" "$(tokens -l 77+100)" '[77,77,77,77,77,77,77,77]'
is "two of one token add up" "$(tokens --logit-bias 77:100 --logit-bias 77:-100)" "$plain"
is "llama.cpp's minus" "$(tokens --logit-bias 344-100 | jq 'index(344)')" null
succeeds "drawn: banned" run --temp 2 --top-k 0 --seed 3 -n 30 -p "$prompt" --json --logit-bias 260:-inf --logit-bias 13:-inf
is "drawn: they do not come" "$(jq -c '.tokens | index(260), index(13)' "$work/out" | xargs)" "null null"
for value in 5 : :1 5: 5:nan 5:inf 5+inf 5:100.5 5-101 5:1x a:1 5--1 5:+-1 -1:1 9999999999:1 99999999999999999999:1 "5: 1" " 5:1" 5e1:1 5:0x1; do
    refuses "--logit-bias '$value'" 2 '--logit-bias: .*\(ID:BIAS, a token.s id and -100 to 100, or -inf; such as 15043:-1.5\)$' run --logit-bias "$value" -p a
done
refuses "--logit-bias ''" 2 '--logit-bias: "" \(not empty, up to 64 times\)$' run --logit-bias "" -p a
refuses "an id beyond the vocabulary" 2 "--logit-bias: 4096:1 \(the model's ids are 0 to 4095\)\$" run --logit-bias 4096:1 -p a
refuses "the same in a chat" 2 "--logit-bias: 4096\+1 \(the model's ids are 0 to 4095\)\$" chat --logit-bias 4096+1 -p a
refuses "a wrong one in a chat" 2 '--logit-bias: x \(ID:BIAS' chat --logit-bias x -p a

echo "{{ messages[0].content }}" >"$work/template"
fusebox run --temp 0 -n 8 -p "$prompt" --logit-bias 77:100
mv "$work/out" "$work/wanted"
succeeds "a chat" chat --template "$work/template" -p "$prompt" --single-turn --temp 0 -n 8 --logit-bias 77:100
holds "a chat: its bias" cmp "$work/out" "$work/wanted"

# ---- penalties
differs "a presence penalty matters at temperature 0" "$(tokens --presence-penalty 2)" "$plain"
is "its report" "$(jq -c '[.presence_penalty, .frequency_penalty, .logit_bias]' "$work/out")" '[2,0,[]]'
differs "a frequency penalty matters at temperature 0" "$(tokens --frequency-penalty 1.1)" "$plain"
is "its report, as typed" "$(jq -c '[.presence_penalty, .frequency_penalty]' "$work/out")" '[0,1.1]'
succeeds "a reward" run --temp 0 -n 60 -p "$prompt" --json --frequency-penalty -2
is "a reward: few tokens come again and again" "$(jq '.tokens | unique | length < 20' "$work/out")" true
for option in presence frequency; do
    for value in 2.1 -2.1 nan inf x; do
        refuses "--$option-penalty $value" 2 "--$option-penalty: $value \(-2 to 2\)\$" run --$option-penalty $value
    done
done

# ---- log-probabilities
is "--logprobs: the same tokens" "$(tokens --logprobs 3)" "$plain"
is "--logprobs: one for each token" "$(jq -c '[.logprobs[].id]' "$work/out")" "$plain"
is "--logprobs: three best each" "$(jq -c '[.logprobs[].top | length] | unique' "$work/out")" '[3]'
is "--logprobs: a greedy token is the best" "$(jq '[.logprobs[] | .id == .top[0].id and .logprob == .top[0].logprob] | all' "$work/out")" true
is "--logprobs: the best first, all below 0" "$(jq '[.logprobs[].top | .[0].logprob >= .[1].logprob and .[1].logprob >= .[2].logprob and .[0].logprob < 0] | all' "$work/out")" true
is "--logprobs: the first one" "$(jq '.logprobs[0].logprob * 1000 | round' "$work/out")" -600
jq -c '[.logprobs[0].top[]]' "$work/out" >"$work/first"
tokens --logprobs 3 --logit-bias 344:-inf >/dev/null
is "--logprobs: before biases" "$(jq -c '[.logprobs[0].top[]]' "$work/out")" "$(cat "$work/first")"
is "--logprobs 0: of the tokens alone" "$(tokens --logprobs 0 && jq -c '.logprobs[0].top' "$work/out")" "$plain
[]"
succeeds "--logprobs: many tokens" run --seed 4 -n 200 -p "$prompt" --json --logprobs 20
is "--logprobs: of all of them" "$(jq '([.logprobs[].id] == .tokens) and ([.logprobs[].top | length] | unique == [20])' "$work/out")" true
is "--logprobs: probabilities, at most 1 together" "$(jq '[.logprobs[].top | map(.logprob | exp) | add | . <= 1.000001] | all' "$work/out")" true
is "no --logprobs: not in the report" "$(tokens >/dev/null; jq 'has("logprobs")' "$work/out")" false
refuses "--logprobs without --json" 2 '--logprobs: 2 \(only with --json, which prints them\)$' run --logprobs 2 -p a
refuses "--logprobs 21" 2 '--logprobs: 21 \(0 to 20\)$' run --json --logprobs 21 -p a
refuses "--logprobs -1" 2 '--logprobs: -1 \(0 to 20\)$' run --json --logprobs -1 -p a
refuses "--logprobs in a chat" 2 'unknown option: --logprobs \(an option of fusebox run; see fusebox chat --help\)$' chat --logprobs 2

# ---- schemas
cat >"$work/schema.json" <<'END'
{"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0,
 "maximum": 99}}, "required": ["name", "age"], "additionalProperties": false}
END
for options in "--temp 0" "--seed 3" "--seed 4 --temp 2 --top-k 0" "--seed 5 --stream"; do
    succeeds "--schema $options" run $options -n 150 -p "$prompt" --json --schema "$work/schema.json"
    is "--schema $options: fits" "$(jq -r .text "$work/out" | jq -c '[keys, (.name | length <= 10), (.age >= 0 and .age <= 99)]')" \
        '[["age","name"],true,true]'
    is "--schema $options: has ended" "$(jq -r .stop "$work/out")" end
done
succeeds "--schema: a chat" chat --template "$work/template" -p "$prompt" --single-turn --temp 0 -n 100 --schema "$work/schema.json"
is "--schema: a chat's answer fits" "$(jq -c keys "$work/out")" '["age","name"]'
succeeds "--schema: a batch" run --batch 3 -n 100 --seed 2 -p "$prompt" --json --schema "$work/schema.json"
is "--schema: a batch's answers fit" "$(jq -r '.answers[].text' "$work/out" | jq -cs '[.[] | keys] | unique')" '[["age","name"]]'
succeeds "--schema any" run --seed 1 -n 40 -p "$prompt" --schema any
matches "--schema any: an object" "$work/out" '^ ?\{'
printf '{"not": {}}' >"$work/bad.json"
refuses "--schema: a keyword" 2 '.*bad.json: schema: not: not supported$' run -p a --schema "$work/bad.json"
refuses "--schema: no file" 2 '.*missing.json: No such file or directory$' run -p a --schema "$work/missing.json"
refuses "--schema: no JSON" 2 '.*schema: not JSON: .*' chat -p a --schema <(echo '{') --single-turn
finish
