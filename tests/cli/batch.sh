#!/usr/bin/env bash
# Several sequences at once: verify --batch, run --batch, bench --batch.
. tests/cli/lib.sh

goldens=tests/data/golden
prompt="Once upon a time there was a poor woodcutter who"

# ---- verify --batch: every family; types, instruction sets and quantised files on some
for case in $(cd $goldens && ls -d */ | tr -d /); do
    [ -f $goldens/$case/config.json ] || continue
    succeeds "$case" verify $goldens/$case --batch --rounds 6
done
for act in f16 bf16; do
    for case in llama-gqa-tied neox-parallel gpt2 gemma3 mixtral; do
        succeeds "$case, $act, all fuses" verify $goldens/$case --batch --rounds 5 --act $act --fuse all --seed 2
    done
done
# Layers that see windows of 6 or 7 tokens; their rings come round after 768.
for case in gemma3 mistral-window; do
    cp -r $goldens/$case "$work/$case"
    sed -i 's/"max_position_embeddings": 128/"max_position_embeddings": 1024/' "$work/$case/config.json"
    succeeds "long prompts of $case" verify "$work/$case" --batch --rounds 4 --seed 10
    matches "long prompts of $case: the prefix cache was used" "$work/out" '^tokens from the prefix cache +[1-9][0-9][0-9]'
done
for isa in amx avx512bf16 avx512vnni avx512 avxvnni avx2 portable; do
    for case in $goldens/llama-gqa-tied "$work/gemma3"; do
        fusebox verify "$case" --batch --rounds 5 --act f16 --isa $isa
        if grep -q "isa: $isa" "$work/err"; then
            echo "# not run: $isa is not on this machine"
            continue
        fi
        is "isa $isa, $(basename "$case")" "$status" 0
        matches "isa $isa, $(basename "$case"): the prefix cache was used" "$work/out" '^tokens from the prefix cache +[1-9]'
    done
done
succeeds "plain ops" verify $goldens/neox-serial --batch --rounds 5 --fuse none --seed 3
succeeds "exact" verify $goldens/qwen3 --batch --rounds 5 --exact --seed 4
succeeds "three threads" verify $goldens/llama-mha --batch --rounds 5 --threads 3 --seed 5
succeeds "the built-in model" verify --batch --rounds 2 --act f16 --seed 7
matches "answers were put back" "$work/out" '^answers put back +[1-9]'
matches "the prefix cache was used" "$work/out" '^tokens from the prefix cache +[1-9]'
matches "prompts went through some layers at a time" "$work/out" '^a prompt by some layers only +[1-9]'
matches "fuses were switched" "$work/out" '^fuses switched meanwhile +[1-9]'
for type in q8_0 q4_0; do
    succeeds "write $type" quantize "$work/$type.gguf" --type $type
    succeeds "$type" verify "$work/$type.gguf" --batch --rounds 2 --act f16 --seed 6
    succeeds "$type, as floats" verify "$work/$type.gguf" --batch --rounds 1 --dot float --seed 7
done
succeeds "JSON" verify $goldens/llama-mha --batch --rounds 4 --json
is "JSON: members" "$(jq -c '[.ok, .rounds, .different, .first]' "$work/out")" '[true,4,0,""]'
holds "JSON: fuses were switched, logits of prompts compared" jq -e '.plan_changes > 0 and .prompt_tokens > 0' "$work/out"
refuses "with a golden" 2 '--batch: with --golden ' verify $goldens/gpt2 --batch --golden $goldens/gpt2/golden.safetensors
refuses "with a window" 2 '--batch: with --cache, --sinks or --window ' verify --batch --cache window

# ---- run --batch
fusebox run -p "$prompt" -n 12 --seed 5
one=$(cat "$work/out")
succeeds "three answers" run -p "$prompt" -n 12 --seed 5 --batch 3
is "the first is that of a run alone" "$(sed -n 1p "$work/out")" "[1] $(head -n 1 <<<"$one")"
is "there are three" "$(grep -cE '^\[[123]\] ' "$work/out")" 3
succeeds "JSON of a run" run -p "$prompt" -n 12 --seed 5 --batch 3 --json
is "they differ" "$(jq -r '[.answers[].text] | unique | length' "$work/out")" 3
fusebox run -p "$prompt" -n 8 --temp 0 --json
greedy=$(jq -c .tokens "$work/out")
succeeds "greedy" run -p "$prompt" -n 8 --temp 0 --batch 2 --json
is "greedy answers are alike" "$(jq -c '[.answers[].tokens] | unique' "$work/out")" "[$greedy]"
succeeds "stop texts" run -p "$prompt" -n 40 --temp 0 --batch 2 --stop "the" --json
is "stopped by it" "$(jq -c '[.answers[].stop] | unique' "$work/out")" '["text"]'
fusebox run -p "$prompt" -n 4 --batch 2 --stats
matches "stats" "$work/err" '^generated +8 tokens of 2 answers in 4 steps$'
refuses "no answers" 2 '--batch: 0 \(1 to 256\)$' run -p a --batch 0
refuses "without end" 2 '--batch: with --stream ' run -p a --batch 2 --stream

# ---- bench --batch
succeeds "bench" bench --batch 1,3 -p 8 -n 6
matches "a line a batch: step, floor, tokens/s in all and each, against the first, GB/s" "$work/out" \
    '^3 +[0-9.]+ \([0-9.]+ to [0-9.]+\) +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+x +[0-9.]+$'
