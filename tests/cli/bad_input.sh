#!/usr/bin/env bash
# Bad input: the exit status, one line on stderr, nothing on stdout.
. tests/cli/lib.sh

# ---- the command line
refuses "unknown command" 2 'unknown command: walk \(see fusebox --help\)$' walk
refuses "unknown global option" 2 'unknown option: --walk \(a command comes first, as in fusebox run; see fusebox --help\)$' --walk
refuses "help for an unknown command" 2 'unknown command: walk' help walk
for command in run info verify; do
    refuses "$command: unknown option" 2 "unknown option: --foo \(see fusebox $command --help\)\$" "$command" --foo
    refuses "$command: unknown option with a value" 2 'unknown option: --foo \(' "$command" --foo=1
    refuses "$command: unknown letter" 2 'unknown option: -x \(' "$command" -x
    refuses "$command: flag with a value" 2 '--json: 1 \(takes no value\)$' "$command" --json=1
    refuses "$command: an empty MODEL" 2 'MODEL: "" \(a directory or a .gguf file\)$' "$command" "" $([ $command != verify ] || echo --golden x)
done
refuses "a prompt and -" 2 'prompt: given twice, the second time as - \(one of -p TEXT, -f FILE, - and TEXT\)$' run "a b" -
refuses "three arguments" 2 'too many arguments: c \(see fusebox run --help\)$' run ./a b c
refuses "info: two models" 2 'too many arguments: b \(see fusebox info --help\)$' info a b
refuses "no value" 2 '-n: no value' run -n
refuses "-n: -3" 2 '-n: -3 \(-1 to 1000000000\)$' run -n -3
refuses "-n: beyond the range" 2 '-n: 1000000001 \(-1 to 1000000000\)$' run -n 1000000001
refuses "-n: beyond 64 bits" 2 '-n: 99999999999999999999 \(' run -n 99999999999999999999
for value in "" x 5x 1.5 " 5" +5 0x10 1e3 --; do
    refuses "-n: '$value'" 2 '-n: .*\(-1 to 1000000000\)$' run -n "$value"
done
refuses "--tokens names itself" 2 '--tokens: -3 \(' run --tokens=-3
refuses "--top-p 7" 2 '--top-p: 7 \(0 to 1\)$' run --top-p 7
refuses "--min-p -0.1" 2 '--min-p: -0.1 \(0 to 1\)$' run --min-p -0.1
for value in nan inf -1 101 0x1p3 1e999 "" 1,5; do
    refuses "--temp '$value'" 2 '--temp: .*\(0 to 100\)$' run --temp "$value"
done
refuses "--top-k -2" 2 '--top-k: -2 \(' run --top-k -2
refuses "--repeat-penalty 0" 2 '--repeat-penalty: 0 \(0.01 to 100\)$' run --repeat-penalty 0
refuses "--seed -2" 2 '--seed: -2 \(0 to 18446744073709551615\)$' run --seed -2
refuses "--seed beyond 64 bits" 2 '--seed: 18446744073709551616 \(' run --seed 18446744073709551616
refuses "--threads 100000" 2 '--threads: 100000 \(0 to 256\)$' run --threads 100000
refuses "--act i8" 2 '--act: i8 \(f32, f16, bf16' run --act i8
refuses "--kv q8_0" 2 '--kv: q8_0 \(auto, act, f32, f16, bf16' run --kv q8_0
refuses "--kv f64 without ref" 2 'kv: f64 \(only with isa ref' run --kv f64
refuses "--isa z80" 2 '--isa: z80 \(amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2, i8mm, dotprod, neon, portable, ref\)$' run --isa z80
refuses "-p and -f" 2 'prompt: given twice' run -p a -f b
refuses "-p and -" 2 'prompt: given twice' run -p a -
refuses "-f and -" 2 'prompt: given twice' run -f a -
refuses "- twice" 2 'prompt: given twice' run - -
refuses "control characters stay out of the terminal" 2 'unknown option: --a\\x0ab\\x1b\[31m \(' run $'--a\nb\e[31m'

# ---- the prompt
refuses "-f: no such file" 2 ".*/none: No such file" run -f "$work/none"
refuses "-f: a directory" 2 '.*: Is a directory$' run -f "$work"
for i in $(seq 600); do printf 'word '; done >"$work/long"
refuses "a prompt beyond the context" 2 "prompt: [0-9]+ tokens \(the model's context is 512; with --cache sinks it may be longer\)\$" run -f "$work/long"

