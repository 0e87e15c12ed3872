"""What the pages name exists, and what belongs on a page is named there: opcodes, errors, properties, log lines, code."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import cache

import pytest
from doc_pages import ROOT, code_blocks, code_words, page, prose, section, tables
from wire_texts import NOTATIONS, REQUESTS, RESPONSES, described, fields

from braidmq import hot
from braidmq.base import limits
from braidmq.base.config import SETTINGS
from braidmq.base.errors import ERRORS
from braidmq.broker.push import Overflow
from braidmq.broker.topics import PROPERTIES
from braidmq.client.blipmq_settings import BlipMQSettings
from braidmq.client.fq_settings import FqSettings
from braidmq.hot import layout
from braidmq.log.level import Level
from braidmq.security.audit_events import EVENT_TYPES
from braidmq.security.rules import OPCODE_PERMISSIONS, Rule
from braidmq.server.operations import OPERATIONS
from braidmq.wire.flymq import Op

ARCHITECTURE = page("docs/architecture.md")
BLIPMQ = page("docs/protocols/blipmq.md")
BATCH = page("docs/batch-format.md")
DURABILITY = page("docs/durability.md")
FLYMQ = page("docs/protocols/flymq.md")
FQ = page("docs/protocols/fq.md")
SECURITY = page("docs/security.md")
WRITTEN = {
    "architecture": ARCHITECTURE,
    "batch-format": BATCH,
    "durability": DURABILITY,
    "flymq": FLYMQ,
    "blipmq": BLIPMQ,
    "fq": FQ,
    "security": SECURITY,
    "groups": page("docs/groups.md"),
    "schemas": page("docs/schemas.md"),
    "dead-letters": page("docs/dead-letters.md"),
    "transactions": page("docs/transactions.md"),
}
PACKAGE = ROOT / "src" / "braidmq"


@cache
def sources(*folders: str) -> Mapping[str, str]:
    """Python and Cython source below the named layers, by path in the package."""
    files = (path for folder in folders for path in sorted((PACKAGE / folder).rglob("*")) if path.suffix in (".py", ".pyx", ".pxi"))
    return {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in files}


# --- opcodes


def operation_rows(text: str) -> list[list[str]]:
    """The rows of all tables of operations."""
    found = [row for table in tables(section(text, "Operations")) for row in table]
    return [row for row in found if re.fullmatch(r"[0-9A-F]{2}", row[0])]


def documented_operations(text: str) -> dict[int, str]:
    return {int(op, 16): name for op, name, *_ in operation_rows(text)}


def test_the_tables_of_operations_are_what_is_served() -> None:
    served = {int(op): op.name for op in OPERATIONS}
    assert documented_operations(FLYMQ) == served | {int(Op.ERROR): Op.ERROR.name}
    assert len(operation_rows(FLYMQ)) == len(served) + 1, "an operation twice"


def test_a_missing_operation_is_noticed() -> None:
    text = re.sub(r"\n\| `0D` \|[^\n]*", "", FLYMQ)
    assert set(documented_operations(FLYMQ)) - set(documented_operations(text)) == {0x0D}


BY_HAND = {
    "requests": {
        Op.CREATE_TOPIC, Op.SUBSCRIBE, Op.FETCH, Op.FETCH_BINARY, Op.PRODUCE_WITH_SCHEMA, Op.REPLAY_DLQ, Op.CANCEL_DELAYED,
        Op.RESET_OFFSET, Op.DESCRIBE_GROUP, Op.DELETE_GROUP, Op.SEEK_TO_TIMESTAMP, Op.ACCOUNT_ADMIN,
    },
    "responses": {
        Op.FETCH, Op.FETCH_BINARY, Op.AUTH, Op.WHOAMI, Op.GET_SCHEMA, Op.DESCRIBE_GROUP, Op.AUDIT_EXPORT_SDK, Op.ACCOUNT_ADMIN,
    },
}  # fmt: skip
"""Messages whose form the bytes or the dialect decide: the page says in words what no table of fields can."""


def wrong_layouts(text: str) -> list[str]:
    """Operations whose layout on the page is not that of the codec."""
    wrong = []
    for op, name, *cells in operation_rows(text):
        if name == Op.ERROR.name:
            continue
        for cell, codec in zip(cells, (REQUESTS, RESPONSES), strict=True):
            expected = described(codec[int(op, 16)])
            # A cell that is nothing but code has lost its marks.
            if expected is not None and cell.strip("`") != expected.strip("`"):
                wrong.append(f"{name}: {expected}")
    return wrong


def test_the_layouts_on_the_page_are_those_of_the_codec() -> None:
    assert wrong_layouts(FLYMQ) == []
    assert {op for op in OPERATIONS if described(REQUESTS[op]) is None} == BY_HAND["requests"]
    assert {op for op in OPERATIONS if described(RESPONSES[op]) is None} == BY_HAND["responses"]


def test_a_wrong_layout_is_noticed() -> None:
    wrong = FLYMQ.replace("own: `str8` compatibility | `str` name", "own: `str` compatibility | `str` name")
    assert [text.split(":")[0] for text in wrong_layouts(wrong)] == ["REGISTER_SCHEMA"]
    assert len(wrong_layouts(FLYMQ.replace("`list` of (`GROUP`)", "`GROUP`"))) == 1


def test_the_notations_of_the_page_are_those_of_the_codec() -> None:
    rows = {name: text for name, text in tables(section(FLYMQ, "Types"))[0]}
    assert {name: rows.get(name) for name in NOTATIONS} == {name: fields(kind) for name, kind in NOTATIONS.items()}


def test_opcodes_that_are_answers_only_are_said_to_be() -> None:
    (sentence,) = re.findall(r"^(`71`.*?) are answers\.", FLYMQ, re.MULTILINE)
    assert {int(op, 16) for op in re.findall(r"`(\w\w)`", sentence)} == {int(op) for op in Op} - {int(op) for op in OPERATIONS}


# --- rights


def documented_rights(text: str) -> dict[str, str]:
    """What each request needs."""
    return {name: needs for needs, names in tables(section(text, "Rights"))[0] for name in names.split(", ")}


def test_the_table_of_rights_is_that_of_the_code() -> None:
    assert documented_rights(SECURITY) == {op.name: rule.value for op, rule in OPCODE_PERMISSIONS.items()}


def test_a_wrong_right_is_noticed() -> None:
    text = SECURITY.replace("PRODUCE, PRODUCE_BATCH", "PRODUCE_BATCH").replace("| AUTH, WHOAMI", "| AUTH, WHOAMI, PRODUCE")
    assert documented_rights(text)["PRODUCE"] == Rule.NONE.value != documented_rights(SECURITY)["PRODUCE"]


# --- audit events


def documented_events(text: str) -> set[str]:
    """The types of the table of audit events."""
    return {name for row in tables(section(text, "Audit"))[0] for name in re.findall(r"\w+\.\w+", row[0])}


def recorded_events(files: Mapping[str, str]) -> set[str]:
    """Types of events that some source names, apart from the list of them all."""
    written = (source for path, source in files.items() if path != "security/audit_events.py")
    return {kind for source in written for kind in re.findall(r'"([a-z]+\.[a-z]+)"', source) if kind in EVENT_TYPES}


def test_the_table_of_audit_events_is_what_is_recorded() -> None:
    assert documented_events(SECURITY) == recorded_events(sources("security", "broker", "server"))


def test_a_missing_event_is_noticed() -> None:
    assert documented_events(SECURITY) - documented_events(SECURITY.replace("| `group.delete` | each |\n", "")) == {"group.delete"}
    assert recorded_events({"a.py": 'note("txn.abort", "not.known")', "security/audit_events.py": '"txn.begin"'}) == {"txn.abort"}


# --- errors

NOT_SENT = {
    "CONFIG_INVALID_VALUE": "ends a start",
    "DATA_DIR_INVALID": "ends a start",
    "DATA_DIR_LOCKED": "ends a start",
    "UNEXPECTED_REPLY": "raised by the side that reads answers",
    "ENCRYPTION_KEY_WRONG": "ends a start",
    "INVALID_KEY": "ends a start",
    "NODE_OUTDATED": "has a node begin anew",
    "REPLICA_DIVERGED": "stops a replica, and is logged",
}
"""Codes that the layers of the broker raise and that no FlyMQ client is sent."""


def raised_codes(files: Iterable[str]) -> set[str]:
    """Codes of the table that stand in some source as a text of their own."""
    return {code for source in files for code in re.findall(r'"([A-Z_]+)"', source) if code in ERRORS}


def documented_errors(text: str) -> set[str]:
    """The codes that the error table of the protocol's page links to."""
    return {re.sub(r"^\[(\w+)\]\(\S+#(\w+)\)$", r"\1", row[0]) for row in tables(section(text, "ERROR"))[1]}


