"""Many requests at once: each has the bits that it has alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

import fusebox
from conftest import Cli

PROMPTS = ["Once upon a time", "The fox said", "The king", "A"]


@pytest.fixture
def scheduler(model: fusebox.Model) -> fusebox.Scheduler:
    return model.scheduler(sequences=4, threads=1)


def test_answers_are_those_of_the_model(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    requests = [scheduler.submit(prompt, max_tokens=24, seed=3) for prompt in PROMPTS]
    best = scheduler.submit("The fox said", max_tokens=24, temperature=0)
    scheduler.run()
    for request, prompt in zip(requests, PROMPTS):
        alone = model.generate(prompt, max_tokens=24, seed=3)
        answer = request.answer()
        assert request.done and (answer.text, answer.tokens) == (alone.text, alone.tokens)
        assert answer.finish == alone.stop
        assert request.prompt_tokens == model.tokenize(prompt) and request.seed == 3
    assert best.answer().text == model.generate("The fox said", max_tokens=24, temperature=0).text
    stats = scheduler.stats
    assert (stats.running, stats.waiting) == (0, 0) and stats.tokens == sum(
        len(request.answer().tokens) for request in [*requests, best]
    )
    assert "0 running" in str(stats) and "<table>" in stats._repr_html_() and stats.steps > 0


def test_pieces(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    other = scheduler.submit("The king", max_tokens=5)
    request = scheduler.submit("Once upon a time", max_tokens=12, samples=3, seed=1, wants_logits=True)
    texts, tokens, positions = [""] * 3, [list[int]() for _ in range(3)], [list[int]() for _ in range(3)]
    finished = set()
    for piece in request:
        texts[piece.sample] += piece.text
        assert piece.request == request.number == other.number + 1
        if piece.token is not None:
            assert piece.logits is not None and piece.logits.shape == (model.info.vocab,)
            tokens[piece.sample].append(piece.token)
            positions[piece.sample].append(piece.position)
            assert piece.count == len(tokens[piece.sample])
        if piece.finish:
            finished.add((piece.sample, piece.finish))
    assert finished == {(0, "length"), (1, "length"), (2, "length")}
    for sample in range(3):
        alone = model.generate("Once upon a time", max_tokens=12, seed=1, sequence=sample)
        assert (texts[sample], tokens[sample]) == (alone, alone.tokens)
        assert positions[sample] == list(range(len(request.prompt_tokens), len(request.prompt_tokens) + 12))
    assert [answer.tokens for answer in request.answers()] == tokens and not list(request)
    scheduler.run()
    assert other.done


def test_logits_of_a_prompt(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    ids = model.tokenize("Once upon a time there was a little girl")
    request = scheduler.submit(ids, max_tokens=0, prompt_logits=True)
    pieces = list(request)
    assert [piece.token for piece in pieces[:-1]] == ids and pieces[0].logits is None
    rows = np.stack([piece.logits for piece in pieces[1:-1] if piece.logits is not None])
    assert np.array_equal(rows, model.logits(ids)[:-1])
    assert (pieces[-1].finish, pieces[-1].token) == ("length", None) and request.answer() == ""


def test_callbacks(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    seen: list[fusebox.Piece] = []

    def three(piece: fusebox.Piece) -> bool:
        seen.append(piece)
        return piece.count < 3

    def fails(piece: fusebox.Piece) -> None:
        raise ZeroDivisionError("in a callback")

    cut = scheduler.submit("Once upon a time", on_answer=three)
    scheduler.run()
    assert cut.done and [piece.count for piece in seen if piece.token is not None] == [1, 2, 3]
    assert seen[-1].finish == "cancelled"
    broken = scheduler.submit("The king", on_answer=fails)
    other = scheduler.submit("The king", max_tokens=9, seed=1)
    with pytest.raises(ZeroDivisionError):
        scheduler.run()
    scheduler.run()
    assert broken.done and other.answer().text == model.generate("The king", max_tokens=9, seed=1).text
    with pytest.raises(fusebox.UsageError, match="with on_answer"):
        broken.answers()
    nested = scheduler.submit("A", on_answer=lambda piece: scheduler.step())
    with pytest.raises(fusebox.UsageError, match="from a callback"):
        nested.wait()
    nested.wait()
    more: list[fusebox.Request] = []
    scheduler.submit("A", max_tokens=1, on_answer=lambda piece: more.append(scheduler.submit("B", max_tokens=1)))
    scheduler.run()
    assert more and all(request.done for request in more)


def test_threads(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    """Every thread waits for its own request; one of them computes the step."""
    answers: dict[int, str] = {}

    def ask(seed: int) -> None:
        answers[seed] = scheduler.submit("Once upon a time", max_tokens=20, seed=seed).answer()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {seed: model.generate("Once upon a time", max_tokens=20, seed=seed) for seed in range(6)}


def test_cancel_from_another_thread(scheduler: fusebox.Scheduler) -> None:
    begun = threading.Event()
    request = scheduler.submit("Once upon a time", max_tokens=400, past_end=True, on_answer=lambda piece: begun.set())
    other = scheduler.submit("The king", max_tokens=400, past_end=True)
    runner = threading.Thread(target=scheduler.run)
    runner.start()
    assert begun.wait(30)
    request.cancel()
    request.wait()
    scheduler.cancel()
    runner.join(30)
    answer = other.answer()
    assert not runner.is_alive() and answer.finish == "cancelled" and len(answer.tokens) < 400
    request.cancel()  # nothing happens


def test_priority_stops_and_schema(model: fusebox.Model) -> None:
    with model.scheduler(sequences=1, threads=1) as scheduler:
        order: list[int] = []

        def note(piece: fusebox.Piece) -> None:
            if piece.finish:
                order.append(piece.request)

        first, low, high = (
            scheduler.submit("A", max_tokens=4, priority=priority, on_answer=note) for priority in (0, 0, 2)
        )
        scheduler.run()
        assert order == [high.number, first.number, low.number]
        whole = model.generate("Once upon a time", max_tokens=30, seed=1)
        word = whole.split()[5]
        stopped = scheduler.submit("Once upon a time", max_tokens=30, seed=1, stops=[word]).answer()
        assert (stopped, stopped.finish) == (whole[: whole.index(word)], "stop")
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
        document = scheduler.submit("x", schema=schema, temperature=0, max_tokens=50).answer()
        assert document.finish == "end" and json.loads(document)["a"] in (1, 2)
    with pytest.raises(fusebox.UsageError, match="closed"):
        scheduler.submit("A")
    first.cancel()
    assert repr(scheduler) == "<fusebox.Scheduler, closed>"


def test_fuses_while_it_runs(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    scheduler.fuse("all,-down_add")
    request = scheduler.submit("Once upon a time", max_tokens=30, seed=1)
    next(request)
    before = scheduler.fuses()
    assert not before["down_add"].on and before["rope_kv"].on and before["rope_kv"].calls > 0
    assert scheduler.fuse_text() == "all,-down_add" and "down_add" not in scheduler.plan_text()
    scheduler.fuse("all")
    scheduler.step()
    after = scheduler.fuses()
    assert after["down_add"].on and after["down_add"].bit and after["down_add"].calls > 0
    assert after["down_add"].calls_per_step > 0 and scheduler.stats.plan_changes == 2
    scheduler.fuse("none")  # without attn_flash: other bits, so it waits for the end of the answer
    scheduler.step()
    assert scheduler.stats.plan_pending and scheduler.fuses()["attn_flash"].on
    assert not scheduler.fuses()["attn_flash"].next
    assert request.answer().text == model.generate("Once upon a time", max_tokens=30, seed=1, fuse="all").text
    with pytest.raises(fusebox.UsageError, match="nonsense"):
        scheduler.fuse("nonsense")


def test_timeline(scheduler: fusebox.Scheduler) -> None:
    assert scheduler.timeline() is None
    scheduler.profile(6)
    scheduler.submit("Once upon a time", max_tokens=30, past_end=True).wait()
    timeline = scheduler.timeline()
    assert timeline is not None and timeline.rows == 1 and timeline.steps == 3
    assert 0 < sum(op.seconds for op in timeline.ops) <= 1.001 * timeline.seconds
    assert {op.section for op in timeline.ops} == {"prologue", "layer", "epilogue"}
    assert any("rope_kv" in op.fuses for op in timeline.ops)
    assert str(timeline).count("\n") == len(timeline.ops) + 1 and "<table>" in timeline._repr_html_()


def test_prefix_cache(model: fusebox.Model) -> None:
    prompt = model.tokenize("Once upon a time there was a little girl who lived in a house near the forest. " * 4)
    for cache, cached in ((True, True), (False, False)):
        scheduler = model.scheduler(sequences=2, block=16, threads=1, prefix_cache=cache)
        first = scheduler.submit(prompt, max_tokens=4, seed=1).answer()
        again = scheduler.submit(prompt, max_tokens=4, seed=1).answer()
        assert first == again and first.cached == 0 and (again.cached >= 16) == cached
        assert (scheduler.stats.cached_tokens > 0) == cached


def test_refusals(model: fusebox.Model, scheduler: fusebox.Scheduler) -> None:
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: model.scheduler(sequences=0), "sequences: 0"),
        (lambda: model.scheduler(block=17), "block: 17"),
        (lambda: model.scheduler(stretch=0.5), "stretch: 0.5"),
        (lambda: model.scheduler(all_logits=True), "all_logits: not for a scheduler"),
        (lambda: scheduler.submit([]), "prompt: 0 tokens"),
        (lambda: scheduler.submit([10**6]), "1000000"),
        (lambda: scheduler.submit("A", samples=9), "samples: 9"),
        (lambda: scheduler.submit("A", samples=-1), "samples: -1"),
        (lambda: scheduler.submit("A", max_tokens=513), "max_tokens: 513"),
        (lambda: scheduler.submit("A", priority=2000), "priority: 2000"),
        (lambda: scheduler.submit("A", stops=["a\0b"]), "NUL"),
        (lambda: scheduler.profile(0), "steps: 0"),
    ]
    for function, words in refused:
        with pytest.raises(fusebox.UsageError, match=words):
            function()
    with pytest.raises(TypeError, match="'heat'"):
        scheduler.submit("A", heat=1)  # type: ignore[call-arg]
    assert scheduler.stats.waiting == 0


def test_ctrl_c_between_steps(script: Callable[..., object], tmp_path: Path) -> None:
    """In the middle of a step it would be raised in a callback; the scheduler goes on afterwards."""
    process = script(
        """
