"""price refuses a wrong kernel, counts bytes and FLOPs, and says in one sentence what a kernel is worth."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from fusebox.torch import Price, Side, Timing, WrongKernel, price  # noqa: E402
from fusebox.torch._count import counted, least_bytes  # noqa: E402
from fusebox.torch._roofline import Ceiling  # noqa: E402
from fusebox.torch._timer import median_interval, quantile  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
torch.set_num_threads(1)


@pytest.fixture(params=DEVICES)
def device(request: Any) -> str:
    return str(request.param)


def draw(*shape: int, device: str = "cpu", seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def slow(x: Any, y: Any) -> Any:
    out = x
    for _ in range(20):
        out = out + y
    return out


def made(fused: float, plain: float, *, spread: float = 0.0, step: float | None = None, calls: int = 1) -> Price:
    """A price with given times, so that sentences do not depend on a clock."""

    def side(name: str, seconds: float, sign: float) -> Side:
        samples = tuple(seconds + sign * spread * (i % 5 - 2) for i in range(41))
        timing = Timing(samples, "perf_counter")
        return Side(name, 1000, 2000, timing, timing, None, 0.5)

    ceiling = Ceiling("cpu", "float32", 1e10, 1e11)
    return Price(side("fused", fused, 1.0), side("plain", plain, -1.0), ceiling, step, calls, None)


def test_wrong_kernel_is_not_timed(device: str) -> None:
    calls = 0

    def fused(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x + 1.001

    x = draw(4, 16, device=device)
    with pytest.raises(WrongKernel, match="WRONG"):
        price(fused, lambda x: x + 1, x)
    assert calls < 200
    forced = price(fused, lambda x: x + 1, x, force=True, budget=0.02)
    assert forced.proof is None and forced.fused.warm.median > 0.0


def test_faster_and_slower(device: str) -> None:
    x, y = draw(64, 256, device=device), draw(64, 256, device=device, seed=1)
    good = price(lambda x, y: x + 20 * y, slow, x, y, model=0.1, calls=3, budget=0.1, tolerance=1e-5)
    assert good.clear and good.speedup > 1.5 and good.saved > 0.0
    assert good.verdict.startswith("saves ") and "3 calls are " in good.verdict
    assert good.fused.warm.low <= good.fused.warm.median <= good.fused.warm.high
    assert good.fused.bytes == 3 * 64 * 256 * 4 and good.plain.bytes == 20 * good.fused.bytes
    assert good.plain.flops == 20 * 64 * 256
    assert good.ceiling.bandwidth > 1e8 and good.ceiling.flops > 1e8
    bad = price(slow, lambda x, y: x + 20 * y, x, y, budget=0.1, tolerance=1e-5)
    assert bad.saved < 0.0 and "not worth it" in bad.verdict


def test_a_model_that_is_timed(device: str) -> None:
    x = draw(64, 256, device=device)
    result = price(torch.relu, lambda x: x.clamp(min=0), x, model=lambda: time.sleep(0.002), budget=0.02)
    assert device == "cuda" or (result.step is not None and 0.0015 < result.step < 0.1)
    assert result.share is not None and result.amdahl is not None and result.amdahl >= 1.0


def test_counts() -> None:
    """Views cost nothing, a product 2 FLOPs a term, an operator what it reads and writes."""
    x, w, b = draw(8, 32), draw(16, 32), draw(16)
    seen = counted(lambda x, w, b: (x @ w.T).view(2, 4, 16), (x, w, b))
    assert seen == (4 * (8 * 32 + 16 * 32 + 8 * 16), 2 * 8 * 16 * 32)
    seen = counted(lambda x, w, b: torch.relu(x @ w.T + b), (x, w, b))
    assert seen is not None and seen[1] == 2 * 8 * 16 * 32 + 2 * 8 * 16
    assert least_bytes(F.linear, (x, w, b)) == 4 * (8 * 32 + 16 * 32 + 16 + 8 * 16)
    assert least_bytes(lambda x, y: x + y, (x, x[:1].expand(8, 32))) <= 4 * 3 * 8 * 32

    def raises(x: Any) -> Any:
        raise RuntimeError

    assert counted(raises, (x,)) is None
    own = price(torch.relu, torch.relu, x, bytes=(10, 20), flops=30, budget=0.01)
    assert (own.fused.bytes, own.plain.bytes, own.fused.flops, own.plain.flops) == (10, 20, 30, 30)


def test_sentences() -> None:
    worth = made(5.1e-6, 8.2e-6, step=8.6e-3, calls=24)
    assert worth.verdict == (
        "saves 3.1 us of 8.2 us a call, 1.61x as fast; 24 calls are 2.3% of a step, 0.9% saved "
        "(at most 1.023x if it were free): worth it"
    )
    assert worth.share == pytest.approx(24 * 8.2e-6 / 8.6e-3) and worth.amdahl == pytest.approx(
        1.0 / (1.0 - 0.022884), 1e-4
    )
    assert made(5.1e-6, 8.2e-6, step=1.0).verdict.endswith("1.000x if it were free): hardly worth it")
    assert made(8.2e-6, 5.1e-6).verdict == "costs 3.1 us more than plain's 5.1 us a call: not worth it"
    assert "no difference beyond the spread" in made(8.20e-6, 8.21e-6, spread=1e-6).verdict
    assert "give model=" in made(1e-6, 2e-6).verdict
    odd = made(1e-3, 2e-3, step=1e-3)
    assert odd.amdahl == float("inf") and odd.verdict.endswith("calls=1 take 2 ms and a step takes 1 ms: check both")


def test_report_and_svg() -> None:
    result = made(5.1e-6, 8.2e-6, step=8.6e-3, calls=24)
    lines = str(result).splitlines()
    assert (
        lines[0].split()[:3] == ["bytes", "FLOPs", "warm"]
        and lines[1].startswith("fused")
        and lines[-1] == result.verdict
    )
    root = ElementTree.fromstring(result.svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags == {"svg", "rect", "text", "line", "polyline", "circle"}
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0.0 < float(circle.get("cx", "0")) < 640.0 and 0.0 < float(circle.get("cy", "0")) < 400.0
    page = result._repr_html_()
    assert "<table>" in page and "<svg" in page and "<script" not in page


def test_statistics() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0 and quantile([0.0, 10.0], 0.1) == 1.0
    low, high = median_interval([float(i) for i in range(101)])
    assert low < 50.0 < high and 38.0 <= low and high <= 62.0


def test_arguments() -> None:
    x = draw(2, 4)
    for bad in ({"basis": "hot"}, {"calls": 0}, {"budget": 0.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            price(torch.relu, torch.relu, x, **bad)
    with pytest.raises(ValueError, match="model is 0"):
        price(torch.relu, torch.relu, x, model=0.0, budget=0.01)
