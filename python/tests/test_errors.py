"""Errors: exceptions with the message of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

import fusebox
from fusebox.errors import error_of


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(fusebox.FileError, match="missing") as caught:
        fusebox.Model(tmp_path / "missing")
    assert isinstance(caught.value, (fusebox.Error, OSError)) and caught.value.status == 2
    assert "\n" not in str(caught.value)


def test_malformed_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    with pytest.raises(fusebox.FileError, match="model.gguf"):
        fusebox.Model(tmp_path / "model.gguf")


def test_unsupported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(fusebox.UnsupportedError, match="mamba"):
        fusebox.Model(tmp_path)


CALLS: list[tuple[str, Callable[[fusebox.Model], Any]]] = [
    ("4096", lambda m: m.session().prefill([1, 4096])),
    ("-1", lambda m: m.session().decode(-1)),
    ("32 bits", lambda m: m.session().prefill([2**40])),
    ("id: 4294967297", lambda m: m.session().decode(2**32 + 1)),
    ("99999", lambda m: m.detokenize([99999])),
    ("prompt: 0 tokens", lambda m: m.generate([])),
    ("token", lambda m: m.session().prefill([])),
    ("NUL", lambda m: fusebox.Model("models\0storyteller")),
    ("NUL", lambda m: m.session(fuse="all\0,-qkv_up")),
    ('path: ""', lambda m: fusebox.Model("")),
    ("no_such_fuse", lambda m: m.session(fuse="no_such_fuse")),
    ("f12", lambda m: m.session(act="f12")),
    ("threads", lambda m: m.session(threads=2**40)),
    ("seed: -1", lambda m: m.generate("a", seed=-1)),
    ("temperature", lambda m: m.generate("a", temperature=-1)),
    ("presence_penalty", lambda m: m.generate("a", presence_penalty=2.5)),
    ("frequency_penalty", lambda m: m.generate("a", frequency_penalty=float("nan"))),
    ("logit_bias", lambda m: m.generate("a", logit_bias={10**6: 1.0})),
    ("logit_bias", lambda m: m.generate("a", logit_bias={2**40: 1.0})),
    ("logit_bias", lambda m: m.generate("a", logit_bias={5: 101.0})),
    ("sequence", lambda m: m.generate("a", sequence=-1)),
    ("top_p", lambda m: m.generate("a", top_p=2)),
    ("max_tokens: -1", lambda m: m.generate("a", max_tokens=-1)),
    ("max_tokens: 600 after", lambda m: m.generate("a", max_tokens=600)),
    ("513 tokens", lambda m: m.generate([5] * 513)),
    ("sinks: 4", lambda m: m.generate("a", sinks=4)),
    ("window: 4", lambda m: m.generate("a", window=4)),
    ("endless", lambda m: m.generate("a", endless=True)),
    ("endless", lambda m: m.stream("a", endless=True, cache="dense")),
    ("ring", lambda m: m.session(cache="ring")),
    ("512", lambda m: m.session().prefill([1] * 513)),
    ("golden", lambda m: m.verify("x.safetensors", cache="sinks")),
    ("prompt: 0", lambda m: m.bench(prompt=0)),
    ("compare", lambda m: m.bench(["none\0"])),
    ("max_tokens: 5 after", lambda m: m.session(capacity=6).generate([1, 2], max_tokens=5)),
    ("logits", lambda m: m.session().logits()),
    ("trim", lambda m: m.session().trim(5)),
]


@pytest.mark.parametrize("message, run", CALLS, ids=range(len(CALLS)))
def test_wrong_arguments(model: fusebox.Model, message: str, run: Callable[[fusebox.Model], Any]) -> None:
    with pytest.raises(fusebox.UsageError) as caught:
        run(model)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_wrong_types(model: fusebox.Model) -> None:
    for run in (
        lambda: model.session(no_such_option=1),  # type: ignore[call-arg]
        lambda: model.generate("a", no_such_option=1),  # type: ignore[call-arg]
        lambda: model.bench(no_such_option=1),  # type: ignore[call-arg]
        lambda: model.bench(fuse="all"),
        lambda: model.session().prefill([1.5]),  # type: ignore[list-item]
        lambda: model.session().prefill("text"),  # type: ignore[arg-type]
        lambda: model.tokenize(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            run()


def test_missing_golden(model: fusebox.Model) -> None:
    with pytest.raises(fusebox.FileError, match="nowhere"):
        model.verify("nowhere.safetensors")


def test_text_with_nul(model: fusebox.Model) -> None:
    """A NUL is a character of a text like others."""
    assert model.tokenize("a\0b", special=False) != model.tokenize("a", special=False)
    assert isinstance(model.generate("a\0b", max_tokens=2, seed=1), str)


def test_an_unknown_status() -> None:
    error = error_of(99, "from the future")
    assert type(error) is fusebox.Error and str(error) == "from the future"
