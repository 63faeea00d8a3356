#!/usr/bin/env bash
# fusebox ppl --cache: the opening of The Wonderful Wizard of Oz as one stream, five times as long as what the storyteller
# was trained on.
. tests/cli/lib.sh

oz=tests/data/oz.txt
three="--cache dense,window,sinks --sinks 4 --window 252"

fusebox ppl -f $oz $three --kv f32 --svg "$work/oz.svg"
is "the table: exit status" "$status" 0
is "the table: one warning" "$(cat "$work/err")" "fusebox: warning: dense: 2500 tokens (the model was trained on 512)"
matches "the table: its head" "$work/out" '^position +dense +window +sinks$'
matches "the table: what each sees" "$work/out" '^sees +all +256 +4 \+ 252$'
is "the table: a line 256 tokens" "$(grep -oE '^[0-9]+' "$work/out" | paste -sd' ')" "256 512 768 1024 1280 1536 1792 2048 2304 2500"
# What the golden of the same tokens has.
matches "the table: all of the text" "$work/out" '^all +58\.4[78][0-9]+ +61\.0[23][0-9]+ +42\.5[23][0-9]+$'
matches "the table: speed" "$work/out" '^tokens/s( +[0-9]+\.[0-9]){3}$'
is "the table: all alike until one forgets" "$(awk '$1 == 256 { print ($2 - $3) ^ 2 < 1e-4 && ($2 - $4) ^ 2 < 1e-4 }' "$work/out")" 1
is "the table: with sinks the best beyond the context" "$(awk '$1 ~ /^[0-9]+$/ && $1 > 512 { n++; good += $4 < $2 && $4 < $3 } END { print n " " good }' "$work/out")" "8 8"

# ---- one cache, other lines, JSON
succeeds "--json" ppl models/storyteller -f $oz --cache sinks --sinks 1 --window 255 --every 1000 --kv f32 --json
is "--json: one line" "$(wc -l <"$work/out")" 1
holds "--json: the figures" jq -e '.context == 512 and .every == 1000 and .tokens == 2500 and .backend == "cpu" and .threads > 0
    and (.caches | length) == 1 and (.caches[0] | .cache == "sinks" and .sinks == 1 and .window == 255
    and (.perplexity - 42.307 | fabs) < 0.01 and ((.nll | exp) / .perplexity - 1 | fabs) < 1e-7 and .tokens_per_s > 0 and .bytes > 0)' "$work/out"
holds "--json: the chunks add up" jq -e '([.chunks[].position] == [1000, 2000, 2500]) and ([.chunks[].tokens] == [1000, 1000, 500])
    and ((([.chunks[] | .tokens * .nll.sinks] | add) / 2500 - .caches[0].nll | fabs) < 1e-6)' "$work/out"
head -c 1200 $oz >"$work/short"
for _ in $(seq 40); do cat $oz; done >"$work/long"
succeeds "several caches" ppl -f "$work/short" --cache sinks,dense,window --sinks 2 --window 30 --every 50 --json
holds "several caches: in the order of the list; a window has the sinks' room, too" jq -e '[.caches[] | [.cache, .sinks, .window]]
    == [["sinks", 2, 30], ["dense", 0, 0], ["window", 0, 32]] and (.chunks | all(.nll | keys_unsorted == ["sinks", "dense", "window"]))' "$work/out"
succeeds "defaults" ppl -f "$work/short" --cache window,sinks --json
holds "defaults: the context, 4 sinks, 256 tokens" jq -e '.every == 256 and ([.caches[] | [.sinks, .window]] == [[0, 511], [4, 507]])' "$work/out"
status=0
"$FUSEBOX" ppl -f - --cache sinks <"$work/short" >"$work/out" 2>"$work/err" || status=$?
is "standard input" "$status$(grep -c '^all ' "$work/out")$(cat "$work/err")" 01
# Within its context a dense cache is the plain perplexity of one window.
succeeds "dense" ppl -f "$work/short" --cache dense --json
stream=$(jq '.caches[0].nll' "$work/out")
succeeds "one window" ppl -f "$work/short" --json
holds "dense is one window" jq -e "(.nll - $stream | fabs) < 1e-4 and .window == 512 and (.windows | length) == 1" "$work/out"

# ---- the picture
holds "svg: well formed" xmllint --noout "$work/oz.svg"
is "svg: ends" "$(tail -n 1 "$work/oz.svg")" "</svg>"
for word in '>dense<' '>window of 256<' '>4 sinks + window of 252<' '>trained on 512 tokens<' '>all of the text: 58.48<'; do
    holds "svg: $word" grep -qF -- "$word" "$work/oz.svg"
