#!/usr/bin/env python3
"""Guesses on one NVIDIA GPU: what checking several tokens in one step costs, and whether speed is as predicted.

    bench/draft_gpu.py [--fusebox build/fusebox] [--out DIR] [--models DIR] [--shape neox-2.8b,llama-8b]

On random checkpoints in float16: the time of a step of 2 to 8 rows over that of 1 row (at most 1.25), and tokens a
second with guesses that a script makes right with a known chance, over the prediction (within 10%). Writes draft.md and
the raw JSON into DIR; the exit status is 1 if a limit is not kept.
"""
import argparse
import json
import os
import subprocess
import sys

import make_checkpoint

MOST_RATIO = 1.25
MOST_ERROR = 0.10
CHANCES = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 1)


def bench(options, shape):
    folder = os.path.join(options.models, shape)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        make_checkpoint.make(folder, shape)
    sources = ",".join(f"scripted:{chance:g}" for chance in CHANCES)
    command = [options.fusebox, "bench", folder, "--backend", options.backend, "--act", "f16", "--draft", sources,
               "--prompt", str(options.prompt), "--gen", str(options.gen), "--reps", str(options.reps), "--json",
               "--svg", os.path.join(options.out, f"{shape}.svg")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"draft_gpu.py: {' '.join(command)}: exit status {done.returncode}")
    return json.loads(done.stdout)


def table(shape, report):
    """Lines of Markdown, and whether all limits were kept."""
    steps = report["step_ms"]
    worst = max(step / steps[0] for step in steps[1:])
    kept = worst <= MOST_RATIO
    lines = [f"## {shape}", "",
             f"A step of 1 row takes {steps[0]:.3f} ms. The most that 2 to 8 rows take over it: {worst:.2f} "
             f"(at most {MOST_RATIO}: {'kept' if kept else 'NOT KEPT'}).", "",
             "| rows | " + " | ".join(str(rows) for rows in range(1, len(steps) + 1)) + " |",
             "| --- |" + " --- |" * len(steps),
             "| over 1 row | " + " | ".join(f"{step / steps[0]:.2f}" for step in steps) + " |", "",
             "| right | a step | tokens/s | plain | faster | predicted | measured over predicted |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for line in report["lines"]:
        error = line["faster"]["median"] / line["predicted"] - 1
        good = abs(error) <= MOST_ERROR
        kept = kept and good
        lines.append(f"| {line['draft'].split(':')[1]} | {line['tokens_a_step']:.2f} | {line['tokens_per_second']:.1f} | "
                     f"{line['plain_tokens_per_second']:.1f} | {line['faster']['median']:.2f} | {line['predicted']:.2f} | "
                     f"{100 * error:+.1f}%{'' if good else ' NOT KEPT'} |")
    return lines, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusebox", default="build/fusebox")
    parser.add_argument("--out", default="draft-bench")
    parser.add_argument("--models", default="/tmp/fusebox-models")
    parser.add_argument("--shape", default="neox-2.8b,llama-8b")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--gen", type=int, default=512)
    parser.add_argument("--reps", type=int, default=5)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    page, kept, raw = ["# Guesses on a GPU", ""], True, {}
    for shape in options.shape.split(","):
        raw[shape] = bench(options, shape)
        lines, good = table(shape, raw[shape])
        page += lines + [""]
        kept = kept and good
    with open(os.path.join(options.out, "draft.json"), "w") as file:
        json.dump(raw, file)
    with open(os.path.join(options.out, "draft.md"), "w") as file:
        file.write("\n".join(page))
    print("\n".join(page))
    return 0 if kept else 1


sys.exit(main())
