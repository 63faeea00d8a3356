"""What the examples of this folder share: options, checks before times, prices of several candidates, tables, bars.

A script describes its candidates: ways to compute the same thing, the first of them eager PyTorch. ``prices`` times
each of them against the first by ``fusebox.torch.price``; ``Report`` prints tables and writes them to files.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusebox.torch import Price, Side, Timing, WrongKernel, price, prove

DTYPES = ("float32", "float16", "bfloat16")
LARGEST = 1 << 20  # of rows and columns


class CheckFailed(Exception):
    """A result is wrong. Nothing is timed."""


def checked(body: Callable[[], None]) -> int:
    """Run a script. The exit status: 1 if a check failed, which is then said on stderr."""
    try:
        body()
    except (CheckFailed, WrongKernel) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


# ---- options ---------------------------------------------------------------------------------------------------


def size(text: str, most: int = LARGEST) -> int:
    """A number of rows or columns on the command line."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} (from 1 to {most})")
    return value


def sizes(text: str) -> list[int]:
    """Several, with commas between: ``1,8,512``."""
    return [size(part) for part in text.split(",")]


def budget(text: str) -> float:
    """Seconds on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 600.0:
        raise argparse.ArgumentTypeError(f"{text!r} (seconds, more than 0, up to 600)")
    return value


def parser(doc: str | None, rows: Sequence[int], compiles: bool = True) -> argparse.ArgumentParser:
    """The options that all scripts have. ``rows``: the default. ``compiles``: torch.compile is compared."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    shown = ",".join(map(str, rows))
    made.add_argument("--rows", type=sizes, default=list(rows), metavar="N,…", help=f"row counts (default {shown})")
    made.add_argument("--dtype", choices=DTYPES, default="float16", help="of all tensors (default float16)")
    made.add_argument("--budget", type=budget, default=0.3, help="seconds for each kind of time (default 0.3)")
    text = "CPU threads of PyTorch (default 1: the shapes for a CPU are small)"
    made.add_argument("--threads", type=partial(size, most=256), default=1, help=text)
    made.add_argument("--out", type=Path, metavar="DIR", help="write the tables as Markdown and the bars as SVG")
    if compiles:
        text = "backend of torch.compile, or none (default inductor)"
        made.add_argument("--compile", default="inductor", metavar="BACKEND", help=text)
    return made


# ---- checks ----------------------------------------------------------------------------------------------------


def flat(result: Any) -> list[Tensor]:
    """The tensors of a result: a tensor, or a tuple of tensors."""
    return [result] if isinstance(result, Tensor) else list(result)


