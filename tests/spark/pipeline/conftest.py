"""Fixtures of the pipelines' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pipeline_lab import Lab
from running_broker import RunningBroker

from braidmq.client.sync import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lab(spark: SparkSession, braid: RunningBroker, tmp_path: Path) -> Iterator[Lab]:
    with connect(braid.address) as client:
        yield Lab(spark, braid, client, tmp_path)
