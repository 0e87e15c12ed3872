"""Records that a query was to read and that are gone: said with the exact range, and by default an error.

With `failOnDataLoss=false` the query goes on behind the gap. The gap is a warning in the log of whoever found it, and the offsets
of a stream count what was lost, so that it shows in the progress of the query and stays in its checkpoint.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from braidmq.base.errors import BraidError
from braidmq.spark.options import Options

logger = logging.getLogger("braidmq.spark")


@dataclass(frozen=True, slots=True)
class Gap:
    topic: str
    partition: int
    start: int
    end: int
    reason: str


def report(gap: Gap, options: Options) -> None:
    """Raise RECORDS_LOST, or say that the query goes on without them."""
    fault = BraidError(
        "RECORDS_LOST", topic=gap.topic, partition=gap.partition, start=gap.start, end=gap.end, count=gap.end - gap.start,
        reason=gap.reason,
    )  # fmt: skip
    _raise_or_log(fault, options)


def report_replaced(topic: str, exists: bool, options: Options) -> None:
    """Raise TOPIC_REPLACED, or say that the query goes on with the topic that is there now, if there is one."""
    _raise_or_log(BraidError("TOPIC_REPLACED", topic=topic, what="deleted and made anew" if exists else "deleted"), options)


def _raise_or_log(fault: BraidError, options: Options) -> None:
    if options.get("failOnDataLoss", True):
        raise fault
    logger.warning("%s", fault)
