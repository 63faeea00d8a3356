"""A roofline as plain SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ._report import quantity
from ._roofline import Ceiling

_W, _H, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 400, 84, 20, 44, 56
_COLOURS = ("#c0392b", "#2c6fbb")


@dataclass(frozen=True)
class Point:
    """A kernel: FLOPs a byte and FLOPs a second."""

    name: str
    intensity: float
    rate: float


def roofline(ceiling: Ceiling, points: Sequence[Point], title: str) -> str:
    """Log-log: FLOPs a byte to the right, FLOPs a second upwards, the measured roof, a dot for each point."""
    points = [p for p in points if p.intensity > 0.0 and p.rate > 0.0]
    ridge = ceiling.flops / ceiling.bandwidth
    x0, x1 = _decades([ridge, *(p.intensity for p in points)], 0.5)
    floor = min([p.rate for p in points] + [10.0**x0 * ceiling.bandwidth])
    y0, y1 = _decades([ceiling.flops, floor], 0.2)

    def px(value: float) -> float:
        return _LEFT + (math.log10(value) - x0) / (x1 - x0) * (_W - _LEFT - _RIGHT)

    def py(value: float) -> float:
        return _H - _BOTTOM - (math.log10(value) - y0) / (y1 - y0) * (_H - _TOP - _BOTTOM)

    size = f'width="{_W}" height="{_H}" viewBox="0 0 {_W} {_H}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{_W}" height="{_H}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{html.escape(title)}</text>',
    ]
    for e in range(math.ceil(x0), math.floor(x1) + 1):
        x = px(10.0**e)
        out.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_H - _BOTTOM}" stroke="#e5e5e5"/>')
        out.append(f'<text x="{x:.1f}" y="{_H - _BOTTOM + 18}" text-anchor="middle">{_plain(10.0**e)}</text>')
    for e in range(math.ceil(y0), math.floor(y1) + 1):
        y = py(10.0**e)
        out.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_W - _RIGHT}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{quantity(10.0**e, "F/s")}</text>')
    middle = (_LEFT + _W - _RIGHT) / 2
    out.append(f'<text x="{middle:.0f}" y="{_H - 14}" text-anchor="middle">FLOPs a byte</text>')

    start = max(10.0**x0, 10.0**y0 / ceiling.bandwidth)
    corners = [(start, start * ceiling.bandwidth), (ridge, ceiling.flops), (10.0**x1, ceiling.flops)]
    path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in corners)
    out.append(f'<polyline points="{path}" fill="none" stroke="#333333" stroke-width="2"/>')
    roof = f"{quantity(ceiling.bandwidth, 'B/s')}, {quantity(ceiling.flops, 'FLOP/s')} {ceiling.dtype}"
    out.append(f'<text x="{_W - _RIGHT}" y="{py(ceiling.flops) - 8:.1f}" text-anchor="end">{html.escape(roof)}</text>')

    for rank, point in enumerate(points):  # dots, and a legend in the lower right corner, which the roof never crosses
        colour, y = _COLOURS[rank % len(_COLOURS)], _H - _BOTTOM - 12 - 18 * (len(points) - 1 - rank)
        share = 100.0 * point.rate / min(ceiling.flops, point.intensity * ceiling.bandwidth)
        text = "&#9679; " + html.escape(f"{point.name}: {quantity(point.rate, 'F/s')}, {share:.2g}% of its roof")
        out.append(f'<circle cx="{px(point.intensity):.1f}" cy="{py(point.rate):.1f}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{_W - _RIGHT - 8}" y="{y}" text-anchor="end" fill="{colour}">{text}</text>')
    out.append("</svg>")
    return "\n".join(out)


def _decades(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = math.log10(min(values)) - margin, math.log10(max(values)) + margin
    return (math.floor(low), math.ceil(high)) if high - low < 2.0 else (low, high)


def _plain(value: float) -> str:
    return f"{value:g}" if 1e-4 < value < 1e5 else f"{value:.0e}"
