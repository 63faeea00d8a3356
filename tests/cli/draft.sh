#!/usr/bin/env bash
# Guesses of the next tokens: verify --draft, run --draft, bench --draft.
. tests/cli/lib.sh

goldens=tests/data/golden
prompt="Once upon a time there was a poor woodcutter who"

# A smaller model with the same tokens: one layer less, whose guesses are mostly wrong, but not all.
smaller() { # smaller NAME: its folder
    local from=$goldens/$1 layers
    [ "$1" = storyteller ] && from=models/storyteller
    layers=$(jq '(.num_hidden_layers // .n_layer) - 1' $from/config.json)
    [ -d "$work/smaller/$1" ] || { mkdir -p "$work/smaller" && python3 -B tests/support/fewer_layers.py $from "$work/smaller/$1" "$layers"; }
    echo "$work/smaller/$1"
}

# ---- verify --draft: every golden with every source, and every type with some of them; each greedily, sampled, in batches,
# going back, with all caches that it can have
acts=(f32 f16 bf16)
every_type=" gpt2 mistral-window neox-parallel "
turn=0
for case in $(cd $goldens && ls -d */ | tr -d /); do
    [ -f $goldens/$case/config.json ] || continue
    for source in ngram q4 scripted "$(smaller $case)"; do
        case $source-$case in q4-gpt2-inner | q4-llama-llama3-bias | q4-neox-old-nobias)
            refuses "$case, q4" 2 'draft: no matrix of this model becomes smaller as q4_[01] ' verify $goldens/$case --draft q4
            continue
            ;;
        esac
        case $every_type in *" $case "*) types=${acts[*]} ;; *) types=${acts[turn++ % 3]} ;; esac
        for act in $types; do
            succeeds "$case, $act, $(basename "$source")" verify $goldens/$case --draft "$source" --act $act -n 16 --rounds 1 \
                --golden $goldens/$case/golden.safetensors --seed 1
        done
    done
done
for isa in avx512bf16 avx512vnni avx512 avxvnni avx2 portable; do
    fusebox verify $goldens/llama-gqa-tied --draft scripted --act f16 --isa $isa -n 16 --rounds 1
    if grep -q "isa: $isa" "$work/err"; then
        echo "# not run: $isa is not on this machine"
        continue
    fi
    is "isa $isa" "$status" 0
    succeeds "isa $isa, bf16, q4" verify $goldens/neox-parallel --draft q4 --act bf16 --isa $isa -n 16 --rounds 1
    succeeds "isa $isa, bf16, bf16 weights" verify $goldens/qwen3 --draft scripted --act bf16 --isa $isa -n 16 --rounds 1
done
succeeds "write q8_0" quantize "$work/q8_0.gguf"
for act in f32 f16 bf16; do
    for source in ngram q4 scripted "$(smaller storyteller)"; do
        succeeds "Q8_0, $act, $(basename "$source")" verify "$work/q8_0.gguf" --draft "$source" --act $act -p 16 -n 10 --rounds 0
    done
done
succeeds "Q8_0, as floats" verify "$work/q8_0.gguf" --draft q4 --dot float -p 16 -n 10 --rounds 0
succeeds "the built-in model" verify --draft q4 --act f16 --rounds 1
matches "guesses of smaller weights are kept" "$work/out" '^guesses +[1-9][0-9]{2,} of [0-9]{3,4} kept$'
succeeds "a prompt of one token that takes several steps" verify $goldens/gpt2 --draft scripted --act f16 -n 2 --rounds 3 --seed 7
for options in "--fuse none" --exact "--fuse all" "--threads 3"; do
    succeeds "$options" verify $goldens/gemma3 --draft scripted $options -n 12 --rounds 1 --seed 2
done
succeeds "JSON" verify $goldens/gpt2 --draft scripted --json
is "JSON: members" "$(jq -c '[.ok, .different, .first]' "$work/out")" '[true,0,""]'
holds "JSON: guesses" jq -e '.drafted > .kept and .kept > 50 and .steps < .tokens and .texts > 20' "$work/out"
fusebox verify $goldens/gpt2 --draft ngram -p 1 -n 2 --rounds 0
is "nothing to check is a failure" "$status" 1
matches "nothing to check: said" "$work/out" '^FAILED: no guess was made: nothing was checked$'
refuses "no source" 2 'draft: no source' verify $goldens/gpt2 --draft ''
refuses "other tokens" 2 "draft: models/storyteller: the model has no tokenizer \(both need the same\)\$" verify $goldens/gpt2 --draft models/storyteller
refuses "with --batch" 2 '--draft: with --batch ' verify --draft q4 --batch
refuses "with a window" 2 '--draft: with --cache, --sinks or --window ' verify --draft q4 --cache window
refuses "no rounds" 2 '--rounds: 0 \(at least 1; 0 only with --draft\)$' verify --batch --rounds 0

