"""`braid debug bundle`: what somebody who helps needs to see, in one file, without anything that they must not see.

It holds names and figures: versions, settings with secrets hidden, the broker's own documents, the end of a log file, what `braid
doctor` finds. It never holds records, and of the environment only the names of variables. Everything is looked through once more,
and what looks like a secret is taken out.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group

if TYPE_CHECKING:
    from braidmq.client.sync import Client

HIDDEN: Final = "(hidden)"
LOG_BYTES: Final = 1 << 20
_DOCUMENTS: Final = ("status", "connections", "recovery", "configuration")
_SECRETS: Final = (
    re.compile(r"(?i)((?:password|passwd|secret|token|api[_-]?key|authorization|encryption[_-]?keys?)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;}]+"),
    re.compile(r"(?i)(://[^/\s:@]*:)[^@\s/]+(?=@)"),
    re.compile(r"()\b[0-9a-fA-F]{64}\b"),
)
"""A name with its value, a password in an address, and 64 hexadecimal digits: a key."""


def register(commands: Subparsers) -> None:
    group = add_group(commands, "debug", "Gather what somebody who helps needs to see.")
    about = "Write one file with versions, settings, figures and log lines; no records, no secrets."
    bundle = group.add_parser("bundle", help=about, description=about)
    bundle.add_argument("path", metavar="FILE", nargs="?", help="file to write [braid-debug-TIME.tar.gz]")
    bundle.add_argument("--log-file", metavar="FILE", action="append", default=[], help="take the end of this log file, too")
    bundle.add_argument("--config", metavar="FILE", help="configuration file of the broker, for `braid doctor`'s checks")
    add_server_options(bundle)
    bundle.set_defaults(run=run_bundle)


def run_bundle(args: argparse.Namespace) -> int:
    import io
    import tarfile

    from braidmq.cli.output import note

    path = args.path or time.strftime("braid-debug-%Y%m%d-%H%M%S.tar.gz", time.gmtime())
    if os.path.exists(path):
        raise BraidError("INVALID_ARGUMENT", reason=f"{path} exists; name another file")
    parts = [*_of_this_machine(args), *_of_the_broker(args), *_of_logs(args.log_file)]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in parts:
            data = masked(text).encode("utf-8", "replace")
            info = tarfile.TarInfo(f"braid-debug/{name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(data))
    print(path)
    note(f"{len(parts)} parts: {', '.join(name for name, _ in parts)}. Look at it before you send it.")
    return Exit.OK


def masked(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: found[1] + HIDDEN, text)
    return text


def _of_this_machine(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    import platform
    from dataclasses import asdict
    from importlib import metadata

    from braidmq import __version__, hot
    from braidmq.cli.doctor import all_checks

    packages = {}
    for name in ("numpy", "crc32c", "cryptography", "google-re2", "uvloop", "starlette", "uvicorn", "jinja2", "pyspark", "pyarrow"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    yield "versions.json", _json({
        "braidmq": __version__, "hot_path": hot.IMPLEMENTATION, "python": sys.version, "platform": platform.platform(),
        "packages": packages,
        "variables": sorted(name for name in os.environ if name.startswith(("BRAID_", "FLYMQ_", "SPARK_", "JAVA_"))),
    })  # fmt: skip
    yield "doctor.json", _json([asdict(check) for check in all_checks({}, args.config)])


def _of_the_broker(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The broker's documents; where it does not answer, what it says instead."""
    try:
        with open_client(args) as client:
            yield from _documents(client)
    except BraidError as fault:
        yield "broker-unreachable.txt", f"{fault}\n{fault.hint}\n"


def _documents(client: Client) -> Iterable[tuple[str, str]]:
    for name in _DOCUMENTS:
        try:
            yield f"{name}.json", _json(client.upkeep.document(name))
        except BraidError as fault:
            yield f"{name}.txt", f"{fault}\n"


def _of_logs(paths: list[str]) -> Iterator[tuple[str, str]]:
    for number, path in enumerate(paths, 1):
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_BYTES))
            yield f"log-{number}.txt", stream.read().decode("utf-8", "replace")


def _json(document: Any) -> str:
    import json

    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
