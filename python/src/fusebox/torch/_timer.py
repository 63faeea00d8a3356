"""Times of two callables, taken in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ._tree import copy_inputs, devices

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: median, 10th and 90th percentile. ``samples`` are in the order they were taken."""

    samples: tuple[float, ...]
    method: str

    @property
    def median(self) -> float:
        return quantile(self.samples, 0.5)

    @property
    def low(self) -> float:
        return quantile(self.samples, 0.1)

    @property
    def high(self) -> float:
        return quantile(self.samples, 0.9)


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile, linear between samples."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95% confidence: order statistics, whatever the distribution."""
    ordered, n = sorted(samples), len(samples)
    reach = 0.98 * n**0.5 + 0.5
    return ordered[max(0, int(n / 2.0 - reach))], ordered[min(n - 1, int(n / 2.0 + reach))]


def cuda_device(inputs: Any) -> torch.device | None:
    """The device whose clock counts: the first CUDA device of the inputs."""
    return next((device for device in devices(inputs) if device.type == "cuda"), None)


class Clock:
    """Times callables on one device, or on the CPU for None. ``budget``: seconds for each kind of time."""

    def __init__(self, device: torch.device | None, budget: float) -> None:
        self.device = device
        self.budget = budget
        self._flush: torch.Tensor | None = None

    def bind(self, fn: Callable[..., Any], inputs: Any) -> Run:
        """``fn`` on its own copy of ``inputs``, warmed up."""
        own = copy_inputs(inputs)

        def run() -> Any:
            return fn(*own)

        with torch.no_grad():
            for _ in range(3):
                run()
        self.wait()
        return run

    def wait(self) -> None:
        if self.device is not None:
            torch.cuda.synchronize(self.device)

    def flush(self) -> None:
        """Write a buffer larger than the last-level cache."""
        if self._flush is None:
            size = 256 << 20
            if self.device is not None:
                cache = getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 64 << 20)
                size = max(128 << 20, 4 * int(cache))
            self._flush = torch.zeros(size // 4, dtype=torch.float32, device=self.device or "cpu")
        self._flush.add_(1.0)

    def captured(self, run: Run, calls: int) -> Run | None:
        """The calls as a CUDA graph, or None where they cannot be captured."""
        if self.device is None:
            return None
        try:
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call, unused-ignore]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.no_grad(), torch.cuda.stream(stream):
                run()
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                for _ in range(calls):
                    run()
            graph.replay()
            self.wait()
        except Exception:  # a call that waits for the device, or allocates outside of PyTorch
            self.wait()
            return None
        return graph.replay

    def once(self, run: Run, calls: int) -> float:
        """Seconds of ``calls`` runs."""
        if self.device is None:
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            return time.perf_counter() - begin
        event: Any = torch.cuda.Event
        start, stop = event(enable_timing=True), event(enable_timing=True)
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3

    def _per_call(self, run: Run, times: int, calls: int) -> float:
        return self.once(run, times) / calls

    def _turns(self, take: Sequence[Callable[[], float]]) -> list[list[float]]:
        """Samples of each, in turns; who goes first changes each time. 11 to 301 of them, as the budget allows."""
        samples: list[list[float]] = [[] for _ in take]
        begin = time.perf_counter()
        turn = 0
        with torch.no_grad():
            while turn < 11 or (turn < 301 and time.perf_counter() - begin < self.budget):
                order = range(len(take)) if turn % 2 == 0 else range(len(take) - 1, -1, -1)
                for index in order:
                    samples[index].append(take[index]())
                turn += 1
        return samples

    def warm(self, runs: Sequence[Run]) -> list[Timing]:
        """With whatever the cache keeps from the last call. A sample is a batch of calls of about 1 ms: launching a graph
        takes some us, which should not count."""
        takes: list[Callable[[], float]] = []
        methods: list[str] = []
        for run in runs:
            with torch.no_grad():
                single = min(self.once(run, 1) for _ in range(3))
            calls = max(1, min(200, int(1e-3 / max(single, 1e-7)) + 1))
            graph = self.captured(run, calls)
            methods.append("graph replay" if graph is not None else "perf_counter" if self.device is None else "events")
            if graph is not None:
                takes.append(partial(self._per_call, graph, 1, calls))
            else:
                takes.append(partial(self._per_call, run, calls, calls))
        return [Timing(tuple(s), method) for s, method in zip(self._turns(takes), methods)]

    def cold(self, runs: Sequence[Run]) -> list[Timing]:
        """Each call after the cache was flushed."""
        takes: list[Callable[[], float]] = []
        methods: list[str] = []
        for run in runs:
            graph = self.captured(run, 1)
            methods.append("graph replay" if graph is not None else "perf_counter" if self.device is None else "events")

            def take(call: Run = graph or run) -> float:
                self.flush()
                return self.once(call, 1)

            takes.append(take)
        return [Timing(tuple(s), method) for s, method in zip(self._turns(takes), methods)]

    def called(self, runs: Sequence[Run]) -> list[Timing] | None:
        """As Python calls it, launches included: wall time of 20 calls and a wait. None on a CPU: that is ``warm``."""
        if self.device is None:
            return None

        def take(run: Run) -> float:
            self.wait()
            begin = time.perf_counter()
            for _ in range(20):
                run()
            self.wait()
            return (time.perf_counter() - begin) / 20.0

        return [Timing(tuple(s), "20 calls") for s in self._turns([partial(take, run) for run in runs])]
