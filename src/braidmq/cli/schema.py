"""`braid schema`: definitions that messages have to fit, their versions, and the topics that are bound to them."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

TYPES: Final = ("json", "avro", "protobuf")
COMPATIBILITIES: Final = (
    "none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive",
)  # fmt: skip
_ENDINGS: Final = {".avsc": "avro", ".proto": "protobuf", ".desc": "protobuf", ".pb": "protobuf"}


def register(commands: Subparsers) -> None:
    group = add_group(commands, "schema", "Schemas: register, show, compare and bind them.")

    ls = add_verb(group, "ls", "List schemas with their versions.", run_ls)
    ls.add_argument("name", metavar="SCHEMA", nargs="?", default="", help="only this one [all]")
    add_output_option(ls)
    add_server_options(ls)

    put = add_verb(group, "put", "Register a schema, or a version of it.", run_put, "The same definition again changes nothing.")
    put.add_argument("name", metavar="SCHEMA", help="name of the schema")
    put.add_argument("file", metavar="FILE", help="the definition; - is standard input")
    put.add_argument("--type", choices=TYPES, help="kind of definition [by the ending: .avsc avro, .proto protobuf, else json]")
    put.add_argument("--compatibility", choices=COMPATIBILITIES, help="what new versions keep to [as it is; backward at first]")
    add_output_option(put)
    add_server_options(put)

    get = add_verb(group, "get", "Print a definition.", run_get)
    get.add_argument("name", metavar="SCHEMA", help="name of the schema")
    get.add_argument("--version", type=int, default=0, metavar="N", help="version [the latest]")
    add_output_option(get)
    add_server_options(get)

    check = add_verb(group, "check", "Check whether a message fits a schema.", run_check, "Status 1 says that it does not.")
    check.add_argument("name", metavar="SCHEMA", help="name of the schema")
    check.add_argument("file", metavar="FILE", help="the message; - is standard input")
    add_output_option(check)
    add_server_options(check)

    diff = add_verb(group, "diff", "Show what differs between two versions.", run_diff)
    diff.add_argument("name", metavar="SCHEMA", help="name of the schema")
    diff.add_argument("old", metavar="OLD", type=int, help="a version")
    diff.add_argument("new", metavar="NEW", type=int, nargs="?", default=0, help="another version [the latest]")
    add_output_option(diff)
    add_server_options(diff)

    rm = add_verb(group, "rm", "Remove a schema, or one version of it.", run_rm, "Asks first when run on a terminal.")
    rm.add_argument("name", metavar="SCHEMA", help="name of the schema")
    rm.add_argument("--version", type=int, default=0, metavar="N", help="version to remove [all]")
    add_removal_options(rm)
    add_server_options(rm)

    bind = add_verb(group, "bind", "Have every record of a topic checked against a schema.", run_bind)
    bind.add_argument("topic", metavar="TOPIC", help="the topic")
    bind.add_argument("name", metavar="SCHEMA", nargs="?", help="name of the schema; without it, shows what the topic is bound to")
    bind.add_argument(
        "--rule", choices=("reject", "dead-letter"), default="reject", help="what becomes of a record that does not fit [reject]"
    )
    bind.add_argument("--none", action="store_true", help="check nothing any more")
    add_output_option(bind)
    add_server_options(bind)


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as stream:
        return stream.read()


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    with open_client(args) as client:
        found = client.schema.ls(args.name)
    rows = [(entry.id.removesuffix(f"-v{entry.version}"), entry.version, entry.type) for entry in found]
    if args.output == "json":
        print_json([dict(zip(("schema", "version", "type"), row, strict=True)) for row in rows])
    else:
        print_table(("SCHEMA", "VERSION", "TYPE"), rows)
    return Exit.OK


def run_put(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, printable

    kind = args.type or next((kind for ending, kind in _ENDINGS.items() if args.file.endswith(ending)), "json")
    definition = _read(args.file)
    with open_client(args) as client:
        done = client.schema.put(args.name, definition, kind, compatibility=args.compatibility or "")
    if args.output == "json":
        print_json({"schema": done.name, "version": done.version, "type": done.type})
    else:
        note(f"{printable(done.name)} version {done.version}")
    return Exit.OK


def run_get(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json
    from braidmq.cli.record_format import put_bytes

    with open_client(args) as client:
        found = client.schema.get(args.name, args.version)
    if args.output == "json":
        document: dict[str, object] = {
            "schema": found.name, "version": found.version, "type": found.type, "compatibility": found.compatibility,
        }  # fmt: skip
        put_bytes(document, "definition", found.definition)
        print_json(document)
        return Exit.OK
    end = b"" if found.definition.endswith(b"\n") else b"\n"
    sys.stdout.buffer.write(found.definition + end)
    return Exit.OK


def run_check(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, printable

    message = _read(args.file)
    with open_client(args) as client:
        client.schema.get(args.name)
        found = client.schema.check(args.name, message)
    if args.output == "json":
        print_json({"valid": found.valid, "errors": found.errors})
    else:
        for error in found.errors:
            print(printable(error))
        note("the message fits" if found.valid else "the message does not fit")
    return Exit.OK if found.valid else Exit.FAILED


def run_diff(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, printable

    with open_client(args) as client:
        lines = client.schema.diff(args.name, args.old, args.new).splitlines()
    if args.output == "json":
        print_json({"schema": args.name, "old": args.old, "new": args.new, "differ": bool(lines), "lines": lines})
        return Exit.OK
    for line in lines:
        print(printable(line))
    if not lines:
        note("no difference")
    return Exit.OK


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        found = [entry for entry in client.schema.ls(args.name) if args.version in (0, entry.version)]
        if not found:
            raise BraidError("SCHEMA_NOT_FOUND", name=args.name)
        what = ", ".join(printable(entry.id) for entry in found)
        if not args.dry_run:
            if not confirmed(args, f"remove {what}"):
                return Exit.FAILED
            client.schema.rm(args.name, args.version)
    note(f"{'would remove' if args.dry_run else 'removed'} {what}")
    return Exit.OK


def run_bind(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, printable

    if args.none and args.name:
        raise BraidError("INVALID_ARGUMENT", reason="--none and a schema exclude each other")
    with open_client(args) as client:
        if args.none or args.name:
            properties = client.schema.bind(args.topic, args.name or "", args.rule)
        else:
            properties = client.topic_config(args.topic)
    schema, rule = properties.get("schema"), properties.get("schema_rule", "reject")
    if args.output == "json":
        print_json({"topic": args.topic, "schema": schema, "rule": rule if schema else None})
    elif schema:
        note(f"{printable(args.topic)}: records fit {printable(schema)}, others: {rule}")
    else:
        note(f"{printable(args.topic)}: bound to no schema")
    return Exit.OK
