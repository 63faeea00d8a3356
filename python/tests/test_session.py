"""Sessions: logits to the bit, fork, trim, callbacks, threads, memory."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import numpy
import pytest

import fusebox
from fusebox import _c

IDS = [1, 77, 300, 5, 9, 1024, 17]


def c_logits(session: fusebox.Session) -> bytes:
    """What fb_session_logits points to."""
    pointer, rows, vocab = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
    handle = session._open()
    _c.call(_c.lib.fb_session_logits, handle.pointer, *map(ctypes.byref, (pointer, rows, vocab)))
    assert pointer.value
    return ctypes.string_at(pointer.value, 4 * rows.value * vocab.value)


def test_logits_are_the_memory_of_the_session(model: fusebox.Model) -> None:
    session = model.session()
    session.prefill(IDS)
    view = session.logits()
    assert view.shape == (1, model.info.vocab) and view.dtype == numpy.float32
    assert view.tobytes() == c_logits(session)
    assert not view.flags.writeable and not view.flags.owndata
    with pytest.raises(ValueError):
        view[0, 0] = 1
    before = view.copy()
    session.decode(3)
    assert not numpy.array_equal(view, before)  # the same memory: overwritten
    assert view.tobytes() == c_logits(session)
    assert session.best() == int(session.logits()[0].argmax())


def test_model_logits(model: fusebox.Model) -> None:
    every = model.logits(IDS)
    assert every.shape == (len(IDS), model.info.vocab)
    session = model.session()
    for i, id in enumerate(IDS):
        session.decode(id)
        assert session.logits()[0].tobytes() == every[i].tobytes(), i
    assert model.logits(numpy.array(IDS, dtype=numpy.int64)).tobytes() == every.tobytes()
    plain = model.logits(IDS, fuse="none", act="f16")
    assert plain.tobytes() != every.tobytes() and numpy.allclose(plain, every, atol=1)


def test_a_view_outlives_session_and_model() -> None:
    model = fusebox.Model()
    view = model.logits(IDS)
    bytes_before = view.tobytes()
    last = view[-1]
    del model, view
    gc.collect()
    others = [fusebox.Model().logits(IDS[::-1]) for _ in range(3)]  # would reuse freed memory
    assert last.tobytes() == bytes_before[-len(last.tobytes()) :]
    assert others


def test_prefill_does_not_move_memory_in_use(model: fusebox.Model) -> None:
    session = model.session(all_logits=True)
    session.prefill(IDS)
    view = session.logits()
    with pytest.raises(fusebox.UsageError, match="in use"):
        session.prefill(IDS * 20)
    copy = view.copy()
    del view
    session.prefill(IDS * 20)
    assert session.logits().shape[0] == 20 * len(IDS) and copy.shape[0] == len(IDS)


def test_fork_and_trim(model: fusebox.Model) -> None:
    session = model.session()
    session.prefill(IDS)
    fork = session.fork()
    assert fork.length == len(fork) == len(IDS)
    assert fork.logits().tobytes() == session.logits().tobytes()
    fork.decode(8)
    assert (session.length, fork.length) == (len(IDS), len(IDS) + 1)
    fork.trim(len(IDS) - 2)
    with pytest.raises(fusebox.UsageError, match="logits"):
        fork.logits()
    fork.prefill(IDS[-2:])
    assert fork.logits().tobytes() == session.logits().tobytes()
    session.close()
    fork.decode(8)
    fork.reset()
    assert fork.length == 0 and fork.cache.kind == "dense" and fork.cache.held == 0


def test_facts(model: fusebox.Model) -> None:
    with model.session(cache="sinks", sinks=2, window=10, threads=1, fuse="all") as session:
        session.prefill(IDS * 4)
        assert (session.cache.kind, session.cache.sinks, session.cache.window) == ("sinks", 2, 10)
        assert session.backend == "cpu" and session.threads == 1 and session.isa
        assert session.op_calls() and session.fuse_calls()["rope_kv"].calls > 0
        assert "rope_kv" in session.plan_text()
        assert "tokens" in repr(session) and session.barriers > 0
    assert "closed" in repr(session)
    with pytest.raises(fusebox.UsageError, match="closed"):
        session.decode(1)


def test_callbacks(model: fusebox.Model) -> None:
    seen: list[tuple[int, int, tuple[int, ...]]] = []
    steps: list[tuple[int, int]] = []
    session = model.session(
        on_hidden=lambda layer, position, hidden: seen.append((layer, position, hidden.shape)),
        on_progress=lambda done, total: steps.append((done, total)),
        chunk=4,
    )
    session.prefill(IDS)
    assert {layer for layer, _, _ in seen} == set(range(model.info.layers + 1))
    assert seen[0] == (0, 0, (4, model.info.hidden)) and steps

    def refuse(done: int, total: int) -> bool:
        raise ZeroDivisionError("in a callback")

    session = model.session(on_progress=refuse, chunk=2)
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        session.prefill(IDS)
    session = model.session(on_progress=lambda done, total: False, chunk=2)
    with pytest.raises(fusebox.StoppedError):
        session.prefill(IDS)


def test_cancel_from_another_thread(model: fusebox.Model) -> None:
    session = model.session(isa="ref", act="f64", kv="f64")  # slow: seconds
    timer = threading.Timer(0.2, session.cancel)
    timer.start()
    with pytest.raises(fusebox.StoppedError):
        session.prefill([5] * 500)
    timer.join()
    assert session.length < 500
    session.reset()
    session.decode(1)


def test_a_late_ctrl_c_stops_nothing_else(model: fusebox.Model) -> None:
    """Ctrl-C that comes when a step is done must not stop the next one; ``cancel`` must."""
    session = model.session()
    session.prefill(IDS)
    session._cancel()  # what the watcher calls
    session.decode(1)
    assert session.length == len(IDS) + 1
    session.cancel()
    with pytest.raises(fusebox.StoppedError):
        session.decode(1)
    session.decode(1)
    assert session.length == len(IDS) + 2


def test_one_thread_at_a_time(model: fusebox.Model) -> None:
    session = model.session(isa="ref", act="f64", kv="f64")
    errors: list[fusebox.Error] = []

    def prefill() -> None:
        try:
            session.prefill([5] * 500)
        except fusebox.StoppedError as error:
            errors.append(error)

    thread = threading.Thread(target=prefill)
    thread.start()
    while not session._busy.locked():
        pass
    with pytest.raises(fusebox.UsageError, match="in use"):
        session.decode(1)
    pointer_is_kept = weakref.ref(session._open())
    session.cancel()
    session.close()  # while the call runs
    thread.join()
    assert errors.pop().status == fusebox.StoppedError.status
    gc.collect()
    assert pointer_is_kept() is None


def test_threads_share_a_model(model: fusebox.Model) -> None:
    """The GIL is released: other threads run while one is in a long call."""
    prompts = [f"{word} upon a time" for word in ("Once", "Twice", "Never", "Always")]
    wanted = [model.generate(prompt, max_tokens=30, seed=3) for prompt in prompts]
    got: dict[int, str] = {}

    def generate(i: int) -> None:
        got[i] = model.generate(prompts[i], max_tokens=30, seed=3)

    threads = [threading.Thread(target=generate, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(len(prompts))] == wanted

    session = model.session(isa="ref", act="f64", kv="f64")
    thread = threading.Thread(target=lambda: session.prefill([5] * 16))
    thread.start()
    count = 0
    while thread.is_alive():
        time.sleep(0.001)
        count += 1
    thread.join()
    assert count > 3  # this loop went on during the call


def test_closed_model() -> None:
    with fusebox.Model() as model:
        session = model.session()
    session.prefill(IDS)  # a session goes on
    with pytest.raises(fusebox.UsageError, match="model: closed"):
        model.session()
    handle = weakref.ref(session._open().keep[0])
    session.close()
    gc.collect()
    assert handle() is None


def test_objects_are_freed() -> None:
    model = fusebox.Model()
    session = model.session()
    fork = session.fork()
    alive = [weakref.ref(handle) for handle in (model._handle, session._open(), fork._open())]
    del model
    gc.collect()
    session.decode(1)  # a session keeps its model
    assert all(ref() is not None for ref in alive)
    del session
    gc.collect()
    assert alive[1]() is None and alive[0]() is not None
    fork.decode(1)
    del fork
    gc.collect()
    assert all(ref() is None for ref in alive)
