#!/usr/bin/env python3
"""Writes a GGUF file of a llama shape with random blocks, at the disk's speed: to time loading and steps.

    bench/make_gguf.py OUT.gguf --shape llama-8b|llama-1b [--type q4_0|q4_k_m|q5_k_m|q6_k|…]

The blocks are random bytes with small scales, so the model says nothing, but loads and runs like any other of its
shape. It has no tokenizer. numpy is needed.
"""
import argparse
import os
import struct
import sys

import numpy

import make_checkpoint

ALIGN = 32
F32 = 0  # a tensor type
# The others: number, columns of a block, its bytes, and where its float16 scale and minimum are.
TYPES = {
    "q4_0": (2, 32, 18, (0,)), "q4_1": (3, 32, 20, (0, 2)), "q5_0": (6, 32, 22, (0,)), "q5_1": (7, 32, 24, (0, 2)),
    "q8_0": (8, 32, 34, (0,)), "q2_k": (10, 256, 84, (80, 82)), "q3_k": (11, 256, 110, (108,)),
    "q4_k": (12, 256, 144, (0, 2)), "q5_k": (13, 256, 176, (0, 2)), "q6_k": (14, 256, 210, (208,)),
    "iq4_nl": (20, 32, 18, (0,)), "iq4_xs": (23, 256, 136, (0,)), "mxfp4": (39, 32, 17, ()),
}
MIXES = {"q4_k_m": "q4_k", "q5_k_m": "q5_k"}  # with q6_k where llama.cpp has it
UINT32, FLOAT32, STRING = 4, 6, 8  # value types
PART = 1 << 18  # blocks made at once


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def pair(key, kind, value):
    packed = {UINT32: lambda v: struct.pack("<I", v), FLOAT32: lambda v: struct.pack("<f", v), STRING: text}[kind](value)
    return text(key) + struct.pack("<I", kind) + packed


def metadata(layers, hidden, heads, kv_heads, mlp, vocab):
    yield pair("general.architecture", STRING, "llama")
    for key, value in (("block_count", layers), ("context_length", make_checkpoint.CONTEXT), ("embedding_length", hidden),
                       ("feed_forward_length", mlp), ("attention.head_count", heads),
                       ("attention.head_count_kv", kv_heads), ("rope.dimension_count", hidden // heads),
                       ("vocab_size", vocab)):
        yield pair("llama." + key, UINT32, value)
    yield pair("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5)
    yield pair("llama.rope.freq_base", FLOAT32, 500000.0)


def tensors(layers, hidden, heads, kv_heads, mlp, vocab):
    """Name, columns, rows; a vector has no rows."""
    kv = hidden // heads * kv_heads
    yield "token_embd.weight", hidden, vocab
    for layer in range(layers):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", hidden, 0
        yield at + "ffn_norm.weight", hidden, 0
        for name, cols, rows in (("attn_q", hidden, hidden), ("attn_k", hidden, kv), ("attn_v", hidden, kv),
                                 ("attn_output", hidden, hidden), ("ffn_gate", hidden, mlp), ("ffn_up", hidden, mlp),
                                 ("ffn_down", mlp, hidden)):
            yield at + name + ".weight", cols, rows
    yield "output_norm.weight", hidden, 0
    yield "output.weight", hidden, vocab


def type_of(name, kind, layers):
    if kind not in MIXES or name == "token_embd.weight":
        return MIXES.get(kind, kind)
    if name == "output.weight":
        return "q6_k"
    if "attn_v" not in name and "ffn_down" not in name:
        return MIXES[kind]
    layer, eighth = int(name.split(".")[1]), layers // 8
    more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return "q6_k" if more else MIXES[kind]


def size_of(cols, rows, kind):
    _, block, size, _ = TYPES[kind]
    return cols * rows // block * size if rows else cols * 4


def some_blocks(kind, source):
    _, _, size, scales = TYPES[kind]
    some = source.integers(0, 256, (PART, size), dtype=numpy.uint8)
    low, high = (0.001, 0.004) if size < 40 else (0.00005, 0.0002)  # a part's scale multiplies that of a large block
    for at in scales:
        some[:, at : at + 2] = source.uniform(low, high, PART).astype("<f2").view(numpy.uint8).reshape(PART, 2)
    if kind == "mxfp4":
        some[:, 0] = source.integers(117, 120, PART)  # the scale is 2 to the power of this, less 128
    return some


def write(path, shape, kind, seed):
    family, *sizes = make_checkpoint.SHAPES[shape]
    if family != "llama":
        sys.exit(f"make_gguf: shape: {shape} (a llama's)")
    values, listed, offset, entries = list(metadata(*sizes)), list(tensors(*sizes)), 0, []
    kinds = [type_of(name, kind, sizes[0]) for name, _, _ in listed]
    for (name, cols, rows), of in zip(listed, kinds):
        dims = (cols, rows) if rows else (cols,)
        if rows and cols % TYPES[of][1]:
            sys.exit(f"make_gguf: {name}: {cols} columns (a multiple of {TYPES[of][1]} for {of})")
        number = TYPES[of][0] if rows else F32
        entries.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
        offset += -(-size_of(cols, rows, of) // ALIGN) * ALIGN
    head = struct.pack("<IIQQ", 0x46554747, 3, len(listed), len(values)) + b"".join(values) + b"".join(entries)
    source = numpy.random.default_rng(seed)
    some = {of: some_blocks(of, source) for of in sorted(set(kinds))}  # the same over and over, from other places
    with open(path + ".tmp", "wb") as out:
        out.write(head + b"\0" * (-len(head) % ALIGN))
        for (_, cols, rows), of in zip(listed, kinds):
            if not rows:
                out.write(numpy.ones(cols, "<f4").tobytes())
            blocks = cols * rows // TYPES[of][1]
            for done in range(0, blocks, PART):
                n = min(PART, blocks - done)
                first = int(source.integers(0, PART - n + 1))
                out.write(some[of][first:first + n].tobytes())
            out.write(b"\0" * (-size_of(cols, rows, of) % ALIGN))
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT.gguf", help="the file to write")
    parser.add_argument("--shape", choices=[s for s, v in make_checkpoint.SHAPES.items() if v[0] == "llama"], required=True)
    parser.add_argument("--type", choices=[*TYPES, *MIXES], default="q4_0")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        write(args.out, args.shape, args.type, args.seed)
    except OSError as error:
        sys.exit(f"make_gguf: {error.filename or args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