def exact(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of ``fn`` in float64."""
    with torch.no_grad():
        return flat(fn(*(x.double() for x in inputs)))


def error(result: Any, wanted: Sequence[Tensor]) -> tuple[float, float]:
    """The largest and the rms error to ``wanted`` (float64), over the rms of ``wanted``; infinite if not finite."""
    got = flat(result)
    if [x.shape for x in got] != [x.shape for x in wanted]:
        return float("inf"), float("inf")
    top, squares = 0.0, 0.0
    for x, y in zip(got, wanted):
        scale = float(y.square().mean().sqrt()) or 1.0
        away = (x.double() - y) / scale
        if not bool(torch.isfinite(away).all()):
            return float("inf"), float("inf")
        top, squares = max(top, float(away.abs().max())), max(squares, float(away.square().mean()))
    return top, squares**0.5


def check_error(name: str, found: tuple[float, float], base: tuple[float, float], dtype: torch.dtype) -> None:
    """At most twice the error of ``base`` and an ulp."""
    ulp = torch.finfo(dtype).eps
    for kind, mine, theirs in zip(("largest", "rms"), found, base):
        if not mine <= 2.0 * theirs + ulp:
            raise CheckFailed(f"{name}: {kind} error {mine:.2e} to float64 (at most {2.0 * theirs + ulp:.2e})")


def prove_bits(fused: Callable[..., Any], plain: Callable[..., Any], *inputs: Any, vary: Sequence[int] | None) -> str:
    """Prove that two callables give the same bits in every case; the proof's sentence."""
    proof = prove(fused, plain, *inputs, vary=vary, tolerance=0.0).raise_if_wrong()
    return proof.summary()


def compiled(fn: Callable[..., Any], backend: str, inputs: Sequence[Tensor]) -> Callable[..., Any] | str:
    """``torch.compile`` of ``fn`` for the shapes of ``inputs``, or why there is none."""
    if backend == "none":
        return "left out"
    made: Callable[..., Any] = torch.compile(fn, backend=backend, dynamic=False)
    try:
        with torch.no_grad():
            made(*inputs)
    except Exception as problem:  # no compiler on this machine, or an unknown backend
        first = (str(problem).strip().splitlines() or [""])[0]
        return f"{type(problem).__name__}: {first[:120]}"
    return made


def compiled_candidate(
    report: Report, fn: Callable[..., Any], backend: str, inputs: Sequence[Tensor], moved: int | None = None
) -> list[Candidate]:
    """``fn`` compiled and checked against float64, as a list; or an empty list, with the reason in the report."""
    made = compiled(fn, backend, inputs)
    if isinstance(made, str):
        report.say(f"torch.compile: {made}")
        return []
    wanted = exact(fn, inputs)
    with torch.no_grad():
        found, base = error(made(*inputs), wanted), error(fn(*inputs), wanted)
    check_error("torch.compile", found, base, inputs[0].dtype)
    return [Candidate("torch.compile", made, moved)]


# ---- prices ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One way to compute the same thing.

    ``moved``: bytes of a call. None: each input read, each output written once; for the first candidate, which is
    eager PyTorch, its operators are counted one by one.
    """

    name: str
    run: Callable[..., Any]
    moved: int | None = None


@dataclass(frozen=True)
class Measured:
    """A candidate's times. ``floor``: seconds that its bytes take at the measured bandwidth, or its FLOPs if longer.

    ``speedup``: the time of the first candidate over this one's, both taken in turns. ``clear``: that is not chance.
    """

    name: str
    side: Side
    floor: float
    speedup: float
    clear: bool


def prices(
    candidates: Sequence[Candidate], inputs: Sequence[Any], seconds: float, flops: int | None = 0
) -> list[Measured]:
    """Each of the candidates, which are checked by now, against the first.

    ``flops``: of a call, for the floor; None counts those of the first candidate. The times of the first are those of
    all pairs together.
    """
    first, *others = candidates
    rows: list[Measured] = []
    costs: list[Price] = []
    for other in others:
        names = (other.name, first.name)
        costs.append(price(other.run, first.run, *inputs, names=names, flops=flops, budget=seconds, force=True))
        side = moving(costs[-1].fused, other.moved)
        rows.append(Measured(other.name, side, floor(costs[-1], side), costs[-1].speedup, costs[-1].clear))
    side = moving(pooled([cost.plain for cost in costs]), first.moved)
    return [Measured(first.name, side, floor(costs[0], side), 1.0, False), *rows]


def pooled(sides: Sequence[Side]) -> Side:
    """The same callable, timed several times."""
    warm = [sample for side in sides for sample in side.warm.samples]
    called = [sample for side in sides if side.called is not None for sample in side.called.samples]
    one = sides[0]
    return replace(
        one,
        warm=Timing(tuple(warm), one.warm.method),
        called=None if one.called is None else Timing(tuple(called), one.called.method),
    )


def moving(side: Side, moved: int | None) -> Side:
    """The side with so many bytes; None: with those that ``price`` counted."""
    return side if moved is None else replace(side, bytes=moved)


def floor(cost: Price, side: Side) -> float:
    """The least seconds that the measured roof allows for what one side moves and computes."""
    return cost.ceiling.seconds(side.bytes, side.flops)


# ---- numbers, tables, bars -------------------------------------------------------------------------------------

def times() -> tuple[str, ...]:
    """Names of the columns of ``cells``. The spread is that of the column before it: a CPU has no graph."""
    first = ("graph us", "10% to 90%", "called us") if torch.cuda.is_available() else ("called us", "10% to 90%")
    return ("bytes", "floor us", *first, "of floor", "x eager")


def us(seconds: float) -> str:
    """Microseconds with three digits or more."""
    value = seconds * 1e6
    return f"{value:.0f}" if value >= 100.0 else f"{value:#.3g}" if value >= 0.1 else f"{value:.1g}"


def plural(count: int, word: str) -> str:
    """``1 row``, ``8 rows``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def amount(count: float) -> str:
    """Bytes with three digits."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def cells(row: Measured) -> tuple[str, ...]:
    """The columns ``times`` of a row, with a star where a GPU could not record a graph and its events were timed."""
    side = row.side
    called = () if side.called is None else (us(side.called.median),)
    star = "*" if called and side.warm.method != "graph replay" else ""
    return (
        amount(side.bytes),
        us(row.floor),
        us(side.warm.median) + star,
        f"{us(side.warm.low)} to {us(side.warm.high)}",
        *called,
        f"{100.0 * row.floor / side.warm.median:.3g}%",
        f"{row.speedup:.2f}",
    )


def to_other(row: Measured, rows: Sequence[Measured], name: str) -> str:
    """How many times as fast as the row of that name, by their speedups over the first; a dash without one."""
    other = next((r for r in rows if r.name == name), None)
    return "-" if other is None else f"{row.speedup / other.speedup:.2f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is also readable as text. Columns with a letter at the beginning of a cell start left."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    left = [any(row[i][:1].isalpha() for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (c.ljust(w) if at else c.rjust(w) for c, w, at in zip(row, widths, left))
        return f"| {' | '.join(padded)} |"

    rule = [("-" * w if at else "-" * (w - 1) + ":") for w, at in zip(widths, left)]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def bars(title: str, rows: Sequence[Measured]) -> str:
    """Plain SVG: a bar for each median, a line from the 10th to the 90th percentile, a mark for the floor."""
    longest = max(max(row.side.warm.high, row.floor) for row in rows)
    left, wide, step = 150, 420, 22
    height = 60 + step * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="670" height="{height}" viewBox="0 0 670 {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="670" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="14">{html.escape(title)}</text>',
        f'<text x="{left}" y="{height - 8}" fill="#555555">bar: median; line: 10% to 90%; red: floor</text>',
    ]
    for i, row in enumerate(rows):
        warm, y = row.side.warm, 36 + step * i
        colour = "#2c6fbb" if row.name.startswith("fusebox") else "#8a8a8a"
        end, low, high, mark = (left + wide * t / longest for t in (warm.median, warm.low, warm.high, row.floor))
        out += [
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{html.escape(row.name)}</text>',
            f'<rect x="{left}" y="{y}" width="{max(1.0, end - left):.1f}" height="16" fill="{colour}"/>',
            f'<line x1="{low:.1f}" y1="{y + 8}" x2="{high:.1f}" y2="{y + 8}" stroke="#222222"/>',
            f'<line x1="{mark:.1f}" y1="{y}" x2="{mark:.1f}" y2="{y + 16}" stroke="#c0392b" stroke-width="2"/>',
            f'<text x="{max(end, high) + 6:.1f}" y="{y + 12}">{us(warm.median)} us</text>',
        ]
    return "\n".join([*out, "</svg>"])


class Report:
    """Prints as it goes; ``write`` puts the same text into ``out``/``name``.md, with the bars beside it."""

    def __init__(self, name: str, title: str, options: argparse.Namespace) -> None:
        """``options``: of ``parser``. Random numbers begin anew, and PyTorch gets its threads."""
        torch.manual_seed(0)
        torch.set_num_threads(options.threads)
        self.name, self.out = name, options.out
        self._text: list[str] = []
        self._pictures: dict[str, str] = {}
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        self.say(f"# {title}")
        self.say(f"PyTorch {torch.__version__} on {device}, {plural(torch.get_num_threads(), 'CPU thread')}.")

    def say(self, text: str) -> None:
        """A paragraph."""
        print(f"{text}\n", flush=True)
        self._text.append(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.say(markdown(header, rows))

    def bars(self, title: str, rows: Sequence[Measured]) -> None:
        """A picture of the times of one shape, in the files only."""
        words = re.sub(r"[^a-z0-9]+", "_", title.removeprefix(f"{self.name} ").lower()).strip("_")
        file = f"{self.name}_{words}.svg"
        self._pictures[file] = bars(title, rows)
        self._text.append(f"![{title}]({file})")

    def write(self) -> None:
        """Write the files, if the user asked for them."""
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        pictures = {name: text + "\n" for name, text in self._pictures.items()}
        for name, text in {f"{self.name}.md": "\n\n".join(self._text) + "\n", **pictures}.items():
            (self.out / name).write_text(text, encoding="utf-8")
        print(f"wrote {self.out / self.name}.md")
