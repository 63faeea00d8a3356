#!/usr/bin/env bash
# fusebox ppl on the opening of The Wonderful Wizard of Oz, which the storyteller has not been trained on.
. tests/cli/lib.sh

oz=tests/data/oz.txt

succeeds "ppl" ppl -f $oz
is "ppl: four lines" "$(wc -l <"$work/out")" 4
matches "ppl: says what is scored" "$work/out" '^scored +every token that has a predecessor in its window$'
# 44.21 is also what transformers gives for windows of 512; kernels and cache types differ behind the last digit.
matches "ppl: perplexity" "$work/out" '^perplexity +44\.[12][0-9]* ± 3\.0[0-9]*$'
matches "ppl: tokens" "$work/out" '^tokens +2500 scored, 5 windows of 512$'
matches "ppl: speed" "$work/out" '^speed +[0-9.]+ tokens/s$'

# 2501 tokens with the begin token are four whole windows.
succeeds "ppl --compat llama.cpp" ppl -f $oz --compat llama.cpp
matches "ppl --compat llama.cpp: perplexity" "$work/out" '^perplexity +37\.2[0-9]* ± 3\.8[0-9]*$'
matches "ppl --compat llama.cpp: tokens" "$work/out" '^tokens +1020 scored, 4 windows of 512$'
matches "ppl --compat llama.cpp: says what is scored" "$work/out" '^scored +the second half of each window, as llama-perplexity does$'
succeeds "ppl --chunks" ppl -f $oz --compat llama.cpp --chunks 2 --json
holds "ppl --chunks: so many windows" jq -e '.scoring == "second_half" and .tokens == 510 and (.windows | length) == 2' "$work/out"
refuses "ppl --compat: a short text" 2 'text: 1 tokens \(two windows of 512 at least, of which the second halves are scored\)$' ppl -f - --compat llama.cpp
refuses "ppl --compat: another program" 2 '--compat: vllm \(fusebox, llama.cpp\)$' ppl -f $oz --compat vllm
refuses "ppl --compat --cache" 2 '--compat: not with --cache' ppl -f $oz --compat llama.cpp --cache dense
refuses "ppl --chunks --cache" 2 '--chunks: not with --cache' ppl -f $oz --chunks 2 --cache dense

head -c 1200 $oz >"$work/short" # 466 tokens scored
succeeds "ppl --windows" ppl -f "$work/short" --ctx 96 --windows
is "ppl --windows: a line a window" "$(grep -cE '^[1-5] +[0-9]+ +[0-9.]+$' "$work/out")" 5
matches "ppl --windows: the last one is shorter" "$work/out" '^5 +86 +[0-9.]+$'
succeeds "ppl --json" ppl models/storyteller -f "$work/short" --ctx 64 --json
is "ppl --json: one line" "$(wc -l <"$work/out")" 1
holds "ppl --json: the windows add up" jq -e '.window == 64 and (.windows | length) > 3
    and ([.windows[].tokens] | add) == .tokens and (.windows[:-1] | all(.tokens == 63))
    and ((([.windows[] | .tokens * .nll] | add) / .tokens - .nll | fabs) < 1e-6)' "$work/out"
holds "ppl --json: perplexity is exp of nll" jq -e '(.nll | exp) / .perplexity - 1 | fabs < 1e-7' "$work/out"
holds "ppl --json: its error" jq -e '.nll_error * .perplexity / .perplexity_error - 1 | fabs < 1e-7' "$work/out"
all=$(member perplexity "$work/out")

status=0
"$FUSEBOX" ppl -f - --ctx 64 --json <"$work/short" >"$work/out" 2>"$work/err" || status=$?
is "ppl -f -: exit status" "$status" 0
is "ppl -f -: the same" "$(member perplexity "$work/out")" "$all"

# Whatever runs it, as long as the plain operators' bits are promised: all digits are the same.
plain=
for options in "--fuse none" "--fuse none --threads 1" "--fuse all --exact" "--fuse all,-attn_flash --threads 1" "--fuse auto --exact --threads 3"; do
    succeeds "ppl $options" ppl -f "$work/short" --ctx 64 --json $options
    : "${plain:=$(member perplexity "$work/out")}"
    is "ppl $options: all digits" "$(member perplexity "$work/out")" "$plain"
done
# Other roundings: near, and not the same.
for options in "--act bf16" "--act f16" "--isa portable"; do
    succeeds "ppl $options" ppl -f "$work/short" --ctx 64 --json $options
    holds "ppl $options: within a percent" jq -e ".perplexity / $plain - 1 | fabs < 0.01" "$work/out"
done

# A byte that is no text, an empty file, a file that is one token.
printf 'Once \xff\xfe upon' >"$work/bytes"
succeeds "ppl: any bytes" ppl -f "$work/bytes"
printf 'a' >"$work/one"
succeeds "ppl: one token" ppl -f "$work/one" --json
matches "ppl: one token: no error" "$work/out" '"tokens":1,"perplexity":[0-9.]+,"perplexity_error":null,'
: >"$work/empty"
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    holds "ppl: a progress bar on a terminal" grep -qF '[##############################] 466 of 466 tokens, perplexity 33.' \
        <(script -qec "'$FUSEBOX' ppl -f $work/short --ctx 96" /dev/null </dev/null)
else
    echo "not ok 1 # SKIP one check on a terminal: no pseudo-terminal here"
fi
# Ctrl-C: a job in the background ignores it until the program asks for it, which is after the text was read.
for _ in $(seq 40); do cat $oz; done >"$work/long"
"$FUSEBOX" ppl -f "$work/long" >"$work/out" 2>"$work/err" </dev/null &
pid=$!
until [ /proc/$pid/exe -ef "$FUSEBOX" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
while kill -INT $pid 2>/dev/null; do sleep 1; done
status=0
wait $pid || status=$?
is "ppl: Ctrl-C: exit status, nothing printed" "$status$(cat "$work/out" "$work/err")" 130

refuses "ppl: an empty file" 2 'text: 0 tokens \(at least 1\)$' ppl -f "$work/empty"
refuses "ppl: no text" 2 'text: none \(give -f FILE, or -f - for standard input\)$' ppl
refuses "ppl: no such file" 2 'nothing-here: No such file' ppl -f nothing-here
refuses "ppl: a directory" 2 'tests: Is a directory' ppl -f tests
refuses "ppl: no tokenizer" 2 'model: no tokenizer' ppl tests/data/golden/neox-parallel -f $oz
refuses "ppl: --ctx beyond the context" 2 "window: 513 tokens \(2 to 512, the model's context\)\$" ppl -f $oz --ctx 513
refuses "ppl: --ctx 1" 2 '--ctx: 1 \(2 to ' ppl -f $oz --ctx 1
refuses "ppl: two models" 2 'too many arguments' ppl a b -f $oz
refuses "ppl: f64 needs ref" 2 'act: f64' ppl -f $oz --act f64
finish
