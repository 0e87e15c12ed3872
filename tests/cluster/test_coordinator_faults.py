"""The coordinator is killed while it decides: transactions, delayed records, dead letters and replays, schemas and users. Whoever
coordinates next carries out what was decided, once, and nothing that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from decided_load import (
    PARTITIONS,
    Asker,
    Delaying,
    Failing,
    Refused,
    Registering,
    Replaying,
    Transacting,
    all_records,
)
from etcd_bench import needs_etcd
from node_processes import Processes
from steady_load import check_replicas_are_the_same, coordinator, restart

from braidmq.base.errors import BraidError
from braidmq.client.sync import connect
from tests.proof_length import length

KILLS = length(1, 5)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


@needs_etcd
def test_what_was_decided_happens_once_whoever_is_killed(nodes: Processes) -> None:
    askers: list[Asker] = [
        *(Transacting(nodes.addresses, f"halves{number}") for number in range(3)),
        Transacting(nodes.addresses, "named", "payments"),
        Delaying(nodes.addresses, "delayed"), Refused(nodes.addresses, "refused"), Replaying(nodes.addresses, "replayed"),
        Failing(nodes.addresses, "failed"), Registering(nodes.addresses, "registered"),
    ]  # fmt: skip
    with ExitStack() as stopping:
        for asker in askers:
            asker.start()
            stopping.callback(asker.stop)
        for asker in askers:
            asker.wait_for_more(3)
        for _ in range(KILLS):
            name = coordinator(nodes)
            nodes.nodes[name].kill()
            for asker in askers:
                asker.wait_for_more(3)
            restart(nodes, name)
            for asker in askers:
                asker.wait_for_more(3)
    with connect(nodes.addresses) as client:
        for asker in askers:
            asker.check(client)
    print({asker.name: (len(asker.acked), len(asker.unknown), len(asker.refused)) for asker in askers})
    for asker in askers:
        if isinstance(asker, Transacting):
            check_replicas_are_the_same(nodes, asker.name)


@needs_etcd
def test_what_is_open_ends_with_the_coordinator(nodes: Processes) -> None:
    """On whichever node it was begun. Its producer learns of it, and begins another one under the same name."""
    with ExitStack() as clients:
        connected = [clients.enter_context(connect([address, *nodes.addresses])) for address in nodes.addresses]
        connected[0].create_topic("open", PARTITIONS)
        begun = []
        for number, client in enumerate(connected):
            transaction = client.transaction(f"opener-{number}")
            transaction.begin()
            for partition in range(PARTITIONS):
                transaction.produce("open", b"never", partition=partition)
            begun.append(transaction)
        name = coordinator(nodes)
        nodes.nodes[name].kill()
        for transaction in begun:
            with pytest.raises(BraidError) as ended:
                transaction.commit()
            assert ended.value.code in ("TRANSACTION_NOT_FOUND", "CONNECTION_LOST"), ended.value
            assert transaction.state in ("rolled back", "lost")
        for number, client in enumerate(connected):
            with client.transaction(f"opener-{number}") as another:
                for partition in range(PARTITIONS):
                    another.produce("open", b"again", partition=partition)
        assert all_records(connected[0], "open") == {b"again": len(connected) * PARTITIONS}
        restart(nodes, name)
        assert not connected[0].txn.ls()
