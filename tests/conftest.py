"""What tests share: how they are spread over processes, a broker as users run it, both hot paths, and how long a proof runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from proof_length import LONG, length
from running_broker import RunningBroker, StartBroker
from toolchain import compiler_exists

pytest_plugins = ["braidmq.testing.plugin"]
"""As users have it from the installed package; here also where the installed one is older than the tree."""

# How long an example takes depends on what else the machine does, so it is no reason to fail.
hypothesis.settings.register_profile("short", deadline=None, max_examples=50)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("long" if LONG else "short")

# Hundreds of brokers are started: none of them should compile the same sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# --- processes

TESTS = Path(__file__).parent
SHARED_BY_FOLDER = {"spark": "spark", "console": "browser"}
"""What all tests of a folder share, and there should be one of: a Spark session, a browser."""
SHARED_BY_FIXTURE = {"spark": "spark", "browser": "browser", "page": "browser"}
"""The same for tests elsewhere, by the fixture they take."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what has to run in one process (`--dist loadgroup`): tests with the same Spark session, browser, or module's fixture."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            group = _group(item)
            if group is not None:
                item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Function) -> str | None:
    for fixture in item.fixturenames:
        if fixture in SHARED_BY_FIXTURE:
            return SHARED_BY_FIXTURE[fixture]
    path = item.path.relative_to(TESTS)
    if path.parts[0] in SHARED_BY_FOLDER:
        return SHARED_BY_FOLDER[path.parts[0]]
    definitions = item._fixtureinfo.name2fixturedefs.values()
    shares_module = any(definition.scope in ("class", "module") for [*_, definition] in definitions)
    return path.as_posix() if shares_module else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what failed for `tools/run_tests.py`, under the name by which it can be asked for again."""
    noted = os.environ.get("BRAID_TEST_FAILED_FILE")
    if noted and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        name, at, group = report.nodeid.rpartition("@")
        grouped = at and (group in SHARED_BY_FOLDER.values() or group.endswith(".py"))
        with Path(noted).open("a") as file:
            file.write((name if grouped else report.nodeid) + "\n")


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
