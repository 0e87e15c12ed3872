"""What the text of a query tells, without Spark: which columns of a record it keeps, and whether it puts rows together.

A text tells only so much. What it leaves open is found when Spark plans the query, or when its rows reach a sink.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_STAR: Final = re.compile(r"(?<![\w.`)\]])\*(?!\s*[\w(])|input\.\*|(?<=select)\s*\*", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_TOGETHER: Final = (
    ("GROUP BY", re.compile(r"\bgroup\s+by\b")),
    ("DISTINCT", re.compile(r"\bselect\s+distinct\b")),
    ("OVER", re.compile(r"\)\s*over\b")),
    ("LIMIT", re.compile(r"\blimit\s+\d")),
    (
        "an aggregate",
        re.compile(
            r"(?<![\w.])(?:count|count_if|sum|avg|mean|min|max|min_by|max_by|median|percentile|percentile_approx|approx_percentile"
            r"|approx_count_distinct|collect_list|collect_set|array_agg|listagg|string_agg|first|first_value|last|last_value"
            r"|any_value|stddev|stddev_pop|stddev_samp|variance|var_pop|var_samp|bool_and|bool_or|every|some)\s*\("
        ),
    ),
)


def keeps(query: str, names: Sequence[str]) -> bool:
    """Whether the result still has these columns, as far as the text tells."""
    text = query.lower()
    return bool(_STAR.search(text)) or all(re.search(rf"\b{name}\b", text) for name in names)


def puts_together(query: str) -> str:
    """The words by which a query makes a row of several, so that its result depends on which rows come together; else nothing."""
    text = _QUOTED.sub(" ", query).lower()
    return next((words for words, pattern in _TOGETHER if pattern.search(text)), "")