OTHER_PROTOCOLS = {
    "blipmq": re.compile(r"(?:server/blipmq_|wire/blipmq/|broker/push/|hot/(?:pure|_native)_blipmq\.)"),
    "fq": re.compile(r"(?:server/fq_|wire/fq/|broker/fq_|hot/(?:pure|_native)_fq\.)"),
}
"""Files that only connections of these protocols lead to."""


def own_codes(files: Mapping[str, str], protocol: str) -> set[str]:
    """Codes that only this protocol can lead to."""
    own = {path: source for path, source in files.items() if OTHER_PROTOCOLS[protocol].match(path)}
    return raised_codes(own.values()) - raised_codes(source for path, source in files.items() if path not in own)


def layers_of_the_broker() -> Mapping[str, str]:
    """Everything that raises what a client may be sent."""
    layers = sources("server", "broker", "security", "schemas", "log", "wire", "hot")
    below = {path: source for path, source in sources("base").items() if path in ("base/compression.py", "base/key_ring.py")}
    assert len(below) == 2
    return {**layers, **below}


def test_the_table_of_errors_is_what_a_client_may_get() -> None:
    files = layers_of_the_broker()
    raised = raised_codes(source for path, source in files.items() if not any(p.match(path) for p in OTHER_PROTOCOLS.values()))
    assert set(NOT_SENT) <= raised
    assert documented_errors(FLYMQ) == raised - set(NOT_SENT)