import fusebox, os, signal
scheduler = fusebox.Model().scheduler()
request = scheduler.submit("Once upon a time", max_tokens=20, seed=1, past_end=True)
ends = []
def interrupt(piece):
    if piece.count == 3:
        os.kill(os.getpid(), signal.SIGINT)
    if piece.finish:
        ends.append((piece.count, piece.finish))
scheduler.submit("A", max_tokens=9, past_end=True, on_answer=interrupt)
try:
    scheduler.run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
scheduler.run()
print(len(request.answer().tokens), request.answer().finish, *ends)
"""
    )
    out, errors = process.communicate(timeout=60)  # type: ignore[attr-defined]
    assert (out, errors) == ("interrupted\n20 length (9, 'length')\n", "")


def test_verify_batch(model: fusebox.Model, cli: Cli) -> None:
    report = model.verify_batch(rounds=3, seed=6, act="f16", threads=1)
    printed = cli("verify", "--batch", "--rounds", "3", "--seed", "6", "--act", "f16", "--threads", "1")
    assert report.ok and report.different == 0 and report.tokens > 0 and report.scores > 0
    same = ("requests", "answers put back", "compared", "verified")  # how steps are cut depends on time
    assert [l for l in str(report).splitlines() if l.startswith(same)] == [
        l for l in printed.splitlines() if l.startswith(same)
    ]
    assert "<table>" in report._repr_html_()


def test_faster_type(model: fusebox.Model) -> None:
    faster = model.faster_type("avx2")
    assert faster is not None and (faster.of, faster.to, faster.decoded) == ("f16", "q8_0", False)
    assert 0.5 < faster.bytes < 0.6 and str(faster).startswith("note: weights are f16; as q8_0 a step would read 0.5")
