"""Reading the documentation as data: sections, tables, code blocks, hexadecimal examples and links.

Nothing here knows BraidMQ, so that each check of the pages can also be run on a page that is wrong on purpose.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^<!-- example: ([\w-]+) -->\n```hex\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def pages() -> Mapping[str, str]:
    """Every page that is written by hand or made for readers, by path."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(found)}


def prose(text: str) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", text)


def code_blocks(text: str, language: str) -> list[str]:
    return [body for name, body in _FENCE.findall(text) if name == language]


def section(text: str, heading: str) -> str:
    """What stands under a heading, with the headings below it."""
    fenced = [found.span() for found in _FENCE.finditer(text)]
    headings = [h for h in _HEADING.finditer(text) if not any(start <= h.start() < end for start, end in fenced)]
    for number, found in enumerate(headings):
        if found[2] == heading:
            deeper = (h.start() for h in headings[number + 1 :] if len(h[1]) <= len(found[1]))
            return text[found.end() : next(deeper, len(text))]
    raise LookupError(f"no heading {heading!r}")


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text, as rows of cells without the head; code marks are taken off cells that are all code."""
    found: list[list[list[str]]] = []
    rows: list[list[str]] = []
    for line in [*prose(text).splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows.append([re.sub(r"^`([^`]+)`$", r"\1", cell) for cell in cells])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def code_words(text: str) -> set[str]:
    """Everything between single code marks."""
    return set(re.findall(r"`([^`\n]+)`", prose(text)))


def hex_examples(text: str) -> dict[str, bytes]:
    """The named examples of a page. A line is bytes, then two spaces, then what they mean."""
    return {
        name: bytes.fromhex("".join(line.split("  ")[0] for line in body.splitlines())) for name, body in _EXAMPLE.findall(text)
    }


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings make."""
    slugs = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in _HEADING.findall(prose(text)))
    return set(slugs)


def links(path: str, text: str) -> Iterator[tuple[str, str]]:
    """Target path and anchor of every link to a file of the project."""
    for target in _LINK.findall(prose(text)):
        if "://" not in target:
            place, _, anchor = target.partition("#")
            yield (posixpath.normpath(posixpath.join(posixpath.dirname(path), place)) if place else path), anchor


def dead_links(texts: Mapping[str, str], exists: Mapping[str, str] | None = None) -> list[str]:
    """Links between `texts` that lead to no file, or to no heading of it. `exists` holds further files that may be linked."""
    complaints = []
    for path, text in texts.items():
        for place, anchor in links(path, text):
            if place not in texts and place not in (exists or {}):
                complaints.append(f"{path}: no file {place}")
            elif anchor and anchor not in anchors(texts.get(place, "")):
                complaints.append(f"{path}: {place} has no heading for #{anchor}")
    return complaints


def unreachable(texts: Mapping[str, str], start: str) -> set[str]:
    """Pages that no chain of links from `start` leads to."""
    seen, waiting = {start}, [start]
    while waiting:
        path = waiting.pop()
        for place, _ in links(path, texts[path]):
            if place in texts and place not in seen:
                seen.add(place)
                waiting.append(place)
    return set(texts) - seen
