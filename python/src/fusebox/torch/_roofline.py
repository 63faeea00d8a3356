"""What a device reaches: bandwidth of memory, and FLOP rate of a large product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from ._timer import Clock, quantile


@dataclass(frozen=True)
class Ceiling:
    """Measured limits of a device: bytes and FLOPs a second."""

    device: str
    dtype: str
    bandwidth: float
    flops: float

    def seconds(self, bytes_moved: float, flops: float) -> float:
        """The least time that the roofline allows."""
        return max(bytes_moved / self.bandwidth, flops / self.flops)


@cache
def measured(device: str, dtype: torch.dtype) -> Ceiling:
    """Measure once in a process."""
    clock = Clock(torch.device(device) if torch.device(device).type == "cuda" else None, 0.3)
    return Ceiling(device, str(dtype).removeprefix("torch."), _bandwidth(clock, device), _flops(clock, device, dtype))


def _bandwidth(clock: Clock, device: str) -> float:
    """The better of a copy and a sum of a buffer that no cache holds."""
    elements = (512 << 20 if clock.device is not None else 128 << 20) // 4
    source = torch.ones(elements, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    copied = _best(clock, lambda: target.copy_(source))
    summed = _best(clock, lambda: source.sum())
    return max(8.0 * elements / copied, 4.0 * elements / summed)


def _flops(clock: Clock, device: str, dtype: torch.dtype) -> float:
    """A square product, large enough to keep the device busy."""
    gpu, half = clock.device is not None, dtype.itemsize <= 2
    side = (8192 if half else 4096) if gpu else (512 if half else 1024)
    a = torch.ones(side, side, dtype=dtype, device=device)
    return 2.0 * side**3 / _best(clock, lambda: a @ a)


def _best(clock: Clock, run: Callable[[], object]) -> float:
    with torch.no_grad():
        for _ in range(2):
            run()
        clock.wait()
        return quantile([clock.once(run, 1) for _ in range(9)], 0.25)
