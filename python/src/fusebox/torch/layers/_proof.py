"""The proof of a layer: the original, the plain ops and the fused ones on the same inputs.

The inputs are real: what the layer got when the model itself read some tokens, first many at once, then one more.
PyTorch adds in another order than the C library, so its bits cannot be the measure. The measure is a float64 run of the
original: a layer is as accurate as its original if its rms error is at most RATIO times the original's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UsageError
from .._compare import same_bits
from ._layer import NativeLayer
from ._models import Family, hidden_of, in_float64, layers_of

RATIO = 1.05
"""How much larger the rms error to float64 may be than the original's."""
TOLERANCE = 4.0
"""How far a fuse that is not bit-identical may move an element, in units of the plain ops' largest error."""
OTHER = {torch.float32: 2.0**-17, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}
"""The rms error of an original, relative to its result, from which on it is no rounding: 64 or 8 ulps."""
TOKENS = 24
"""Tokens that are read at once by default; one more follows."""


@dataclass
class Sample:
    """What one layer got and gave: hidden states [1, tokens, hidden] of all tokens, the last of which came alone."""

    before: Tensor
    after: Tensor
    returns_tuple: bool


class _Seen(Exception):
    pass


def default_tokens(model: nn.Module) -> Tensor:
    """Tokens of the whole vocabulary, the same every time."""
    config: Any = model.config
    limit = int(config.vocab_size)
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or TOKENS + 1
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, limit, (1, min(TOKENS + 1, int(most))), generator=generator)


def check_tokens(model: nn.Module, inputs: Any) -> Tensor:
    """Token ids [1, n] for the proof, n at least 2."""
    ids = default_tokens(model) if inputs is None else torch.as_tensor(inputs)
    if ids.dim() == 1:
        ids = ids[None]
    config: Any = model.config
    if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] < 2 or ids.is_floating_point():
        raise UsageError(f"fuse: inputs: {ids.dtype} {tuple(ids.shape)} (must be token ids [1, n], n at least 2)")
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise UsageError(f"fuse: inputs: {int(ids.max())} (token ids from 0 to {config.vocab_size - 1})")
    return ids.to(next(model.parameters()).device)


def collect(model: nn.Module, base: nn.Module, family: Family, ids: Tensor) -> list[Sample]:
    """Runs the model as it is, and keeps what its layers got and gave."""
    layers = layers_of(base, family)
    before: list[list[Tensor]] = [[] for _ in layers]
    after: list[list[Tensor]] = [[] for _ in layers]
    tuples = [False] * len(layers)
    hooks = []

    def watch(index: int) -> Any:
        def hook(module: nn.Module, positional: Any, arguments: Any, output: Any) -> None:
            x = positional[0] if positional else arguments["hidden_states"]
            before[index].append(x.detach().clone())
            after[index].append(hidden_of(output).detach().clone())
            tuples[index] = not isinstance(output, Tensor)

        return hook

    try:
        for index, layer in enumerate(layers):
            hooks.append(layer.register_forward_hook(watch(index), with_kwargs=True))
        first = base(input_ids=ids[:, :-1], use_cache=True)
        base(input_ids=ids[:, -1:], past_key_values=first.past_key_values, use_cache=True)
    finally:
        for handle in hooks:
            handle.remove()
    if any(len(states) != 2 for states in before):
        raise UsageError("fuse: the model did not run each of its layers once for each call")
    return [Sample(torch.cat(b, 1), torch.cat(a, 1), t) for b, a, t in zip(before, after, tuples)]


# ---- runs --------------------------------------------------------------------------------------------------------


