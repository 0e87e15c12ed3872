"""What a broker asks of the cluster it belongs to. A broker that runs alone has no peers, and nothing of this costs it anything.

The layer above (`cluster/node.py`) implements it. Here is only what the rules of topics, groups and work need to know: which
partitions this node leads, who coordinates, and how a command or a record gets to where it belongs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as others see it."""

    name: str
    client_address: str
    cluster_address: str
    status: str
    """`alive`, `suspect`, `leaving` or `dead`."""
    coordinates: bool
    about: dict[str, str]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who has a partition."""

    leader: str
    address: str
    """Of the leader, for clients."""
    epoch: int
    state: str
    """`online`, `syncing`, `reassigning` or `offline`."""
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    elr: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    """Where it is on its way to; empty when it stays."""


@dataclass(frozen=True, slots=True)
class PartitionReading:
    """What another node read of a partition."""

    log_start: int
    high_watermark: int
    next_offset: int
    batches: Buffer
    """Whole batches, up to `next_offset`."""


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """What the leader of a partition says of it."""

    log_start: int
    high_watermark: int
    ages_ms: dict[int, int]
    """For those at an offset: how old the oldest record is that they have not read. Without those of whom that is not known."""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A read of what lies on another node: `bring` it, then read again. One that could not be brought is elsewhere still."""

    bring: Callable[[], Awaitable[None]]


class Peers(Protocol):
    node: str
    """The name of this node."""
    watchers: list[Callable[[], None]]
    """Told when nodes may have come or gone."""

    def live(self) -> set[str]:
        """Nodes that are here, as far as this one can tell."""
        ...

    async def ask_for(self, node: str, group: str) -> bool:
        """Have another node let this one serve a group; False when it does not."""
        ...

    def client_address(self, node: str) -> str:
        """Where FlyMQ clients find a node."""
        ...

    async def look_at_journals(self) -> None:
        """See to it that the journals here are applied as far as those of the coordinator are now."""
        ...

    @property
    def coordinates(self) -> bool:
        """Whether this node orders the commands, and has what lives in memory of groups, transactions and what is delayed."""
        ...

    def leads(self, topic_id: int, partition: int) -> bool:
        """Whether this node may append to a partition, and has the newest of it."""
        ...

    def holds(self, topic_id: int, partition: int) -> bool:
        """Whether this node has a replica of a partition with all that readers may see, or nearly."""
        ...

    def serves_readers(self, topic_id: int, partition: int) -> bool:
        """Whether clients that ask for it may read a partition here although another node leads it."""
        ...

    def readers(self) -> list[NodeInfo]:
        """Nodes that let clients read from their replicas."""
        ...

    async def read(
        self, topic: Topic, partition: int, offset: int, bytes_max: int, wait_s: float, *, raw: bool
    ) -> PartitionReading:
        """Have the leader of a partition read from `offset` on, waiting for something to come there. With 0 `bytes_max` it says
        only where the partition ends. Expired records are left out, unless `raw` is asked for."""
        ...

    async def come(
        self, node: str, rows: Sequence[tuple[int, int, int, int]], wait_s: float
    ) -> list[PartitionReading | None]:
        """Wait until another node has something for any row: topic, partition, offset, and how many bytes of it may come along.
        What it has for each; None where there is nothing, or no telling."""
        ...

    def leader_of(self, topic_id: int, partition: int) -> str:
        """The node that leads a partition; NOT_LEADER where there is none."""
        ...

    def not_leader(self, topic_id: int, partition: int) -> BraidError:
        """Says who leads a partition."""
        ...

    async def submit(self, journal: str, command: list[Any]) -> Any:
        """Have the coordinator append a command; what the machine here answers to it."""
        ...

    async def placed(self, topic: Topic) -> None:
        """Wait until every partition of a new topic has its leader."""
        ...

    async def work_done(self, topic: Topic, partition: int, number: int) -> int:
        """How many records of a piece of work the leader of a partition has."""
        ...

    async def write_work(self, topic: Topic, partition: int, batches: Sequence[bytes]) -> None:
        """Have the leader of a partition append batches of a piece of work, each once; they are durable when this returns."""
        ...

    async def let_go(self, topic: Topic, partition: int, end: int) -> None:
        """Have the leader of a partition give back the space of what lies before `end`, as far as those are whole segments."""
        ...

    async def produce(
        self, topic: Topic, partition: int, batch: Buffer, hidden: Collection[int] = ()
    ) -> tuple[int, int, int, bool]:
        """Have the leader of a partition append a batch; its first offset, records, time, and whether it was stored before,
        once it is as durable as its topic promises. Records whose numbers are `hidden` are for nobody."""
        ...

    async def places(self, topic: Topic) -> list[tuple[int, int]]:
        """Where each partition of a topic begins and ends, as its leader says."""
        ...

    async def leader_places(self, topics: Sequence[Topic]) -> list[list[tuple[int, int, int]]]:
        """Where each partition of topics begins and ends and how many bytes it has, as its leader says; raises where none does."""
        ...

    async def look(
        self, wanted: Mapping[tuple[int, int], Collection[int]], wait_s: float
    ) -> dict[tuple[int, int], PartitionLook | BraidError]:
        """What the leader of each partition (topic id, number) says of it, for those at these offsets; for one whose leader says
        nothing, or not within `wait_s`, why."""
        ...

    async def offsets_since(self, topic: Topic, partitions: Collection[int], timestamp_ms: int) -> list[int]:
        """The first offset written at or after a time in each of these partitions, as its leader finds it; the end where there is
        none. Raises where a leader does not answer."""
        ...

    async def step_down(self) -> None:
        """Let others lead what this node leads, as far as there are any."""
        ...

    async def steer(self, verb: str, words: list[str]) -> dict[str, Any]:
        """Have leaders or partitions moved, as CLUSTER_STEER says it; what became of it."""
        ...

    # --- for those who look

    async def lists_of_others(
        self, name: str, after: Sequence[str], limit: int
    ) -> tuple[dict[str, list[Any]], dict[str, str]]:
        """Rows of `Broker.lists` that other nodes have, by node; and for nodes that did not answer, why."""
        ...

    async def document(self) -> dict[str, Any]:
        """The whole cluster, as JSON can hold it."""
        ...

    @property
    def trouble(self) -> str:
        """Why the cluster can change nothing at the moment; empty when it can."""
        ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def epoch(self) -> int:
        """How often the cluster got a coordinator."""
        ...

    @property
    def applied_commands(self) -> int:
        """How many metadata commands this node has applied."""
        ...

    def nodes(self) -> list[NodeInfo]: ...

    def partition_info(self, topic_id: int, partition: int) -> PartitionInfo: ...
