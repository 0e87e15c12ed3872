"""Writes the reference pages from the code they describe.

    python tools/reference.py            write docs/reference/*.md
    python tools/reference.py --check    write nothing; status 1 and a list when a page is stale

Commands come from the parser, settings from the table of settings, errors from the error table, limits from the module that
holds them. So a page cannot say what the program does not do, and nothing the program has can be missing from its page.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from braidmq.admin.api import ENDPOINTS  # noqa: E402
from braidmq.admin.metrics.table import METRICS  # noqa: E402
from braidmq.admin.shapes import fields_of  # noqa: E402
from braidmq.base import limits  # noqa: E402
from braidmq.base.config_flymq import ABSENT, ALIASES, TLS_ENABLED_ENV, TLS_ENABLED_JSON  # noqa: E402
from braidmq.base.config_kinds import show_size  # noqa: E402
from braidmq.base.config_settings import OTHER_VARIABLES, SETTINGS  # noqa: E402
from braidmq.base.errors import ERRORS  # noqa: E402
from braidmq.base.figures import OPERATIONS  # noqa: E402
from braidmq.cli.exits import MEANINGS  # noqa: E402
from braidmq.cli.parser import build_parser  # noqa: E402
from braidmq.cli.tree import Node, Option, command_tree  # noqa: E402
from braidmq.client.settings import DOCS, KINDS, ClientSettings, variable  # noqa: E402
from braidmq.spark.pipeline.definition import SECTIONS, SINKS, STEPS  # noqa: E402
from braidmq.spark.pipeline.sections import Section, kind_of, required  # noqa: E402

PAGES_DIR = ROOT / "docs" / "reference"
MADE_BY = "<!-- Made by tools/reference.py from the code; `make docs` writes it again. -->"


PRINTED = """
Results go to standard output. Faults (`error: CODE: text`, then `hint: ...`), warnings, progress and summaries go to standard
error. Colour appears only on a terminal, and never when `NO_COLOR` is set. The codes are those of [errors.md](errors.md).
"""

CONFIGURATION = """
A flag wins over the environment, the environment over the file, the file over the default. `braid config show` prints each
value and where it came from; `braid config check FILE` checks a file. A file is TOML, or JSON when its name ends in `.json`.
An unknown key, or an unknown `BRAID_*` variable, is an error that names the nearest known one. An empty variable counts as not set.

Sizes are bytes or carry a unit: `kB`, `MB`, `GB`, `TB` are powers of 1000, `KiB`, `MiB`, `GiB`, `TiB` powers of 1024.
Durations are seconds, or milliseconds where the name ends in `_ms`, or carry units: `500ms`, `30s`, `1h30m`, `7d`, `2w`.

## The broker
"""

FLYMQ = f"""
Its environment variables and its JSON file are understood. Those with a row `FlyMQ` above map to that setting; ours win
where both are given. `FLYMQ_ACKS` (`performance.acks`) of `all` is durability `quorum`, `leader` is `fsync`, `none` is `none`.
`{TLS_ENABLED_ENV}` (`{TLS_ENABLED_JSON}`) makes a listener that came from `bind_addr`, or the default one, a TLS listener.
The rest belong to features this version does not have: they are ignored, with a warning when they ask for something.
"""

CLIENT = """
Arguments of `connect`, keys of the file that `BRAID_CLIENT_CONFIG` names, and variables. Commands of `braid` obey them too.
"""

ERRORS_INTRO = """
Every error has one code. FlyMQ clients of the documented dialect read `CODE: text`, HTTP clients the status, BlipMQ clients the
number; `braid` prints `error: CODE: text` and the hint. Retriable means that the same request may succeed later without a change.
"""


def prose(text: str) -> list[str]:
    """Paragraphs, and the empty line after them."""
    return [*text.strip("\n").split("\n"), ""]


def cell(text: str) -> str:
    """`text` inside a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    if "`" in text:
        return f"`` {text} ``"
    return f"`{text}`" if text else ""


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows] + [""]


# --- commands


def usage(node: Node) -> str:
    words = [" ".join(node.path)]
    if any(option.flags != ("-h", "--help") for option in node.options):
        words.append("[options]")
    for argument in node.arguments:
        shown = "|".join(argument.choices) if argument.choices else argument.metavar
        shown += " ..." if argument.repeats else ""
        words.append(shown if argument.required else f"[{shown}]")
    return " ".join(words)


