"""A page of HTML that needs nothing else: styles inside, plots as SVG inside, no script.

Everything that came from a topic is escaped here and nowhere else: pieces are made from text, and only a `Piece` goes in as it
is. A record that holds `<script>` is shown as these letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 160
_LABEL_CHARACTERS: Final = 28
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2433; --dim: #5b6478; --line: #d9dee8; --fill: #3b6fd4; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9f0; --dim: #9aa4b8; --line: #333b4d; --fill: #6d9bf1; --back: #12161f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { color: var(--dim); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td { overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
rect.bar { fill: var(--fill); } line { stroke: var(--line); } code { font-family: ui-monospace, monospace; }
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """HTML that was made here."""

    html: str


def page(title: str, summary: str, pieces: Iterable[Piece]) -> str:
    """A whole document."""
    body = "\n".join(piece.html for piece in pieces)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1><p>{escape(summary)}</p>\n{body}\n</body></html>\n"
    )


def heading(text: str) -> Piece:
    return Piece(f"<h2>{escape(text)}</h2>")


def paragraph(text: str) -> Piece:
    return Piece(f"<p>{escape(text)}</p>")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Piece:
    """A table; columns of numbers stand to the right."""
    kept = [list(row) for row in rows]
    numeric = [bool(kept) and all(isinstance(row[at], int | float) for row in kept) for at in range(len(headings))]
    marks = [' class="number"' if right else "" for right in numeric]
    head = "".join(f'<th scope="col"{mark}>{escape(text)}</th>' for text, mark in zip(headings, marks, strict=True))
    lines = ("".join(f"<td{mark}>{escape(cell(value))}</td>" for value, mark in zip(row, marks, strict=True)) for row in kept)
    return Piece(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>")


def cell(value: object) -> str:
    """A value as people read it: numbers with separators, nothing as a dash."""
    match value:
        case None:
            return "-"
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def columns(title: str, values: Sequence[float], left: str, right: str) -> Piece:
    """A plot of upright bars, as for counts over time."""
    top = max(values, default=0) or 1
    step = WIDTH / max(len(values), 1)
    bars = "".join(
        f'<rect class="bar" x="{at * step:.1f}" y="{20 + (HEIGHT - 40) * (1 - value / top):.1f}" '
        f'width="{max(step - 1, 0.5):.1f}" height="{(HEIGHT - 40) * value / top:.1f}"><title>{escape(cell(value))}</title></rect>'
        for at, value in enumerate(values)
    )
    return Piece(
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<text x="0" y="12">{escape(title)}, at most {escape(cell(top))}</text>{bars}'
        f'<line x1="0" y1="{HEIGHT - 20}" x2="{WIDTH}" y2="{HEIGHT - 20}"/>'
        f'<text x="0" y="{HEIGHT - 5}">{escape(left)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 5}" text-anchor="end">{escape(right)}</text></svg>'
    )


def bars(title: str, items: Sequence[tuple[str, float]]) -> Piece:
    """A plot of lying bars with their names, as for a ranking."""
    top = max((value for _, value in items), default=0) or 1
    line, begin = 20, 230
    room = WIDTH - begin - 90
    rows = "".join(
        f'<text x="{begin - 8}" y="{at * line + 34}" text-anchor="end">{escape(short(name))}</text>'
        f'<rect class="bar" x="{begin}" y="{at * line + 23}" width="{max(room * value / top, 1):.1f}" height="14">'
        f"<title>{escape(name)}</title></rect>"
        f'<text x="{begin + room * value / top + 6:.1f}" y="{at * line + 34}">{escape(cell(value))}</text>'
        for at, (name, value) in enumerate(items)
    )
    height = len(items) * line + 30
    return Piece(
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f'<text x="0" y="12">{escape(title)}</text>{rows}</svg>'
    )


def short(text: str, characters: int = _LABEL_CHARACTERS) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
