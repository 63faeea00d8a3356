#!/usr/bin/env python3
"""Writes a GGUF file of a llama shape with random Q4_0 blocks, at the disk's speed: to time loading.

    bench/make_gguf.py OUT.gguf --shape llama-8b|llama-1b

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
F32, Q4_0 = 0, 2  # tensor types
UINT32, FLOAT32, STRING = 4, 6, 8  # value types
PART = 1 << 20  # blocks made at once


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


def size_of(cols, rows):
    return cols * rows // 32 * 18 if rows else cols * 4


def write(path, shape, seed):
    family, *sizes = make_checkpoint.SHAPES[shape]
    if family != "llama":
        sys.exit(f"make_gguf: shape: {shape} (a llama's)")
    values, listed, offset, entries = list(metadata(*sizes)), list(tensors(*sizes)), 0, []
    for name, cols, rows in listed:
        dims = (cols, rows) if rows else (cols,)
        entries.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, Q4_0 if rows else F32, offset))
        offset += -(-size_of(cols, rows) // ALIGN) * ALIGN
    head = struct.pack("<IIQQ", 0x46554747, 3, len(listed), len(values)) + b"".join(values) + b"".join(entries)
    source = numpy.random.default_rng(seed)
    some = source.integers(0, 256, (PART, 18), dtype=numpy.uint8)  # the same blocks over and over, from other places
    some[:, :2] = source.uniform(0.001, 0.004, PART).astype("<f2").view(numpy.uint8).reshape(PART, 2)
    with open(path + ".tmp", "wb") as out:
        out.write(head + b"\0" * (-len(head) % ALIGN))
        for _, cols, rows in listed:
            if not rows:
                out.write(numpy.ones(cols, "<f4").tobytes())
            for done in range(0, cols * rows // 32, PART):
                n = min(PART, cols * rows // 32 - done)
                first = int(source.integers(0, PART - n + 1))
                out.write(some[first:first + n].tobytes())
            out.write(b"\0" * (-size_of(cols, rows) % ALIGN))
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT.gguf", help="the file to write")
    parser.add_argument("--shape", choices=[s for s, v in make_checkpoint.SHAPES.items() if v[0] == "llama"], required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        write(args.out, args.shape, args.seed)
    except OSError as error:
        sys.exit(f"make_gguf: {error.filename or args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