def option_row(option: Option) -> list[str]:
    shown = ", ".join(option.flags) or option.metavar
    value = "|".join(option.choices) if option.choices else option.metavar
    if option.flags and value:
        shown += f" {value}"
    note = " Repeatable." if option.repeats and option.flags else ""
    text = option.help.rstrip(".")
    return [code(shown), f"{text[:1].upper()}{text[1:]}.{note}"]


def commands_page() -> str:
    tree = command_tree(build_parser())
    lines = ["# Commands", "", MADE_BY, "", tree.description, ""]
    leaves = [node for node in tree.walk() if not node.children]
    anchors = [["[" + code(" ".join(node.path)) + "](#" + "-".join(node.path) + ")", node.help] for node in leaves]
    lines += table(["Command", "What it does"], anchors)
    for node in leaves:
        lines += [f"## {' '.join(node.path)}", "", node.description, "", "```", usage(node), "```", ""]
        options = [option for option in node.options if option.flags != ("-h", "--help")]
        if rows := [option_row(option) for option in (*node.arguments, *options)]:
            lines += table(["Option", "Meaning"], rows)
        if node.epilog:
            lines += ["```", node.epilog, "```", ""]
    lines += ["## Exit statuses", ""]
    lines += table(["Status", "Meaning"], [[code(str(int(status))), meaning] for status, meaning in MEANINGS.items()])
    lines += ["## What is printed where", ""]
    lines += prose(PRINTED)
    return "\n".join(lines)


# --- configuration


def configuration_page() -> str:
    lines = ["# Configuration", "", MADE_BY, ""]
    lines += prose(CONFIGURATION)
    for setting in SETTINGS:
        lines += [f"### {setting.key}", "", setting.doc, ""]
        flag = f"--[no-]{setting.flag[2:]}" if setting.kind.name == "boolean" else setting.flag
        rows = [["Takes", f"{setting.kind.name}: {setting.kind.takes}"], ["Default", code(setting.default_text) or "none"]]
        rows += [["Flag", code(flag)], ["Environment", code(setting.env)]]
        aliases = [alias for alias in ALIASES if alias.key == setting.key]
        rows += [["FlyMQ", ", ".join(filter(None, (code(alias.env), f"{code(alias.json)} in its JSON file")))] for alias in aliases]
        lines += table(["", ""], rows)
    lines += ["## Settings of the published FlyMQ server", ""]
    lines += prose(FLYMQ)
    rows = [
        [", ".join(map(code, row.json)), ", ".join(map(code, row.env)) or "none", f"does not have {row.feature}"] for row in ABSENT
    ]
    lines += table(["Keys", "Variables", "This version"], rows)
    lines += ["## Other variables", ""]
    lines += table(["Variable", "Meaning"], [[code(name), text] for name, text in OTHER_VARIABLES.items()])
    lines += ["## The client", ""]
    lines += prose(CLIENT)
    defaults = ClientSettings()
    rows = []
    for field in fields(ClientSettings):
        kind = KINDS.get(field.name)
        default = getattr(defaults, field.name)
        shown = code(kind.show(default)) if kind is not None and default is not None else "none"
        takes = f"{kind.name}: {kind.takes}" if kind is not None else "only as an argument"
        rows.append([code(field.name), DOCS[field.name], takes, shown, code(variable(field.name)) if kind is not None else ""])
    lines += table(["Setting", "Meaning", "Takes", "Default", "Environment"], rows)
    return "\n".join(lines)


# --- errors


def errors_page() -> str:
    lines = ["# Errors", "", MADE_BY, ""]
    lines += prose(ERRORS_INTRO)
    for spec in ERRORS.values():
        lines += [f"## {spec.code}", "", code(spec.text), "", spec.hint, ""]
        rows = [["HTTP", str(spec.http)], ["BlipMQ", str(spec.blipmq)], ["Retriable", "yes" if spec.retriable else "no"]]
        if spec.v126 is not None:
            rows.append(["Published FlyMQ clients read", code(spec.v126)])
        lines += table(["", ""], rows)
    return "\n".join(lines)


# --- limits


def declared_limits() -> Iterator[tuple[str, int | float, str]]:
    """Name, value and reason of every limit, in file order. The reason is the text that follows the assignment."""
    body = ast.parse(Path(limits.__file__).read_text()).body
    for place, statement in enumerate(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        if name in ("KIB", "MIB", "GIB"):
            continue
        following = body[place + 1] if place + 1 < len(body) else None
        reason = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) and isinstance(following.value.value, str):
            reason = " ".join(following.value.value.split())
        yield name, getattr(limits, name), reason


