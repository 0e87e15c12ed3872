"""The pipeline of `braid dev`: orders of all three protocols checked, added up, and written to a topic and a Delta table.

It is written out as YAML where people can read it, change it and run it themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from braidmq.cli.dev_traffic import SCHEMA, TOPICS

NAME: Final = "demo"
GROUP: Final = f"pipeline-{NAME}"
RESULTS: Final = "demo.revenue"
TABLE: Final = "lake/revenue"
_TEXT: Final = """\
# What `braid dev` runs. Change it and run it yourself: braid pipeline run {file}
name: {name}
description: Revenue of the demo shop by country, from three protocols
source:
  topics: {topics}
  schema: {schema}
  starting: earliest
steps:
  - validate:                      # what is no order becomes a dead letter, with the reason
      expect:
        - name: positive-amount
          sql: data.amount > 0
  - sql: SELECT data.country AS country, data.amount AS amount, timestamp FROM input
  - window:
      size: 10 seconds
      late: 5 seconds
      group_by: [country]
      aggregates:
        orders: count(*)
        revenue: round(sum(amount), 2)
sinks:
  - topic: {{name: {results}, key: country}}
  - table: {{path: {table}, compact_every: 50}}
trigger: {{every: 2 seconds}}
spark:
  spark.sql.shuffle.partitions: "2"
  spark.driver.memory: 1g
"""


def write_pipeline(folder: Path) -> Path:
    """The definition, written unless there is one that somebody may have changed."""
    path = folder / "pipeline.yaml"
    if not path.exists():
        text = _TEXT.format(
            file=path, name=NAME, topics=json.dumps(list(TOPICS.values())), schema=SCHEMA, results=RESULTS, table=TABLE
        )
        path.write_text(text, encoding="utf-8")
    return path


def run_words(path: Path, server: str) -> list[str]:
    """The command line that runs it, also where an earlier run was killed a moment ago and the broker does not know yet."""
    return ["pipeline", "run", str(path), "--server", server, "--master", "local[2]", "--replace"]
