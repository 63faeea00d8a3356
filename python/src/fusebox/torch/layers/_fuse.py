"""``fuse``: replaces the layers of a model, and reports what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import Error, SystemFailure, UsageError
from .._report import html_lines, html_table, text_table
from . import _proof as proof
from ._layer import NativeLayer
from ._models import base_of, check, family_of, frequencies_of, layers_of, why_not
from ._patch import Patch, Step

@dataclass(frozen=True)
class Row:
    """A fuse over all layers. Distances are rms errors to a float64 run of the original layers."""

    name: str
    bit: bool
    identical: bool
    max_abs: float
    bound: float
    plain_f64: float
    fused_f64: float
    each: int
    """Ops that it makes in one step, all layers counted."""
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Kept:
    """A layer that keeps its original forward, and why."""

    index: int
    reason: str


class Report:
    """What ``fuse`` did to a model. It prints the table of ``fusebox verify``.

    Leaving the ``with`` block, or ``undo()``, restores the model; then ``check()`` runs."""

    def __init__(self, spec: str, exact: bool) -> None:
        self.spec, self.exact = spec, exact
        self.rows: list[Row] = []
        self.kept: list[Kept] = []
        self.original_f64 = 0.0
        """The rms error of the original layers to float64."""
        self.layers = 0
        self._patches: list[Patch] = []
        self._step: Step | None = None
        self._patched = False
        self._before: list[dict[str, int]] = []
        self._hook: Any = None

    # ---- what ran ----

    @property
    def patched(self) -> int:
        """How many layers are replaced."""
        return len(self._patches)

    @property
    def forwards(self) -> int:
        """Steps whose layers ran in the C library; compiled or replayed ones are not counted."""
        return self._step.forwards if self._step else 0

    @property
    def fallbacks(self) -> dict[str, int]:
        """Steps that ran the original layers, by reason."""
        return dict(self._step.fallbacks) if self._step else {}

    @property
    def calls(self) -> dict[str, int]:
        """How often the op of each fuse ran, since the model was patched. A CUDA graph counts when it is captured."""
        total: dict[str, int] = {}
        for patch, before in zip(self._patches, self._before):
            for name, count in patch.calls().items():
                total[name] = total.get(name, 0) + count - before.get(name, 0)
        return {row.name: total.get(row.name, 0) for row in self.rows if row.name in total}

    @property
    def expected(self) -> dict[str, int]:
        """How often it must have run, at least."""
        wanted: dict[str, int] = {}
        for patch in self._patches:
            for row in patch.layer.fuses():
                steps = max(0, self.forwards - patch.skipped)
                wanted[row["name"]] = wanted.get(row["name"], 0) + row["each"] * steps
        return {row.name: wanted[row.name] for row in self.rows if row.name in wanted}

    def check(self) -> None:
        """Raises if a fuse that is on ran less often than it must."""
        calls = self.calls
        for name, wanted in self.expected.items():
            if calls[name] < wanted:
                raise SystemFailure(
                    f"fuse: {name}: ran {calls[name]} times in {self.forwards} steps (must be {wanted}: something took "
                    "the place of the patched layers)"
                )

    # ---- patching ----

    def _patch(self, patches: list[Patch], step: Step, base: nn.Module) -> None:
        self._patches, self._step = patches, step
        self._before = [patch.calls() for patch in patches]
        for patch in patches:
            patch.first, patch.last = patch is patches[0], patch is patches[-1]
            patch.module.forward = patch.forward
        self._hook = base.register_forward_hook(step.ended)
        self._patched = True

    def undo(self) -> None:
        """Gives the model its own layers back. Nothing else of the model was changed."""
        if not self._patched:
            return
        self._patched = False
        if self._hook is not None:
            self._hook.remove()
        for patch in self._patches:
            patch.disabled = True  # somebody may have wrapped the forward, and still call it
            if vars(patch.module).get("forward") == patch.forward:
                del patch.module.forward

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()
        if error is None:
            self.check()

    # ---- showing ----

    _HEADER = ("fuse", "class", "bits", "max abs", "bound", "plain-f64", "fused-f64", "calls/expected", "verdict")

    def _cells(self) -> list[tuple[str, ...]]:
        calls, expected = self.calls, self.expected
        cells: list[tuple[str, ...]] = []
        for row in self.rows:
            counted = f"{calls[row.name]} / {expected[row.name]}" if row.name in calls else "-"
            cells.append(
                (
                    row.name,
                    "bit" if row.bit else "tol",
                    "identical" if row.identical else "differ",
                    f"{row.max_abs:.2e}",
                    f"{row.bound:.2e}",
                    f"{row.plain_f64:.3e}",
                    f"{row.fused_f64:.3e}",
                    counted,
                    "ok" if row.ok else f"WRONG: {row.reason}",
                )
            )
        return cells

    def _notes(self) -> list[str]:
        state = "patched" if self._patched else "were patched; the model has its own layers again"
        notes = [f"{self.patched} of {self.layers} layers {state}; the originals' rms error: {self.original_f64:.3e}"]
        for kept in self.kept:
            notes.append(f"layer {kept.index} keeps its original: {kept.reason}")
        if self.forwards or self.fallbacks:
            notes.append(f"{self.forwards} steps in patched layers")
        for patch in self._patches:
            if patch.skipped:
                why = "its modules or its entry of the cache changed"
                notes.append(f"layer {patch.index} ran its original in {patch.skipped} of them: {why}")
        for reason, count in self.fallbacks.items():
            notes.append(f"{count} steps in the original layers: {reason}")
        return notes

    def __str__(self) -> str:
        return "\n".join([text_table(self._HEADER, self._cells(), left=(0, 1, 2, -1)), "", *self._notes()])

    def _repr_html_(self) -> str:
        return html_table(self._HEADER, self._cells(), left=(0, 1, 2, -1)) + html_lines(self._notes())

    __repr__ = __str__


# ---- making it ------------------------------------------------------------------------------------------------------


def _spec(fuses: str | Sequence[str]) -> str:
    if isinstance(fuses, str):
        return fuses
    names = list(fuses)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f'fuse: {names!r} ("all", "none" or a list of names)')
    return ",".join(names) if names else "none"


@dataclass
class _Layer:
    """One layer during the proof."""

    index: int
    module: nn.Module
    sample: proof.Sample
    exact: Tensor
    plain: tuple[Tensor, Tensor, Tensor]


class _Prover:
    def __init__(self, model: nn.Module, spec: str, exact: bool, inputs: Any) -> None:
        self.model, self.spec, self.exact = model, spec, exact
        self.family = family_of(model)
        self.base = base_of(model, self.family)
        self.modules = layers_of(self.base, self.family)
        self.config = model.config.get_text_config().to_json_string()  # type: ignore[operator,union-attr]
        self.samples = proof.collect(model, self.base, self.family, proof.check_tokens(model, inputs))
        self.report = Report(spec, exact)
        self.report.layers = len(self.modules)
        self.step = Step(self.family, model.config)
        self.rows: dict[str, proof.Distance] = {}
        self.bits: dict[str, bool] = {}
        self.each: dict[str, int] = {}
        self.originals = proof.Distance()

    def make(self, spec: str) -> Any:
        # The frequencies of that moment: model.half() rounds them.
        return lambda weights: NativeLayer(
            self.config, weights, frequencies_of(self.base, self.family), spec, self.exact
        )

    def prove(self, index: int) -> Patch | None:
        """The patch of a layer, or None: it keeps its original, and the report says why."""
        module, sample = self.modules[index], self.samples[index]
        reason = why_not(module, self.family, index)
        if reason is None:
            try:
                patch = Patch(module, index, self.step, self.make(self.spec))
                patch.returns_tuple = sample.returns_tuple
                reason = self.judge(patch, sample)
            except Error as error:
                if isinstance(error, UsageError) and "fuse: " in str(error):  # the list of fuses itself
                    raise
                reason = str(error)
        if reason is None:
            return patch
        self.report.kept.append(Kept(index, reason))
        return None

    def judge(self, patch: Patch, sample: proof.Sample) -> str | None:
        layer, shape = patch.layer, (patch.heads, patch.width)
        reason = proof.check_angles(self.base, self.family, layer, sample.before.shape[1])
        if reason is not None:
            return reason
        exact = proof.run_float64(patch.module, self.base, self.family, layer, sample)
        weights = layer.weights
        plain = proof.run_native(self.make("none")(weights), sample, *shape)
        fused = proof.run_native(layer, sample, *shape)
        on = [row for row in layer.fuses() if row["why_not"] is None]
        whole = proof.compare(plain, fused, exact, bit=all(row["bit"] for row in on))
        reason = whole.refused[0] if whole.refused else proof.why_inaccurate(fused[0], sample.after, exact)
        self.originals.plain += proof.squares(sample.after.double() - exact)
        self.originals.elements += exact.numel()
        for row in on:
            alone = self.make(row["name"])(weights)
            if not any(r["name"] == row["name"] and r["why_not"] is None for r in alone.fuses()):
                continue  # it needs another fuse; the row of all has it
            distance = proof.compare(plain, proof.run_native(alone, sample, *shape), exact, row["bit"])
            self.count(row["name"], row["bit"], distance, row["each"])
            reason = reason or (f"{row['name']}: {distance.refused[0]}" if distance.refused else None)
        self.count(self.spec if len(on) != 1 else "", all(row["bit"] for row in on), whole, 0)
        return reason

    def count(self, name: str, bit: bool, distance: proof.Distance, each: int) -> None:
        if not name:
            return
        self.rows.setdefault(name, proof.Distance()).add(distance)
        self.bits[name] = self.bits.get(name, True) and bit
        self.each[name] = self.each.get(name, 0) + each

    def finish(self, patches: list[Patch]) -> Report:
        report = self.report
        report.original_f64 = self.originals.plain_rms
        for name, d in self.rows.items():
            distances = d.max_abs, d.bound, d.plain_rms, d.fused_rms
            reason = d.refused[0] if d.refused else ""
            report.rows.append(Row(name, self.bits[name], d.identical, *distances, self.each[name], not reason, reason))
        report._patch(patches, self.step, self.base)
        return report


@torch.no_grad()
def fuse(
    model: Any, fuses: str | Sequence[str] = "all", *, exact: bool = False, inputs: Any = None
) -> Report:
    """Replaces the layers of a Hugging Face GPT-NeoX, Llama or GPT-2 by the C library's, in place.

    Use it as ``with fusebox.torch.fuse(model) as report:``. Leaving the block, or ``report.undo()``, restores the
    model.

    ``fuses``: "all", "none" (the plain ops: the baseline) or names, as ``fusebox run --fuse`` takes them. ``exact``:
    only variants that are bit-identical to the plain ops. ``inputs``: token ids [1, n] for the proof; by default 25
    tokens.

    A layer is replaced only if it is proven on what it gets when the model reads ``inputs``. Each fuse alone and all
    together must give the bits of the plain ops, or stay within a bound where the fuse has one; and the fused layer's
    rms error to a float64 run of the original layer must be at most 1.05 times the original's own. Otherwise the layer
    keeps its original, and ``report.kept`` says why.

    The model then works with ``generate()``, with dynamic and static caches, in CUDA graphs and under torch.compile.
    Steps that the layers cannot do (padded batches, other caches, autocast) run in the original layers;
    ``report.fallbacks`` counts them. In a compiled or captured step masks cannot be looked at: there, a padded batch
    gives NaN. Weights may be changed in place or moved; a layer notices.
    """
    check(model)
    spec = _spec(fuses)
    prover = _Prover(model, spec, exact, inputs)
    patches = [prover.prove(index) for index in range(len(prover.modules))]
    return prover.finish([patch for patch in patches if patch is not None])