holds "on the CPU the promise costs nothing" test -z "$(grep invariant "$work/out")"
succeeds "bench, JSON" bench --batch 2,1 -p 8 -n 6 --json
is "bench: sequences" "$(jq -c '[.lines[].sequences]' "$work/out")" '[2,1]'
holds "bench: tokens/s in all are those of each" \
    jq -e 'all(.lines[]; (.tokens_per_second / .tokens_per_second_each / .sequences - 1 | fabs) < 1e-6)' "$work/out"
holds "bench: the floor is that of more bytes with more sequences" \
    jq -e '.lines[0] as $two | .lines[1] as $one | $one.floor_ms > 0 and $two.read_bytes > $one.read_bytes' "$work/out"
is "bench: no step in any order" "$(jq -c '[.lines[] | has("any_order_step_ms")] | unique' "$work/out")" '[false]'
succeeds "bench, a picture" bench --batch 1,2 -p 8 -n 6 --svg "$work/b.svg" --json
holds "bench, a picture: JSON, too" jq -e .ok "$work/out"
holds "bench, a picture: well formed" xmllint --noout "$work/b.svg"
is "bench, a picture: nothing from elsewhere" "$(grep -cE 'href|url\(|<script|<style|nan|inf' "$work/b.svg")" 0
refuses "a picture nowhere" 2 '/nothing/x.svg: No such file' bench nothing-here --batch 1 --svg /nothing/x.svg
refuses "a picture of nothing" 2 '--svg \(only with --batch or --draft\)$' bench --svg "$work/b.svg"
[ ! -w /dev/full ] || refuses "a picture on a full device" 1 '/dev/full: No space left' bench --batch 1 -p 8 -n 6 --svg /dev/full
succeeds "bench, a cached prompt" bench --batch 1 -p 450 -n 4 --json
holds "bench, a cached prompt: 13 of 14 blocks, the same bits" jq -e '.cached_prompt | .tokens == 416 and .same_bits' "$work/out"
holds "bench, a cached prompt: sooner" jq -e '.cached_prompt.ratio > 1' "$work/out"
succeeds "bench, a short prompt" bench --batch 1 -p 319 -n 4 --json
is "bench, a short prompt: cannot be cached to 90%" "$(jq 'has("cached_prompt")' "$work/out")" false
succeeds "bench, a cached prompt of layers with windows" bench "$work/gemma3" --batch 1 -p 900 -n 4 --json
holds "bench, a cached prompt of layers with windows: the same bits, sooner" \
    jq -e '.cached_prompt | .tokens == 832 and .same_bits and .ratio > 1' "$work/out"
succeeds "bench, an arrival" bench --batch 1 -p 8 -n 20 --arrival 300
matches "bench, an arrival: from token to token" "$work/out" '^  meanwhile +[0-9.]+ +[0-9.]+ +[0-9.]+  \([0-9.]+x, [0-9.]+x, [0-9.]+x\)$'
succeeds "bench, an arrival, JSON" bench --batch 1 -p 8 -n 20 --arrival 300 --json
holds "bench, an arrival, JSON: its steps" jq -e '.arrival | .tokens == 300 and .before_ms.count == 20 and .during_ms.count > 0 and
    .during_ms.median <= .during_ms.p99 and .during_ms.p99 <= .during_ms.max' "$work/out"
refuses "bench, an arrival beyond the context" 2 "arrival: 500 tokens \(0 to 484: the model's context is 512, less prompt and gen\)\$" \
    bench --batch 1 -p 8 -n 20 --arrival 500
refuses "bench, --arrival 0" 2 '--arrival: 0 \(1 to ' bench --batch 1 --arrival 0
refuses "bench, an arrival alone" 2 '--arrival \(only with --batch\)$' bench --arrival 5
for list in "" 0 1,,2 x 1,2x 2000; do
    refuses "--batch '$list'" 2 '--batch: ".*" \((numbers from 1 to 1024, as 1,2,4,8|not empty)' bench --batch "$list"
done
refuses "with --ops" 2 '--batch \(not with --compare, --ops' bench --batch 2 --ops

# ---- a GPU, emulated: each step is also timed without the promise
library=$(dirname "$FUSEBOX")/tests/libfusebox_cuda_emulated.so
[ -f "$library" ] || finish
export FUSEBOX_CUDA_LIBRARY=$library
succeeds "cuda: bench" bench $goldens/gpt2 --backend cuda --batch 2 -p 4 -n 4
matches "cuda: with the promise and without" "$work/out" '^2 +[0-9.]+ \([0-9.]+ to [0-9.]+\) +[0-9.]+ \([0-9.]+ to [0-9.]+\) +[0-9.]+ '
succeeds "cuda: bench, JSON" bench $goldens/gpt2 --backend cuda --batch 2 -p 4 -n 4 --json
holds "cuda: bench, JSON: in any order" jq -e '.lines[0].any_order_step_ms.median > 0' "$work/out"
succeeds "cuda: bench, without it" bench $goldens/gpt2 --backend cuda --batch 2 -p 4 -n 4 --invariant off --json
holds "cuda: bench, without it: once" jq -e '.lines[0] | has("any_order_step_ms") | not' "$work/out"
finish
