#!/usr/bin/env bash
# What MODEL may be: a file of a checkpoint, one of several GGUF files, a folder with GGUF files, a name of the hub.
. tests/cli/lib.sh

edit() { python3 tests/support/gguf_edit.py "$@"; }
export HF_HUB_CACHE=$work/hub
prompt="Once upon a time there was a poor woodcutter who" text=" had a very good time in the morning"
tells() { # tells NAME MODEL: the golden's text
    fusebox run --temp 0 -n 8 -p "$prompt" "$2"
    is "$1" "$status$(cat "$work/err")$(cat "$work/out")" "0$text"
}

# ---- files of a checkpoint
for file in model.safetensors config.json tokenizer.json generation_config.json; do
    tells "$file stands for its folder" models/storyteller/$file
done
(cd models/storyteller && "$FUSEBOX" info model.safetensors >"$work/out" 2>"$work/err")
is "a file in the working folder" "$?$(cat "$work/err")" 0
succeeds "a shard" info tests/data/golden/llama-linear-sharded/model-00001-of-00003.safetensors
succeeds "the index" info tests/data/golden/llama-linear-sharded/model.safetensors.index.json
refuses "a checkpoint's file that is not there" 2 'none/model.safetensors: ' info none/model.safetensors

# ---- formats of others
mkdir "$work/pickles"
cp models/storyteller/{config,tokenizer}.json "$work/pickles"
: >"$work/pickles/pytorch_model.bin"
for path in "$work/pickles" "$work/pickles/pytorch_model.bin"; do
    refuses "PyTorch: ${path##*/}" 2 ".*/pytorch_model.bin: PyTorch's pickles hold code, which is not run: in Python, \
AutoModelForCausalLM.from_pretrained\(FOLDER\).save_pretrained\(NEW\), which writes model.safetensors; or llama.cpp's convert_hf_to_gguf.py\$" info "$path"
done
: >"$work/model.onnx"
refuses "ONNX" 2 '.*/model.onnx: a format that is not read' info "$work/model.onnx"
cp models/storyteller/model.safetensors "$work/pickles"
tells "safetensors beside a pickle" "$work/pickles"

# ---- GGUF files
succeeds "quantize" quantize models/storyteller "$work/one.gguf" --type f16
edit split "$work/one.gguf" "$work/parts" 3
for i in 1 3; do tells "part $i of 3" "$work/parts-0000$i-of-00003.gguf"; done
succeeds "quantize: parts" quantize "$work/parts-00002-of-00003.gguf" "$work/joined.gguf" --type f16
edit keys "$work/joined.gguf" >"$work/keys"
is "quantize: parts: no word of them" "$(jq '[keys[] | select(startswith("split."))] | length' "$work/keys")" 0
is "quantize: parts: the same tensors" "$(tail -c 1000000 "$work/joined.gguf" | cksum)" "$(tail -c 1000000 "$work/one.gguf" | cksum)"
mkdir "$work/folder"
mv "$work"/parts-* "$work/folder"
cp models/storyteller/config.json "$work/folder"
tells "a folder with one GGUF model, in parts" "$work/folder"
for path in "$work/folder" "$work/folder"/parts-0000{1,2}-of-00003.gguf; do
    is "tokenize: ${path##*/}" "$("$FUSEBOX" tokenize "$path" "Once upon a time")" "0 48 1717 587 260 564"
done
cp "$work/one.gguf" "$work/folder/b.gguf"
refuses "tokenize: a folder with two" 2 '.*/folder: 2 GGUF files \(give one of them' tokenize "$work/folder" -p x
refuses "a folder with two" 2 '.*/folder: 2 GGUF files \(give one of them: b.gguf, parts-00001-of-00003.gguf\)$' info "$work/folder"
for i in $(seq 50); do : >"$work/folder/a-file-with-a-long-name-$i.gguf"; done
refuses "a folder with many" 2 '.*/folder: 52 GGUF files \(give one of them: a-file-with-a-long-name-1.gguf, .*, \.\.\.\)$' info "$work/folder"
rm "$work"/folder/a-* "$work/folder/b.gguf" "$work/folder/parts-00002-of-00003.gguf"
refuses "a part is missing" 2 ".*/parts-00002-of-00003.gguf: No such file or directory \(part 2 of the model's 3\)\$" info "$work/folder"

