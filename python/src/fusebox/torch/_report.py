"""Tables as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence


def number(value: float | None, form: str = ".2e") -> str:
    """A number of a table; a dash where there is none."""
    return "-" if value is None else format(value, form)


def seconds(value: float) -> str:
    """A time with three digits and its unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(value) * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def quantity(value: float, unit: str) -> str:
    """A count with a decimal prefix: ``1.3 GB``."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns two spaces apart; those in ``left`` (negative counts from the end) start left, the others end right."""
    lefts = {index % len(header) for index in left}
    width = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (cell.ljust(width[i]) if i in lefts else cell.rjust(width[i]) for i, cell in enumerate(row))
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (header, *rows))


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """The same table for a notebook."""
    lefts = {index % len(header) for index in left}

    def line(row: Sequence[str], tag: str) -> str:
        cells = (
            f'<{tag} style="text-align:{"left" if i in lefts else "right"}">{html.escape(cell)}</{tag}>'
            for i, cell in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"

    return (
        f"<table><thead>{line(header, 'th')}</thead><tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"
    )


def html_lines(lines: Sequence[str]) -> str:
    """Lines of text below a table."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>" if lines else ""
