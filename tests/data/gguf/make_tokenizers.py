#!/usr/bin/env python3
"""Where the tokenizers and cases in this folder come from; nothing in the build runs it.

    python3 make_tokenizers.py        with the packages `gguf` 0.19.0 and `llama-cpp-python` 0.3.36

Writes the small vocabularies of ../tokenizer as GGUF files without tensors, one for each way of splitting and one with
SentencePiece's scores, and tokenizer.cases.json: texts, the ids that llama.cpp gives them with each file, and what it
makes of those ids.
"""
import json
import os
import random
import sys

import gguf
from llama_cpp import Llama

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "tokenizer")
PRES = ["gpt-2", "default", "falcon", "smollm", "llama-bpe", "qwen2"]
SPACE = "\u2581"
DECODED = ["bpe-gpt-2", "spm"]

PIECES = (
    "the and of to in it was he they're I'LL We'd 's 't 12 1234 56789 0 3.14 , . ; : ! ? ( ) [ ] { } $ % ^ & * + = ~ | ` < > / \\ # @ _ - "
    "\u2014 \u201cx\u201d caf\u00e9 na\u00efve \u00fcber \u00df \u041c\u043e\u0440\u043e\u0437 \u6708\u304c \ubc14\ub78c \u0661\u0662 \u2167 \u00bd "
    "\U0001f642 \U0001f44d\U0001f3fd e\u0301 \u200b \u00a0 <|endoftext|> <s> </s> <unk> <long> <longest> <0x0A> " + SPACE
).split(" ")
GAPS = ["", " ", " ", " ", "  ", "   ", "\n", "\n\n", " \n", "\t", "\r\n", "\n  "]


def texts():
    found = [case["text"] for case in json.load(open(os.path.join(SOURCE, "gpt2.cases.json"))) if "text" in case]
    rng = random.Random(1)
    for _ in range(200):
        found.append("".join(rng.choice(GAPS) + rng.choice(PIECES) for _ in range(rng.randint(1, 12))))
    # llama.cpp stops at a NUL in places, and takes characters that are not assigned for something else.
    return [text for text in found if "\0" not in text and not any(c >= "\U0002ebf0" for c in text)]


def read(name):
    source = json.load(open(os.path.join(SOURCE, name + ".json")))
    vocab = dict(source["model"]["vocab"])
    types = {}
    for token in source["added_tokens"]:
        vocab[token["content"]] = token["id"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    tokens = sorted(vocab, key=vocab.get)
    assert [vocab[token] for token in tokens] == list(range(len(tokens)))
    return source, tokens, [types.get(i, gguf.TokenType.NORMAL) for i in range(len(tokens))]


def start(out, model):
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model(model)
    return writer


def finish(writer, tokens, types):
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_bpe(out, pre):
    source, tokens, types = read("gpt2")
    writer = start(out, "gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in source["model"]["merges"]])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    finish(writer, tokens, types)


def write_spm(out, prefix):
    """Scores fall with the order of merging, two tokens by two, so that equal ones occur."""
    source, tokens, types = read("llama2")
    merges = ["".join(merge if isinstance(merge, list) else merge.split(" ")) for merge in source["model"]["merges"]]
    scores = [-float(merges.index(token) // 2) if token in merges else -1000.0 for token in tokens]
    for i, token in enumerate(tokens):
        if token.startswith("<0x"):
            types[i] = gguf.TokenType.BYTE
    types[0] = gguf.TokenType.UNKNOWN
    writer = start(out, "llama")
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if not prefix:
        writer.add_add_space_prefix(False)
        writer.add_add_eos_token(True)
    finish(writer, tokens, types)


def main():
    cases = {"texts": texts()}
    files = [("bpe-" + pre, lambda out, pre=pre: write_bpe(out, pre)) for pre in PRES]
    files += [("spm", lambda out: write_spm(out, True)), ("spm-plain", lambda out: write_spm(out, False))]
    for name, write in files:
        out = os.path.join(HERE, name + ".gguf")
        write(out)
        llama = Llama(out, vocab_only=True, verbose=False)
        ids = [llama.tokenize(text.encode(), add_bos=True, special=True) for text in cases["texts"]]
        cases[name] = ids
        cases[name + " decoded"] = [llama.detokenize(i).decode(errors="replace") for i in ids] if name in DECODED else None
    with open(os.path.join(HERE, "tokenizer.cases.json"), "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
                                    for key, value in cases.items() if value) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
