#!/usr/bin/env bash
# What quantised weights cost, on a text that the storyteller has not been trained on: its perplexity in each type against
# that of float16. Both read the same tokens, so that the differences are far smaller than the standard errors.
. tests/cli/lib.sh

oz=tests/data/oz.txt

perplexity() { # perplexity MODEL: prints it; the whole answer is in $work/out
    fusebox ppl "$1" -f $oz --json
    [ "$status" -eq 0 ] && member perplexity "$work/out" || echo "null"
}
near() { # near NAME VALUE REFERENCE PERCENT
    holds "$1 ($2 against $3, at most $4%)" jq -en "($2 / $3 - 1 | fabs) * 100 <= $4"
}

base=$(perplexity models/storyteller)
holds "storyteller: perplexity" jq -en "$base > 40 and $base < 50"
tokens=$(member tokens "$work/out")
for type in f16 q8_0 q4_0; do
    succeeds "quantize --type $type" quantize models/storyteller "$work/$type.gguf" --type $type
done
near "f16" "$(perplexity "$work/f16.gguf")" "$base" 0.001
is "f16: the same tokens" "$(member tokens "$work/out")" "$tokens"
q8=$(perplexity "$work/q8_0.gguf")
is "q8_0: the same tokens" "$(member tokens "$work/out")" "$tokens"
q4=$(perplexity "$work/q4_0.gguf")
is "q4_0: the same tokens" "$(member tokens "$work/out")" "$tokens"

# A model this small feels 4 bits. A tenth is what they cost, not the kernels: the same weights, quantised and decoded again by
# the gguf package and run in float32, give 44.0210 and 48.5916; kernels add the rounding of activations to 8 bits.
near "q8_0" "$q8" "$base" 0.5
near "q4_0" "$q4" "$base" 12
near "q8_0, decoded" "$q8" 44.0210 0.5
near "q4_0, decoded" "$q4" 48.5916 1.5
# A type that costs nothing at all was not used.
holds "q8_0 is not f16 ($q8, $base)" jq -en "$q8 != $base"
finish
