"""A real broker inside a test: the engine that `braid serve` runs, in a thread, on free ports, with a clock the test can move.

    def test_orders(braid):                        # the fixture of the pytest plugin
        braid.produce("orders", [b"one", b"two"])
        assert braid.values("orders") == [b"one", b"two"]

    with braidmq.testing.broker() as braid:        # the same without pytest
        ...

Nothing is imported before a broker is asked for, so the plugin costs a test run that does not use it nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.testing.thread_broker import ThreadBroker


def broker(data_dir: str | Path | None = None, **settings: object) -> ThreadBroker:
    """A broker to be used in a `with` block.

    `settings` are those of `braid serve`, by the names that a configuration file has; `durability` is `os` unless said otherwise.
    Without `data_dir` its data lie in a temporary directory, which goes with it.
    """
    from braidmq.testing.thread_broker import ThreadBroker

    return ThreadBroker(data_dir, **settings)
