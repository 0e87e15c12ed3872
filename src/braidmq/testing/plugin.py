"""The pytest plugin: `braid`, a broker for one test, and `braid_session`, one for the whole run.

pytest loads this for every run where BraidMQ is installed, so it imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from braidmq.testing.thread_broker import ThreadBroker


@pytest.fixture
def braid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadBroker]:
    """A BraidMQ broker in this process, on free ports and with a directory of its own, until the test ends.

    Parametrised indirectly it takes settings: `@pytest.mark.parametrize("braid", [{"auto_create_topics": False}], indirect=True)`.
    """
    from braidmq.testing import broker

    with broker(tmp_path_factory.mktemp("braid") / "data", **getattr(request, "param", {})) as running:
        yield running


@pytest.fixture(scope="session")
def braid_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadBroker]:
    """A BraidMQ broker that all tests share; topics and groups need names of their own."""
    from braidmq.testing import broker

    with broker(tmp_path_factory.mktemp("braid-session") / "data") as running:
        yield running
