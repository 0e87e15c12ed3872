"""What tests share: a broker as users run it, both implementations of the hot path, and how long a proof runs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from running_broker import RunningBroker, StartBroker
from toolchain import compiler_exists

pytest_plugins = ["braidmq.testing.plugin"]
"""As users have it from the installed package; here also where the installed one is older than the tree."""

LONG = os.environ.get("BRAID_TEST_LONG") == "1"

# How long an example takes depends on what else the machine does, so it is no reason to fail.
hypothesis.settings.register_profile("short", deadline=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("long" if LONG else "short")


@pytest.fixture
def rounds() -> Callable[[int, int], int]:
    """`rounds(short, full)`: how often to repeat a proof; `full` under `make test-long`."""
    return lambda short, full: full if LONG else short


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
