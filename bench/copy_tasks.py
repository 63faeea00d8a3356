#!/usr/bin/env python3
"""Speed with guesses: on tasks whose answers copy from their prompts, and on free text.

    bench/copy_tasks.py MODEL [--fusebox build/fusebox] [--tasks copy,free] [--draft ngram,q4] [--gen 160] [--reps 5] [--temp 0,0.7]

Copying: edits of code (the answer is the code with a change), summaries with quotes, and corrections of a text. Each
prompt is put in the model's chat template if it has one. Free text: beginnings of stories and explanations, greedily
and sampled, also with guesses that are never right (scripted:0): there guesses must cost next to nothing.

Prints a Markdown table: tokens a second one by one and with guesses, and their ratio (median, 10th and 90th percentile
of the pairs). Small models rarely copy a long text to its end, so the answers to the copying tasks begin with the first
line of what is to be copied, and end where a good answer would. --gen is the length of free texts.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CODE = '''def total_price(items, tax_rate):
    subtotal = 0
    for item in items:
        subtotal += item["price"] * item["quantity"]
    tax = subtotal * tax_rate
    return subtotal + tax


def print_receipt(items, tax_rate):
    for item in items:
        name = item["name"]
        price = item["price"]
        quantity = item["quantity"]
        print(f"{quantity} x {name}: {price * quantity:.2f}")
    print(f"Total: {total_price(items, tax_rate):.2f}")
'''
CLASS = '''class Stack:
    def __init__(self):
        self.values = []

    def push(self, value):
        self.values.append(value)

    def pop(self):
        if not self.values:
            raise IndexError("pop from an empty stack")
        return self.values.pop()

    def peek(self):
        if not self.values:
            raise IndexError("peek at an empty stack")
        return self.values[-1]

    def __len__(self):
        return len(self.values)
'''
REPORT = '''The harbour of Port Ellen was closed for three days after the storm. "We have never seen waves of this height," said
the harbour master, Ann Reid. "Two boats were torn from their moorings, and the pier lost a third of its planks." The
island's council has asked the government for help. "Without the ferry there is no school, no post and no fresh bread,"
said its chairman, Tom Baird. Repairs are expected to take until the end of the month.'''
LETTER = '''Dear Sir, I am writing to you because the lamp that I have bought in your shop last week does not work any more.
On the first evening it was bright, on the second evening it flickered, and on the third evening it went out. I have
tried another bulb and another socket, but the lamp remains dark. I would like to have my money back, or another lamp
of the same kind. I look forward to your answer.'''

# Name, what is asked, how the answer begins, and its tokens after that.
COPY = [
    ("code: rename", f"Rename the function total_price to compute_total in this code and print all of it:\n\n```python\n{CODE}```",
     '```python\ndef compute_total(items, tax_rate):\n    subtotal = 0\n', 150),
    ("code: a docstring", f"Add a docstring to this class and print all of it:\n\n```python\n{CLASS}```",
     '```python\nclass Stack:\n    """A stack of values."""\n\n    def __init__(self):\n', 150),
    ("summary with quotes", f"Repeat all quotes of this report, word by word:\n\n{REPORT}",
     'Here are all the quotes of the report:\n\n1. "We have never seen waves of this height," said', 100),
    ("corrected letter", f"Correct the mistakes in this letter and print all of it:\n\n{LETTER}",
     "Dear Sir, I am writing to you because the lamp that I", 90),
]
FREE = [
    ("a story", None, "Once upon a time there was a king who had three daughters. The youngest of them", 0),
    ("an explanation", None, "To make bread at home, you need flour, water, salt and yeast. First,", 0),
    ("a place", None, "The capital of France is Paris. It is known for", 0),
    ("an argument", None, "There are good reasons to learn a second language. The most important one is", 0),
]


def prompt_of(options, question, begin):
    if question is None:
        return begin
    messages = json.dumps([{"role": "user", "content": question}])
    done = subprocess.run([options.fusebox, "chat", options.model, "--render", "-"], input=messages,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode == 0:
        return done.stdout + begin
    return f"{question}\n\nAnswer:\n\n{begin}"


def bench(options, prompt, sources, temperature, gen):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        command = [options.fusebox, "bench", options.model, "--draft", sources, "-f", file.name, "--act", options.act,
                   "--gen", str(gen or options.gen), "--reps", str(options.reps), "--temp", str(temperature), "--json"]
        if options.threads:
            command += ["--threads", str(options.threads)]
        if options.backend:
            command += ["--backend", options.backend]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"copy_tasks.py: {' '.join(command)}: exit status {done.returncode}")
    return json.loads(done.stdout)["lines"]


def rows(options, kind):
    sources = options.draft + ("" if kind == "copy" else ",scripted:0")
    temperatures = [0] if kind == "copy" else [float(t) for t in options.temp.split(",")]
    for name, question, begin, gen in COPY if kind == "copy" else FREE:
        for temperature in temperatures:
            for line in bench(options, prompt_of(options, question, begin), sources, temperature, gen):
                yield name, temperature, line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--fusebox", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/fusebox"))
    parser.add_argument("--tasks", default="copy,free")
    parser.add_argument("--draft", default="ngram,q4")
    parser.add_argument("--temp", default="0,0.7")
    parser.add_argument("--act", default="f16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--backend")
    parser.add_argument("--gen", type=int, default=160)
    parser.add_argument("--reps", type=int, default=5)
    options = parser.parse_args()
    for kind in options.tasks.split(","):
        print(f"| {kind} | temperature | draft | right | tokens a step | one by one | with guesses | faster |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        ratios = {}
        for name, temperature, line in rows(options, kind):
            ratio = line["faster"]
            ratios.setdefault(line["draft"], []).append(ratio["median"])
            print(f"| {name} | {temperature:g} | {line['draft']} | {100 * line['right']:.0f}% | {line['tokens_a_step']:.2f} | "
                  f"{line['plain_tokens_per_second']:.0f} | {line['tokens_per_second']:.0f} | "
                  f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f}) |", flush=True)
        for source, all_of in ratios.items():
            print(f"\n{source}: {min(all_of):.2f} to {max(all_of):.2f}, geometric mean {statistics.geometric_mean(all_of):.2f}")
        print()


main()
