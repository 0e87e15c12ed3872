"""What a client says about itself and about the queue it wants.

The queue is asked for in one field: its name, and after a NUL its type and parameters as text (`mem:public,drop,backlog=100`).
Every fault has the text that the published broker answers with.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.base.limits import FQ_NAME_BYTES_MAX, FQ_PASSWORD_BYTES_MAX, FQ_QUEUE_DETAIL_BYTES_MAX
from braidmq.wire.shape import shape

MEM: Final = "mem"
DISK: Final = "disk"
DROP: Final = "drop"
BLOCK: Final = "block"
BACKLOG_DEFAULT: Final = 16_384
BACKLOG_UNLIMITED: Final = -1
_BACKLOG_MAX: Final = 0x7FFFFFFF
_LEADING_NUMBER: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")


@shape
class QueueDetail:
    """A queue as a client asks for it."""

    name: bytes
    """Empty: the broker invents one."""
    kind: str = MEM
    private: bool = True
    policy: str = DROP
    backlog: int = BACKLOG_DEFAULT
    """Messages; `BACKLOG_UNLIMITED` for any number."""
    permanent: bool | None = None
    """None: as it is, and a new one is transient."""

    @property
    def sharing(self) -> str:
        return "private" if self.private else "public"

    @property
    def attributes(self) -> str:
        """What is kept of the parameters for as long as the queue exists."""
        return f"{self.sharing},{self.policy},backlog={self.backlog}"

    @property
    def type_text(self) -> str:
        """The type with every parameter, as a client sends it."""
        permanence = {None: "", True: ",permanent", False: ",transient"}[self.permanent]
        return f"{self.kind}:{self.attributes}{permanence}"


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def parse_queue_type(name: bytes, text: bytes) -> QueueDetail:
    """A queue from its name and the text of its type; later parameters win over earlier ones."""
    kind, _, parameters = text.partition(b":")
    if text and kind not in (b"mem", b"disk"):
        raise BraidError("INVALID_QUEUE_TYPE", kind=_shown(kind))
    private, policy, backlog, permanent = True, DROP, BACKLOG_DEFAULT, None
    for parameter in parameters.split(b","):
        match parameter:
            case b"":
                continue
            case b"private" | b"public":
                private = parameter == b"private"
            case b"drop" | b"block":
                policy = parameter.decode()
            case b"permanent" | b"transient":
                permanent = parameter == b"permanent"
            case _ if parameter.startswith(b"backlog="):
                backlog = _backlog(parameter[8:])
            case _:
                raise BraidError("INVALID_QUEUE_PARAM", param=_shown(parameter))
    if not name:
        private, permanent = True, False
    return QueueDetail(name, kind.decode() or MEM, private, policy, backlog, permanent)


def _backlog(raw: bytes) -> int:
    """The number that C reads there: 0 where there is none."""
    found = _LEADING_NUMBER.match(raw)
    if found is None:
        return 0
    # Nobody needs more digits than this to say "a lot", and Python refuses to read some thousand of them.
    number = int(found[1][:20])
    return BACKLOG_UNLIMITED if number < 0 else min(number, _BACKLOG_MAX)


def parse_queue_detail(raw: bytes) -> QueueDetail:
    """The queue field of an AUTH command."""
    if len(raw) > FQ_QUEUE_DETAIL_BYTES_MAX:
        raise BraidError("FQ_NAME_TOO_LONG", what="queue detail")
    name, _, text = raw.partition(b"\0")
    if len(name) > FQ_NAME_BYTES_MAX:
        raise BraidError("FQ_NAME_TOO_LONG", what="queue name")
    return parse_queue_type(name, text)


def check_same_queue(asked: QueueDetail, existing: QueueDetail, clients: int) -> None:
    """Refuse a client that asks for something else than the queue of that name is. `clients` are those it has now."""
    if existing.private and clients:
        raise BraidError("QUEUE_IN_USE")
    if asked.kind != existing.kind:
        raise BraidError("QUEUE_TYPE_DIFFERS", asked=asked.kind, existing=existing.kind)
    if asked.private != existing.private:
        raise BraidError("QUEUE_SHARING_DIFFERS", asked=asked.sharing, existing=existing.sharing)
    if asked.policy != existing.policy:
        raise BraidError("QUEUE_POLICY_DIFFERS", asked=asked.policy, existing=existing.policy)


def name_queue(detail: QueueDetail, unique: str) -> QueueDetail:
    """The detail with the name that the broker gives to a queue without one; `unique` is a UUID in its usual form."""
    return detail if detail.name else replace(detail, name=b"auto-" + unique.lower().encode())


@shape
class Auth:
    """The first command of a client."""

    user: bytes
    queue: bytes
    """The field as it came; `parse_queue_detail` reads it."""
    password: bytes

    @property
    def detail(self) -> QueueDetail:
        """The queue asked for. Raises what is to be answered when the field is wrong."""
        return parse_queue_detail(self.queue)


def queue_field(name: bytes, type_text: str) -> bytes:
    """The queue field for a name and the text of a type."""
    return name + b"\0" + type_text.encode() if type_text else name


AUTH_FIELDS: Final = (
    ("user name", FQ_NAME_BYTES_MAX),
    ("queue detail", FQ_QUEUE_DETAIL_BYTES_MAX),
    ("password", FQ_PASSWORD_BYTES_MAX),
)
"""The fields behind code and method, in their order, with the most bytes each may have."""