@pytest.mark.parametrize("protocol", OTHER_PROTOCOLS)
def test_the_errors_of_a_protocol_are_on_its_page_and_on_no_other(protocol: str) -> None:
    codes = own_codes(layers_of_the_broker(), protocol)
    assert len(codes) >= 10
    assert codes - code_words(section(WRITTEN[protocol], "Errors")) == set()
    others = " ".join(text for name, text in WRITTEN.items() if name in ("flymq", *OTHER_PROTOCOLS) and name != protocol)
    assert codes & set(re.findall(r"\b[A-Z_]+\b", others)) == set()


def test_a_missing_error_of_a_protocol_is_noticed() -> None:
    files = {"server/fq_x.py": '"EOF" "UNREACHABLE"', "wire/fq/y.py": '"TIMED_OUT"', "server/blipmq_z.py": '"UNREACHABLE" "EOF"'}
    assert own_codes(files, "fq") == {"TIMED_OUT"}
    assert own_codes({**files, "server/session.py": '"TIMED_OUT"'}, "fq") == set()


def test_a_missing_error_is_noticed() -> None:
    text = re.sub(r"\n\| \[EOF\][^\n]*", "", FLYMQ)
    assert documented_errors(FLYMQ) - documented_errors(text) == {"EOF"}
    assert raised_codes(['raise BraidError("EOF", x=1)', '"NO_SUCH_CODE"', "EOF"]) == {"EOF"}


def test_links_to_errors_lead_to_the_code_they_name() -> None:
    found = re.findall(r"\[([A-Z_]+)\]\(\.\./reference/errors\.md#(\w+)\)", FLYMQ + BLIPMQ + FQ)
    assert found
    assert [(code, anchor) for code, anchor in found if code.lower() != anchor] == []


def test_the_page_for_operators_names_every_error_of_the_storage() -> None:
    of_storage = {code for code in ERRORS if code.startswith(("STORAGE_", "DATA_DIR_", "CORRUPT_", "FORMAT_", "ENCRYPTION_"))}
    assert len(of_storage) >= 6
    assert {code for code in of_storage if code not in DURABILITY} == set()


