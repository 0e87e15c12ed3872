"""The programs on the pages about running Spark and about ready-made pipelines run, and print what they are there to print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from running_broker import RunningBroker

from braidmq.cli.parser import build_parser
from braidmq.client import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"spark-running.md": r"^3$", "ready-made.md": r"^1$"}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [body for name, body in _BLOCK.findall((DOCS / page).read_text()) if name == language]


@pytest.mark.parametrize("page", PAGES)
def test_programs_run(
    page: str, spark: SparkSession, braid: RunningBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert spark.sparkContext is not None, "the programs get the session that is there"
    monkeypatch.chdir(tmp_path)
    with sync.connect(braid.address) as client:
        for topic in ("orders", "numbers"):
            client.create_topic(topic)
        if not client.metadata("orders").records:
            client.produce("orders", b"one")
    for block in blocks(page, "python"):
        exec(compile(block.replace("127.0.0.1:9092", braid.address), page, "exec"), {"__name__": "__main__"})
        assert re.search(PAGES[page], capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_as_the_parser_takes_them(page: str) -> None:
    commands = [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("braid ")]
    assert commands
    for line in commands:
        args = build_parser().parse_args(shlex.split(line)[1:])
        assert callable(args.run), line
