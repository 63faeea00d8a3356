#!/usr/bin/env python3
"""Times Fusebox on models of real shapes and, where llama-cpp-python is installed, llama.cpp on the same weights.

    bench/cpu.py [--shape neox-160m,neox-410m,llama-1b] [--type f16,q8_0,q4_0] [--work decode@64,…]
                 [--threads N] [--reps 5] [--dir FOLDER] [--json FILE] [--fusebox PROGRAM] [--no-llama]

Prints one table. README.md beside this file says what is measured and how.
"""
import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

import make_checkpoint

TYPES = ("f16", "q8_0", "q4_0")
# name: (kind, tokens of the prompt, decode steps)
WORK = {
    "decode@64": ("decode", 64, 64),
    "prefill@128": ("prefill", 128, 1),
    "prefill@512": ("prefill", 512, 1),
    "decode@1000": ("decode", 1000, 32),
    "decode@4000": ("decode", 4000, 32),
}
# Between turns: threads of the other engine spin for some milliseconds before they sleep.
SETTLE = 0.1
# Samples of the same work that differ by more were disturbed.
QUIET = 1.5
AGREE_TEXT, AGREE_TOKENS = "abcdefghijklmnop", 32


def say(text):
    print(text, file=sys.stderr, flush=True)


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

    def __init__(self, args, model, prompt, gen):
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
        report = self.process.stdout.read()
        self.process.stdin.close()
        if self.process.wait():
            fail(f"fusebox bench: exit status {self.process.returncode}")
        return json.loads(report)


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
        if not make_checkpoint.numpy and shape != "tiny":
            fail(f"shape: {shape} (its checkpoint needs numpy; without it only tiny)")
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
    model = llama.Model(theirs)
    session = llama.Session(model, len(AGREE_TEXT) + len(tokens), args.threads, False)
    session.feed(list(AGREE_TEXT.encode()))  # the checkpoint's tokenizer: an id is a byte
    equal = 0
    for token in tokens:
        equal += session.best() == token
        session.feed([token])
    session.close()
    model.close()
    return equal, len(tokens)


# ---- times ----


def measure(args, llama, model, path, work):
    """Samples of both in milliseconds, by repetition: ours, theirs, ours, …"""
    kind, prompt, gen = WORK[work]
    theirs, session = [], None
    if model:
        session = llama.fastest(model, prompt + gen, args.threads, prompt, gen, kind)
    turns = Turns(args, path, prompt, gen)
    for _ in range(args.reps):
        turns.take()
        if session:
            time.sleep(SETTLE)
            theirs.append(session.sample(prompt, gen, kind))
            time.sleep(SETTLE)
    report = turns.finish()
    ours = report["variants"][0]["tpot_ms" if kind == "decode" else "prefill_ms"]["samples"]
    flash = session.flash if session else None
    if session:
        session.close()
    return {"work": work, "kind": kind, "prompt": prompt, "gen": gen, "fusebox_ms": ours, "llama_ms": theirs,
            "llama_flash": flash}, report


def measure_type(args, llama, shape, kind, ours, theirs, header):
    say(f"{shape} {kind}: what a step reads")
    traffic, bandwidth = read_traffic(args, ours)
    model = llama.Model(theirs) if llama else None
    rows = []
    for work in args.work:
        say(f"{shape} {kind}: {work}")
        row, report = measure(args, llama, model, ours, work)
        position = row["prompt"] + row["gen"] / 2
        row.update(shape=shape, type=kind, bytes=traffic(position), bytes_per_s=bandwidth)
        rows.append(row)
        header.update({key: report[key] for key in ("machine", "version", "commit", "isa", "threads")})
    if model:
        model.close()
    return rows


# ---- the table ----


def show_time(row, samples):
    """Milliseconds a token for decode, tokens a second for prefill; the median, and the extremes."""
    if row["kind"] == "decode":
        unit, values = "ms", samples
    else:
        unit, values = "tok/s", [1e3 * row["prompt"] / sample for sample in samples]
    digits = 3 if statistics.median(values) < 10 else 1
    return f"{statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def show_ratio(row):
    ratios = [theirs / ours for ours, theirs in zip(row["fusebox_ms"], row["llama_ms"])]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def show_bandwidth(row, samples):
    if row["kind"] != "decode":
        return ""
    return f"{100 * row['bytes'] / (1e-3 * statistics.median(samples)) / row['bytes_per_s']:.0f}%"


