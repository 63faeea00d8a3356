#!/usr/bin/env bash
# fusebox plan: prices, verdicts, the prediction against the clock, the picture, and the machine's cache.
. tests/cli/lib.sh
export XDG_CACHE_HOME="$work/cache" FUSEBOX_CUDA_LIBRARY=none

succeeds "plan" plan --threads 1 --prompt 16 --gen 16 --svg "$work/plan.svg"
cp "$work/out" "$work/plan"
matches "the layer before" "$work/plan" '^before: 15 barriers and .*B a layer$'
matches "the layer after" "$work/plan" '^after: 2 barriers and .*B a layer$'
matches "plain op" "$work/plan" '= attn_scores\('
matches "fused op" "$work/plan" '= bias_act\+qkv_up\+norm_linear\('
for fuse in attn_flash rope_kv down_add bias_act; do
    matches "verdict of $fuse" "$work/plan" "^$fuse +(keep|leave) .*(saves|adds) .* at best; (kept|left)"
done
matches "a fuse whose ops are taken" "$work/plan" '^add3 +leave .*left: down_add takes its ops$'
matches "a fuse that does not apply" "$work/plan" '^swiglu_dual +- +does not apply: '
matches "predicted against measured: none" "$work/plan" '^none +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%$'
matches "predicted against measured: plan" "$work/plan" '^plan +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%$'

# ---- the picture
holds "svg: well formed" xmllint --noout "$work/plan.svg"
matches "svg: begins" "$work/plan.svg" '^<svg xmlns="http://www.w3.org/2000/svg" viewBox='
is "svg: ends" "$(tail -n 1 "$work/plan.svg")" "</svg>"
for word in 'multiply-add: ' 'attn_flash' 'before: ' 'after: ' 'barrier'; do
    matches "svg: $word" "$work/plan.svg" "$word"
done
is "svg: nothing from elsewhere" "$(grep -cE 'href|url\(|<script|<style|nan|inf' "$work/plan.svg")" 0
is "svg: no temporary file stays" "$(find "$work" -name 'plan.svg*' | wc -l)" 1
refuses "svg: no such folder" 2 "$work/none/x.svg: No such file" plan --threads 1 --prompt 4 --gen 4 --svg "$work/none/x.svg"

# ---- the cache
file=$(find "$work/cache/fusebox" -name 'machine-*-1-*-f32.json')
holds "cache: one file" test -f "$file"
cp "$file" "$work/kept"
succeeds "cache: used" plan --threads 1 --prompt 4 --gen 4
holds "cache: unchanged" cmp "$file" "$work/kept"
succeeds "cache: --calibrate" plan --threads 1 --prompt 4 --gen 4 --calibrate
if cmp -s "$file" "$work/kept"; then not_ok "cache: measured again" "the file is the same"; else ok "cache: measured again"; fi
echo '{"version": 2' >"$file"
succeeds "cache: a damaged file is measured anew, silently" plan --threads 1 --prompt 4 --gen 4
matches "cache: and replaced" "$file" '"terms"'
XDG_CACHE_HOME=/proc/none succeeds "cache: a folder that cannot be written" plan --threads 1 --prompt 4 --gen 4

# ---- other models, JSON, errors
for model in llama-gqa-tied gpt2 neox-serial; do
    succeeds "plan $model" plan "tests/data/golden/$model" --threads 1
done
succeeds "plan llama" plan tests/data/golden/llama-gqa-tied --threads 1
matches "llama: swiglu_dual is kept" "$work/out" '^swiglu_dual +keep '
matches "llama: swiglu_vec is left" "$work/out" '^swiglu_vec +leave .*left: swiglu_dual takes its ops$'
succeeds "--fuse" plan --threads 1 --prompt 4 --gen 4 --fuse add3
matches "--fuse: that plan" "$work/out" '^add3 +keep '
matches "--fuse: and no other" "$work/out" '^rope_kv +leave '
succeeds "--json" plan --threads 1 --prompt 4 --gen 4 --json
cp "$work/out" "$work/json"
is "--json: one line" "$(wc -l <"$work/out")" 1
# Generous: the machine is shared. On a quiet one both are within 25%.
holds "--json: well formed; predictions within a factor of 4" python3 -c 'import json,sys; p=json.load(open(sys.argv[1]))
for s in ("none","plan"): assert 0.25 < p[s]["predicted"]/p[s]["measured"] < 4, (s,p[s]["predicted"],p[s]["measured"])
assert len(p["fuses"]) == 20' "$work/out"
holds "--json: drafts, with steps of several tokens" python3 -c 'import json,sys; p=json.load(open(sys.argv[1]))
assert [d["source"] for d in p["drafts"]] == ["ngram", "q4"] and len(p["step_rows"]) == 8
for d in p["drafts"]: assert d["why_not"] is None and len(d["points"]) == 5
for s in p["step_rows"]: assert 0.1 < s["predicted"] / s["measured"] < 10, s' "$work/out"
matches "drafts: a row of each" "$work/plan" '^ngram +0\.0 +[0-9]+% '
matches "drafts: steps that check guesses" "$work/plan" '^measured( +[0-9.]+){8}$'
matches "graph does not apply" "$work/plan" '^graph +- +does not apply: only on the cuda backend$'
refuses "too long" 2 'prompt and gen: 513 tokens' plan --prompt 512 --gen 1
holds "--json: whether the machine was busy" jq -e '.machine_busy | has("busy") and has("other_percent") and has("cpus")' "$work/json"
finish
