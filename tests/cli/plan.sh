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

# ---- a GPU, emulated: the same report, of launches; what it predicts is not judged
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
if [ ! -f "$library" ]; then
    echo "# the emulated library is not there: no GPU was planned for"
    finish
fi
FUSEBOX_CUDA_LIBRARY=$library
gpu="--backend cuda --prompt 4 --gen 4"
succeeds "cuda" plan tests/data/golden/neox-parallel $gpu --svg "$work/gpu.svg"
cp "$work/out" "$work/plan"
matches "cuda: the machine" "$work/plan" '^Emulated GPU, sm_90: .* TFLOP/s, a launch [0-9.]+ us, in a graph [0-9.]+ us, a small kernel [0-9.]+ us$'
matches "cuda: the layer before" "$work/plan" '^before: 15 launches and .*B a layer$'
matches "cuda: a verdict" "$work/plan" '^rope_kv +(keep|leave) .*saves .* and 2 launches: .* at best; (kept|left)'
matches "cuda: graph" "$work/plan" "^graph +(keep|leave) .*launches a step's 49 ops as one: .* at best; (kept|left)"
matches "cuda: predicted against measured" "$work/plan" '^plan +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%$'
is "cuda: no barriers, no threads" "$(grep -cE 'barrier|thread' "$work/plan" "$work/gpu.svg" | paste -sd' ')" "$work/plan:0 $work/gpu.svg:0"
holds "cuda: svg" xmllint --noout "$work/gpu.svg"
is "cuda: svg: numbers" "$(grep -cE 'nan|inf' "$work/gpu.svg")" 0
file=$(find "$work/cache/fusebox" -name 'gpu-Emulated-GPU-sm_90-f32.json')
holds "cuda: cache: one file" test -f "$file"
cp "$file" "$work/kept"
succeeds "cuda: quantised" plan tests/data/gguf/neox-parallel-q8_0.gguf $gpu --json
holds "cuda: cache: used" cmp "$file" "$work/kept"
matches "cuda: quant_gemm" "$work/out" '4 matmuls quantise their activations online, instead of reading 4 already quantised that one matmul each use; '
holds "cuda: --json" python3 -c 'import json,sys; p=json.load(open(sys.argv[1])); m=p["machine"]
assert m["gpu"] == "Emulated GPU" and "threads" not in m and m["launch_s"] > 0 and m["small_s"] > 0
assert len(m["bandwidth"]) == 11 and all(b["bytes_per_s"] > 0 for b in m["bandwidth"])
assert p["none"]["launches_a_layer"] == 19 and p["plan"]["predicted"] <= p["none"]["predicted"]' "$work/out"
echo '{"version": 1' >"$file"
succeeds "cuda: cache: a damaged file is measured anew" plan tests/data/golden/llama-gqa-tied $gpu --fuse all,-graph
matches "cuda: cache: and replaced" "$file" '"logit_s"'
matches "cuda: --fuse" "$work/out" '^graph +leave '
succeeds "cuda: a session plans with it" verify tests/data/golden/gpt2 --golden tests/data/golden/gpt2/golden.safetensors --backend cuda
fusebox plan --prompt 4 --gen 4 --threads 1 --json
holds "--json: whether the machine was busy" jq -e '.machine_busy | has("busy") and has("other_percent") and has("cpus")' "$work/out"
finish
