"""The metadata quorum, as an interface: a few keys whose changes have one order that a majority agreed to.

Consensus is borrowed: `quorum_etcd.py` asks etcd, `quorum_local.py` is a command log of one machine, and the simulator has one that
gives unknown outcomes, stale reads and gaps in watches. One conformance suite runs on all of them.

What may be relied on, and nothing more:

* Every change has a revision, one number for the whole store, and changes are seen in its order.
* A `txn` does all of its changes or none, and only when every guard holds. `Unknown` is not a failure: it may have happened, or may
  happen yet. Who has to know reads again, and finds its guard or its value.
* A read is as new as the last change that was acknowledged to anybody; with `linearizable=False` it may be older.
* A watch gives every change after a revision, in order, or says `Compacted` where it cannot; then read, and watch from there.
* A session ends when its node is silent for longer than its time to live, and its keys go with it. This happens late, never
  at once, and the node may learn of it later than others. So a session is no lock: every write that counts has a guard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

SESSIONS: Final = "sessions/"
"""One key a broker that is here, with its generation and what it says of itself; goes with its session."""
GENERATIONS: Final = "generations/"
"""One key a broker that ever was here: its last generation, a decimal number."""
ROLES: Final = "roles/"
"""One key a role that somebody holds; goes with the holder's session."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a key, and the revision of its last change."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Guard:
    """Holds while the last change of `key` is that of `revision`; 0 says that the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0
    """The key goes when this lease ends; 0 keeps it."""


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Op = Put | Delete


@dataclass(frozen=True, slots=True)
class Ok:
    """All of it happened, at this revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing happened: a guard did not hold. What the guarded keys are now, None where absent."""

    entries: Mapping[str, Entry | None]


@dataclass(frozen=True, slots=True)
class Unknown:
    """It happened, or did not, or will."""

    reason: str


TxnResult = Ok | Conflict | Unknown


@dataclass(frozen=True, slots=True)
class Reading:
    """All keys below a prefix, at one revision of the store."""

    revision: int
    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Changed:
    """A key has another value since `revision`; `entry` is None where it is gone."""

    key: str
    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """Changes before `revision` are forgotten, and some of them were asked for. The watch ends with this."""

    revision: int


Event = Changed | Compacted


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What the key of a session holds."""

    generation: int
    about: bytes

    def encode(self) -> bytes:
        return b"%d\n%b" % (self.generation, self.about)

    @staticmethod
    def decode(value: bytes) -> SessionRecord:
        generation, _, about = value.partition(b"\n")
        return SessionRecord(int(generation), about)


class Session(Protocol):
    """That a broker is here. It is kept alive in the background until it is closed or lost."""

    broker: str
    generation: int
    """Grows with every session that a broker of this name ever had."""
    lease: int
    """For keys that go with the session."""

    @property
    def alive(self) -> bool:
        """Whether it was confirmed within its time to live, by this machine's clock."""
        ...

    @property
    def guard(self) -> Guard:
        """Holds while this is the session of the broker, and says what it says now."""
        ...

    async def lost(self) -> str:
        """Wait until the session is over; says why: it expired, or another process took the broker's name over."""
        ...

    async def tell(self, about: bytes) -> None:
        """Change what the broker says of itself."""
        ...

    async def close(self) -> None:
        """End it now; its keys go at once. Quietly does nothing when it is over already."""
        ...


class Term(Protocol):
    """That a broker holds a role, until its session is over or it resigns."""

    role: str
    number: int
    """Grows with every term of the role."""

    @property
    def guard(self) -> Guard:
        """Belongs into every write that only the holder of the role may do."""
        ...

    async def resign(self) -> None: ...


class MetaQuorum(Protocol):
    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        """Do all of `ops` if every guard holds. Never raises because of a time-out or a broken connection: that is `Unknown`."""
        ...

    async def read(self, prefix: str, *, linearizable: bool = True) -> Reading:
        """All keys that begin with `prefix`. Raises QUORUM_UNAVAILABLE when nobody answers."""
        ...

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Event]:
        """Every change below `prefix` with a revision over `after_revision`, as it comes; reconnects by itself."""
        ...

    async def session(self, broker: str, ttl_s: float, about: bytes = b"") -> Session:
        """Announce `broker`, in place of any session that it has already. Raises QUORUM_UNAVAILABLE."""
        ...

    async def campaign(self, role: str, session: Session) -> Term:
        """Wait until nobody else holds `role`, and take it. Raises QUORUM_UNAVAILABLE when the session is over before that."""
        ...

    async def close(self) -> None: ...