OTHER_CAPITALS = {"TCP_NODELAY", "BRAID_PURE", "DATA_DIR", "NEXT_OFFSET", "AUTH_RESP"} | {
    "BRAID_ENCRYPTION_KEYS", "BRAID_AUTH_ADMIN_PASSWORD", "BRAID_USERNAME", "BRAID_PASSWORD",
}  # fmt: skip


def unknown_capitals(text: str) -> set[str]:
    """Names in capitals that are no error, no operation and no limit."""
    named = set(re.findall(r"(?<![\w#.])[A-Z0-9]+(?:_[A-Z0-9]+)+\b", re.sub(r"\]\([^)]*\)", "]", prose(text))))
    return named - set(ERRORS) - set(Op.__members__) - set(Overflow.__members__) - set(vars(limits)) - OTHER_CAPITALS


@pytest.mark.parametrize("name", WRITTEN)
def test_every_name_in_capitals_exists(name: str) -> None:
    assert unknown_capitals(WRITTEN[name]) == set()


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert unknown_capitals("`TOPIC_NOT_FOUND` and PRODUCE_BATCH, or TOPIC_NOT_FOND and `PRODUCE_BATCHES`") == {
        "TOPIC_NOT_FOND",
        "PRODUCE_BATCHES",
    }


def pattern_of(template: str) -> str:
    """A regular expression for what a sentence with fields, or a log line's form, may become."""
    fields = re.compile(r"\{[^{}]*\}|%[sdg]")
    ends = [0, *(position for found in fields.finditer(template) for position in found.span()), len(template)]
    return ".+".join(re.escape(template[start:end]) for start, end in zip(ends[::2], ends[1::2], strict=True))


def wrong_error_texts(text: str) -> list[str]:
    """Quoted error texts that the table of errors does not make."""
    wrong = []
    for quoted in code_words(text):
        found = re.search(r"(?:^|: )([A-Z]+(?:_[A-Z]+)*): (.+)$", quoted)
        if found and (found[1] not in ERRORS or not re.fullmatch(pattern_of(ERRORS[found[1]].text), found[2])):
            wrong.append(quoted)
    return wrong


@pytest.mark.parametrize("name", WRITTEN)
def test_quoted_error_texts_are_real(name: str) -> None:
    assert wrong_error_texts(WRITTEN[name]) == []


def test_a_wrong_error_text_is_noticed() -> None:
    assert wrong_error_texts("`TOPIC_NOT_FOUND: topic not found: x` and `a/0: STORAGE_FAILED: a/0 is read-only: x`") == []
    assert wrong_error_texts("`TOPIC_NOT_FOUND: no topic x`") == ["TOPIC_NOT_FOUND: no topic x"]
    assert wrong_error_texts("`NO_CODE: topic not found: x`") == ["NO_CODE: topic not found: x"]


# --- settings, properties, levels, limits


def test_the_table_of_topic_properties_is_complete() -> None:
    rows = tables(section(FLYMQ, "Topic properties"))[0]
    assert {name for name, *_ in rows} == set(PROPERTIES)
    keys = {setting.key for setting in SETTINGS}
    of_broker = {default for name, _, default in rows if name.startswith(("segment", "retention", "ttl")) and "hold" not in name}
    assert len(of_broker) == 5 and of_broker <= keys


@pytest.mark.parametrize("protocol", ["blipmq", "fq"])
def test_the_settings_of_a_protocol_are_on_its_page(protocol: str) -> None:
    keys = {setting.key for setting in SETTINGS}
    named = {word for word in code_words(WRITTEN[protocol]) if re.fullmatch(rf"{protocol}_[a-z_]+", word)}
    assert named - keys == set(), "no such setting"
    assert {key for key in keys if key.startswith(f"{protocol}_")} <= code_words(section(WRITTEN[protocol], "Settings"))


def documented_arguments(path: str) -> set[str]:
    """The arguments that the table of a client's page has."""
    return {name for row in tables(section(page(path), "Settings"))[0] for name in re.findall(r"\w+", row[0])}


@pytest.mark.parametrize(
    ("path", "settings"), [("docs/client-blipmq.md", BlipMQSettings), ("docs/client-fq.md", FqSettings)]
)
def test_the_arguments_of_a_client_are_on_its_page(path: str, settings: type[BlipMQSettings] | type[FqSettings]) -> None:
    connect = {"address", "queue_type", "user", "password"} if settings is FqSettings else {"address"}
    assert documented_arguments(path) == connect | {field.name for field in dataclasses.fields(settings)} - {"servers", "auth"}


