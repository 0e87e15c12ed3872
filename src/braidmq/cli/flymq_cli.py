"""`flymq-cli`: the commands and flags of the published FlyMQ tool, for scripts and fingers that know them.

A thin layer: what `braid` has under another name is run as that, with the words changed; what it has not (reading by partition
with a filter, the HTTP servers) is here. Options of the tool itself stand before the command, as in the published one, because
behind it the same letters mean other things. They win over FLYMQ_* variables, those over the saved credentials.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from braidmq import __version__
from braidmq.cli.exits import Exit
from braidmq.cli.main import guarded

Words = list[str]
Translate = Callable[[argparse.Namespace], Words]
_DESCRIPTION = "The commands and flags of the published FlyMQ tool, on BraidMQ. `braid` has more, and the same by other names."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit status of `braid`."""
    return guarded(lambda: run(argv))


def run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if getattr(args, "words", None) is not None:
        return run_braid(args, args.words(args))
    return int(args.perform(args))


def connection(args: argparse.Namespace) -> argparse.Namespace:
    """What `open_client` of `braid` needs, from the options and variables of this tool."""
    saved = _saved_credentials()
    user = args.username or os.environ.get("FLYMQ_USERNAME") or saved.get("FLYMQ_USERNAME")
    password = args.password or os.environ.get("FLYMQ_PASSWORD") or saved.get("FLYMQ_PASSWORD")
    if user and password is not None:
        # Where `braid` looks for it; a child process would see no more than it did before.
        os.environ["BRAID_PASSWORD"] = password
    address = args.addr or os.environ.get("FLYMQ_ADDR") or "localhost:9092"
    secure = args.tls or _switched_on("FLYMQ_TLS")
    servers = [f"flymqs://{place}" if secure and "://" not in place else place for place in address.split(",")]
    return argparse.Namespace(
        server=servers, ctx=None, user=user, password_file=None, timeout=None,
        tls_ca_file=args.ca_cert or os.environ.get("FLYMQ_TLS_CA_FILE"),
        tls_cert_file=args.cert or os.environ.get("FLYMQ_TLS_CERT_FILE"),
        tls_key_file=args.tls_key or os.environ.get("FLYMQ_TLS_KEY_FILE"),
        tls_insecure=args.insecure or _switched_on("FLYMQ_TLS_INSECURE"),
    )  # fmt: skip


def _switched_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def credentials_path() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "flymq", "credentials")


def _saved_credentials() -> dict[str, str]:
    try:
        with open(credentials_path(), encoding="utf-8") as stream:
            pairs = (line.strip().partition("=") for line in stream if "=" in line)
            return {name: value for name, _, value in pairs}
    except FileNotFoundError:
        return {}


def run_braid(args: argparse.Namespace, words: Words) -> int:
    """Run a command of `braid` over this tool's connection."""
    from braidmq.cli.parser import parse

    made = parse(words)
    for name, value in vars(connection(args)).items():
        if name == "tls_insecure" or hasattr(made, name):
            setattr(made, name, value)
    return int(made.run(made))


# --- the grammar


class Grammar:
    """Adds commands to a parser, each with what it becomes."""

    def __init__(self, commands: Any) -> None:
        self._commands = commands

    def add(self, names: str, about: str, words: Translate | None = None, perform: Callable[..., int] | None = None) -> Any:
        """A command, its other names behind `|`."""
        name, *others = names.split("|")
        parser = self._commands.add_parser(name, aliases=others, help=about, description=about)
        parser.set_defaults(words=words, perform=perform)
        return parser

    def group(self, names: str, about: str) -> Grammar:
        name, *others = names.split("|")
        parser = self._commands.add_parser(name, aliases=others, help=about, description=about)
        return Grammar(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))