def shown_limit(name: str, value: int | float) -> str:
    if "_BYTES" in name:
        return f"{show_size(value)} ({value:,} bytes)" if isinstance(value, int) and value >= 1024 else f"{value} bytes"
    return f"{value:g} s" if "_SECONDS" in name else f"{value:,}"


def limits_page() -> str:
    lines = ["# Limits", "", MADE_BY, ""]
    lines += ["Fixed bounds of formats and protocols. What an operator may change is in [configuration.md](configuration.md).", ""]
    lines += table(
        ["Limit", "Value", "Reason"], [[code(name), shown_limit(name, value), reason] for name, value, reason in declared_limits()]
    )
    return "\n".join(lines)


PIPELINES = """
What may stand in a [pipeline](../pipelines.md), in YAML as in Python, where the classes have the names in brackets. A value in
`${...}` is an environment variable.
"""


def section_title(section: type[Section]) -> str:
    """How YAML and Python name a section."""
    words = {kind: f"steps: `{name}`" for name, kind in STEPS.items()} | {kind: f"sinks: `{name}`" for name, kind in SINKS.items()}
    fallback = section.__name__.lower()
    return f"## {words.get(section, fallback)} ({section.__name__})"


def pipelines_page() -> str:
    lines = ["# Pipelines: every key", "", MADE_BY, PIPELINES]
    for section in SECTIONS:
        about = " ".join((section.__doc__ or "").split())
        short = f" `{section.short}` may be given alone." if section.short else ""
        lines += [section_title(section), "", about + short, ""]
        rows = [
            [code(each.name), kind_of(each).describe(), "required" if required(each) else shown_default(each), each.metadata["doc"]]
            for each in fields(section)
        ]
        lines += [*table(["Key", "Holds", "Default", "What it is for"], rows), ""]
    return "\n".join(lines)


def shown_default(each: Field[Any]) -> str:
    value = None if each.default is MISSING else each.default
    if value is None or value == ():
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


# --- metrics and the admin API

METRICS_INTRO = """
What the metrics port answers at `/metrics`, and the admin API at `/api/v1/metrics`. Counters begin at 0 with the broker, except
those of topics, which are offsets. Topics and groups beyond the limits in [limits.md](limits.md) have none of their own.
"""

OPERATIONS_INTRO = """
## Operations

The values of the label `operation` of `braid_request_seconds`. FlyMQ's are its [opcodes](../protocols/flymq.md) in small letters,
such as `produce` and `fetch_batches`, and `unknown` for what is none. Those of the other protocols:
"""

REST_INTRO = """
Every endpoint of the admin API. The same as an OpenAPI 3.1 document, with every field: `/api/v1/openapi.json` on the admin port.
How to use it: [admin API](../admin-api.md).
"""


def metrics_page() -> str:
    lines = ["# Metrics", "", MADE_BY, ""]
    lines += prose(METRICS_INTRO)
    rows = [[code(each.name), each.kind, ", ".join(map(code, each.labels)), each.doc] for each in METRICS]
    lines += table(["Metric", "Kind", "Labels", "Meaning"], rows)
    lines += prose(OPERATIONS_INTRO)
    rows = [[protocol, code(name), doc] for protocol, named in OPERATIONS.items() for name, doc in named.items()]
    lines += table(["Protocol", "Operation", "What is measured"], rows)
    return "\n".join(lines)


def rest_page() -> str:
    lines = ["# REST", "", MADE_BY, ""]
    lines += prose(REST_INTRO)
    for each in ENDPOINTS:
        lines += [f"## {each.method} {each.path}", "", each.doc, ""]
        lines += [f"Who may: {each.rule.value}.", ""]
        rows = [[code(field.name), "query", field.doc] for field in fields_of(each.query)]
        rows += [[code(field.name), "body", field.doc] for field in fields_of(each.body)]
        if rows:
            lines += table(["Parameter", "In", "Meaning"], rows)
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "configuration.md": configuration_page,
    "errors.md": errors_page,
    "limits.md": limits_page,
    "pipelines.md": pipelines_page,
    "metrics.md": metrics_page,
    "rest.md": rest_page,
}


def main(argv: list[str]) -> int:
    check = argv == ["--check"]
    if argv and not check:
        print("usage: reference.py [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, make in PAGES.items():
        path = PAGES_DIR / name
        text = make().rstrip("\n") + "\n"
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not check:
            PAGES_DIR.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in stale:
        print(f"{'stale' if check else 'written'}: docs/reference/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