# ---- what quantize keeps
edit add "$work/one.gguf" "$work/rich.gguf" general.license string apache-2.0 general.tags strings a,b general.name string Rich \
    general.count u64 5000000000 general.offset i64 -5000000000 general.level i32 -3 general.dataset.0.name string tales general.alignment u32 32
succeeds "quantize: general" quantize "$work/rich.gguf" "$work/kept.gguf"
edit keys "$work/kept.gguf" >"$work/keys"
holds "quantize: general keys are kept" jq -e '.["general.license"] == "apache-2.0" and .["general.tags"] == ["a", "b"]
    and .["general.name"] == "Rich" and .["general.count"] == 5000000000 and .["general.offset"] == -5000000000
    and .["general.level"] == -3 and .["general.dataset.0.name"] == "tales" and .["general.size_label"] == "8.4M"' "$work/keys"
holds "quantize: general keys that are ours" jq -e '.["general.file_type"] == 7 and .["general.architecture"] == "gptneox"
    and .["general.type"] == "model" and .["general.quantization_version"] == 2 and (has("general.alignment") | not)' "$work/keys"
edit keys "$work/one.gguf" >"$work/keys"
holds "quantize: a folder's name and size" jq -e '.["general.name"] == "storyteller" and .["general.size_label"] == "8.4M"' "$work/keys"
succeeds "quantize: a file of a folder" quantize models/storyteller/config.json "$work/named.gguf"
is "quantize: a file of a folder: its name" "$(edit keys "$work/named.gguf" | jq -r '.["general.name"]')" storyteller

# ---- names of the hub
hub=$work/hub/models--grimm--tales
commit=0123456789abcdef0123456789abcdef01234567
mkdir -p "$hub/blobs" "$hub/refs" "$hub/snapshots/$commit"
for file in config.json generation_config.json tokenizer.json model.safetensors; do
    cp "models/storyteller/$file" "$hub/blobs/blob-$file"
    ln -s "../../blobs/blob-$file" "$hub/snapshots/$commit/$file"
done
printf %s $commit >"$hub/refs/main"
tells "ORG/NAME" grimm/tales
tells "ORG/NAME@COMMIT" grimm/tales@$commit
fusebox run --temp 0 -n 8 -p "$prompt" -hf grimm/tales
is "-hf ORG/NAME" "$(cat "$work/err" "$work/out")" "$text"
succeeds "quantize: ORG/NAME" quantize grimm/tales "$work/hub.gguf"
is "quantize: ORG/NAME: its name" "$(edit keys "$work/hub.gguf" | jq -r '.["general.name"]')" tales
tokenizes() { # tokenizes NAME MODEL: the storyteller's ids
    fusebox tokenize "$2" "Once upon a time"
    is "tokenize: $1" "$status$(cat "$work/err")$(cat "$work/out")" "00 48 1717 587 260 564"
}
tokenizes "ORG/NAME" grimm/tales
fusebox tokenize -hf grimm/tales -p "Once upon a time"
is "tokenize: -hf ORG/NAME" "$(cat "$work/err" "$work/out")" "0 48 1717 587 260 564"
refuses "tokenize: a name that was not downloaded" 2 'grimm/nothing: no such file or folder, nor in the Hugging Face cache' tokenize grimm/nothing -p x
for file in config.json model.safetensors tokenizer.json; do tokenizes "$file stands for its folder" models/storyteller/$file; done
mkdir -p "$hub/refs/pr"
printf '%s\n' $commit >"$hub/refs/pr/1"
tells "ORG/NAME@pr/1" grimm/tales@pr/1
for variable in HUGGINGFACE_HUB_CACHE=$work/hub HF_HOME=$work XDG_CACHE_HOME=$work/xdg HOME=$work/home; do
    mkdir -p "$work/xdg/huggingface" "$work/home/.cache/huggingface"
    ln -sfn "$work/hub" "$work/xdg/huggingface/hub"
    ln -sfn "$work/hub" "$work/home/.cache/huggingface/hub"
    holds "the cache by ${variable%%=*}" env -u HF_HUB_CACHE -u XDG_CACHE_HOME "$variable" "$FUSEBOX" info grimm/tales
