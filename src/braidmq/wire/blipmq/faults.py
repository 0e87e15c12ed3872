"""What can be wrong with what a BlipMQ peer sent, and what follows for the connection.

Both kinds are rows of the error table, so both are answered the same way, with `error_envelope(fault, fault.sequence, now,
fault.subject)`. After a `Malformed` one nothing that follows can be trusted: the answer is flushed and the connection closed.
After a `Refused` one the connection goes on. So does it after any other `BraidError`.
"""

from __future__ import annotations

from braidmq.base.errors import BraidError


class WireFault(BraidError):
    """A fault of one frame."""

    closes = False
    """Whether the connection ends."""

    def __init__(self, code: str, sequence: int = 0, subject: str | None = None, **fields: object) -> None:
        super().__init__(code, **fields)
        self.sequence = sequence
        """The frame's sequence number, as far as it could be read."""
        self.subject = subject
        """message_id or topic of the refused request, where there is one."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.sequence, self.subject, self.fields)


class Malformed(WireFault):
    """The bytes make no sense."""

    closes = True


class Refused(WireFault):
    """The bytes make sense, and cannot be done."""


def _rebuild(kind: type[WireFault], code: str, sequence: int, subject: str | None, fields: dict[str, object]) -> WireFault:
    return kind(code, sequence, subject, **fields)