# ---- the model
refuses "no such model" 2 ".*/none" run "$work/none"
mkdir "$work/empty"
refuses "an empty directory" 2 '.*config\.json' run "$work/empty"
refuses "a file as MODEL" 2 "LICENSE" run LICENSE
refuses "a model without a tokenizer" 2 '.*tokenizer' run tests/data/golden/gpt2 -p a
damage() { # damage NAME: a fresh copy of the built-in model in $work/NAME
    model=$work/$1
    cp -r models/storyteller "$model"
    chmod -R u+w "$model"
}
damage cut
truncate -s 1000000 "$model/model.safetensors"
damage nothing
truncate -s 0 "$model/model.safetensors"
damage header
printf '\377\377\377\377\377\377\377\177' | dd of="$model/model.safetensors" conv=notrunc status=none
damage config
printf '{"model_type":' >"$model/config.json"
damage nested
head -c 1000000 /dev/zero | tr '\0' '[' >"$model/config.json"
damage utf8
printf '{"model_type": "\377"}' >"$model/config.json"
damage architecture
sed -i 's/gpt_neox/mamba/; s/GPTNeoXForCausalLM/MambaForCausalLM/' "$model/config.json"
damage shape
sed -i 's/"hidden_size": 256/"hidden_size": 512/' "$model/config.json"
damage activation
sed -i 's/"gelu"/"tanhexp"/' "$model/config.json"
damage layers
sed -i 's/"num_hidden_layers": 8/"num_hidden_layers": 9/' "$model/config.json"
damage tokenizer
truncate -s 1000 "$model/tokenizer.json"
damage unreadable
rm "$model/model.safetensors"
mkdir "$model/model.safetensors"
for name in cut nothing header config nested utf8 architecture shape activation layers tokenizer unreadable; do
    for command in run info "verify --golden tests/data/golden/storyteller/golden.safetensors"; do
        refuses "model: $name: ${command%% *}" 2 '.+' $command "$work/$name"
    done
done
# A file that need not be there is read if it is: one that cannot be is an error, not one that is missing.
for file in tokenizer.json generation_config.json; do
    damage optional
    rm "$model/$file"
    fusebox info "$model"
    is "$file: missing" "$status$(cat "$work/err")" 0
    mkdir "$model/$file"
    refuses "$file: a folder" 2 ".*/$file: not a regular file" info "$model"
    rmdir "$model/$file"
    ln -s nowhere "$model/$file"
    refuses "$file: a link to nothing" 2 ".*/$file: a link to nothing" info "$model"
    ln -sf "$file" "$model/$file"
    refuses "$file: a link to itself" 2 ".*/$file: Too many levels" info "$model"
    rm "$model/$file"
    echo '{}' >"$model/$file"
    chmod 0 "$model/$file"
    [ "$(id -u)" -eq 0 ] || refuses "$file: not readable" 2 ".*/$file: Permission denied" info "$model"
    rm -r "$model"
done
damage whole
mkdir "$work/no_weights"
ln -s nowhere "$work/no_weights/model.safetensors"
cp "$model/config.json" "$work/no_weights"
echo '{}' >"$work/no_weights/model.safetensors.index.json"
refuses "model.safetensors: a link to nothing, beside an index" 2 '.*/model.safetensors: a link to nothing' info "$work/no_weights"
mkfifo "$work/fifo"
refuses "a model that is no file" 2 '.*/fifo: not a regular file' info "$work/fifo"
refuses "a model that is not there" 2 "$work/none: No such file" info "$work/none"

# ---- a context in which hardly anything fits: no limit is negative or empty, and none is blamed on what nobody gave
damage context1
sed -i 's/"max_position_embeddings": 512/"max_position_embeddings": 1/' "$model/config.json"
refuses "context 1: ppl" 2 'context: 1 tokens \(perplexity needs windows of at least 2\)$' ppl "$model" -f README.md
refuses "context 1: bench" 2 "prompt and gen: 1 and 1 tokens \(the model's context is 1\)\$" bench "$model"
refuses "context 1: profile" 2 "prompt and gen: 2 tokens \(the model's context is 1\)\$" profile "$model"
for cache in window sinks; do
    refuses "context 1: verify --cache $cache" 2 "cache: $cache \(compares at least 4 tokens, so that some are forgotten; of this model, 1\)\$" \
        verify "$model" --cache $cache
done
damage context4
sed -i 's/"max_position_embeddings": 512/"max_position_embeddings": 4/' "$model/config.json"
refuses "context 4: verify --cache sinks" 2 'sinks: 4 \(at most 0 of the 4 tokens that are compared\)$' verify "$model" --cache sinks
refuses "verify: too many sinks" 2 'sinks: 5000 \(at most [0-9]+ of the [0-9]+ tokens that are compared\)$' verify --cache sinks --sinks 5000

# ---- options and arguments that would be ignored, or that are found to be wrong only after a minute
refuses "bench --ops --compare" 2 '--compare \(not with --ops: ' bench --ops --compare none,all
refuses "info --devices MODEL" 2 'MODEL: models/storyteller \(not with --devices\)$' info --devices models/storyteller
refuses "quantize to a folder" 2 'OUT.gguf: models/storyteller \(give the name of a file; MODEL comes before it\)$' quantize models/storyteller
refuses "quantize to nothing" 2 'OUT.gguf: "" \(give the name of a file\)$' quantize models/storyteller ""
refuses "plan: a picture without a name" 2 '--svg: "": No such file' plan nothing-here --svg ""
refuses "plan: a picture nowhere" 2 '/nothing/x.svg: No such file' plan nothing-here --svg /nothing/x.svg

refuses "the unknown architecture is named" 2 '.*mamba' run "$work/architecture"
refuses "the unknown activation is named" 2 '.*tanhexp' run "$work/activation"

# ---- memory: the KV cache of a context that is not there (AddressSanitizer itself needs more than the limit)
if ! nm "$FUSEBOX" 2>/dev/null | grep -q __asan_init; then
    damage context
    sed -i 's/"max_position_embeddings": 512/"max_position_embeddings": 16000000/' "$model/config.json"
    status=0
    (ulimit -v 2000000 && exec "$FUSEBOX" run "$model" -n 15000000 -p a) >"$work/out" 2>"$work/err" </dev/null || status=$?
    refused "no memory for the KV cache" 1 '.*(bytes|memory)'
fi
finish
