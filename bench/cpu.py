#!/usr/bin/env python3
"""Times Fusebox on models of real shapes and, where llama-cpp-python is installed, llama.cpp on the same weights.

    bench/cpu.py [--shape neox-160m,neox-410m,llama-1b] [--type f16,q8_0,q4_0,q4_K_M,…] [--work decode@64,…]
                 [--threads 2,8,16] [--reps 5] [--dir FOLDER] [--json FILE] [--fusebox PROGRAM] [--no-llama]

Prints one table. README.md beside this file says what is measured and how.
"""
import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys

import make_checkpoint
import table
from rival import Llama, LlamaError, Rival, say

# Those that are measured if nothing is said, and all that can be asked for.
USUAL_TYPES = ("f16", "q8_0", "q4_0")
TYPES = USUAL_TYPES + ("q4_1", "q5_0", "q5_1", "iq4_nl", "iq4_xs", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q2_K",
                       "q3_K_S", "q3_K_M", "q3_K_L", "q4_K_S", "q4_K_M", "q5_K_S", "q5_K_M")
# name: (kind, tokens of the prompt, decode steps, sequences)
WORK = {
    "decode@64": ("decode", 64, 64, 1),
    "prefill@128": ("prefill", 128, 1, 1),
    "prefill@512": ("prefill", 512, 1, 1),
    "decode@1000": ("decode", 1000, 32, 1),
    "decode@4000": ("decode", 4000, 32, 1),
    **{f"batch@{n}": ("batch", 64, 32, n) for n in (2, 4, 8, 16)},
}
AGREE_TEXT, AGREE_TOKENS = "abcdefghijklmnop", 32


def fail(text):
    sys.exit(f"cpu.py: {text}")


# ---- fusebox ----


def fusebox(args, *arguments):
    """Runs one command and returns its standard output."""
    done = subprocess.run([args.fusebox, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"fusebox {shlex.join(arguments)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Turns:
    """`fusebox bench`, one repetition whenever it is asked for one."""

    def __init__(self, args, model, prompt, gen, kind):
        self.kind = kind
        command = [args.fusebox, "bench", model, "--compare", "auto", "--turns", "--json"]
        command += ["--threads", args.threads, "--prompt", prompt, "--gen", gen, "--reps", args.reps]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.started = False

    def take(self):
        """One repetition; the first comes with the start."""
        if self.started:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        self.started = True
        line = self.process.stdout.readline()
        if not line.startswith("turn "):
            fail(f"fusebox bench: {line.strip() or 'ended early'} (exit status {self.process.wait()})")

    def finish(self):
        """Samples in milliseconds, and the report."""
        text = self.process.stdout.read()
        self.process.stdin.close()
        if self.process.wait():
            fail(f"fusebox bench: exit status {self.process.returncode}")
        report = json.loads(text)
        return report["variants"][0]["tpot_ms" if self.kind == "decode" else "prefill_ms"]["samples"], report


class Batches:
    """`fusebox bench --batch`, started for each repetition: it has no turns."""

    def __init__(self, args, model, prompt, gen, sequences):
        self.args, self.samples, self.report = args, [], None
        self.command = ["bench", model, "--batch", sequences, "--threads", args.threads, "--prompt", prompt, "--gen", gen,
                        "--json"]

    def take(self):
        self.report = json.loads(fusebox(self.args, *(str(word) for word in self.command)))
        self.samples.append(self.report["lines"][0]["step_ms"]["median"])

    def finish(self):
        return self.samples, self.report


def read_traffic(args, model):
    """Bytes that a decode step reads at position p, as a function of p, and bytes a second at that footprint."""
    gen, points = 8, []
    for prompt in (64, 192):
        text = fusebox(args, "profile", model, "--threads", str(args.threads), "--prompt", str(prompt), "--gen", str(gen),
                       "--json")
        machine = json.loads(text)["machine"]
        points.append((prompt + gen / 2, machine["footprint_bytes"]))
    (p0, b0), (p1, b1) = points
    slope = (b1 - b0) / (p1 - p0)
    return lambda position: b0 + slope * (position - p0), machine["footprint_bytes_per_s"]


# ---- models: a checkpoint a shape, a GGUF file a type, kept for the next time ----


def make_models(args, shape, kinds, for_llama):
    """Paths by type: what Fusebox opens, and what llama.cpp opens."""
    folder = os.path.join(args.dir, shape)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        if not make_checkpoint.numpy and shape not in make_checkpoint.SMALL:
            fail(f"shape: {shape} (its checkpoint needs numpy; without it only {', '.join(make_checkpoint.SMALL)})")
        say(f"{shape}: writing a random checkpoint to {folder}")
        make_checkpoint.make(folder, shape)
    ours, theirs = {}, {}
    for kind in kinds:
        path = f"{folder}-{kind}.gguf"
        # f16 is what the checkpoint has: only llama.cpp needs another file for it.
        if (kind != "f16" or for_llama) and not os.path.exists(path):
            say(f"{shape}: writing {path}")
            fusebox(args, "quantize", folder, path, "--type", kind)
        ours[kind] = folder if kind == "f16" else path
        theirs[kind] = path
    return ours, theirs


# ---- the same tokens? ----


def check_agreement(args, llama, ours, theirs):
    """How many of Fusebox's greedy tokens llama.cpp would have chosen after the same tokens."""
    text = fusebox(args, "run", ours, "-p", AGREE_TEXT, "--temp", "0", "-n", str(AGREE_TOKENS), "--threads",
                   str(args.threads), "--json")
    tokens = json.loads(text)["tokens"]
    # The checkpoint's tokenizer is known: an id is a byte.
    return llama.ask("agree", theirs, args.threads, list(AGREE_TEXT.encode()), tokens), len(tokens)


# ---- times ----


def measure(args, llama, ours, theirs, work):
    """Samples of both in milliseconds, by repetition: ours, theirs, ours, …"""
    kind, prompt, gen, sequences = WORK[work]
    rival = Rival(llama, theirs, args.threads, prompt, gen, kind, sequences)
    turns = Batches(args, ours, prompt, gen, sequences) if kind == "batch" else Turns(args, ours, prompt, gen, kind)
    for _ in range(args.reps):
        turns.take()
        rival.take()
    samples, report = turns.finish()
    rival.ask("release")
    return {"work": work, "kind": kind, "prompt": prompt, "gen": gen, "sequences": sequences, "fusebox_ms": samples,
            "llama_ms": rival.samples, "llama_setting": rival.setting, "llama_error": rival.error}, report


def measure_type(args, llama, shape, kind, ours, theirs, header):
    say(f"{shape} {kind}: what a step reads")
    traffic, bandwidth = read_traffic(args, ours)
    rows = []
    for work in args.work:
        say(f"{shape} {kind}: {work}")
        row, report = measure(args, llama, ours, theirs, work)
        position = row["prompt"] + row["gen"] / 2
        read = report["lines"][0]["read_bytes"] if row["kind"] == "batch" else traffic(position)
        row.update(shape=shape, type=kind, threads=args.threads, bytes=read, bytes_per_s=bandwidth)
        rows.append(row)
        header.update({key: report[key] for key in ("machine", "version", "commit", "isa")})
    return rows


# ---- all of it ----


def names(known):
    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} ({', '.join(known)})")
        return chosen

    return parse


def count(text):
    if not text.isdigit() or not 1 <= int(text) <= 10000:
        raise argparse.ArgumentTypeError(f"{text} (1 to 10000)")
    return int(text)


def counts(text):
    return [count(part) for part in text.split(",")]


def parse_arguments():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=names(make_checkpoint.SHAPES), default=["neox-160m", "neox-410m", "llama-1b"])
    parser.add_argument("--type", type=names(TYPES), default=list(USUAL_TYPES))
    parser.add_argument("--work", type=names(WORK), default=list(WORK))
    parser.add_argument("--threads", type=counts, default=[len(os.sched_getaffinity(0))], help="all is measured with each")
    parser.add_argument("--reps", type=count, default=5)
    parser.add_argument("--dir", default=os.path.join(cache, "fusebox", "bench"), help="where models are kept")
    parser.add_argument("--json", metavar="FILE", help="all samples")
    parser.add_argument("--fusebox", default=os.path.join(root, "build", "fusebox"), metavar="PROGRAM")
    parser.add_argument("--no-llama", action="store_true")
    return parser.parse_args()


