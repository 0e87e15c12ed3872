"""What a run of a pipeline says to a broker that dies meanwhile: said again, and done once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from relay import Relay
from running_broker import RunningBroker, StartBroker

from braidmq.client.sync import Client, connect
from braidmq.wire.flymq import Op

WAIT_S = 30.0


def test_a_broker_that_dies_after_it_did_what_a_run_asked_does_it_once(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Relay(broker.address) as relay, connect(relay.address, timeout_s=WAIT_S) as client:
        client.pipeline.put("p", "text")
        begun: list[int] = []
        killed_before_its_answer(
            relay, broker, Op.PIPELINE_START, lambda: begun.append(client.pipeline.start("p", "continuous", "here").run)
        )
        assert begun == runs(client) == [1], "not replaced, not refused: it is the run that began"
        assert client.pipeline.report("p", 1) == "run"
        killed_before_its_answer(relay, broker, Op.PIPELINE_END, lambda: client.pipeline.end("p", 1, "stopped", "asked to"))
        (ended,) = client.pipeline.show("p").runs
        assert (ended.outcome, ended.reason) == ("stopped", "asked to")
        assert client.pipeline.start("p", "continuous", "here").run == 2, "another start is another run"


def runs(client: Client) -> list[int]:
    return [run.number for run in client.pipeline.show("p").runs]


def killed_before_its_answer(relay: Relay, broker: RunningBroker, op: Op, ask: Callable[[], None]) -> None:
    relay.lose_answers()
    asking = threading.Thread(target=ask)
    asking.start()
    deadline_s = time.monotonic() + WAIT_S
    while op not in relay.lost:
        assert time.monotonic() < deadline_s, "the broker did not answer"
        time.sleep(0.01)
    broker.kill()
    broker.restart()
    relay.cut()
    asking.join(WAIT_S)
    assert not asking.is_alive()