done
refuses "a name that was not downloaded" 2 "grimm/nothing: no such file or folder, nor in the Hugging Face cache $work/hub \
\(nothing is downloaded; to get it: hf download grimm/nothing\)\$" info grimm/nothing
refuses "a revision that was not downloaded" 2 "grimm/tales@v2: revision v2: not in $hub \(to get it: hf download grimm/tales --revision v2\)\$" info grimm/tales@v2
for name in a/b/c ../nothing-here /x/y a/../b 'a/b c' a/b@../../x a/b@ a/b: a/ "$(printf 'a%.0s' $(seq 200))/b"; do
    refuses "no name of the hub: ${name:0:20}" 2 '.*: No such file or directory|.*: File name too long' info "$name"
done
(mkdir -p "$work/here/grimm" && cp -r models/storyteller "$work/here/grimm/tales" && cd "$work/here" && rm grimm/tales/tokenizer.json &&
    "$FUSEBOX" info grimm/tales --json) >"$work/out" 2>"$work/err"
is "a path that is there comes first" "$(member has_tokenizer "$work/out")$(cat "$work/err")" false
# An incomplete download, and references that lead elsewhere.
rm "$hub/blobs/blob-model.safetensors"
refuses "incomplete: a lost file" 2 "$hub/snapshots/$commit/model.safetensors: missing \(the download of grimm/tales is incomplete: hf download grimm/tales\)\$" info grimm/tales
rm "$hub/snapshots/$commit/model.safetensors"
tokenizes "ORG/NAME without weights" grimm/tales
refuses "incomplete: no weights" 2 "$hub/snapshots/$commit/model.safetensors: missing \(the download" info grimm/tales
for bad in ../../../other '' "$(printf 'a%.0s' $(seq 300))" ..; do
    printf %s "$bad" >"$hub/refs/main"
    refuses "a reference that is none: '${bad:0:20}'" 2 'grimm/tales: revision main: not in ' info grimm/tales
done
# GGUF files alone.
printf %s $commit >"$hub/refs/main"
rm "$hub/snapshots/$commit"/*
cp "$work/one.gguf" "$hub/snapshots/$commit/tales-F16.gguf"
tells "a snapshot with one GGUF file" grimm/tales
cp "$work/kept.gguf" "$hub/snapshots/$commit/tales-Q8_0.gguf"
refuses "a snapshot with two" 2 ".*: 2 GGUF files \(give one of them: tales-F16.gguf, tales-Q8_0.gguf\)\$" info grimm/tales
tells "ORG/NAME:TAG" grimm/tales:f16
refuses "ORG/NAME:TAG that is not there" 2 'tales: 0 GGUF files named Q4_0 in ' info grimm/tales:Q4_0
refuses "ORG/NAME:TAG that is not clear" 2 'tales: 2 GGUF files named tales in ' info grimm/tales:tales
# Experts: each has tensors of its own. What is missing, or of another type or shape, is named.
cp -r tests/data/golden/mixtral "$work/mixtral"
experts() { sed -i "s/\"$1\": [0-9]*/\"$1\": $2/" "$work/mixtral/config.json"; }
succeeds "mixtral" info "$work/mixtral"
matches "mixtral: experts" "$work/out" '^experts +4, of which a token uses 2$'
experts num_local_experts 3
refuses "an expert too many" 2 '.*/mixtral: model.layers.0.block_sparse_moe.gate.weight: shape \[4, 64\] \(the config says \[3, 64\]\)' info "$work/mixtral"
experts num_local_experts 4
experts num_experts_per_tok 5
refuses "more experts than there are" 2 '.*/config.json: num_experts_per_tok: 5 \(1 to 4\)' info "$work/mixtral"
sed -i '/num_experts_per_tok/d; s/"num_local_experts": 4/"num_local_experts": 1/' "$work/mixtral/config.json"
refuses "more experts by default than there are" 2 '.*/config.json: num_experts_per_tok: missing \(2 by default, of 1 experts\)' info "$work/mixtral"
cp tests/data/golden/mixtral/config.json "$work/mixtral/config.json"
sed -i 's/layers.1.block_sparse_moe.experts.3.w2/layers.1.block_sparse_moe.experts.9.w2/' "$work/mixtral/model.safetensors"
refuses "an expert is missing" 2 '.*/mixtral: model.layers.1.block_sparse_moe.experts.3.w2.weight: missing tensor' info "$work/mixtral"
cp -r tests/data/golden/qwen3-moe "$work/moe"
sed -i 's/"mlp_only_layers": \[\]/"mlp_only_layers": [1]/' "$work/moe/config.json"
refuses "layers without experts" 2 '.*/config.json: mlp_only_layers: \[1\] \(only layers with experts\)' info "$work/moe"
finish
