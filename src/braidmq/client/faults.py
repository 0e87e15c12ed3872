"""From the text of a server's ERROR frame back to an error of the table.

Our broker begins its texts with the code (`TOPIC_NOT_FOUND: topic not found: orders`), so the client's error has the same
code, hint and `retriable` as the broker's. Other servers send only a sentence; the few that clients have to tell apart are
recognised by their words, everything else is `SERVER_ERROR` with the sentence as it came.
"""

from __future__ import annotations

import re
from typing import Final

from braidmq.base.errors import ERRORS, BraidError

_BY_WORDS: Final = (
    ("unknown opcode", "UNKNOWN_OPCODE"),
    ("not leader", "NOT_LEADER"),
    ("topic not found", "TOPIC_NOT_FOUND"),
    ("offset out of range", "OFFSET_OUT_OF_RANGE"),
    ("unsupported compression", "UNSUPPORTED_COMPRESSION"),
    ("invalid username or password", "INVALID_CREDENTIALS"),
    ("user account is disabled", "USER_DISABLED"),
    ("too many failed logins", "AUTH_THROTTLED"),
    ("authentication required", "AUTHENTICATION_REQUIRED"),
    ("unauthorized", "UNAUTHORIZED"),
    ("queue is private and in use", "QUEUE_IN_USE"),
    ("can't add you to queue", "QUEUE_CLIENT_LIMIT"),
    ("initialization of disk queue failed", "QUEUE_UNAVAILABLE"),
    ("invalid queue type", "INVALID_QUEUE_TYPE"),
    ("invalid queue param", "INVALID_QUEUE_PARAM"),
    ("requested type", "QUEUE_TYPE_DIFFERS"),
    ("requested private, queue", "QUEUE_SHARING_DIFFERS"),
    ("requested public, queue", "QUEUE_SHARING_DIFFERS"),
    ("request block, queue", "QUEUE_POLICY_DIFFERS"),
    ("request drop, queue", "QUEUE_POLICY_DIFFERS"),
    ("client heartbeat failed", "CLIENT_SILENT"),
)

_NOTHING_DONE: Final = frozenset({"NOT_LEADER"})
"""Whoever says so has done nothing of what was asked."""
_PASSING: Final = _NOTHING_DONE | {
    "LEADER_MOVED", "COORDINATOR_MOVED", "NODE_UNREACHABLE", "NOT_ENOUGH_REPLICAS", "QUORUM_UNAVAILABLE",
}  # fmt: skip
"""What a cluster says while it sees to the loss of a node; some of these leave open what became of the request."""
_LEADER_ADDRESS: Final = re.compile(r"leader_addr=(\S+)")


class ServerError(BraidError):
    """The server refused a request. `text` is the server's own sentence."""

    def __init__(self, code: str, text: str) -> None:
        # The table's sentence has fields that only the server knows, so the server's sentence takes its place.
        Exception.__init__(self, text)
        self.spec = ERRORS[code]
        self.fields = {"message": text}

    def __reduce__(self) -> tuple[object, ...]:
        return ServerError, (self.spec.code, self.text)


def server_error(text: str) -> ServerError:
    """The error that an ERROR frame with `text` stands for."""
    code, separator, sentence = text.partition(": ")
    if separator and code in ERRORS:
        return ServerError(code, sentence)
    words = text.lower()
    if words.startswith("eof"):
        return ServerError("EOF", text)
    for phrase, known in _BY_WORDS:
        if phrase in words:
            return ServerError(known, text)
    return ServerError("SERVER_ERROR", text)


def login_error(text: str) -> ServerError:
    """The error of a refused login, whose answer carries a sentence and no code."""
    fault = server_error(text or "invalid username or password")
    return fault if fault.code != "SERVER_ERROR" else ServerError("INVALID_CREDENTIALS", text)


def lost_membership(fault: BraidError) -> bool:
    """Whether the broker says that a member's share of its group is void."""
    return fault.code in ("FENCED_MEMBER", "UNKNOWN_MEMBER")


def lacks_opcode(fault: BraidError) -> bool:
    """Whether the server says that it does not know the operation at all."""
    return fault.code == "UNKNOWN_OPCODE" or "unknown opcode" in fault.text.lower()


def passes(fault: BraidError) -> bool:
    """Whether a cluster says that it is not ready for the moment: worth asking again, where asking twice does no harm."""
    return fault.code in _PASSING


def nothing_done(fault: BraidError) -> bool:
    """Whether the request was refused for the moment, and for certain not carried out."""
    return fault.code in _NOTHING_DONE


def leader_address(fault: BraidError) -> str:
    """Where a node that is not the leader says that the leader is; empty where it does not know, or was not asked for one."""
    found = _LEADER_ADDRESS.search(fault.text) if fault.code == "NOT_LEADER" else None
    return found.group(1) if found else ""
