"""What it costs to be observed: counting, scrapes, and the console with many topics.

The work is in `observing_work.py`, in one process with the broker, on the generator's core.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from braid import braid_environment
from processes import BENCH, on_generator_core
from results import Measured
from scenario import Alone, Comparison, Scenario
from settings import Settings

WORK_TIMEOUT_S: Final = 400.0
COUNTING: Final = "counting within PRODUCE"
SCRAPE: Final = "a scrape, 1,000 topics"
TOPICS: Final = "the list of 10,000 topics"


def work(name: str, settings: Settings) -> Measured:
    return on_generator_core([sys.executable, BENCH / "observing_work.py", name], WORK_TIMEOUT_S, braid_environment(settings.pure))


OBSERVING: Final[tuple[Scenario, ...]] = (
    Scenario(
        "observing",
        "the share of PRODUCE that goes into counting, a scrape with 1,000 topics, the console's list of 10,000",
        lambda settings: [
            Alone(COUNTING, partial(work, "counting")),
            Alone(SCRAPE, partial(work, "scrape")),
            Alone(TOPICS, partial(work, "topics")),
        ],
        [
            Comparison(
                "counting, 100 in flight", COUNTING, "window_counting_share", "", "0.02", number=0.02, asked=1, rule="at most"
            ),
            Comparison("counting, one by one", COUNTING, "single_counting_share", ""),
            Comparison("tracing, off", COUNTING, "single_tracing_off_share", ""),
            Comparison("a scrape: CPU", SCRAPE, "cpu_ms", "ms", "40 ms", number=40, asked=1, rule="at most"),
            Comparison("a scrape", SCRAPE, "wall_ms", "ms", "100 ms", number=100, asked=1, rule="at most"),
            Comparison("first page of topics: CPU", TOPICS, "cpu_ms", "ms", "60 ms", number=60, asked=1, rule="at most"),
            Comparison("first page of topics", TOPICS, "wall_ms", "ms", "200 ms", number=200, asked=1, rule="at most"),
        ],
        repeats=1,
    ),
)
