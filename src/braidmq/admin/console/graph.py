"""A pipeline as a picture: where rows come from, what happens to them in order, where they go.

Places are worked out here and drawn by the template, as SVG inside the page. A definition in YAML can be drawn where a reader of
YAML is installed (the extra `spark` brings one); one in Python is a program, and is shown as text.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

_WIDTH: Final = 150
_HEIGHT: Final = 44
_GAP_X: Final = 38
_GAP_Y: Final = 14
_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class Box:
    kind: str
    title: str
    topic: str
    """Where it is a topic, its name."""
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Graph:
    width: int
    height: int
    boxes: list[Box]
    lines: list[tuple[int, int, int, int]]
    box_width: int = _WIDTH
    box_height: int = _HEIGHT


def graph_of(form: str, definition: str) -> Graph | None:
    """None where it cannot be drawn."""
    if form != "yaml":
        return None
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        return None
    try:
        document = yaml.safe_load(definition)
    except (yaml.YAMLError, RecursionError):
        return None
    return _placed([list(_sources(document)), *([step] for step in _steps(document)), list(_sinks(document))])


def _placed(columns: list[list[tuple[str, str, str]]]) -> Graph | None:
    """Columns from left to right, each in the middle of the height; every box leads to all of the next column."""
    columns = [column for column in columns if column]
    if len(columns) < 2:
        return None
    tallest = max(map(len, columns))
    height = tallest * (_HEIGHT + _GAP_Y) - _GAP_Y
    placed: list[list[Box]] = []
    for number, column in enumerate(columns):
        top = (height - (len(column) * (_HEIGHT + _GAP_Y) - _GAP_Y)) // 2
        x = 1 + number * (_WIDTH + _GAP_X)
        ys = range(1 + top, 1 + top + height, _HEIGHT + _GAP_Y)
        placed.append([Box(kind, _cut(title), topic, x, y) for (kind, title, topic), y in zip(column, ys, strict=False)])
    middle = _HEIGHT // 2
    lines = [
        (left.x + _WIDTH, left.y + middle, right.x, right.y + middle)
        for lefts, rights in pairwise(placed)
        for left in lefts
        for right in rights
    ]
    return Graph(len(columns) * (_WIDTH + _GAP_X) - _GAP_X + 2, height + 2, [box for column in placed for box in column], lines)


def _sources(document: Any) -> Iterator[tuple[str, str, str]]:
    source = document.get("source") if isinstance(document, dict) else None
    if isinstance(source, dict):
        topics = source.get("topics") or []
        for topic in topics if isinstance(topics, list) else [topics]:
            yield "topic", str(topic), str(topic)
        for kind in ("table", "files"):
            if source.get(kind):
                yield kind, str(source[kind]), ""


def _steps(document: Any) -> Iterator[tuple[str, str, str]]:
    steps = document.get("steps") if isinstance(document, dict) else None
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict):
            yield from (("step", str(kind), "") for kind in step)
        elif isinstance(step, str):
            yield "step", step, ""


def _sinks(document: Any) -> Iterator[tuple[str, str, str]]:
    sinks = document.get("sinks") if isinstance(document, dict) else None
    for sink in sinks if isinstance(sinks, list) else []:
        for kind, detail in sink.items() if isinstance(sink, dict) else [(sink, "")]:
            inner = detail if isinstance(detail, dict) else {}
            named = [str(inner[key]) for key in ("name", "path", "table") if key in inner]
            name = detail if isinstance(detail, str) else named[0] if named else ""
            yield str(kind), name or str(kind), name if kind == "topic" else ""


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
