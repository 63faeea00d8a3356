"""Guesses of the next tokens: the texts without them, what is said of them, and what goes wrong."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest

import fusebox

from conftest import Cli

PROMPT = "Once upon a time"
AGAIN = "The fox ran and the dog ran. The fox ran and the dog ran. The fox"
SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 6}}}
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repeat_penalty": 1.3},
    {"seed": 1},
    {"seed": 2, "temperature": 1.2, "top_k": 0, "top_p": 1.0, "presence_penalty": 1.0},
    {"seed": 3, "schema": SCHEMA},
    {"seed": 4, "past_end": True},
]


@pytest.fixture(scope="module")
def q4(model: fusebox.Model) -> fusebox.Draft:
    return model.draft("q4", tokens=4)


def test_the_same_texts(model: fusebox.Model, q4: fusebox.Draft) -> None:
    for sampling in SAMPLINGS:
        for draft in (q4, "q4", "ngram"):
            plain = model.generate(AGAIN, max_tokens=50, **sampling)
            text = model.generate(AGAIN, max_tokens=50, draft=draft, **sampling)
            assert (text, text.tokens, text.stop) == (plain, plain.tokens, plain.stop), (sampling, draft)
            assert plain.stats.draft is None and plain.stats.draft_source is None
            stats = text.stats.draft
            assert stats is not None and text.stats.draft_source == ("ngram" if draft == "ngram" else "q4")
            if draft is q4 and "schema" not in sampling:
                assert stats.drafted > stats.kept > 5 and stats.tokens_per_step > 1.1
                assert f"draft            q4: {stats.tokens_per_step:.2f} tokens a step" in str(text.stats)


def test_streams(model: fusebox.Model, q4: fusebox.Draft) -> None:
    plain, stream = model.stream(PROMPT, max_tokens=40, seed=5), model.stream(PROMPT, max_tokens=40, seed=5, draft=q4)
    assert list(stream) == list(plain)
    assert stream.tokens == plain.tokens and stream.stats.tokens == 40
    endless = {"max_tokens": 300, "endless": True, "sinks": 4, "window": 60, "seed": 6}
    assert model.generate(PROMPT, draft=q4, **endless).tokens == model.generate(PROMPT, **endless).tokens  # type: ignore[arg-type]


def test_a_session_that_goes_on(model: fusebox.Model, q4: fusebox.Draft) -> None:
    """Also where a stream was left between two tokens of a step."""
    texts, lengths, logits = [], [], []
    right = model.draft(model.path, tokens=7)
    for draft in (None, q4, right):
        with model.session(draft=draft) as session:
            assert session.draft is draft
            first = session.generate(PROMPT, max_tokens=20, seed=1)
            stream = session.stream(" The", max_tokens=40, seed=2)
            pieces = [next(stream) for _ in range(7)]
            lengths.append([session.length, len(session)])
            fork = session.fork()
            assert fork.draft is draft
            texts.append([first, pieces, session.generate(" A", max_tokens=20, temperature=0),
                          fork.generate(" A", max_tokens=20, seed=3)])
            session.trim(10)
            session.prefill([5, 6, 7])
            logits.append(session.logits().copy())
            lengths[-1] += [session.length, fork.length]
            statistics = session.draft_stats()
            assert (statistics.kept > 5) == (draft is not None)
    assert texts[0] == texts[1] == texts[2] and lengths[0] == lengths[1] == lengths[2]
    assert np.array_equal(logits[0], logits[1]) and np.array_equal(logits[0], logits[2])


def test_logits_in_use(model: fusebox.Model, q4: fusebox.Draft) -> None:
    """A step with guesses may move the logits that an array views."""
    with model.session(draft=q4) as session:
        session.prefill([1, 2, 3])
        logits = session.logits()
        with pytest.raises(fusebox.UsageError, match="an array of the last step is in use"):
            session.generate([4, 5], max_tokens=8, seed=1)
        assert logits.shape == (1, model.info.vocab)
        del logits
        assert len(session.generate([4, 5], max_tokens=8, seed=1).tokens) == 8


def test_statistics(model: fusebox.Model) -> None:
    right = model.draft(model.path, tokens=3)
    with model.session(draft=right) as session:
        session.generate(PROMPT, max_tokens=21, temperature=0)
        s = session.draft_stats()
    assert (s.steps, s.plain_steps, s.tokens, s.drafted, s.kept) == (5, 0, 20, 15, 15)
    assert s.tried == s.right == (5, 5, 5, 0, 0, 0, 0) and s.acceptance == 1 and s.tokens_per_step == 4
    assert s.step_seconds > 0 and s.draft_seconds > 0
    zero = s - s
    assert zero.steps == 0 and zero.tried == (0,) * 7 and zero.acceptance != zero.acceptance
    assert str(s) == "4.00 tokens a step, 15 of 15 guesses kept (100%)"


def test_schedulers(model: fusebox.Model, q4: fusebox.Draft) -> None:
    def answers(**options: Any) -> tuple[list[Any], fusebox.SchedulerStats]:
        draft = options.pop("each", True)
        with model.scheduler(sequences=8, **options) as scheduler:
            assert scheduler.draft is options.get("draft")
            requests = [
                scheduler.submit(AGAIN, max_tokens=40, samples=2, stops=["zz"], draft=draft, **sampling)
                for sampling in SAMPLINGS[:4]
            ]
            found = [[(a, a.tokens, a.finish) for a in r.answers()] for r in requests]
            counts = [(a.drafted, a.kept) for r in requests for a in r.answers()]
            stats = scheduler.stats
        assert (stats.drafted, stats.kept) == tuple(map(sum, zip(*counts)))
        return found, stats

    plain, stats = answers()
    assert stats.drafted == 0
    guessed, stats = answers(draft=q4)
    assert guessed == plain and stats.drafted > stats.kept > 20
    assert f"{stats.kept} of {stats.drafted} kept" in str(stats)
    declined, stats = answers(draft=q4, each=False)
    assert declined == plain and stats.drafted == 0


def test_a_function(model: fusebox.Model) -> None:
    text = model.generate(PROMPT, max_tokens=30, temperature=0)
    start, known = len(model.tokenize(PROMPT)), text.tokens

    def known_text(tokens: Sequence[int], most: int) -> Sequence[int]:
        return known[len(tokens) - start :][:9]

    draft = model.draft(known_text, tokens=7)
    assert draft.source == "known_text" and repr(draft) == "<fusebox.Draft: known_text>"
    again = model.generate(PROMPT, max_tokens=30, temperature=0, draft=draft)
    assert again == text and again.stats.draft is not None and again.stats.draft.tokens_per_step > 7
    assert model.generate(PROMPT, max_tokens=30, temperature=0, draft=known_text) == text

    def fails(tokens: Sequence[int], most: int) -> Sequence[int]:
        raise KeyError("guess")

    for bad in (fails, lambda tokens, most: [2**40], lambda tokens, most: None):
        with pytest.raises((KeyError, fusebox.UsageError, TypeError)):
            model.generate(PROMPT, max_tokens=9, temperature=0, draft=bad)  # type: ignore[arg-type]
        with model.scheduler(draft=model.draft(bad, tokens=2)) as scheduler:  # type: ignore[arg-type]
            scheduler.submit(PROMPT, max_tokens=9, temperature=0)
            with pytest.raises((KeyError, fusebox.UsageError, TypeError)):
                scheduler.run()
    wrong = model.generate(PROMPT, max_tokens=30, temperature=0, draft=model.draft(lambda t, n: [-1, 10**6], tokens=2))
    assert wrong == text


def test_drafts_are_shared_and_freed(model: fusebox.Model) -> None:
    a, b = model.session(draft="ngram"), model.session(draft="ngram")
    assert a.draft is b.draft and a.draft is model.draft("ngram") and a.draft is not model.draft("ngram", tokens=2)
    gone = weakref.ref(a.draft)
    del a, b
    gc.collect()
    assert gone() is None
    session = fusebox.Model().session(draft="q4")
    gc.collect()  # the session keeps what it needs
    assert len(session.generate(PROMPT, max_tokens=12, seed=1).tokens) == 12
    for _ in range(8):  # the collector finds model, draft and session at once
        found: list[Any] = [fusebox.Model().session(draft="q4")]
        found.append(found)
        del found
        gc.collect()


def test_threads(model: fusebox.Model, q4: fusebox.Draft) -> None:
    wanted = [model.generate(PROMPT, max_tokens=30, seed=seed) for seed in range(4)]
    got: dict[int, str] = {}

    def run(seed: int) -> None:
        got[seed] = model.generate(PROMPT, max_tokens=30, seed=seed, draft=q4)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[seed] for seed in range(4)] == wanted


def test_what_is_refused(model: fusebox.Model, root: Path) -> None:
    for source, tokens, says in (
        ("no/such/model", None, "no/such/model"),
        (root / "tests/data/golden/llama-mha", None, "tokenizer"),
        ("ngram", 0, "0 tokens at once"),
        ("ngram", 8, "1 to 7"),
        ("", None, "no source"),
        ("a\0b", None, "NUL"),
    ):
        with pytest.raises(fusebox.Error, match=says):
            model.draft(source, tokens=tokens)
    with pytest.raises(fusebox.UsageError, match="another model"):
        fusebox.Model().session(draft=model.draft("ngram"))
    with pytest.raises(TypeError):
        model.session(draft=7)  # type: ignore[arg-type]


def test_verify_draft(model: fusebox.Model, cli: Cli, root: Path) -> None:
    report = model.verify_draft(gen=16, seed=1)
    assert report.ok and report.different == 0 and report.drafted > report.kept > 0 and report.texts > 0
    assert str(report).endswith("to the bit") and "<table>" in report._repr_html_()
    golden = root / "models/storyteller/golden.safetensors"
    if golden.exists():
        assert model.verify_draft("ngram", golden, gen=16).ok
    with pytest.raises(fusebox.Error, match="warp"):
        model.verify_draft("warp")