def test_the_table_of_levels_is_complete() -> None:
    rows = tables(section(DURABILITY, "Levels"))[0]
    assert [re.findall(r"`(\w+)`", row[0]) or [row[0]] for row in rows] == [[level.name.lower()] for level in Level]


# Limits are named in texts here: a page that repeats one is no test of it.
LIMITS = {name: value for name, value in vars(limits).items() if isinstance(value, int | float)}
IN_KIB = {f"{name}_KIB": value / limits.KIB for name, value in LIMITS.items()}
IN_MIB = {f"{name}_MIB": value / limits.MIB for name, value in LIMITS.items()}


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("flymq", "0 to {FRAME_PAYLOAD_BYTES_MAX:,} |"),
        ("flymq", "Key and value together are at most {RECORD_BYTES_MAX:,} bytes"),
        ("flymq", "one batch, at most {RECORD_BYTES_MAX:,} bytes"),
        ("flymq", "negative or over {PARTITIONS_MAX:,} is"),
        ("flymq", "Names: 1 to {TOPIC_NAME_BYTES_MAX} bytes"),
        ("flymq", "max_messages of 0 or less means {FETCH_RECORDS_DEFAULT}."),
        ("flymq", "A list in a request has at most {REQUEST_LIST_ITEMS_MAX:,} items"),
        ("flymq", "session_timeout_ms 0 means {SESSION_TIMEOUT_MS_DEFAULT:,}"),
        ("flymq", "limit 0 means {AUDIT_PAGE_EVENTS_DEFAULT} in a query"),
        ("flymq", "at most {FETCH_BYTES_TARGET_MIB:g} MiB of records"),
        ("flymq", "more than {LONG_POLL_SECONDS_MAX:g} s means"),
        ("flymq", "the last {PRODUCER_BATCHES_KEPT} batches"),
        ("flymq", "It holds {PRODUCERS_PER_PARTITION_MAX:,} producers"),
        ("flymq", "Texts are cut at {ERROR_TEXT_BYTES_MAX:,} bytes"),
        ("flymq", "at {WRITE_BUFFER_BYTES_HIGH_MIB:g} MiB of unsent answers"),
        ("flymq", "below {WRITE_BUFFER_BYTES_LOW_MIB:g} MiB"),
        ("flymq", "at {REQUEST_BACKLOG_BYTES_MAX_MIB:g} MiB of requests"),
        ("flymq", "| {SEGMENT_BYTES_MIN:,} to {SEGMENT_BYTES_MAX:,} |"),
        ("batch-format", "at most {BATCH_BYTES_MAX_MIB:g} MiB and {BATCH_RECORDS_MAX:,} records"),
        ("batch-format", "one entry for every {INDEX_INTERVAL_BYTES_KIB:g} KiB of log"),
        ("groups", "a reconnect of less than {MEMBER_RECONNECT_SECONDS:g} s"),
        ("groups", "({REBALANCE_SECONDS_MAX:g} s at most)"),
        ("schemas", "at most {SCHEMA_DEFINITION_BYTES_MAX_KIB:g} KiB and nests at most {SCHEMA_DEPTH_MAX} deep"),
        ("schemas", "A message has at most {SCHEMA_MESSAGE_BYTES_MAX_MIB:g} MiB"),
        ("transactions", "at most {TRANSACTION_RECORDS_MAX:,} records and {TRANSACTION_BYTES_MAX_MIB:g} MiB"),
        ("security", "up to {THROTTLE_SECONDS_MAX:g} s"),
        ("architecture", "more than {FLUSH_BYTES_TARGET_MIB:g} MiB in one turn"),
        ("architecture", "a run of up to {PUSH_CHUNK_BYTES_KIB:g} KiB of records"),
        ("architecture", "chunks of all feeds within {PUSH_CHUNKS_BYTES_MAX_MIB:g} MiB"),
        ("architecture", "| {TOPIC_NAME_BYTES_MAX}, and groups {GROUP_NAME_BYTES_MAX} |"),
        ("architecture", "route, cut at {FQ_NAME_BYTES_MAX} bytes"),
        ("blipmq", "A topic has 1 to {BLIPMQ_TEXT_CHARACTERS_MAX} characters"),
        ("blipmq", "levels between `/`, at most {BLIPMQ_LEVELS_MAX} of them"),
        ("blipmq", "up to `blipmq_payload_bytes_max` and {BLIPMQ_FRAME_SPARE_BYTES_KIB:g} KiB | a frame"),
        ("blipmq", "up to {BLIPMQ_SKIPPED_BYTES_MAX_MIB:g} MiB | read past"),
        ("blipmq", "below {BLIPMQ_FRAME_BYTES_MIN} | Error 8"),
        (
            "blipmq",
            "at most {BLIPMQ_EXPRESSION_CHARACTERS_MAX} characters, {BLIPMQ_EXPRESSION_DEPTH_MAX} levels and "
            "{BLIPMQ_EXPRESSION_COMPARISONS_MAX} comparisons",
        ),
        ("blipmq", "the last {FEDERATION_ORIGINS_REMEMBERED:,}"),
        ("blipmq", "More than {BLIPMQ_ERRORS_PER_S_MAX} Errors within a second"),
        ("fq", "An exchange, route or sender over {FQ_NAME_BYTES_MAX} bytes, or more than {FQ_HOPS_MAX} hops"),
        ("fq", "A program has at most {FQ_PROGRAM_BYTES_MAX} bytes, {FQ_PROGRAM_DEPTH_MAX} levels of parentheses"),
        ("fq", "and {FQ_PROGRAM_ARGUMENTS_MAX} arguments a function"),
        ("fq", "A queue has at most {FQ_QUEUE_BINDINGS_MAX:,} of them"),
        ("fq", "has {FQ_HANDSHAKE_SECONDS_MAX:g} s to say what it is"),
        ("fq", "up to {FQ_WEB_FILE_BYTES_MAX_MIB:g} MiB; `/` is"),
        ("architecture", "Up to {SYNC_FILES_ONE_BY_ONE_MAX} files and directories"),
    ],
)
def test_a_limit_on_a_page_is_the_limit_of_the_code(name: str, template: str) -> None:
    assert template.format_map(LIMITS | IN_KIB | IN_MIB) in re.sub(r"\s+", " ", WRITTEN[name])


