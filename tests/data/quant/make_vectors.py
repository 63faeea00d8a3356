#!/usr/bin/env python3
"""Writes vectors.safetensors: what the `gguf` package, which keeps llama.cpp's reference, makes of blocks and values.
Never run by the build. Usage: make_vectors.py   (needs numpy, gguf, safetensors)

"T.bytes" are blocks of the type T and "T.values" what they decode to; for the types that are also written, "T.input"
are values and "T.encoded" the blocks that they become by plain rounding, where the package has it."""
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
WRITTEN = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]
BLOCKS = 10
random = np.random.default_rng(20260729)


def make_inputs():
    """Rows of one block of 32 each: what rounding and scaling can get wrong."""
    rows = [random.standard_normal(32) * scale for scale in (1, 0.02, 3e-5, 1e-7, 4000) for _ in range(8)]
    rows += [random.integers(-8, 9, 32) / 2 for _ in range(4)]  # many exact halves
    halves = np.arange(-127, 127, 8) + 0.5
    halves[0] = 127  # makes the scale of Q8_0 exactly 1
    rows += [halves, -halves]
    # The largest float32 below a half, which adding a half would round up, and its neighbours.
    near = np.nextafter(np.float32(0.5), np.float32(0))
    rows += [np.array([127, near, -near, 0.5, -0.5, 1 - 2**-24, *np.zeros(26)])]
    rows += [np.zeros(32), np.full(32, 1.0), np.full(32, -1.0)]
    rows += [np.array([2.0, -2.0] * 16), np.array([-2.0, 2.0] * 16)]  # the first of two equal magnitudes counts
    rows += [np.array([1e-6] + [0.0] * 31), np.array([8 * 60000.0] + [1.0] * 31)]
    return np.stack(rows).astype(np.float32)


def random_blocks(kind):
    """Random bytes, whose float16 scales are then made finite. MXFP4 has a power of two, which always is."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    elsewhere = {"Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "MXFP4": []}
    places = elsewhere.get(kind.name, [0, 2] if kind.name[-1] in "1K" else [0])
    if kind.name == "MXFP4":
        blocks[:5, 0] = [0, 1, 2, 127, 250]
    for place in places:
        scales = (random.standard_normal(BLOCKS) * 0.01).astype(np.float16)
        scales[0], scales[1] = 0, np.float16(6e-8)  # zero and the least subnormal
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks


INPUTS = make_inputs()
tensors = {}
for name in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    tensors[name + ".bytes"] = random_blocks(kind)
    tensors[name + ".values"] = dequantize(tensors[name + ".bytes"], kind)
    if name in WRITTEN:
        tensors[name + ".input"] = INPUTS
        tensors[name + ".encoded"] = quantize(INPUTS, kind)
save_file(tensors, pathlib.Path(__file__).with_name("vectors.safetensors"))