def build_parser() -> argparse.ArgumentParser:
    from braidmq.cli import flymq_http, flymq_records

    parser = argparse.ArgumentParser(prog="flymq-cli", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("-a", "--addr", metavar="ADDR", help="broker, or several with commas (FLYMQ_ADDR) [localhost:9092]")
    parser.add_argument("-u", "--username", metavar="NAME", help="user to log in as (FLYMQ_USERNAME)")
    parser.add_argument("-P", "--password", metavar="PASSWORD", help="its password (FLYMQ_PASSWORD, which nobody else can see)")
    parser.add_argument("-T", "--tls", action="store_true", help="speak TLS (FLYMQ_TLS)")
    parser.add_argument(
        "-k", "--insecure", "--tls-insecure", action="store_true", help="trust whoever answers (FLYMQ_TLS_INSECURE)"
    )
    parser.add_argument("--ca-cert", "--tls-ca", metavar="FILE", help="authorities to trust (FLYMQ_TLS_CA_FILE)")
    parser.add_argument("--cert", "--tls-cert", metavar="FILE", help="certificate to show (FLYMQ_TLS_CERT_FILE)")
    parser.add_argument("--key", "--tls-key", dest="tls_key", metavar="FILE", help="its key (FLYMQ_TLS_KEY_FILE)")
    parser.add_argument("-v", "--version", action="version", version=f"flymq-cli (BraidMQ {__version__})", help="print the version")
    grammar = Grammar(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    flymq_records.register(grammar)
    _add_topics(grammar)
    _add_groups(grammar)
    _add_schemas(grammar)
    _add_accounts(grammar)
    _add_audit(grammar)
    flymq_http.register(grammar)
    grammar.add("explore", "Type commands one after the other; quit ends.", perform=explore)
    return parser


def _topic_of(parser: Any) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")


def _add_topics(grammar: Grammar) -> None:
    grammar.add("topics|list", "List the topics.", lambda a: ["topic", "ls"])
    create = grammar.add("create", "Create a topic.", lambda a: ["topic", "create", a.topic, "--partitions", str(a.partitions)])
    _topic_of(create)
    create.add_argument("-p", "--partitions", type=int, default=1, metavar="N", help="partitions [1]")
    _topic_of(grammar.add("delete", "Delete a topic.", lambda a: ["topic", "rm", a.topic, "--yes"]))
    _topic_of(grammar.add("info", "Show a topic.", lambda a: ["topic", "info", a.topic]))


def _add_groups(grammar: Grammar) -> None:
    groups = grammar.group("groups", "Consumer groups.")
    groups.add("list", "List the groups.", lambda a: ["group", "ls"])
    for name, verb in (("describe", "show"), ("lag", "lag"), ("delete", "rm")):
        found = groups.add(name, f"{name.capitalize()} a group.", _group_words(verb))
        found.add_argument("group", metavar="GROUP", help="name of the group")
        found.add_argument("-t", "--topic", metavar="TOPIC", help="topic that it reads")
        if verb != "rm":
            found.add_argument("-p", "--partition", type=int, metavar="N", help="only this partition")
    reset = groups.add("reset-offsets|reset", "Move a group.", _reset_words)
    reset.add_argument("group", metavar="GROUP", help="name of the group")
    reset.add_argument("-t", "--topic", metavar="TOPIC", required=True, help="topic that it reads")
    reset.add_argument("-p", "--partition", type=int, metavar="N", help="only this partition")
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="to the oldest record")
    where.add_argument("--to-latest", action="store_true", help="behind the newest record")
    where.add_argument("--to-offset", type=int, metavar="OFFSET", help="to an offset")


def _group_words(verb: str) -> Translate:
    def words(args: argparse.Namespace) -> Words:
        topic = ["--topic", args.topic] if args.topic else []
        partition = [] if getattr(args, "partition", None) is None else ["--partition", str(args.partition)]
        return ["group", verb, args.group, *topic, *partition, *(["--yes"] if verb == "rm" else [])]

    return words


def _reset_words(args: argparse.Namespace) -> Words:
    where = "earliest" if args.to_earliest else "latest" if args.to_latest else str(args.to_offset)
    partition = [] if args.partition is None else ["--partition", str(args.partition)]
    return ["group", "seek", args.group, args.topic, "--to", where, *partition, "--yes"]


def _add_schemas(grammar: Grammar) -> None:
    schemas = grammar.group("schema", "Schemas.")
    register = schemas.add("register", "Register a schema.", lambda a: ["schema", "put", a.name, a.file, "--type", a.type])
    register.add_argument("name", metavar="SCHEMA", help="name of the schema")
    register.add_argument("type", choices=("json", "avro", "protobuf"), help="kind of schema")
    register.add_argument("file", metavar="FILE", help="file with the definition, - is standard input")
    schemas.add("list", "List the schemas.", lambda a: ["schema", "ls"])
    validate = schemas.add("validate", "Check a message.", lambda a: ["schema", "check", a.name, a.file])
    validate.add_argument("name", metavar="SCHEMA", help="name of the schema")
    validate.add_argument("file", metavar="FILE", help="file with the message, - is standard input")
    delete = schemas.add("delete", "Delete a schema.", lambda a: ["schema", "rm", a.name, "--yes"])
    delete.add_argument("name", metavar="SCHEMA", help="name of the schema")
    fits = "Store a message that fits."
    produce = schemas.add("produce", fits, lambda a: ["produce", a.topic, "--schema", a.name, "--", a.message])
    _topic_of(produce)
    produce.add_argument("name", metavar="SCHEMA", help="name of the schema")
    produce.add_argument("message", metavar="MESSAGE", help="the message")


def _add_accounts(grammar: Grammar) -> None:
    grammar.add("whoami", "Show who this is.", lambda a: ["user", "show"])
    grammar.add("auth", "Log in, to see whether it works.", lambda a: ["user", "show"])
    users = grammar.group("users", "Users.")
    users.add("list", "List the users.", lambda a: ["user", "ls"])
    create = users.add("create", "Create a user; the password is read from standard input or asked for.", _user_words("add"))
    update = users.add("update", "Change a user.", _user_words("set"))
    for parser in (create, update):
        parser.add_argument("name", metavar="NAME", help="name of the user")
        parser.add_argument("--roles", default="", metavar="ROLES", help="roles, separated by commas")
    update.add_argument("--enabled", choices=("true", "false"), help="whether it may log in")
    for name, verb in (("delete", "rm"), ("get", "show"), ("passwd", "passwd")):
        found = users.add(name, f"{name.capitalize()} a user.", _user_words(verb))
        found.add_argument("name", metavar="NAME", help="name of the user")
    roles = grammar.group("roles", "Roles.")
    roles.add("list", "List the roles.", lambda a: ["role", "ls"])
    roles.add("get", "Show a role.", lambda a: ["role", "ls", a.name]).add_argument("name", metavar="ROLE", help="name of the role")
    acl = grammar.group("acl", "Rights to topics.")
    acl.add("list", "List the rights.", lambda a: ["acl", "ls"])
    _topic_of(acl.add("get", "Show the rights to a topic.", lambda a: ["acl", "get", a.topic]))
    _topic_of(acl.add("delete", "Delete the rights to a topic.", lambda a: ["acl", "rm", a.topic, "--yes"]))
    rights = acl.add("set", "Set the rights to a topic.", _acl_words)
    _topic_of(rights)
    rights.add_argument("--public", action="store_true", help="everybody may use it")
    rights.add_argument("--users", default="", metavar="NAMES", help="users, separated by commas")
    rights.add_argument("--roles", default="", metavar="ROLES", help="roles, separated by commas")


def _listed(option: str, text: str) -> Words:
    return [word for name in text.split(",") if name for word in (option, name)]


def _user_words(verb: str) -> Translate:
    def words(args: argparse.Namespace) -> Words:
        roles = _listed("--role", getattr(args, "roles", ""))
        enabled = {"true": ["--enable"], "false": ["--disable"]}.get(getattr(args, "enabled", None) or "", [])
        sure = ["--yes"] if verb == "rm" else []
        typed = ["--new-password-file", "-"] if verb in ("add", "passwd") and not sys.stdin.isatty() else []
        return ["user", verb, args.name, *roles, *enabled, *sure, *typed]

    return words


def _acl_words(args: argparse.Namespace) -> Words:
    public = ["--public"] if args.public else []
    return ["acl", "set", args.topic, *public, *_listed("--allow-user", args.users), *_listed("--allow-role", args.roles)]


_AUDIT: Final = {
    "user": "--by", "resource": "--resource", "result": "--result", "search": "--search", "start": "--since", "end": "--until",
    "limit": "--max", "offset": "--skip",
}  # fmt: skip


def _add_audit(grammar: Grammar) -> None:
    audit = grammar.group("audit", "The audit trail.")
    for name in ("list", "query", "tail", "export"):
        parser = audit.add(name, f"{name.capitalize()} events.", perform=_run_audit)
        parser.set_defaults(verb=name)
        parser.add_argument("--type", default="", metavar="TYPES", help="types, separated by commas")
        for option in _AUDIT:
            parser.add_argument(f"--{option}", metavar=option.upper(), help=f"as {_AUDIT[option]} of `braid audit`")
        if name == "tail":
            parser.add_argument("-f", "--follow", action="store_true", help="go on with new events until Ctrl-C")
        if name == "export":
            parser.add_argument("--format", choices=("json", "csv"), default="json", help="form of the document [json]")
            parser.add_argument("--output", metavar="FILE", help="file to write [standard output]")


def _audit_words(args: argparse.Namespace) -> Words:
    words = ["audit", "export" if args.verb == "export" else "query", *_listed("--type", args.type)]
    for option, ours in _AUDIT.items():
        if getattr(args, option) is not None:
            words += [ours, getattr(args, option)]
    if args.verb == "export":
        return [*words, "--format", args.format]
    return [*words, "--follow"] if getattr(args, "follow", False) else words


def _run_audit(args: argparse.Namespace) -> int:
    from contextlib import redirect_stdout

    if args.verb == "export" and args.output:
        # The document is what the command prints.
        with open(args.output, "w", encoding="utf-8") as file, redirect_stdout(file):
            return run_braid(args, _audit_words(args))
    return run_braid(args, _audit_words(args))


def explore(args: argparse.Namespace) -> int:
    """Commands one after the other over the same options, until `quit` or the end of the input."""
    import shlex

    options = _global_words(args)
    while True:
        print("flymq> ", end="", flush=True)
        line = sys.stdin.readline()
        words = shlex.split(line) if line else ["quit"]
        if words and words[0] in ("quit", "exit"):
            return Exit.OK
        if words and words[0] != "explore":
            guarded(lambda words=words: run([*options, *words]))  # type: ignore[misc]


def _global_words(args: argparse.Namespace) -> Words:
    given = {
        "--addr": args.addr, "--username": args.username, "--password": args.password, "--ca-cert": args.ca_cert,
        "--cert": args.cert, "--key": args.tls_key,
    }  # fmt: skip
    words = [word for option, value in given.items() if value for word in (option, value)]
    return words + ["--tls"] * args.tls + ["--insecure"] * args.insecure
