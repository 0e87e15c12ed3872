"""The exit statuses of `braid`, and which error leads to which.

Scripts branch on these, so they are a promise: the reference page is generated from this table, and no command returns
a number that is not in it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from braidmq.base.errors import BraidError


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    DAMAGED = 5
    DENIED = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final[dict[Exit, str]] = {
    Exit.OK: "Everything asked for was done.",
    Exit.FAILED: "The operation failed, or only part of it was done; the message says which part.",
    Exit.USAGE: "The command line or the configuration is wrong; nothing was done.",
    Exit.UNREACHABLE: "No broker answered: unreachable, connection lost, or timed out.",
    Exit.NOT_FOUND: "The topic, partition, offset, path or other thing that was named does not exist.",
    Exit.DAMAGED: "`braid log verify`, `verify`, `backup` or `restore` found damage.",
    Exit.DENIED: "The broker wants a login, refused it, or does not let this user do it.",
    Exit.INTERRUPTED: "Interrupted with Ctrl-C.",
    Exit.PIPE_CLOSED: "The reader of the output closed the pipe, as `head` does.",
}

_BY_CODE: Final[dict[str, Exit]] = {
    "CONFIG_UNKNOWN_KEY": Exit.USAGE,
    "CONFIG_INVALID_VALUE": Exit.USAGE,
    "CONFIG_UNREADABLE": Exit.USAGE,
    "INVALID_ARGUMENT": Exit.USAGE,
    "UNREACHABLE": Exit.UNREACHABLE,
    "CONNECTION_LOST": Exit.UNREACHABLE,
    "TIMED_OUT": Exit.UNREACHABLE,
    "TOPIC_NOT_FOUND": Exit.NOT_FOUND,
    "PARTITION_NOT_FOUND": Exit.NOT_FOUND,
    "PARTITION_OUT_OF_RANGE": Exit.NOT_FOUND,
    "OFFSET_OUT_OF_RANGE": Exit.NOT_FOUND,
    "EOF": Exit.NOT_FOUND,
    "GROUP_NOT_FOUND": Exit.NOT_FOUND,
    "SCHEMA_NOT_FOUND": Exit.NOT_FOUND,
    "MESSAGE_NOT_FOUND": Exit.NOT_FOUND,
    "MESSAGE_EXPIRED": Exit.NOT_FOUND,
    "TRANSACTION_NOT_FOUND": Exit.NOT_FOUND,
    "PIPELINE_NOT_FOUND": Exit.NOT_FOUND,
    "PIPELINE_INVALID": Exit.USAGE,
    "USER_NOT_FOUND": Exit.NOT_FOUND,
    "ROLE_NOT_FOUND": Exit.NOT_FOUND,
    "AUTHENTICATION_REQUIRED": Exit.DENIED,
    "UNAUTHORIZED": Exit.DENIED,
    "USER_DISABLED": Exit.DENIED,
    "INVALID_CREDENTIALS": Exit.DENIED,
    "INVALID_PASSWORD": Exit.DENIED,
    "AUTH_THROTTLED": Exit.DENIED,
    "AUDIT_ADMIN_REQUIRED": Exit.DENIED,
    "BACKUP_INVALID": Exit.DAMAGED,
    "BACKUP_NOT_FOUND": Exit.NOT_FOUND,
}


def exit_for(fault: BraidError | OSError) -> Exit:
    """The status that a fault leads to."""
    if isinstance(fault, BraidError):
        return _BY_CODE.get(fault.code, Exit.FAILED)
    if isinstance(fault, FileNotFoundError):
        return Exit.NOT_FOUND
    return Exit.UNREACHABLE if isinstance(fault, ConnectionError | TimeoutError) else Exit.FAILED