# ---- run --draft: the text is that of one by one, whatever ends it
for options in "--temp 0" "--seed 5" "--seed 3 --cache window --window 20" "--seed 4 --stop forest" "--seed 6 --ctx 60 -n 45" \
    "--seed 7 --repeat-penalty 1.3 --logit-bias 48:2" "--temp 0 --schema any" "--seed 8 --schema any" "--seed 9 --batch 3"; do
    succeeds "run $options" run -p "$prompt" -n 40 --act f16 $options --json
    jq -c '[.text, .tokens, .stop, [.answers[]?.text]]' "$work/out" >"$work/plain"
    for source in ngram q4 "$(smaller storyteller)"; do
        succeeds "run $options, $(basename "$source")" run -p "$prompt" -n 40 --act f16 $options --json --draft "$source" --draft-tokens 4
        is "run $options, $(basename "$source"): the same" "$(jq -c '[.text, .tokens, .stop, [.answers[]?.text]]' "$work/out")" "$(cat "$work/plain")"
    done
done
succeeds "run --schema with q4" run -p "$prompt" -n 40 --temp 0 --act f16 --schema any --json --draft q4 --draft-tokens 4
holds "run --schema: guesses follow the schema" jq -e '.stats.drafted > 4 and .stats.kept * 3 > .stats.drafted' "$work/out"

# ---- a smaller model that ends before the text
short=$(smaller storyteller)-short
cp -r "$(smaller storyteller)" "$short"
jq '.max_position_embeddings = 32' "$short/config.json" >"$work/config" && mv "$work/config" "$short/config.json"
for options in "-n 400 --temp 0" "-n 150 --seed 1 --batch 4" "-n 60 --seed 2 --cache window" "-n 60 --seed 2 --cache sinks --window 100"; do
    succeeds "a longer text, $options" run -p "$prompt" --act f16 $options
    cp "$work/out" "$work/plain"
    succeeds "a longer text, $options, with a draft of 32 tokens" run -p "$prompt" --act f16 $options --draft "$short" --draft-tokens 4
    is "a longer text, $options: the same" "$(cat "$work/out")" "$(cat "$work/plain")"
done
jq '.max_position_embeddings = 4' "$short/config.json" >"$work/config" && mv "$work/config" "$short/config.json"
refuses "a draft without room for the sinks" 2 'draft: sinks: 4 ' run -p "$prompt" -n 4 --cache sinks --draft "$short"
fusebox run -p "$prompt" -n 40 --temp 0 --draft q4 --draft-tokens 3 --stats
matches "stats" "$work/err" '^draft +q4: [1-4]\.[0-9]{2} tokens a step, [0-9]+ of [0-9]+ guesses kept \([0-9]+%\)$'
refuses "a number alone" 2 '--draft-tokens: 3 \(only with --draft\)$' run -p a --draft-tokens 3

# ---- bench --draft
small="-p 8 -n 24 --reps 2 --act f16"
succeeds "bench" bench --draft ngram,q4,scripted:0.8 $small
matches "bench: steps of 1 to 8 rows" "$work/out" '^steps of 1, 2, … rows, ms:( [0-9.]+){8}$'
for source in ngram q4 scripted:0.8; do
    matches "bench: a line of $source" "$work/out" "^$source +[0-9]+% +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+x \([0-9.]+ to [0-9.]+\) +[0-9.]+x"
done
matches "bench: acceptance by depth" "$work/out" '^scripted:0.8 +[0-9]+% +([0-9]+%|-) '
succeeds "bench, JSON, a picture" bench --draft scripted:1,scripted:0,q4 $small --json --svg "$work/d.svg"
is "bench: a script of right and wrong guesses" "$(jq -c '[.lines[:2][].right]' "$work/out")" '[1,0]'
holds "bench: as many by depth as there can be" jq -e 'all(.lines[]; (.right_by_depth | length) == 7)' "$work/out"
holds "bench: a picture: well formed" xmllint --noout "$work/d.svg"
is "bench: a picture: nothing from elsewhere" "$(grep -cE 'href|url\(|<script|<style|nan|inf' "$work/d.svg")" 0
succeeds "bench: of a text, sampled" bench --draft ngram $small --temp 0.8 -f <(echo "$prompt")
for script in scripted scripted: scripted:2 scripted:x; do
    refuses "bench: $script" 2 "draft: $script \(scripted:P, with P from 0 to 1\)\$" bench --draft $script $small
done
refuses "bench: an empty list" 2 'draft: no source' bench --draft '' $small
refuses "bench: with --batch" 2 '--draft \(not with --batch' bench --draft q4 --batch 2
finish
