"""Where commands take passwords from: a file, the environment or the terminal, never the command line.

Whatever stands on a command line can be read by every user of the machine and stays in the shell's history.
"""

from __future__ import annotations

import os
import sys

from braidmq.base.errors import BraidError


def read_password(path: str) -> str:
    """The first line of a file; `-` is standard input. A file that others may read is worth a warning."""
    from braidmq.cli.output import warn

    if path == "-":
        line = sys.stdin.buffer.readline()
    else:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_mode & 0o077:
                warn(f"others may read {path}; chmod 600 keeps the password to yourself")
            line = stream.readline()
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        raise BraidError("INVALID_ARGUMENT", reason=f"the password in {path} is not UTF-8") from None


def ask_password(prompt: str) -> str | None:
    """What the person at the terminal types, unseen; None without a person."""
    from braidmq.cli.terminal import is_terminal

    if not is_terminal(sys.stdin):
        return None
    import getpass

    return getpass.getpass(prompt)


def new_password(path: str | None, user: str) -> str:
    """A password to set: from a file, or typed twice."""
    if path is not None:
        return read_password(path)
    typed = ask_password(f"new password of {user}: ")
    if typed is None:
        raise BraidError("INVALID_ARGUMENT", reason="--new-password-file names the password where there is no terminal to ask at")
    if ask_password("again: ") != typed:
        raise BraidError("INVALID_ARGUMENT", reason="the two passwords differ")
    return typed
