"""Contexts: brokers that are used often, with how to reach them and as whom, under a name.

They are in one file of the user's own configuration directory, which nobody else may read: `$XDG_CONFIG_HOME/braid/contexts.json`,
or below `~/.config`. A password is best left out of it: a context can name a file, a variable or a command that has it.

What a flag says wins over the context that `--ctx` or `BRAID_CTX` names, that over the other variables, those over the context that
`braid ctx use` chose.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from braidmq.base.errors import BraidError

VARIABLE = "BRAID_CTX"


@dataclass(frozen=True, slots=True)
class Context:
    servers: list[str] = field(default_factory=list)
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    password_command: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    def read_password(self) -> str | None:
        """The password, from wherever it is; None where the context knows of none."""
        from braidmq.cli.passwords import read_password

        if self.password is not None:
            return self.password
        if self.password_file is not None:
            return read_password(self.password_file)
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise BraidError("INVALID_ARGUMENT", reason=f"the context's password is in {self.password_env}, which is not set")
            return value
        return None if self.password_command is None else _output_of(self.password_command)

    def shown(self) -> dict[str, Any]:
        """What may be shown: everything but a password."""
        known = {name: value for name, value in asdict(self).items() if value}
        return known | ({"password": "(stored)"} if self.password is not None else {})


def _output_of(command: str) -> str:
    import subprocess

    done = subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE, check=False, timeout=60)
    if done.returncode != 0:
        raise BraidError("INVALID_ARGUMENT", reason=f"the context's password command ended with status {done.returncode}")
    return done.stdout.decode("utf-8", "replace").split("\n")[0].rstrip("\r")


@dataclass(slots=True)
class ContextFile:
    """All contexts, and the one in use."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls) -> ContextFile:
        import json

        path = contexts_path()
        try:
            with open(path, encoding="utf-8") as stream:
                open_to_others = os.fstat(stream.fileno()).st_mode & 0o077
                document = json.load(stream)
            known = {entry.name for entry in fields(Context)}
            contexts = {
                name: Context(**{key: value for key, value in entry.items() if key in known})
                for name, entry in document["contexts"].items()
            }
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise BraidError("CONFIG_UNREADABLE", path=path, reason=str(fault)) from None
        if open_to_others and any(context.password is not None for context in contexts.values()):
            raise BraidError("CONFIG_UNREADABLE", path=path, reason="it holds a password and others may read it; chmod 600 it")
        return cls(document.get("current"), contexts)

    def save(self) -> None:
        """Whole or not at all, and for nobody else's eyes."""
        import json

        path = contexts_path()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        entries = {name: {key: value for key, value in asdict(entry).items() if value} for name, entry in self.contexts.items()}
        temporary = f"{path}.{os.getpid()}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"current": self.current, "contexts": entries}, stream, indent=2)
            stream.write("\n")
        os.replace(temporary, path)

    def get(self, name: str) -> Context:
        if name not in self.contexts:
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no context {name}; `braid ctx ls` shows those that are")
        return self.contexts[name]


def contexts_path() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "braid", "contexts.json")


def chosen_context(args: argparse.Namespace) -> tuple[Context, bool]:
    """The context that applies, and whether it was asked for: then it wins over variables, else they win over it."""
    named = getattr(args, "ctx", None) or os.environ.get(VARIABLE)
    if named:
        return ContextFile.load().get(named), True
    stored = ContextFile.load()
    if stored.current is not None and stored.current in stored.contexts:
        return stored.contexts[stored.current], False
    return Context(), False