def run_native(layer: NativeLayer, sample: Sample, heads: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """All tokens but the last at once, then the last: the hidden states, and the keys and values."""
    x = sample.before
    count = x.shape[1]
    # NaN wherever nobody may look.
    k = torch.full((1, heads, count + 8, width), math.nan, dtype=x.dtype, device=x.device)
    v = torch.full_like(k, math.nan)
    parts = []
    for first, rows in ((0, count - 1), (count - 1, 1)):
        places = layer.places(None, first, 1, rows, first + rows)
        parts.append(layer.run(x[:, first : first + rows], places, k, v, first + rows))
    return torch.cat(parts, 1), k[:, :, :count], v[:, :, :count]


def angles_of(layer: NativeLayer, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [1, count, rotary] as the layers take them, of the C library's float64 angles."""
    cosines, sines = layer.angles(layer.places(None, 0, 1, count, count), count).unbind(1)
    return torch.cat([cosines, cosines], -1)[None], torch.cat([sines, sines], -1)[None]


def check_angles(base: nn.Module, family: Family, layer: NativeLayer, count: int) -> str | None:
    """Why the model's rotary angles are not the C library's; None: they are. The model computes them in float32, from
    frequencies in float32, so they may differ by the position times some ulps."""
    if family.rotary is None or layer.rotary == 0:
        return None
    positions = torch.arange(count, device=layer.device)[None]
    like = torch.zeros(1, device=layer.device, dtype=torch.float32)
    theirs = getattr(base, family.rotary)(like, positions)
    for name, a, b in zip(("cosine", "sine"), angles_of(layer, count), theirs):
        if a.shape != b.shape:
            return f"rotary {name}s are {tuple(b.shape)}, not {tuple(a.shape)}"
        off = (a - b).abs() / (1 + positions[..., None])
        if not bool((off < 1e-6).all()):
            at = int((off.amax(-1) >= 1e-6).nonzero()[0, -1])
            return f"the rotary {name} of position {at} is not the config's"
    return None


def run_float64(original: nn.Module, base: nn.Module, family: Family, layer: NativeLayer, sample: Sample) -> Tensor:
    """The original layer in float64, on all tokens at once."""
    x = sample.before.double()
    count = x.shape[1]
    mask = torch.full((count, count), -math.inf, dtype=torch.float64, device=x.device).triu(1)[None, None]
    arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
    if family.rotary is not None:
        cosines, sines = angles_of(layer, count)
        arguments["position_embeddings"] = cosines.double(), sines.double()
        arguments["position_ids"] = torch.arange(count, device=x.device)[None]
    return hidden_of(in_float64(original)(x, **arguments))


# ---- comparing ----------------------------------------------------------------------------------------------------


@dataclass
class Distance:
    """How far results are apart, over any number of layers."""

    identical: bool = True
    max_abs: float = 0.0
    bound: float = 0.0
    plain: float = 0.0  # sums of squares of the errors to float64
    fused: float = 0.0
    elements: int = 0
    refused: list[str] = field(default_factory=list)

    def add(self, other: Distance) -> None:
        self.identical &= other.identical
        self.max_abs = max(self.max_abs, other.max_abs)
        self.bound = max(self.bound, other.bound)
        self.plain += other.plain
        self.fused += other.fused
        self.elements += other.elements
        self.refused += other.refused

    @property
    def plain_rms(self) -> float:
        return math.sqrt(self.plain / self.elements) if self.elements else 0.0

    @property
    def fused_rms(self) -> float:
        return math.sqrt(self.fused / self.elements) if self.elements else 0.0


def squares(error: Tensor) -> float:
    return float(error.double().square().sum())


def compare(
    plain: tuple[Tensor, Tensor, Tensor], fused: tuple[Tensor, Tensor, Tensor], exact: Tensor, bit: bool
) -> Distance:
    """A fused run against the plain one: hidden states, keys and values. ``bit``: they must be the same bits."""
    identical = all(bool(same_bits(a, b).all()) for a, b in zip(plain, fused))
    finite = all(bool(torch.isfinite(t).all()) for t in fused)
    error = (plain[0].double() - exact).abs()
    distance = Distance(
        identical=identical,
        max_abs=0.0 if identical else float((plain[0].double() - fused[0].double()).abs().max()),
        bound=0.0 if bit else TOLERANCE * float(error.max()),
        plain=squares(error),
        fused=squares(fused[0].double() - exact),
        elements=exact.numel(),
    )
    if not finite:
        distance.refused.append("a result is not finite")
    elif bit and not identical:
        distance.refused.append("other bits than the plain ops")
    elif not bit and not distance.max_abs <= distance.bound:
        distance.refused.append(f"{distance.max_abs:.2e} from the plain ops (at most {distance.bound:.2e})")
    return distance


def why_inaccurate(fused: Tensor, original: Tensor, exact: Tensor) -> str | None:
    """Why a layer is not as accurate as its original; None: it is."""
    mine, theirs = (math.sqrt(squares(t.double() - exact) / exact.numel()) for t in (fused, original))
    # The float64 run does what the config says. An original that does something else is far from it, too.
    limit = OTHER[original.dtype] * math.sqrt(squares(exact) / exact.numel())
    if not theirs <= limit:
        why = f"(rounding gives at most {limit:.2e}): it computes something else than its config says"
        return f"the original is {theirs:.2e} from its float64 run {why}"
    if mine <= RATIO * theirs:
        return None
    return f"rms error to float64 {mine:.3e}, the original's {theirs:.3e} (at most {RATIO}x)"
