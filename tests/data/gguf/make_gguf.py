#!/usr/bin/env python3
"""Where the models in this folder come from; nothing in the build runs it.

    python3 make_gguf.py [CHECKPOINT OUT.gguf [TYPE]]    with the packages `gguf` 0.19.0 and `numpy`

Writes checkpoints (without arguments: some of ../golden) as GGUF files, with the package's own table of names and the row
orders that llama.cpp's converter gives them: what our reader has to understand, written without any code of ours. Matrices
keep their type, or get TYPE where their rows are whole blocks; vectors are F32.
"""
import json
import os
import sys

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    ("neox-parallel", None),
    ("neox-parallel", "Q8_0"),
    ("neox-old-nobias", None),
    ("llama-gqa-tied", None),
    ("llama-linear-sharded", None),
    ("llama-llama3-bias", None),
    ("gpt2", None),
    ("gpt2-inner", None),
]
ARCHS = {"gpt_neox": gguf.MODEL_ARCH.GPTNEOX, "llama": gguf.MODEL_ARCH.LLAMA, "gpt2": gguf.MODEL_ARCH.GPT2}


DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "BOOL": np.bool_}  # numpy has no bfloat16


def load(checkpoint):
    tensors = {}
    for name in sorted(os.listdir(checkpoint)):
        if not (name.startswith("model") and name.endswith(".safetensors")):
            continue
        data = open(os.path.join(checkpoint, name), "rb").read()
        start = 8 + int.from_bytes(data[:8], "little")
        for tensor, info in json.loads(data[8:start]).items():
            if tensor != "__metadata__":
                begin, end = (start + offset for offset in info["data_offsets"])
                tensors[tensor] = np.frombuffer(data[begin:end], DTYPES[info["dtype"]]).reshape(info["shape"])
    return tensors


def as_float(array):
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


def interleave(rows, heads):
    """A head's two halves, which rotate against each other, become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gather(rows, heads):
    """[head][q k v] to [q k v][head]."""
    return rows.reshape(heads, 3, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def llama3_factors(config, rope, dim):
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    frequencies = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    waves = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    mix = np.clip((waves - low) / (high - low), 0, 1)
    return (1 / ((1 - mix) / factor + mix)).astype(np.float32)


def add_hyperparameters(writer, config, kind):
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    pick = lambda *keys: next((config[k] for k in keys if config.get(k) is not None), None)
    hidden, heads = pick("hidden_size", "n_embd"), pick("num_attention_heads", "n_head")
    writer.add_context_length(pick("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(hidden)
    writer.add_block_count(pick("num_hidden_layers", "n_layer"))
    writer.add_feed_forward_length(pick("intermediate_size", "n_inner") or 4 * hidden)
    writer.add_head_count(heads)
    dim = pick("head_dim") or hidden // heads
    if kind == "llama":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_head_count_kv(config.get("num_key_value_heads", heads))
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_dimension_count(dim)
        if dim * heads != hidden:
            writer.add_key_length(dim)
            writer.add_value_length(dim)
    else:
        writer.add_layer_norm_eps(pick("layer_norm_eps", "layer_norm_epsilon"))
    if kind == "gpt_neox":
        share = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
        writer.add_parallel_residual(config["use_parallel_residual"])
        writer.add_rope_dimension_count(int(dim * share))
    if kind != "gpt2":
        writer.add_rope_freq_base(rope.get("rope_theta") or pick("rope_theta", "rotary_emb_base") or 10000.0)
        name = rope.get("rope_type", rope.get("type", "default"))
        if name == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        if name == "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_factors(config, rope, dim))
    return heads, config.get("num_key_value_heads") or heads


def add_tensor(writer, name, array, quantised):
    types = gguf.GGMLQuantizationType
    if array.ndim == 1:
        writer.add_tensor(name, as_float(array))
    elif quantised and array.shape[-1] % gguf.GGML_QUANT_SIZES[types[quantised]][0] == 0:
        writer.add_tensor(name, gguf.quants.quantize(as_float(array), types[quantised]), raw_dtype=types[quantised])
    elif array.dtype == np.uint16:
        writer.add_tensor(name, array.view(np.uint8), raw_dtype=types.BF16)
    else:
        writer.add_tensor(name, array)


def add_tokenizer(writer, checkpoint):
    """A byte-level tokenizer.json, split as GPT-2 does."""
    path = os.path.join(checkpoint, "tokenizer.json")
    if not os.path.exists(path):
        return
    source = json.load(open(path))
    vocab = dict(source["model"]["vocab"])
    types = {}
    for token in source["added_tokens"]:
        vocab[token["content"]] = token["id"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    tokens = sorted(vocab, key=vocab.get)
    assert [vocab[t] for t in tokens] == list(range(len(tokens)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(i, gguf.TokenType.NORMAL) for i in range(len(tokens))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token("TemplateProcessing" in json.dumps(source["post_processor"]))


def convert(checkpoint, out, quantised=None):
    config = json.load(open(os.path.join(checkpoint, "config.json")))
    kind = config["model_type"]
    arch = ARCHS[kind]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    heads, kv_heads = add_hyperparameters(writer, config, kind)
    names = gguf.get_tensor_name_map(arch, config.get("num_hidden_layers") or config["n_layer"])
    for name, array in sorted(load(checkpoint).items()):
        if name.endswith((".attn.bias", ".masked_bias", ".inv_freq", ".attention.bias")):
            continue
        if config.get("tie_word_embeddings", kind == "gpt2") and name in ("lm_head.weight", "embed_out.weight"):
            continue
        if ".query_key_value." in name:
            array = gather(array, heads)
        if ".q_proj." in name:
            array = interleave(array, heads)
        if ".k_proj." in name:
            array = interleave(array, kv_heads)
        if kind == "gpt2" and array.ndim == 2 and ".h." in "." + name:
            array = np.ascontiguousarray(array.T)
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert to, name
        add_tensor(writer, to, array, quantised)
    add_tokenizer(writer, checkpoint)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        convert(*sys.argv[1:])
    else:
        for case, kind in CASES:
            out = case + ("-" + kind.lower() if kind else "") + ".gguf"
            convert(os.path.join(HERE, "..", "golden", case), os.path.join(HERE, out), kind)