def documented_reasons(text: str) -> list[str]:
    return [reason for reason, _ in tables(section(text, "When a batch is not believed"))[0]]


def test_the_reasons_not_to_believe_a_batch_are_those_of_the_code() -> None:
    tree = ast.parse(sources("hot")["hot/pure_batch.py"])
    (check,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "shape_fault"]
    given = [node.value.value for node in ast.walk(check) if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant)]
    in_order = list(dict.fromkeys(reason for reason in given if reason))
    assert documented_reasons(BATCH) == [*in_order, "checksum mismatch"]
    assert '"checksum mismatch"' in sources("hot")["hot/pure_walk.py"]
    assert hot.verify_batches(bytes(layout.HEADER_BYTES), 0, layout.HEADER_BYTES) == (0, documented_reasons(BATCH)[1])


# --- log lines


def logged_forms(files: Iterable[str]) -> dict[str, str]:
    """Form to level of every line that some source logs."""
    forms = {}
    for source in files:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if ast.unparse(node.func.value) == "logger" and isinstance(first, ast.Constant):
                    forms[str(first.value)] = node.func.attr
    return forms


def documented_lines(text: str) -> set[str]:
    """The log lines that a page shows: in the first column of a table, in a row `Log`, and in blocks."""
    lines: set[str] = set()
    for part in ("What a failure looks like", "Recovery"):
        lines.update(re.findall(r"^\|(?: Log \|)? `([^`]+)`", section(text, part), re.MULTILINE))
    for block in code_blocks(text, ""):
        lines.update(re.findall(r"^INFO +braidmq\.\w+: (.+)$", block, re.MULTILINE))
    return {line for line in lines if line.count(" ") > 1}


def unlogged(lines: Iterable[str], forms: Iterable[str]) -> set[str]:
    patterns = [pattern_of(form) for form in forms]
    return {line for line in lines if not any(re.fullmatch(pattern, line) for pattern in patterns)}


