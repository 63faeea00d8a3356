"""Text and HTML of the reports, laid out as by the command line."""

from __future__ import annotations

import ctypes
import html
from typing import Iterable, Sequence

from ._c import lib


def scaled(value: float) -> str:
    """1234567 as "1.2 M"."""
    unit = 0
    while value >= 999.95 and unit < 4:
        value /= 1000
        unit += 1
    return f"{value:.1f} {'kMGT'[unit - 1]}" if unit else f"{value:.0f}"


def digits(value: int) -> str:
    """1234567 as "1,234,567"."""
    return f"{value:,}"


def shown(text: str, lines: bool = False) -> str:
    """Text as a terminal may get it: control characters are escaped; with `lines`, newline and tab stay."""
    data = text.encode("utf-8", "surrogateescape")
    if data.isascii() and data.decode().replace("\n", "" if lines else "\n").isprintable():
        return text
    buffer = ctypes.create_string_buffer(8)
    source = ctypes.create_string_buffer(data, len(data) + 1)
    at, out = 0, b""
    while at < len(data):
        at += lib.fb_show_character(ctypes.addressof(source) + at, len(data) - at, lines, buffer)
        out += buffer.value
    return out.decode("utf-8", "replace")


def plural(count: int, word: str, many: str | None = None) -> str:
    return f"{count} {word if count == 1 else many or word + 's'}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """An HTML table; a cell that looks like a number is right-aligned."""
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(cell: str) -> str:
    number = cell[:1].isdigit() or cell[:1] in ("-", "+") and cell[1:2].isdigit()
    align = "right" if number else "left"
    return f'<td style="text-align:{align}">{html.escape(cell)}</td>'


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
