#!/usr/bin/env python3
"""Writes a Hugging Face checkpoint of random weights: the shape of a real model, without a download.

    bench/make_checkpoint.py OUT --shape neox-160m|neox-410m|neox-2.8b|llama-1b|llama-8b|mixtral-1b|gemma3-270m|tiny|heads-80|wide [--dtype f16|f32|bf16] [--seed 1]

Speed depends on shapes and types, not on what the weights say. They are normal with a standard deviation of 0.02,
so that logits stay finite and differ. numpy makes it fast, PyTorch with a GPU faster; without either the small shapes
(tiny, heads-80, wide) still work.
"""
import argparse
import array
import json
import os
import random
import struct
import sys

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
    if not torch.cuda.is_available():
        torch = None
except ImportError:
    torch = None

# Layers, hidden, heads, KV heads, MLP, vocabulary. The GPT-NeoX shapes are Pythia's, llama-1b is Llama 3.2 1B, llama-8b Llama 3.1 8B (with the head tied).
SHAPES = {
    "neox-160m": ("gpt_neox", 12, 768, 12, 12, 3072, 50304),
    "neox-410m": ("gpt_neox", 24, 1024, 16, 16, 4096, 50304),
    "neox-2.8b": ("gpt_neox", 32, 2560, 32, 32, 10240, 50304),
    "llama-1b": ("llama", 16, 2048, 32, 8, 8192, 128256),
    "llama-8b": ("llama", 32, 4096, 32, 8, 14336, 128256),
    "mixtral-1b": ("mixtral", 11, 1024, 8, 2, 3584, 32000),  # Mixtral 8x7B with a quarter of its width
    "gemma3-270m": ("gemma3_text", 18, 640, 4, 1, 2048, 262144),  # most layers see a window of 512 tokens
    "tiny": ("gpt_neox", 2, 64, 4, 4, 256, 512),
    "heads-80": ("gpt_neox", 2, 240, 3, 3, 256, 512),
    "wide": ("gpt_neox", 1, 256, 2, 2, 4608, 512),  # heads of 128; rows that a GPU cuts into pieces
}
SMALL = ("tiny", "heads-80", "wide")  # for tests: made in seconds without numpy
CONTEXT = 16384  # beyond some of the real ones, for decoding at long contexts
STD = 0.02
DTYPES = {"f16": ("F16", "float16", 2), "f32": ("F32", "float32", 4), "bf16": ("BF16", "bfloat16", 2)}
PART = 1 << 24  # elements made at once


# ---- what the models are: config.json, and tensors as (name, shape, mean) ----


def neox_config(layers, hidden, heads, kv_heads, mlp, vocab):
    return {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu",
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": mlp,
        "vocab_size": vocab, "max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-5, "rotary_pct": 0.25,
        "rotary_emb_base": 10000, "use_parallel_residual": True, "tie_word_embeddings": False,
    }


def neox_tensors(layers, hidden, heads, kv_heads, mlp, vocab):
    yield "gpt_neox.embed_in.weight", (vocab, hidden), 0
    for layer in range(layers):
        at = f"gpt_neox.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield at + norm + ".weight", (hidden,), 1
            yield at + norm + ".bias", (hidden,), 0
        for name, rows, cols in (("attention.query_key_value", 3 * hidden, hidden), ("attention.dense", hidden, hidden),
                                 ("mlp.dense_h_to_4h", mlp, hidden), ("mlp.dense_4h_to_h", hidden, mlp)):
            yield at + name + ".weight", (rows, cols), 0
            yield at + name + ".bias", (rows,), 0
    yield "gpt_neox.final_layer_norm.weight", (hidden,), 1
    yield "gpt_neox.final_layer_norm.bias", (hidden,), 0
    yield "embed_out.weight", (vocab, hidden), 0


def llama_config(layers, hidden, heads, kv_heads, mlp, vocab):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads, "intermediate_size": mlp, "vocab_size": vocab, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True,
    }


EXPERTS = 8


def mixtral_config(*sizes):
    return {**llama_config(*sizes), "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
            "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6}


def mixtral_tensors(layers, hidden, heads, kv_heads, mlp, vocab):
    """Experts instead of Llama's MLP."""
    for name, shape, mean in llama_tensors(layers, hidden, heads, kv_heads, mlp, vocab):
        if ".mlp." not in name:
            yield name, shape, mean
    for layer in range(layers):
        at = f"model.layers.{layer}.block_sparse_moe."
        yield at + "gate.weight", (EXPERTS, hidden), 0
        for expert in range(EXPERTS):
            for name, shape in (("w1", (mlp, hidden)), ("w3", (mlp, hidden)), ("w2", (hidden, mlp))):
                yield f"{at}experts.{expert}.{name}.weight", shape, 0


def llama_tensors(layers, hidden, heads, kv_heads, mlp, vocab):
    kv = hidden // heads * kv_heads
    yield "model.embed_tokens.weight", (vocab, hidden), 0
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,), 1
        yield at + "post_attention_layernorm.weight", (hidden,), 1
        for name, rows, cols in (("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", kv, hidden),
                                 ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, hidden),
                                 ("mlp.gate_proj", mlp, hidden), ("mlp.up_proj", mlp, hidden),
                                 ("mlp.down_proj", hidden, mlp)):
            yield at + name + ".weight", (rows, cols), 0
    yield "model.norm.weight", (hidden,), 1


