"""The page about the data source and the data source say the same."""

from __future__ import annotations

import re
from pathlib import Path

from braidmq.spark.columns import COLUMNS
from braidmq.spark.options import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs/spark.md").read_text()
USES = {"read": "reading", "write": "writing", "both": "both"}


def test_every_option_has_its_row_and_every_row_its_option() -> None:
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    expected = [f"| `{each.name}` | {each.takes} | {USES[each.use]} | {each.default} | {each.doc} |" for each in OPTIONS]
    assert rows == expected


def test_every_column_has_its_row() -> None:
    table = PAGE.partition("## Columns")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*(name for name, _, _ in COLUMNS), "data", "error"]