done
is "svg: a curve a cache" "$(grep -c '<path ' "$work/oz.svg")" 3
is "svg: nothing from elsewhere" "$(grep -cE 'href|url\(|<script|<style|nan|inf' "$work/oz.svg")" 0
is "svg: no temporary file stays" "$(find "$work" -name 'oz.svg*' | wc -l)" 1
succeeds "svg --json" ppl -f "$work/short" --cache sinks --json --svg "$work/both.svg"
holds "svg --json: both" jq -e .tokens "$work/out"
holds "svg --json: well formed" xmllint --noout "$work/both.svg"
# A disk that is full half-way leaves the old picture, and nothing else.
mkdir "$work/disk"
echo precious >"$work/disk/x.svg"
status=0
(ulimit -f 2; exec "$FUSEBOX" ppl -f "$work/short" --cache sinks --json --svg "$work/disk/x.svg") >"$work/out" 2>"$work/err" </dev/null || status=$?
refused "svg: a full disk" 1 '.*/x.svg: File too large'
is "svg: a full disk: the old one stays" "$(cat "$work/disk/x.svg") $(find "$work/disk" -type f | wc -l)" "precious 1"
refuses "svg: no such folder, known before the text is read" 2 "$work/none/x.svg: No such file" ppl nothing-here -f $oz --cache sinks --svg "$work/none/x.svg"
refuses "svg: a folder" 2 "$work/disk: Is a directory" ppl nothing-here -f $oz --cache sinks --svg "$work/disk"
refuses "svg: no name" 2 '--svg: "": No such file' ppl nothing-here -f $oz --cache sinks --svg ""
if [ -w /dev/full ]; then
    fusebox ppl -f "$work/short" --cache sinks --json --svg /dev/full
    refused "svg: a full device" 1 '/dev/full: No space left'
    for options in "" --json; do
        status=0
        "$FUSEBOX" ppl -f "$work/short" --cache sinks $options >/dev/full 2>"$work/err" </dev/null || status=$?
        : >"$work/out"
        refused "a full device: $options" 1 'standard output: No space left'
    done
    # The first line that is lost ends it: a minute of reading for nobody is not waited for.
    status=0
    timeout 20 "$FUSEBOX" ppl -f "$work/long" --cache sinks --every 20 >/dev/full 2>"$work/err" </dev/null || status=$?
    refused "a full device: at once" 1 'standard output: No space left'
else
    echo "not ok 1 # SKIP a full device: no /dev/full here"
fi

# ---- on a terminal; Ctrl-C
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    holds "a progress bar on a terminal" grep -qF 'text [##############################] 466 of 466 tokens' \
        <(script -qec "'$FUSEBOX' ppl -f $work/short --cache window,sinks" /dev/null </dev/null)
else
    echo "not ok 2 # SKIP one check on a terminal: no pseudo-terminal here"
fi
# A job in the background ignores Ctrl-C until the program asks for it, which is before its first line. One is enough: a
# second would kill.
"$FUSEBOX" ppl -f "$work/long" --cache sinks --every 20 --svg "$work/never.svg" >"$work/out" 2>"$work/err" </dev/null &
pid=$!
until [ "$(wc -l <"$work/out")" -ge 5 ] || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
kill -INT $pid
for _ in $(seq 200); do kill -0 $pid 2>/dev/null && sleep 0.1; done
kill -KILL $pid 2>/dev/null
status=0
wait $pid || status=$?
is "Ctrl-C: exit status, nothing said" "$status$(cat "$work/err")" 130
matches "Ctrl-C: what was known is printed" "$work/out" '^60 +[0-9.]+$'
is "Ctrl-C: no totals, no picture" "$(grep -c '^all' "$work/out") $(find "$work" -name 'never*' | wc -l)" "0 0"

# ---- refusals
refuses "an unknown cache" 2 'cache: "ring" \(dense, window, sinks\)$' ppl -f $oz --cache dense,ring
refuses "no cache" 2 'cache: "" \(dense, window, sinks\)$' ppl -f $oz --cache ""
refuses "an empty place in the list" 2 'cache: "" \(dense, window, sinks\)$' ppl -f $oz --cache dense,
refuses "a cache twice" 2 '--cache: sinks \(twice\)$' ppl -f $oz --cache sinks,dense,sinks
refuses "--ctx" 2 '--ctx: 64 \(not with --cache: a stream is not cut into windows\)$' ppl -f $oz --cache sinks --ctx 64
refuses "--windows" 2 '--windows: not with --cache' ppl -f $oz --cache sinks --windows
for option in "--sinks 4" "--window 20" "--every 10" "--svg x.svg"; do
    refuses "$option without --cache" 2 "${option% *}: needs --cache\$" ppl -f $oz $option
done
refuses "--every 0" 2 '--every: 0 \(1 to ' ppl -f $oz --cache sinks --every 0
refuses "a window beyond the context" 2 'window: 509 \(1 to 508: with 4 sinks at most' ppl -f $oz --cache sinks --window 509
refuses "sinks beyond the context" 2 'sinks: 512 \(0 to 511: ' ppl -f $oz --cache sinks --sinks 512
: >"$work/empty"
refuses "an empty file" 2 'text: 0 tokens \(at least 1\)$' ppl -f "$work/empty" --cache sinks
refuses "no text" 2 'text: none' ppl --cache sinks
refuses "no tokenizer" 2 'model: no tokenizer' ppl tests/data/golden/neox-parallel -f $oz --cache sinks
# Learned positions end where their table does.
mkdir "$work/gpt2"
cp tests/data/golden/gpt2/{config.json,model.safetensors} "$work/gpt2"
cp tests/data/tokenizer/prefix.json "$work/gpt2/tokenizer.json"
head -c 60 $oz >"$work/line"
refuses "GPT-2: sinks" 2 'cache: sinks \(this model has learned positions, 128 of them' ppl "$work/gpt2" -f "$work/line" --cache sinks
refuses "GPT-2: window" 2 'cache: window \(this model has learned positions' ppl "$work/gpt2" -f "$work/line" --cache dense,window
refuses "GPT-2: dense, beyond its context" 2 "capacity: [0-9]+ tokens \(the model's context is 128\)\$" ppl "$work/gpt2" -f $oz --cache dense
succeeds "GPT-2: dense" ppl "$work/gpt2" -f "$work/line" --cache dense
finish
