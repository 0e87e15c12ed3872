"""Clients of what the coordinator of a cluster decides, which go on whatever happens to it, and what has to be true in the end:
what was acknowledged is there once, what was refused is nowhere, and of what nobody knows there is all or nothing."""

from __future__ import annotations

import itertools
import threading
import time
from abc import abstractmethod
from collections import Counter

from node_processes import PATIENCE_S, until

from braidmq.base.errors import BraidError
from braidmq.client import TopicPartition
from braidmq.client.sync import Client, ConsumedRecord, connect

PARTITIONS = 3
ANSWER_S = 20.0
PAUSE_S = 0.1
HOUR_MS = 3_600_000


class Asker:
    """One client in a thread, which asks for one thing after the other."""

    def __init__(self, addresses: list[str], name: str) -> None:
        self._addresses = addresses
        self.name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._fault: BaseException | None = None
        self._numbers = itertools.count()
        self.acked: list[bytes] = []
        self.unknown: list[bytes] = []
        self.refused: list[bytes] = []
        self.last: BraidError | None = None
        """Why something is unknown."""

    @abstractmethod
    def prepare(self, client: Client) -> None:
        """Make what is needed."""

    @abstractmethod
    def ask(self, client: Client, value: bytes) -> bool:
        """Ask for one thing; raises where it is not known whether it happened, False says that it did not."""

    @abstractmethod
    def check(self, client: Client) -> None:
        """Whether everything is as it was acknowledged."""

    def start(self) -> None:
        with connect(self._addresses, timeout_s=ANSWER_S) as client:
            self.prepare(client)
        self._thread.start()

    def _run(self) -> None:
        try:
            with connect(self._addresses, timeout_s=ANSWER_S) as client:
                while not self._stop.is_set():
                    value = b"%s-%d" % (self.name.encode(), next(self._numbers))
                    try:
                        (self.acked if self.ask(client, value) else self.refused).append(value)
                    except BraidError as error:
                        self.last = error
                        self.unknown.append(value)
                        # As a client does that is refused at once.
                        self._stop.wait(PAUSE_S)
        except BaseException as fault:
            self._fault = fault

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.acked) + count
        try:
            until(lambda: len(self.acked) >= wanted or self._fault is not None)
        except AssertionError:
            count = f"{len(self.acked)} of {wanted}, {len(self.unknown)} unknown"
            raise AssertionError(f"{self.name} got {count}: {self.last}") from None
        self.end_well()

    def end_well(self) -> None:
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self.end_well()

    def compare(self, found: Counter[bytes]) -> None:
        twice = {value: times for value, times in found.items() if times > 1}
        assert not twice, f"{self.name}: {twice}"
        lost = set(self.acked) - set(found)
        assert not lost, f"{self.name}: {len(lost)} of {len(self.acked)} are lost: {sorted(lost)[:5]}"
        made_up = set(found) - set(self.acked) - set(self.unknown)
        assert not made_up, f"{self.name}: {sorted(made_up)[:5]}"


def records(client: Client, topic: str, partition: int) -> Counter[bytes]:
    """All that a partition has now."""
    found: Counter[bytes] = Counter()
    end = client.metadata(topic).partitions[partition].newest
    offset = 0
    while offset < end:
        fetched = client.fetch(topic, partition, offset)
        found.update(record.value for record in fetched.records)
        offset = fetched.next_offset
    return found


