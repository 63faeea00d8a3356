#!/usr/bin/env python3
"""Writes a checkpoint with the first layers of another one: a smaller model with the same tokens.

    tests/support/fewer_layers.py FROM TO LAYERS
"""
import json
import os
import re
import struct
import sys

LAYER = re.compile(r"\b(?:layers|h)\.(\d+)\.")


def read_tensors(folder):
    """(name, type, shape, bytes) of all tensors, of one file or several."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors") or name == "golden.safetensors":
            continue
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        (size,) = struct.unpack("<Q", data[:8])
        for tensor, entry in json.loads(data[8 : 8 + size]).items():
            if tensor != "__metadata__":
                begin, end = (8 + size + at for at in entry["data_offsets"])
                yield tensor, entry["dtype"], entry["shape"], data[begin:end]


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            file.write(data)


def shorten(config, layers):
    for key in ("num_hidden_layers", "n_layer"):
        if key in config:
            config[key] = layers
    for key in ("layer_types", "no_rope_layers"):
        if config.get(key):
            config[key] = config[key][:layers]
    if "max_window_layers" in config:
        config["max_window_layers"] = min(config["max_window_layers"], layers)


def main():
    source, target, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.makedirs(target)
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    shorten(config, layers)
    with open(os.path.join(target, "config.json"), "w") as file:
        json.dump(config, file)
    kept = [t for t in read_tensors(source) if not (m := LAYER.search(t[0])) or int(m[1]) < layers]
    write_tensors(os.path.join(target, "model.safetensors"), kept)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(source, name)
        if os.path.exists(path):
            os.symlink(os.path.abspath(path), os.path.join(target, name))


main()
