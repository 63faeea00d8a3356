#!/usr/bin/env python3
"""Tokens a second of `fusebox serve` under load, and, where llama-cpp-python is installed, of llama.cpp on the same weights.

    bench/serve.py MODEL.gguf [--clients 1,8,16] [--seconds 10] [--reps 3] [--threads N] [--prompt 16,128] [--gen 32,96]
                   [--json FILE] [--fusebox PROGRAM] [--no-llama]

Prints one table. README.md beside this file says what is measured and how.
"""
import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

from load import Times, requests
from rival import SETTLE, Llama, LlamaError, say


def fail(text):
    sys.exit(f"serve.py: {text}")


# ---- fusebox: a server of its own for each number of clients ----


class Server:
    def __init__(self, args, clients):
        command = [args.fusebox, "serve", args.model, "--port", "0", "--sequences", clients]
        command += ["--threads", args.threads, "--ctx", args.prompt[1] + args.gen[1] + 1]
        command += args.option.split()
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.search(r":(\d+)/ ", line)
        if not found:
            fail(f"fusebox serve: {line.strip()}")
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, failed, *rest):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait() and not failed:
            fail(f"fusebox serve: exit status {self.process.returncode}")


async def answer(reader, writer, ids, count, times):
    """One request. An event with a text is a token: nothing here holds a part of a character back for long."""
    body = json.dumps({"prompt": ids, "max_tokens": count, "temperature": 0, "repeat_penalty": 1, "ignore_eos": True,
                       "stream": True, "stream_options": {"include_usage": True}})
    sent, last = time.perf_counter(), None
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    async for line in reader:
        if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
            fail(f"fusebox serve: {line} {await reader.read(2000)}")
        if line.startswith(b'data: {"error"'):
            fail(f"fusebox serve: {line}")
        if b'"finish_reason":null' in line:
            now = time.perf_counter()
            times.token(now, sent, last)
            last = now
        if line == b"0\r\n":  # the chunk without bytes, which ends the reply
            break
    await reader.readline()


async def client(port, number, vocab, args, times):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for ids, count in requests(number, vocab, args.prompt, args.gen):
        if time.perf_counter() >= times.end:
            break
        await answer(reader, writer, ids, count, times)
    writer.close()


async def load(port, vocab, clients, args, warm, seconds):
    begin = time.perf_counter() + warm
    times = Times(begin, begin + seconds)
    await asyncio.gather(*(client(port, i, vocab, args, times) for i in range(clients)))
    return times.report()


def vocabulary(args):
    done = subprocess.run([args.fusebox, "info", args.model, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["vocab"]


# ---- both, in turns ----


def measure(args, llama, vocab, clients, server):
    row = {"clients": clients, "fusebox": [], "llama": [], "setting": None}
    if llama:
        say(f"{clients} clients: llama.cpp's settings")
        row["setting"] = llama.ask("open", args.model, args.threads, clients, args.prompt, args.gen)
    for turn in range(args.reps):
        say(f"{clients} clients: turn {turn + 1} of {args.reps}")
        row["fusebox"].append(asyncio.run(load(server.port, vocab, clients, args, args.warm, args.seconds)))
        time.sleep(SETTLE)
        if llama:
            row["llama"].append(llama.ask("run", args.warm, args.seconds))
            time.sleep(SETTLE)
    return row


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def show(samples):
    rate = statistics.median(s["tokens_per_s"] for s in samples)
    cells = [f"{rate:.0f}"]
    for key in ("first_ms", "between_ms"):
        all_times = [t for s in samples for t in s[key]]
        cells.append(f"{percentile(all_times, 0.5):.0f}, {percentile(all_times, 0.99):.0f}")
    return cells


def print_table(args, rows, version):
    print(f"{os.path.basename(args.model)}, {args.threads or os.cpu_count()} threads, prompts of {args.prompt[0]} to {args.prompt[1]} tokens, "
          f"answers of {args.gen[0]} to {args.gen[1]}; median of {args.reps} turns of {args.seconds:g} s. Times in ms: p50, p99.")
    print(f"Peer: {version or 'none'}; llama_decode in a loop with continuous batching, without HTTP.\n")
    print("| clients | | tokens/s | first token | between tokens | faster |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        ratio = ""
        if row["llama"]:
            ratios = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in zip(row["fusebox"], row["llama"])]
            ratio = f"**{statistics.median(ratios):.2f}** [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"| {row['clients']} | fusebox serve | " + " | ".join(show(row["fusebox"])) + f" | {ratio} |")
        if row["llama"]:
            print(f"| | llama.cpp ({row['setting']}) | " + " | ".join(show(row["llama"])) + " | |")


def pair(text):
    low, high = (int(word) for word in text.split(","))
    if not 1 <= low <= high:
        raise ValueError(text)
    return low, high


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--clients", default="1,8,16")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm", type=float, default=3, help="seconds before those that count")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt", type=pair, default=(16, 128), metavar="LEAST,MOST")
    parser.add_argument("--gen", type=pair, default=(32, 96), metavar="LEAST,MOST")
    parser.add_argument("--fusebox", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/fusebox"))
    parser.add_argument("--option", default="", metavar="TEXT", help="more options of fusebox serve")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--no-llama", action="store_true")
    args = parser.parse_args()
    llama = version = None
    if not args.no_llama:
        try:
            llama = Llama("llama_serve.py")
            version = llama.version
        except LlamaError as error:
            say(f"without llama.cpp: {error}")
    vocab = vocabulary(args)
    rows = []
    for clients in map(int, args.clients.split(",")):
        with Server(args, clients) as server:
            rows.append(measure(args, llama, vocab, clients, server))
    print_table(args, rows, version)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