def all_records(client: Client, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for part in client.metadata(topic).partitions:
        found += records(client, topic, part.partition)
    return found


class Transacting(Asker):
    """Each transaction has a record for every partition, and a position of a group."""

    def __init__(self, addresses: list[str], name: str, transactional_id: str | None = None) -> None:
        super().__init__(addresses, name)
        self._transactional_id = transactional_id

    def prepare(self, client: Client) -> None:
        client.create_topic(self.name, PARTITIONS)

    def ask(self, client: Client, value: bytes) -> bool:
        transaction = client.transaction(self._transactional_id)
        try:
            transaction.begin()
            for partition in range(PARTITIONS):
                transaction.produce(self.name, value, partition=partition)
            transaction.commit_offsets("followers", {TopicPartition(self.name, 0): int(value.rpartition(b"-")[2])})
            transaction.commit()
        except BraidError:
            if transaction.state == "lost":
                raise
            return False
        finally:
            transaction.close()
        return True

    def check(self, client: Client) -> None:
        parts = [records(client, self.name, partition) for partition in range(PARTITIONS)]
        for part in parts:
            self.compare(part)
            assert part == parts[0], f"{self.name}: transactions are half there: {set(part) ^ set(parts[0])}"
        last = max(int(value.rpartition(b"-")[2]) for value in parts[0])
        assert client.committed(self.name, "followers", 0) == last


class Delaying(Asker):
    """Records that come soon, and others that wait for longer than the test lasts, some of which are cancelled."""

    def __init__(self, addresses: list[str], name: str) -> None:
        super().__init__(addresses, name)
        self._waiting: set[str] = set()
        self._cancelled: set[str] = set()
        self._unsure: set[str] = set()

    def prepare(self, client: Client) -> None:
        client.create_topic(self.name, PARTITIONS)
        client.create_topic(self.name + "-late", PARTITIONS)

    def ask(self, client: Client, value: bytes) -> bool:
        number = int(value.rpartition(b"-")[2])
        if number % 4 == 0:
            late = client.produce(self.name + "-late", value, delay_ms=HOUR_MS).delayed_id
            if number % 8:
                self._waiting.add(late)
            else:
                self._unsure.add(late)
                client.delayed.cancel(late)
                self._unsure.discard(late)
                self._cancelled.add(late)
        client.produce(self.name, value, delay_ms=100 + number % 10 * 200)
        return True

    def check(self, client: Client) -> None:
        until(lambda: not client.delayed.ls(self.name))
        # What was taken out to be delivered is in the journal before it is in its partition.
        until(lambda: set(self.acked) <= set(all_records(client, self.name)))
        self.compare(all_records(client, self.name))
        listed = {message.id for message in client.delayed.ls(self.name + "-late", 100_000)}
        assert self._waiting <= listed and not self._cancelled & listed
        assert not all_records(client, self.name + "-late")
        assert not client.dlq.ls(self.name)


class Refused(Asker):
    """Records that do not fit their schema, each of which becomes a dead letter."""

    def prepare(self, client: Client) -> None:
        client.create_topic(self.name, PARTITIONS)
        client.schema.put(self.name, b'{"type": "object"}')
        client.schema.bind(self.name, self.name, "dead-letter")

    def ask(self, client: Client, value: bytes) -> bool:
        client.produce(self.name, value, key=value)
        return True

    def check(self, client: Client) -> None:
        self.compare(Counter(letter.data for letter in client.dlq.ls(self.name, 100_000)))
        assert not all_records(client, self.name)


class Replaying(Asker):
    """Dead letters that go back to their topic, one by one; when the coordinator is lost, nobody knows of one whether it went."""

    LETTERS = 2000

    def prepare(self, client: Client) -> None:
        client.create_topic(self.name, PARTITIONS)
        client.create_topic(self.name + ".dlq", 1)
        with client.producer() as producer:
            for number in range(self.LETTERS):
                producer.send(self.name + ".dlq", b"letter %d" % number)
        self._letters = iter(client.dlq.ls(self.name, self.LETTERS))

    def ask(self, client: Client, value: bytes) -> bool:
        letter = next(self._letters, None)
        if letter is None:
            time.sleep(0.05)
            return False
        client.dlq.retry(self.name, letter.id)
        return True

    def check(self, client: Client) -> None:
        sent = all_records(client, self.name)
        left = Counter(letter.data for letter in client.dlq.ls(self.name, self.LETTERS))
        assert len(self.acked) <= len(sent) <= len(self.acked) + len(self.unknown)
        everything = Counter(b"letter %d" % number for number in range(self.LETTERS))
        assert sent + left == everything, f"{self.name}: {(sent + left) - everything}, {everything - (sent + left)}"


class Failing(Asker):
    """A consumer that can process nothing: every record fails until it is a dead letter."""

    RECORDS = 1000

    def prepare(self, client: Client) -> None:
        client.create_topic(self.name, 1)
        with client.producer() as producer:
            for number in range(self.RECORDS):
                producer.send(self.name, b"%s-%d" % (self.name.encode(), number))
        self._consumer_of = connect(self._addresses, timeout_s=ANSWER_S)
        self._consumer = self._consumer_of.consumer(self.name, group="unable", start="earliest")
        self._consumer.start()
        self._found: list[ConsumedRecord] = []

    def ask(self, client: Client, value: bytes) -> bool:
        if not self._found:
            self._found = self._consumer.poll(self.RECORDS, timeout_s=0.2)[::-1]
            return False
        record = self._found.pop()
        while True:
            try:
                if self._consumer.fail(record).dead_lettered:
                    self.letters.append(record.value)
                    return True
            except BraidError as error:
                # It is reported again, and counted once.
                self.last = error

    def __init__(self, addresses: list[str], name: str) -> None:
        super().__init__(addresses, name)
        self.letters: list[bytes] = []

    def check(self, client: Client) -> None:
        self._consumer_of.close()
        found = client.dlq.ls(self.name, self.RECORDS)
        assert Counter(letter.data for letter in found) == Counter(self.letters)
        assert {letter.retries for letter in found} == {3}


class Registering(Asker):
    """Schemas and users, each by a name of its own; every node knows them."""

    def prepare(self, client: Client) -> None:
        """They need nothing."""

    def ask(self, client: Client, value: bytes) -> bool:
        name = value.decode()
        client.schema.put(name, b'{"type": "object", "title": "%s"}' % value)
        client.user.add(name, f"the secret of {name}", ["guest"])
        return True

    def check(self, client: Client) -> None:
        for address in self._addresses:
            with connect(address) as one:
                until(lambda one=one: set(self.acked) <= self._known(one)[0].keys() & self._known(one)[1].keys())  # type: ignore[misc]
                for found in self._known(one):
                    self.compare(found)

    def _known(self, client: Client) -> tuple[Counter[bytes], Counter[bytes]]:
        """Users and schemas."""
        users = (info.user for info in client.user.ls())
        schemas = (entry.id.removesuffix("-v1") for entry in client.schema.ls())
        first, second = (Counter(name.encode() for name in names if name.startswith(self.name)) for names in (users, schemas))
        return first, second
