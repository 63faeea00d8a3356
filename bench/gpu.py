#!/usr/bin/env python3
"""Benchmarks on one NVIDIA GPU, as a Markdown page with the targets.

    bench/gpu.py [--fusebox build/fusebox] [--out DIR] [--models DIR] [--no-torch]

Decodes random checkpoints of the shapes of Pythia-2.8B and Llama-3.2-1B (bench/make_checkpoint.py makes them) in float16
and Q4_0: without fuses, with each fuse alone, and with all; then prefills 512 tokens; then times single operators
(build/bench/gpu_ops) beside PyTorch (bench/torch_ops.py). Every variant is checked against the first one before it is
timed. Writes gpu.md and the raw JSON into DIR.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys

import make_checkpoint

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = [("Pythia-2.8B", "neox-2.8b"), ("Llama-3.2-1B", "llama-1b")]
# Milliseconds: what is asked of a token's time, what the bytes alone take at 4.5 TB/s, and the best that others reach
# (Hugging Face compiled, llama.cpp).
TARGETS = {("neox-2.8b", "f16"): (1.70, 1.17, 2.54), ("neox-2.8b", "q4_0"): (0.95, 0.34, 2.59),
           ("llama-1b", "f16"): (0.85, 0.55, 1.27), ("llama-1b", "q4_0"): (0.50, 0.17, 1.04)}
PREFILL = {("neox-2.8b", "f16"): 15.0, ("neox-2.8b", "q4_0"): 22.0}
NEOX = "head_argmax attn_flash rope_kv down_add bias_act qkv_up norm_linear add3 add_norm"
LLAMA = "head_argmax attn_flash rope_kv swiglu_dual swiglu_gemm swiglu_vec down_add qkv norm_linear add_norm"
ALONE = {"neox-2.8b": NEOX.split(), "llama-1b": LLAMA.split()}


def fusebox(options, *arguments):
    done = subprocess.run([options.fusebox, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"gpu.py: fusebox {' '.join(arguments)}: exit status {done.returncode}")
    return done.stdout


def bench(options, model, variants, prompt, gen, reps):
    report = json.loads(fusebox(options, "bench", model, "--backend", "cuda", "--act", "f16", "--compare",
                                ",".join(variants), "--prompt", str(prompt), "--gen", str(gen), "--reps", str(reps),
                                "--json"))
    options.raw.append(report)
    if not report["ok"]:
        sys.exit(f"gpu.py: {model}: the variants disagree")
    return report["variants"]


def checkpoint(options, shape, dtype):
    folder = os.path.join(options.models, shape)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        make_checkpoint.make(folder, shape)
    if dtype == "f16":
        return folder
    path = f"{folder}-{dtype}.gguf"
    if not os.path.exists(path):
        fusebox(options, "quantize", folder, path, "--type", dtype)
    return path


def spread(figures, digits=3):
    return f"{figures['median']:.{digits}f} ({figures['p10']:.{digits}f} to {figures['p90']:.{digits}f})"


def verdict(value, target):
    return "met" if value <= target else f"**missed** ({value / target:.2f}x)"


def decode(options, out):
    out("## Decode, batch 1: milliseconds a token\n")
    out("Prompt 64, 64 tokens, activations and cache in float16. Median (10th to 90th percentile).\n")
    out("| model | weights | no fuses | graph alone | all but graph | all but step | all | all against none | target | floor | best peer |")
    out("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, shape in MODELS:
        for dtype in ("f16", "q4_0"):
            v = bench(options, checkpoint(options, shape, dtype), ["none", "graph", "all+-graph", "all+-step", "all"], 64, 64, 5)
            target, floor, peer = TARGETS[shape, dtype]
            out(f"| {name} | {dtype} | " + " | ".join(spread(x["tpot_ms"]) for x in v) +
                f" | {v[4]['tpot_ratio']['median']:.2f}x | {target} {verdict(v[4]['tpot_ms']['median'], target)} | {floor} | {peer} |")
    out("")


def prefill(options, out):
    out("## Prefill of 512 tokens: milliseconds to the first token\n")
    out("| model | weights | no fuses | all | target |")
    out("| --- | --- | --- | --- | --- |")
    for name, shape in MODELS:
        for dtype in ("f16", "q4_0"):
            v = bench(options, checkpoint(options, shape, dtype), ["none", "all"], 512, 2, 5)
            target = PREFILL.get((shape, dtype))
            wanted = f"{target} {verdict(v[1]['ttft_ms']['median'], target)}" if target else "–"
            out(f"| {name} | {dtype} | {spread(v[0]['ttft_ms'], 2)} | {spread(v[1]['ttft_ms'], 2)} | {wanted} |")
    out("")


def alone(options, out):
    out("## Each fuse alone, in a graph, against none in a graph\n")
    out("| model | fuse | ms a token | faster than none |")
    out("| --- | --- | --- | --- |")
    for name, shape in MODELS:
        specs = ["graph"] + [f"{fuse}+graph" for fuse in ALONE[shape]] + ["all"]
        for v in bench(options, checkpoint(options, shape, "f16"), specs, 64, 32, 3):
            out(f"| {name} f16 | {v['fuse'].replace('+graph', '').replace('graph', 'none')} | {spread(v['tpot_ms'])} | "
                f"{v['tpot_ratio']['median']:.3f}x |")
    out("")


def operators(options, out):
    program = os.path.join(os.path.dirname(options.fusebox), "bench", "gpu_ops")
    if not os.path.exists(program):
        program = os.path.join(os.path.dirname(options.fusebox), "gpu_ops")
    environment = dict(os.environ)
    environment.setdefault("FUSEBOX_CUDA_LIBRARY", os.path.join(os.path.dirname(options.fusebox), "libfusebox_cuda.so"))
    done = subprocess.run([program, "--json"], stdout=subprocess.PIPE, text=True, check=False, env=environment)
    rows = json.loads(done.stdout)
    options.raw.append(rows)
    out("## Single operators\n")
    out("`build/bench/gpu_ops`: in a graph, data several times the second-level cache where it is large. Percent of the copy "
        "bandwidth, the read bandwidth or the matmul rate that the first three rows measure.\n")
    out("| operator | shape | type | us | GB/s | TFLOP/s | percent |")
    out("| --- | --- | --- | --- | --- | --- | --- |")
    for r in rows:
        out(f"| {r['name']} | {r['shape']} | {r['dtype']} | {r['us']:.2f} ({r['us_p10']:.2f} to {r['us_p90']:.2f}) | "
            f"{r['gb_per_s']:.0f} | {r['tflop_per_s']:.0f} | {r['percent']:.0f} |")
    out("")
    if done.returncode:
        out("**An operator is wrong: exit status 1.**\n")
        options.failed = True


def pytorch(options, out):
    done = subprocess.run([sys.executable, os.path.join(HERE, "torch_ops.py"), "--json", "--seconds", "50"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    try:
        rows = json.loads(done.stdout)
    except json.JSONDecodeError:
        out("PyTorch: not measured (bench/torch_ops.py failed).\n")
        return
    options.raw.append(rows)
    out("The same by PyTorch, in a CUDA graph:\n")
    out("| operator | shape | how | us |")
    out("| --- | --- | --- | --- |")
    for r in rows:
        out(f"| {r['name']} | {r['shape']} | {r.get('how', '')} | {r['us']:.2f} |" if "us" in r else
            f"| {r['name']} | {r.get('shape', '')} | {r.get('how', '')} | left out: {r.get('left_out', '')} |")
    out("")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusebox", default=os.path.join(HERE, "..", "build", "fusebox"))
    parser.add_argument("--out", default=".", help="folder of gpu.md and gpu.json")
    parser.add_argument("--models", default="/tmp/fusebox-models", help="folder of the checkpoints (12 GB)")
    parser.add_argument("--no-torch", action="store_true", help="without PyTorch")
    options = parser.parse_args()
    options.fusebox = os.path.abspath(options.fusebox)
    options.raw, options.failed = [], False
    os.makedirs(options.out, exist_ok=True)
    os.makedirs(options.models, exist_ok=True)
    lines = []

    def out(line):
        print(line, flush=True)
        lines.append(line)
        with open(os.path.join(options.out, "gpu.md.tmp"), "w", encoding="utf-8") as page:
            page.write("\n".join(lines) + "\n")

    device = json.loads(fusebox(options, "info", "--devices", "--json"))["devices"]
    if not device:
        sys.exit("gpu.py: no GPU here")
    out(f"{device[0]['name']} ({device[0]['isa']}), driver for CUDA {device[0]['driver'] / 1000:.1f}, "
        f"{datetime.date.today().isoformat()}. Command: `tests/gpu/run.sh`, or `bench/gpu.py` for this page alone.\n")
    for part in (decode, prefill, alone, operators) + (() if options.no_torch else (pytorch,)):
        part(options, out)
    os.replace(os.path.join(options.out, "gpu.md.tmp"), os.path.join(options.out, "gpu.md"))
    with open(os.path.join(options.out, "gpu.json"), "w", encoding="utf-8") as raw:
        json.dump(options.raw, raw)
    sys.exit(1 if options.failed else 0)


if __name__ == "__main__":
    main()