def is_quiet(row):
    return all(max(samples) <= QUIET * min(samples) for samples in (row["fusebox_ms"], row["llama_ms"]) if samples)


def print_header(header):
    machine = header["machine"]
    print(f"{machine['cpu']}, {header['threads']} of {machine['cores']} cores, {header['date']}. fusebox {header['version']} "
          f"({header['commit']}, {header['isa']}); {header['llama'] or 'without llama.cpp (pip install llama-cpp-python)'}.")
    print(f"`{header['command']}`; medians of {header['reps']} repetitions (least to most).")
    if header["agreement"]:
        print("Greedy tokens at f16 that llama.cpp chooses as well: "
              + ", ".join(f"{equal} of {total} ({shape})" for shape, (equal, total) in header["agreement"].items()) + ".")


def print_table(rows):
    with_llama = any(row["llama_ms"] for row in rows)
    columns = ["model", "weights", "work", "fusebox", "of read bandwidth"]
    if with_llama:
        columns += ["llama.cpp", "of read bandwidth", "flash attention", "faster by [least, most]"]
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for row in rows:
        cells = [row["shape"], row["type"], row["work"].replace("@", " at " if row["kind"] == "decode" else " of ")]
        cells += [show_time(row, row["fusebox_ms"]), show_bandwidth(row, row["fusebox_ms"])]
        if with_llama:
            cells += [show_time(row, row["llama_ms"]), show_bandwidth(row, row["llama_ms"]),
                      "on" if row["llama_flash"] else "off", show_ratio(row)]
        print("| " + " | ".join(cells) + " |")
    speeds = sorted({f"{row['bytes_per_s'] / 1e9:.1f}" for row in rows}, key=float)
    print(f"\nRead bandwidth, measured over as many bytes as a step reads: {' to '.join(speeds[:1] + speeds[1:][-1:])} GB/s.")
    loud = [f"{row['shape']} {row['type']} {row['work']}" for row in rows if not is_quiet(row)]
    if loud:
        print(f"Something else was using this machine: samples differ by more than {QUIET} times in {', '.join(loud)}.")


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


def parse_arguments():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=names(make_checkpoint.SHAPES), default=["neox-160m", "neox-410m", "llama-1b"])
    parser.add_argument("--type", type=names(TYPES), default=list(TYPES))
    parser.add_argument("--work", type=names(WORK), default=list(WORK))
    parser.add_argument("--threads", type=count, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reps", type=count, default=5)
    parser.add_argument("--dir", default=os.path.join(cache, "fusebox", "bench"), help="where models are kept")
    parser.add_argument("--json", metavar="FILE", help="all samples")
    parser.add_argument("--fusebox", default=os.path.join(root, "build", "fusebox"), metavar="PROGRAM")
    parser.add_argument("--no-llama", action="store_true")
    return parser.parse_args()


def import_llama(args):
    if args.no_llama:
        return None
    try:
        import llama_engine
    except ImportError as error:
        say(f"llama.cpp is left out: {error} (pip install llama-cpp-python)")
        return None
    return llama_engine


def write_json(path, header, rows):
    with open(path + ".tmp", "w", encoding="utf-8") as out:
        json.dump({**header, "rows": rows}, out, indent=1)
        out.write("\n")
    os.replace(path + ".tmp", path)


def main():
    args = parse_arguments()
    llama = import_llama(args)
    os.makedirs(args.dir, exist_ok=True)
    rows, agreement = [], {}
    header = {"date": datetime.date.today().isoformat(), "command": shlex.join(["bench/cpu.py", *sys.argv[1:]]),
              "reps": args.reps, "llama": llama.version() if llama else None, "agreement": agreement}
    for shape in args.shape:
        ours, theirs = make_models(args, shape, args.type, llama is not None)
        if llama and "f16" in args.type:
            agreement[shape] = check_agreement(args, llama, ours["f16"], theirs["f16"])
            say(f"{shape}: {agreement[shape][0]} of {agreement[shape][1]} greedy tokens are llama.cpp's, too")
        for kind in args.type:
            rows += measure_type(args, llama, shape, kind, ours[kind], theirs[kind], header)
    if args.json:
        write_json(args.json, header, rows)
    print_header(header)
    print()
    print_table(rows)


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