def undocumented(lines: Iterable[str], forms: Mapping[str, str]) -> set[str]:
    important = {form for form, level in forms.items() if level in ("warning", "error", "exception", "critical")}
    return {form for form in important if not any(re.fullmatch(pattern_of(form), line) for line in lines)}


def test_log_lines_on_the_page_are_logged() -> None:
    lines = documented_lines(DURABILITY)
    assert len(lines) >= 12, lines
    forms = logged_forms(sources("broker", "security", "log").values())
    # A line that is only "topic/partition: error" is held to the table of errors elsewhere.
    assert unlogged(lines, forms) == set()


def test_warnings_and_errors_of_storage_are_on_the_page() -> None:
    forms = logged_forms(sources("broker", "security", "log").values())
    assert len(forms) >= 8
    assert undocumented(documented_lines(DURABILITY), forms) == set()


def test_an_unknown_log_line_is_noticed() -> None:
    forms = logged_forms(['logger.warning("a %s of %d: done", x, y)\nlogger.info("quiet")\nlog.error("not ours")'])
    assert forms == {"a %s of %d: done": "warning", "quiet": "info"}
    assert unlogged({"a cat of 9: done", "a cat of 9: undone"}, forms) == {"a cat of 9: undone"}
    assert undocumented({"quiet"}, forms) == {"a %s of %d: done"}
    text = "## What a failure looks like\n| Log | `one two three` (error) |\n## Recovery\n| `a b c` | x |\n| `a b` | y |\n"
    assert documented_lines(text) == {"one two three", "a b c"}


# --- code


def missing_code(text: str) -> set[str]:
    """Files, classes, methods and functions between code marks that are not in the source."""
    everything = sources("base", "hot", "wire", "log", "schemas", "security", "broker", "server", "client", "admin", "cli")
    missing = set()
    for word in code_words(text):
        if re.fullmatch(r"[\w/]+\.(?:py|pyx|pxi)", word):
            known = [path for path in everything if path == word.removeprefix("src/braidmq/") or path.endswith(f"/{word}")]
            if not known and not (ROOT / word).is_file():
                missing.add(word)
        elif re.fullmatch(r"[\w/]+/", word) and not word.startswith(("topics/", "internal/")):
            if not (PACKAGE / word.removeprefix("src/braidmq/")).is_dir():
                missing.add(word)
        elif found := re.fullmatch(r"([A-Z]\w+)(?:\.(\w+)(?:\(\))?)?", word):
            if found[2] and not _has_method(everything.values(), found[1], found[2]):
                missing.add(word)
        elif found := re.fullmatch(r"operations/([a-z_]+)\.([a-z_0-9]+)", word):
            if f"def {found[2]}(" not in everything.get(f"server/operations/{found[1]}.py", ""):
                missing.add(word)
        elif word not in EVENT_TYPES and (found := re.fullmatch(r"(?!orders\.)([a-z_]+)\.([a-z_0-9]+)", word)):
            # `orders` is a topic in every example, and `orders.dlq` one too.
            known_in_hot = found[1] == "hot" and hasattr(hot, found[2])
            # A kind of audit event, or a file that is looked for, stands in the source as a text of its own.
            known_text = any(f'"{word}"' in source for source in everything.values())
            missing.update(() if known_in_hot or known_text else (word,))
    return missing


def _has_method(files: Iterable[str], name: str, method: str) -> bool:
    for source in files:
        body = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", source, re.MULTILINE | re.DOTALL)
        if body and re.search(rf"def {method}\(", body[0]):
            return True
    return False


def test_code_named_by_the_pages_exists() -> None:
    for name, text in WRITTEN.items():
        assert missing_code(text) == set(), name
    assert {"Segment.window", "log/commit.py", "hot.collect_rows"} <= code_words(ARCHITECTURE)


def test_code_that_does_not_exist_is_noticed() -> None:
    words = {"log/gone.py", "gone/", "Segment.gone", "Gone.window", "hot.gone", "operations/read.gone", "operations/gone.fetch"}
    real = {"log/segment.py", "log/", "Segment.window", "hot.crc32c", "operations/read.fetch"}
    assert missing_code(" ".join(f"`{word}`" for word in words | real)) == words
