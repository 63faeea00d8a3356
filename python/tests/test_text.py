"""Generation: the texts of the command line, to the byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import fusebox
from conftest import Cli

PROMPT = "Once upon a time there was a poor woodcutter who"

CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"temperature": 0}, ["--temp", "0"]),
    ({"temperature": 1.3, "top_k": 0}, ["--temp", "1.3", "--top-k", "0"]),
    ({"top_p": 0.5, "min_p": 0.0, "repeat_penalty": 1.0}, ["--top-p", "0.5", "--min-p", "0", "--repeat-penalty", "1"]),
    (
        {"presence_penalty": 0.5, "frequency_penalty": -0.25, "logit_bias": {344: -float("inf"), 13: 1.5}},
        ["--presence-penalty", "0.5", "--frequency-penalty=-0.25", "--logit-bias", "344:-inf", "--logit-bias", "13+1.5"],
    ),
    ({"temperature": 0, "frequency_penalty": 0.5}, ["--temp", "0", "--frequency-penalty", "0.5"]),
    ({"temperature": 0, "logit_bias": {344: -100.0}}, ["--temp", "0", "--logit-bias", "344-100"]),
    ({"act": "f16", "fuse": "none", "threads": 1}, ["--act", "f16", "--fuse", "none", "--threads", "1"]),
    ({"exact": True, "isa": "portable", "kv": "f32"}, ["--exact", "--isa", "portable", "--kv", "f32"]),
    ({"cache": "sinks", "sinks": 2, "window": 20}, ["--cache", "sinks", "--sinks", "2", "--window", "20"]),
    ({"endless": True, "window": 30}, ["--stream", "--window", "30"]),
]


@pytest.mark.parametrize("options, arguments", CASES)
def test_generate_as_the_command_line(
    model: fusebox.Model, cli: Cli, options: dict[str, Any], arguments: list[str]
) -> None:
    got = model.generate(PROMPT, max_tokens=60, seed=7, **options)
    wanted = json.loads(cli("run", "-p", PROMPT, "-n", "60", "--seed", "7", "--json", *arguments))
    assert got == wanted["text"] == got.text
    assert got.tokens == wanted["tokens"]
    assert (got.stop, got.seed, got.prompt) == (wanted["stop"], 7, PROMPT)
    stats = got.stats
    assert stats.fuses == wanted["stats"]["fuses"]
    assert (stats.backend, stats.isa, stats.act, stats.kv) == tuple(
        wanted["stats"][name] for name in ("backend", "isa", "act", "kv")
    )
    assert stats.prompt_tokens == wanted["prompt_tokens"]
    assert cli("run", "-p", PROMPT, "-n", "60", "--seed", "7", *arguments) == got + "\n"


def test_defaults_and_limits(model: fusebox.Model, cli: Cli) -> None:
    assert model.generate(seed=1, max_tokens=8) + "\n" == cli("run", "-n", "8", "--seed", "1")
    assert model.generate(PROMPT, max_tokens=0) == ""
    long = model.generate([5] * 500, seed=1, temperature=2.0, top_k=0, min_p=0, top_p=1)
    assert long.stop in ("context", "end") and len(long.tokens) <= 12
    first, second = model.generate(PROMPT, max_tokens=8), model.generate(PROMPT, max_tokens=8)
    assert first.seed != second.seed
    assert model.generate(PROMPT, max_tokens=8, seed=first.seed) == first
    assert model.generate(PROMPT, max_tokens=8, seed=2**64 - 1).seed == 2**64 - 1


def test_sequences_of_one_seed(model: fusebox.Model) -> None:
    texts = [str(model.generate(PROMPT, max_tokens=20, seed=7, sequence=sequence)) for sequence in (0, 1, 2, 2**64 - 1)]
    assert len(set(texts)) == 4
    assert model.generate(PROMPT, max_tokens=20, seed=7) == texts[0]
    assert model.generate(PROMPT, max_tokens=20, seed=7, sequence=2) == texts[2]


def test_biases(model: fusebox.Model) -> None:
    banned = dict.fromkeys(range(1, model.info.vocab), -float("inf"))
    assert model.generate(PROMPT, max_tokens=5, logit_bias={77: 100.0}, temperature=0).tokens == [77] * 5
    assert model.generate(PROMPT, max_tokens=5, logit_bias={}, temperature=0).tokens[:3] == [344, 260, 553]
    with model.session() as session:
        assert session.generate(PROMPT, max_tokens=5, logit_bias={77: 100.0}, temperature=0).tokens == [77] * 5
    assert set(model.generate(PROMPT, max_tokens=5, logit_bias=banned, endless=True).tokens) == {0}


def test_stats_print_as_the_command_line(model: fusebox.Model) -> None:
    lines = str(model.generate(PROMPT, max_tokens=4, seed=3, cache="sinks", window=9).stats).splitlines()
    names = [line[:17].strip() for line in lines]
    assert names[:4] == ["load", "prompt", "generated", "first token"] and names[-1] == "seed"
    assert re.fullmatch(r"cache            sinks: 4 first and 9 last tokens, [\d.]+ [kM]B", lines[names.index("cache")])
    assert "<table>" in model.generate(PROMPT, max_tokens=4).stats._repr_html_()


def test_stream_pieces_are_the_text(model: fusebox.Model) -> None:
    stream = model.stream(PROMPT, max_tokens=60, seed=7)
    assert stream.stop is None
    pieces = list(stream)
    assert len(pieces) > 30 and all(pieces)
    assert "".join(pieces) == model.generate(PROMPT, max_tokens=60, seed=7)
    assert stream.stop == "length" and len(stream.tokens) == 60
    assert list(stream) == []


def test_never_half_a_character(model: fusebox.Model) -> None:
    """The tokens of an emoji, one by one through a text stream."""
    import ctypes

    from fusebox.generation import _text_stream
    from fusebox._c import call, lib

    ids = model.tokenize("é😀ü", special=False)
    assert len(ids) > 3
    handle = _text_stream(model)
    pieces = []
    for id in ids:
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        call(lib.fb_text_push, handle.pointer, id, ctypes.byref(out), ctypes.byref(size))
        pieces.append(ctypes.string_at(out.value or 0, size.value).decode("utf-8"))  # strict: whole characters only
    assert "".join(pieces) == "é😀ü" and "" in pieces


def test_endless_streams_go_beyond_the_context(model: fusebox.Model) -> None:
    stream = model.stream(PROMPT, endless=True, window=16, seed=1)
    count = 0
    for _ in stream:
        count += 1
        if count == 600:  # the context is 512
            break
    assert stream.stop is None and stream.session.length > 512


def test_tokenize_round_trip(model: fusebox.Model) -> None:
    for text in ("", "Once upon a time", " é😀\n\t", "a\0b"):
        ids = model.tokenize(text, special=False)
        assert model.detokenize(ids) == text
    with_special = model.tokenize("a")
    assert with_special != model.tokenize("a", special=False)
    assert model.detokenize(with_special) == "a" != model.detokenize(with_special, special=True)
    assert model.tokenize(b"\xff\xfe", special=False)
    assert model.is_end(0) in (True, False)


def test_prompt_as_ids(model: fusebox.Model) -> None:
    import numpy

    ids = model.tokenize(PROMPT)
    text = model.generate(PROMPT, max_tokens=20, seed=7)
    assert model.generate(ids, max_tokens=20, seed=7) == text
    assert model.generate(numpy.array(ids), max_tokens=20, seed=7) == text
    assert model.generate(PROMPT.encode(), max_tokens=20, seed=7) == text


def test_session_generate_goes_on(model: fusebox.Model) -> None:
    """Two turns in one session are one text: the session holds prompt and answer."""
    with model.session(capacity=20) as session:
        assert session.generate([1, 2], temperature=0, past_end=True).stop == "context" and session.length == 20
    with model.session() as session:
        first = session.generate(PROMPT, max_tokens=10, temperature=0)
        assert session.length == len(model.tokenize(PROMPT)) + 10
        more = session.generate(" And", max_tokens=10, temperature=0)
    ids = model.tokenize(PROMPT) + first.tokens + model.tokenize(" And", special=False)
    assert model.generate(ids, max_tokens=10, temperature=0) == more


def test_story_of_the_golden(model: fusebox.Model, root: Path) -> None:
    golden = json.loads((root / "tests/data/golden/storyteller/golden.json").read_text())
    assert isinstance(golden, dict)
    assert model.generate(PROMPT, max_tokens=12, temperature=0).startswith(" had a very good time in the morning.")
