"""Sending a dead letter back after somebody mended it."""

from __future__ import annotations

from dataclasses import dataclass

from braidmq.admin.api.dead_letters import Counted
from braidmq.admin.api.messages import Encoding, bytes_of
from braidmq.admin.call import Call, Nothing


@dataclass(frozen=True, slots=True)
class MendedLetter:
    """What the record should have been."""

    value: str
    value_encoding: Encoding = "text"


async def retry_letter(call: Call[Nothing, MendedLetter]) -> Counted:
    """Send one dead letter back to its topic with another value. It is sent and gone, or neither."""
    value = bytes_of(call.body.value, call.body.value_encoding, "value")
    await call.broker.dead_letters.replay_id(call.path["topic"], call.path["id"], value)
    call.note("config.change", call.path["topic"], "mend dead letter", letter=call.path["id"])
    return Counted(1)
