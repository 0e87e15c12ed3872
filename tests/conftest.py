"""What tests share: how they are spread over processes, a broker as users run it, both hot paths, and how long a proof runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from proof_length import LONG, length
from running_broker import RunningBroker, StartBroker
from toolchain import compiler_exists
from xdist.scheduler.loadscope import LoadScopeScheduling

pytest_plugins = ["braidmq.testing.plugin"]
"""As users have it from the installed package; here also where the installed one is older than the tree."""

# How long an example takes depends on what else the machine does, so it is no reason to fail.
# The suite tries the same examples each time, so that what breaks it is a change and never chance; the long proofs search.
hypothesis.settings.register_profile("short", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("long" if LONG else "short")

# Hundreds of brokers are started: none of them should compile the same sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# --- processes

TOGETHER = ("tests/spark/pipeline/", "tests/spark/", "tests/console/")
"""Folders whose tests share what takes long to start, a Spark session or a browser. They run in one process each, and first,
because they take longest. All others stay together by file, for the fixtures of their modules."""
LONGEST = (
    "tests/sim/test_seeds.py", "tests/cluster/test_node_cuts.py", "tests/cluster/test_node_faults.py",
    "tests/cluster/test_full_disks.py", "tests/test_tidy.py", "tests/cluster/test_cluster_operations.py",
    "tests/cluster/test_push_faults.py", "tests/cluster/test_missed_journals.py",
)  # fmt: skip
"""Files that take longest after those. They come next, so that no process is left alone with one of them in the end."""


def together(name: str) -> str:
    """What has to run in the process that runs a test."""
    return next((folder for folder in TOGETHER if name.startswith(folder)), name.partition("::")[0])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {scope: place for place, scope in enumerate((*TOGETHER, *LONGEST))}
    items.sort(key=lambda item: first.get(together(item.nodeid), len(first)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return Scheduling(config, log)


class Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be read has failed, with every test that it would have had."""
    _note_failure(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_failure(report)


def _note_failure(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Note what failed for `tools/run_tests.py`."""
    noted = os.environ.get("TEST_FAILED_FILE")
    if noted and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(noted).open("a") as file:
            file.write(report.nodeid + "\n")


@pytest.fixture
def rounds() -> Callable[[int, int], int]:
    """`rounds(short, full)`: how often to repeat a proof; `full` under `make test-long`."""
    return length


# --- the hot path


@pytest.fixture(params=["compiled", "pure"])
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    """Each implementation of `braidmq.hot`. Missing the compiled one is a failure where it could have been built."""
    if request.param == "pure":
        return importlib.import_module("braidmq.hot.pure")
    try:
        return importlib.import_module("braidmq.hot._native")
    except ModuleNotFoundError:
        if compiler_exists():
            pytest.fail("there is a C compiler, but no compiled hot path: run `make setup`")
        pytest.skip("no C compiler")


# --- a broker


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """`start_broker(*flags, name="data", env={...})` starts a broker; all are stopped, and must stop well, after the test."""
    started: list[RunningBroker] = []

    def start(*flags: str, name: str = "data", env: dict[str, str] | None = None) -> RunningBroker:
        broker = RunningBroker(tmp_path / name, flags, env or {})
        started.append(broker)
        broker.start()
        return broker

    try:
        yield start
        for broker in started:
            if broker.running:
                broker.stop()
    finally:
        for broker in started:
            if broker.running:
                broker.kill()


@pytest.fixture
def broker(request: pytest.FixtureRequest, start_broker: StartBroker) -> RunningBroker:
    """A broker with default settings on a free port.

    Parametrised indirectly it takes flags, and `pure` among them chooses the plain-Python hot path:
    `@pytest.mark.parametrize("broker", [("--durability", "os"), ("pure",)], indirect=True)`.
    """
    flags: tuple[str, ...] = getattr(request, "param", ())
    env = {"BRAID_PURE": "1"} if "pure" in flags else {}
    return start_broker(*(flag for flag in flags if flag != "pure"), env=env)
