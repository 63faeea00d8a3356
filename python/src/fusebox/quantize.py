"""A model as a smaller GGUF file."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Literal

from . import _c_text as c
from ._c import call, dtype, dtype_name, lib, text, to_bytes
from ._report import make, options, with_progress
from .perplexity import _ids
from ._text import digits, paragraph, scaled, shown, table

if TYPE_CHECKING:
    from .model import Model
    from .session import Ids

QuantizedType = Literal[
    "f16",
    "q8_0",
    "q6_k",
    "q5_k",
    "q5_1",
    "q5_0",
    "q4_k",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "q3_k",
    "q2_k",
]
"""Types of matrices in a file. For all matrices, "iq4_xs" and "q2_k" are the mixes of that name."""

QuantizedMix = Literal["q5_K_M", "q5_K_S", "q4_K_M", "q4_K_S", "q3_K_L", "q3_K_M", "q3_K_S"]
"""Mixes: most matrices have the type in the name, the head q6_k, and some a better type."""


@dataclass(frozen=True)
class QuantizedKind:
    """All layers' tensors of one kind."""

    name: str
    """Such as ``ffn_up.weight``."""
    type: str
    no_blocks: bool
    """Its rows are not whole blocks of the type asked for: it is of another one."""
    tensors: int
    weights: int
    bytes: int
    corrected: int
    """Bias tensors that were corrected by the mean error of their matrix."""
    rel: float
    """Norm of the error over the norm of the weights."""
    max_abs: float
    """Largest error of a weight."""
    asked: str
    """The type that it would have if its rows were whole blocks."""

    def _cells(self) -> tuple[str, ...]:
        inexact = f"{self.rel:.2e}" if self.rel > 0 else "corrected" if self.corrected else "exact"
        largest = f"{self.max_abs:.2e}" if self.rel > 0 else ""
        note = f"rows are no whole blocks of {self.asked}" if self.no_blocks else ""
        return self.name, self.type, f"{self.tensors}", f"{scaled(self.bytes)}B", inexact, largest, note


@dataclass(frozen=True)
class QuantizeReport:
    """What quantisation has written, and what it costs in precision. It prints as ``fusebox quantize``."""

    path: str
    """The model that was read."""
    file: str
    """The file that was written."""
    weights: int
    bytes_before: int
    """Of the weights, as are those after."""
    bytes_after: int
    file_bytes: int
    """Of the file, metadata included."""
    corrected: int
    """Biases."""
    kinds: tuple[QuantizedKind, ...]
    experts_own: int
    """With a text, matrices of experts that were quantised by what was routed to them."""
    experts_shared: int
    """By what all experts of the layer read, because the text hardly reached them, or there are too many."""
    experts_plain: int
    """By none of it."""

    _HEADER = ("tensors", "type", "number", "bytes", "relative", "largest")

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes_after / self.weights

    def _notes(self) -> Iterator[tuple[str, str]]:
        yield "model", shown(self.path)
        sizes = f"{scaled(self.bytes_before)}B before, {scaled(self.bytes_after)}B after"
        yield "weights", f"{sizes}: {self.bits_per_weight:.2f} bits a weight"
        yield "biases corrected", f"{self.corrected}"
        if self.experts_own + self.experts_shared + self.experts_plain:
            own, shared, none = self.experts_own, self.experts_shared, self.experts_plain
            yield "experts", f"{own} matrices by their own inputs, {shared} by their layer's, {none} by none"
        yield "file", f"{shown(self.file)}, {digits(self.file_bytes)} bytes"

    def __str__(self) -> str:
        layout = "{:<20}  {:>6}  {:>7}  {:>10}  {:>9}  {:>9}"
        lines = [layout.format(*self._HEADER)]
        for kind in self.kinds:
            *cells, note = kind._cells()
            lines.append(layout.format(*cells) + (f"  {note}" if note else ""))
        return "\n".join([*lines, "", *(f"{name:<20}  {value}" for name, value in self._notes())])

    def _repr_html_(self) -> str:
        rows = (kind._cells() for kind in self.kinds)
        notes = "".join(paragraph(f"{name}: {value}") for name, value in self._notes())
        return table((*self._HEADER, ""), rows) + notes


def _read_kind(kind: Any) -> QuantizedKind:
    return QuantizedKind(
        name=text(kind.name),
        type=dtype_name(kind.type),
        no_blocks=kind.no_blocks,
        tensors=kind.tensors,
        weights=kind.weights,
        bytes=kind.bytes,
        corrected=kind.corrected,
        rel=kind.rel,
        max_abs=kind.max_abs,
        asked=dtype_name(kind.asked),
    )


@contextlib.contextmanager
def _importance(model: Model, source: str | bytes | Ids | None) -> Iterator[ctypes.c_void_p]:
    """What a text says about the inputs of each matrix; nothing for no text."""
    importance = ctypes.c_void_p()
    if source is not None:
        settings = options(c.fb_perplexity_options, lib.fb_perplexity_options_init)
        ids = _ids(model, source)
        arguments = model._handle.pointer, ctypes.byref(settings), ids, len(ids), ctypes.byref(importance), None
        with_progress(settings, lambda: call(lib.fb_importance_collect, *arguments), c.fb_score_fn)
    try:
        yield importance
    finally:
        lib.fb_importance_free(importance)


def quantize(
    model: Model,
    path: str | os.PathLike[str],
    type: str,
    head: str | None,
    calibrate: str | bytes | Ids | None,
    replace: bool,
) -> QuantizeReport:
    settings = options(c.fb_quantize_options, lib.fb_quantize_options_init)
    call(lib.fb_quantize_options_parse, to_bytes("type", type), ctypes.byref(settings))
    settings.replace = bool(replace)
    settings.name = to_bytes("path", os.path.basename(os.path.normpath(model.path)))

    def read(r: Any) -> QuantizeReport:
        return QuantizeReport(
            path=model.path,
            file=os.fsdecode(path),
            weights=r.weights,
            bytes_before=r.bytes_before,
            bytes_after=r.bytes_after,
            file_bytes=r.file_bytes,
            corrected=r.corrected,
            kinds=tuple(_read_kind(r.kinds[i].contents) for i in range(r.kind_count)),
            experts_own=r.experts_own,
            experts_shared=r.experts_shared,
            experts_plain=r.experts_plain,
        )

    arguments = model._handle.pointer, to_bytes("path", path), ctypes.byref(settings)
    with _importance(model, calibrate) as importance:
        if importance:  # the head's type depends on it
            settings.importance = importance
            call(lib.fb_quantize_options_parse, to_bytes("type", type), ctypes.byref(settings))
        if head is not None:
            settings.head = dtype(head)
        return with_progress(
            settings,
            lambda: make(lib.fb_model_quantize, lib.fb_quantize_free, c.fb_quantize_report, read, *arguments),
        )
