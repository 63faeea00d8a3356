#!/usr/bin/env bash
# fusebox fuses, and --fuse on the commands that run a model.
. tests/cli/lib.sh

names="head_screen head_argmax attn_flash rope_kv quant_gemm router experts swiglu_dual swiglu_gemm swiglu_vec down_add bias_act qkv qkv_up norm_linear norm_add add3 add_norm graph step"

succeeds "fuses: the built-in model" fuses
for name in $names; do matches "fuses: $name" "$work/out" "^$name +(bit|tol) +(cpu|cuda|cpu, cuda) +(yes|no|alone)"; done
matches "fuses: attn_flash is tol, bit with --exact" "$work/out" '^tol: attn_flash: .* bit with --exact$'
matches "fuses: why not" "$work/out" '^qkv +bit +(cpu, )?cuda +no: q, k and v are one projection already'
matches "fuses: the head's" "$work/out" '^head_argmax +bit +cpu, cuda +alone only: taken by head_screen'
matches "fuses: calls" "$work/out" '^qkv_up +bit +(cpu, )?cuda +yes, 8 calls a step'
is "fuses: the rule at the end" "$(tail -n 1 "$work/out")" \
    "applied in this order; one whose ops an earlier one has taken does not apply"
succeeds "fuses: Llama" fuses tests/data/golden/llama-gqa-tied
matches "fuses: taken by" "$work/out" '^swiglu_vec +bit +(cpu, )?cuda +alone only: taken by swiglu_dual'
matches "fuses: serial residual" "$work/out" '^qkv_up +bit +(cpu, )?cuda +no: serial residual'

succeeds "fuses --json" fuses tests/data/golden/llama-gqa-tied --json
is "fuses --json: one line" "$(wc -l <"$work/out")" 1
tr '{' '\n' <"$work/out" >"$work/rows"
matches "fuses --json: applies" "$work/rows" '^"name":"swiglu_dual",.*"class":"bit",.*"applies":true,"why_not":null,"calls_per_step":3,.*"in_all":true,"taken_by":null'
matches "fuses --json: taken" "$work/rows" '^"name":"add_norm",.*"applies":true,.*"in_all":false,"taken_by":"down_add"'
matches "fuses --json: does not apply" "$work/rows" '^"name":"bias_act",.*"applies":false,"why_not":"no projection into a gelu",'
is "fuses --json: all of them" "$(grep -c '^"name":' "$work/rows")" "$(wc -w <<<"$names")"
holds "fuses --json: is JSON" jq -e . "$work/out"
for command in fuses bench; do
    refuses "$command: unknown option" 2 "unknown option: --foo \(see fusebox $command --help\)\$" $command --foo
    refuses "$command: an empty MODEL" 2 'MODEL: "" \(a directory or a .gguf file\)$' $command ""
    refuses "$command: no such model" 2 ".*/none" $command "$work/none"
    succeeds "$command --help" $command --help
done
refuses "fuses: two models" 2 'too many arguments: b \(' fuses a b

# ---- --fuse
prompt="Once upon a time there was a poor woodcutter who"
fusebox run --temp 0 -n 24 -p "$prompt" --fuse none
cp "$work/out" "$work/plain"
for spec in all auto all,-qkv_up add_norm,bias_act head_argmax head_screen; do
    fusebox run --temp 0 -n 24 -p "$prompt" --fuse "$spec"
    holds "--fuse $spec: the plain text" cmp "$work/out" "$work/plain"
done
fusebox run --temp 0 -n 24 -p "$prompt" --exact --act bf16
cp "$work/out" "$work/exact"
fusebox run --temp 0 -n 24 -p "$prompt" --fuse none --act bf16
holds "--exact: the plain text in bf16" cmp "$work/out" "$work/exact"
for spec in nothing all,nothing -nothing "" all, none,all; do
    refuses "--fuse '$spec'" 2 "fuse: .*none, all, auto.*$(tr ' ' ',' <<<"$names" | sed 's/,/, /g')" run --fuse "$spec" -n 1
done

fusebox run --temp 0 -n 9 -p "$prompt" --stats --fuse all
matches "--stats: fuses and calls" "$work/err" '^fuses +head_screen 9, attn_flash 72, rope_kv 72, down_add 72, bias_act 72, qkv_up 72, norm_linear 72$'
matches "--stats: barriers" "$work/err" '^barriers +[0-9]+ a step$'
fusebox run --temp 0 -n 9 -p "$prompt" --stats --fuse none
matches "--stats: no fuses" "$work/err" '^fuses +none$'
fusebox run -n 9 --seed 1 -p "$prompt" --json --fuse all
matches "--json: sampling needs the logits" "$work/out" '"fuses":\{"attn_flash":72,'
fused=$(member barriers_per_step "$work/out")
fusebox run -n 9 --seed 1 -p "$prompt" --json --fuse none
matches "--json: no fuses" "$work/out" '"fuses":\{\},"barriers_per_step":[0-9]+'
holds "--json: fewer barriers" test "$fused" -lt "$(member barriers_per_step "$work/out")"
fusebox run -n 1 --seed 1 -p "$prompt" --json
is "--json: no step, no barriers" "$(member barriers_per_step "$work/out")" null
finish