GEMMA_HEAD = 256


def gemma3_config(layers, hidden, heads, kv_heads, mlp, vocab):
    return {**llama_config(layers, hidden, heads, kv_heads, mlp, vocab), "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": GEMMA_HEAD,
            "query_pre_attn_scalar": GEMMA_HEAD, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
            "sliding_window": 512, "sliding_window_pattern": 6}


def gemma3_tensors(layers, hidden, heads, kv_heads, mlp, vocab):
    """Llama's with wider heads and more norms, which multiply with 1 plus their weights."""
    rows = {"q_proj": heads * GEMMA_HEAD, "k_proj": kv_heads * GEMMA_HEAD, "v_proj": kv_heads * GEMMA_HEAD}
    for name, shape, mean in llama_tensors(layers, hidden, heads, kv_heads, mlp, vocab):
        part = name.split(".")[-2]
        if part == "o_proj":
            shape = (hidden, heads * GEMMA_HEAD)
        yield name, (rows[part], hidden) if part in rows else shape, 0
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield at + norm + ".weight", (hidden,), 0
        for norm in ("q_norm", "k_norm"):
            yield at + f"self_attn.{norm}.weight", (GEMMA_HEAD,), 0


FAMILIES = {"gpt_neox": (neox_config, neox_tensors), "llama": (llama_config, llama_tensors),
            "mixtral": (mixtral_config, mixtral_tensors), "gemma3_text": (gemma3_config, gemma3_tensors)}


# ---- a tokenizer: id = byte, then tokens that no text gives. llama.cpp runs no model without one ----


def byte_characters():
    """The printable character that byte-level BPE writes for each byte."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def tokenizer(vocab):
    tokens = byte_characters() + ["\u0120t"]
    tokens += [f"unused{i}" for i in range(len(tokens), vocab - 1)]
    end = {"id": vocab - 1, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [["\u0120", "t"]]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}


# ---- writing ----


def nearest_bf16(bits):
    """The upper half of a float32's bits, rounded to the nearest, ties to even."""
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def normal(source, count, mean, dtype):
    """`count` values as bytes, in parts."""
    for done in range(0, count, PART):
        n = min(PART, count - done)
        if torch:
            values = torch.randn(n, generator=source, device="cuda") * STD + mean
            values = values.to(getattr(torch, DTYPES[dtype][1]))
            yield (values.view(torch.int16) if dtype == "bf16" else values).cpu().numpy().tobytes()
        elif numpy:
            values = source.standard_normal(n, dtype=numpy.float32) * numpy.float32(STD) + numpy.float32(mean)
            if dtype == "bf16":
                yield nearest_bf16(values.view(numpy.uint32)).astype(numpy.uint16).tobytes()
            else:
                yield values.astype(DTYPES[dtype][1]).tobytes()
        elif dtype == "f16":
            yield struct.pack(f"<{n}e", *(source.gauss(mean, STD) for _ in range(n)))
        else:
            values = array.array("f", (source.gauss(mean, STD) for _ in range(n))).tobytes()
            yield array.array("H", map(nearest_bf16, array.array("I", values))).tobytes() if dtype == "bf16" else values


def size_of(shape):
    return shape[0] * shape[1] if len(shape) == 2 else shape[0]


def write_weights(path, tensors, dtype, seed):
    """A safetensors file: the length of a JSON header, the header, the data."""
    stored, _, size = DTYPES[dtype]
    header, offset = {}, 0
    for name, shape, _ in tensors:
        end = offset + size_of(shape) * size
        header[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if torch:
        source = torch.Generator("cuda").manual_seed(seed)
    else:
        source = numpy.random.default_rng(seed) if numpy else random.Random(seed)
    with open(path + ".tmp", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, shape, mean in tensors:
            for part in normal(source, size_of(shape), mean, dtype):
                out.write(part)
    os.replace(path + ".tmp", path)


def write_json(path, value):
    with open(path + ".tmp", "w", encoding="utf-8") as out:
        json.dump(value, out)
    os.replace(path + ".tmp", path)


def make(out, shape, dtype="f16", seed=1):
    """The weights come last: a folder that has them is complete."""
    family, *sizes = SHAPES[shape]
    config, tensors = FAMILIES[family]
    vocab = sizes[-1]
    os.makedirs(out, exist_ok=True)
    ends = {"bos_token_id": vocab - 1, "eos_token_id": vocab - 1, "torch_dtype": DTYPES[dtype][1]}
    write_json(os.path.join(out, "config.json"), {**config(*sizes), **ends})
    write_json(os.path.join(out, "tokenizer.json"), tokenizer(vocab))
    write_weights(os.path.join(out, "model.safetensors"), list(tensors(*sizes)), dtype, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not numpy and args.shape not in SMALL:
        sys.exit(f"make_checkpoint: shape: {args.shape} (without numpy only {', '.join(SMALL)})")
    try:
        make(args.out, args.shape, args.dtype, args.seed)
    except OSError as error:
        sys.exit(f"make_checkpoint: {error.filename or args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