def start_llama(args):
    if args.no_llama:
        return None
    try:
        return Llama()
    except LlamaError as error:
        say(f"llama.cpp is left out: {error} (pip install llama-cpp-python)")
        return None


def check_shape(args, llama, shape, ours, theirs):
    """What to say about the greedy tokens of both."""
    try:
        equal, total = check_agreement(args, llama, ours, theirs)
        text = f"{equal} of {total} ({shape})"
    except LlamaError as error:
        text = f"none: {error} ({shape})"
    say(f"{shape}: greedy tokens that llama.cpp chooses as well: {text}")
    return text


def write_json(path, header, rows):
    with open(path + ".tmp", "w", encoding="utf-8") as out:
        json.dump({**header, "rows": rows}, out, indent=1)
        out.write("\n")
    os.replace(path + ".tmp", path)


def main():
    args = parse_arguments()
    all_threads, args.threads = args.threads, args.threads[0]
    llama = start_llama(args)
    os.makedirs(args.dir, exist_ok=True)
    rows, agreement = [], []
    header = {"date": datetime.date.today().isoformat(), "command": shlex.join(["bench/cpu.py", *sys.argv[1:]]),
              "reps": args.reps, "threads": all_threads, "llama": llama.version if llama else None, "agreement": agreement}
    for shape in args.shape:
        ours, theirs = make_models(args, shape, args.type, llama is not None)
        if llama and "f16" in args.type:
            agreement.append(check_shape(args, llama, shape, ours["f16"], theirs["f16"]))
        for args.threads in all_threads:
            if shape == args.shape[0]:  # what the planner knows of the machine may be old, or taken while it was busy
                fusebox(args, "plan", ours[args.type[0]], "--calibrate", "--threads", str(args.threads))
            for kind in args.type:
                rows += measure_type(args, llama, shape, kind, ours[kind], theirs[kind], header)
    if args.json:
        write_json(args.json, header, rows)
    table.print_header(header)
    print()
    table.print_table(rows)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
