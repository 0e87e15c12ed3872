"""`flymq-cli`: every command and flag of the published tool is understood, and does on BraidMQ what it is there for."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from authority import Authority
from embedded_broker import EmbeddedBroker

import braidmq.testing
from braidmq.base.config import Listen
from braidmq.base.config_listen import HttpListen
from braidmq.base.disk_real import RealDisk
from braidmq.cli.exits import Exit
from braidmq.cli.flymq_cli import build_parser, credentials_path, main
from braidmq.testing.thread_broker import ThreadBroker

Captured = pytest.CaptureFixture[str]

TABLE = Path(__file__).with_name("published_commands.txt")
PASSWORD = "Right-horse-7"
TYPED = "Other-horse-7\nquit\n"
"""What is typed where a command reads: a password, and the end of a conversation."""
OURS = {("subscribe", "-n"), ("subscribe", "--count")}
"""Options that the published tool has not."""
BY_HAND = {("audit tail", "-f"), ("audit tail", "--follow")}
"""Those that end with Ctrl-C, in a test of their own."""
SECURE = {f"--{port}-{name}" for port in ("admin", "health") for name in ("tls", "insecure", "ca-cert")} | {
    "-T", "--tls", "-k", "--insecure", "--tls-insecure", "--ca-cert", "--tls-ca", "--cert", "--tls-cert", "--key", "--tls-key",
}  # fmt: skip
"""Those of TLS, in a test of their own."""


def published() -> list[tuple[bool, int, str, str]]:
    """Whether it needs users, its exit status, the command line, and what it prints."""
    lines = [line for line in TABLE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    cells = [[cell.strip() for cell in line.split("|", 2)] for line in lines]
    return [(status.startswith("*"), int(status.removeprefix("*")), words, shown) for status, words, shown in cells]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    # What `main` sets for `braid` goes with the test.
    monkeypatch.setenv("BRAID_PASSWORD", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def served(braid: ThreadBroker, monkeypatch: pytest.MonkeyPatch) -> ThreadBroker:
    monkeypatch.setenv("FLYMQ_ADDR", braid.address)
    return braid


def run(capsys: Captured, words: str, status: Exit = Exit.OK) -> str:
    ended = main(shlex.split(words))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out + err


@contextmanager
def broker_at(directory: Path, **settings: object) -> Iterator[EmbeddedBroker]:
    """With an audit trail and its HTTP ports."""
    with EmbeddedBroker(RealDisk(), str(directory / "data"), web=True, durability="os", audit_enabled=True, **settings) as broker:
        yield broker


def variables(broker: EmbeddedBroker) -> dict[str, str]:
    assert broker.service is not None
    http = broker.service.addresses
    return {"FLYMQ_ADDR": broker.address, "FLYMQ_ADMIN_ADDR": http["admin"], "FLYMQ_HEALTH_ADDR": http["health"]}


def test_every_published_command_does_its_work(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over real sockets: the broker's own port, its admin API and its health port."""
    for name, text in (("schema", '{"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}'),
                       ("good", '{"id": 1}'), ("bad", "{}"), ("password", PASSWORD)):  # fmt: skip
        (tmp_path / name).write_text(text)
    users = {"auth_enabled": True, "auth_admin_password_file": str(tmp_path / "password")}
    anybody = {"auth_allow_anonymous": True}
    with broker_at(tmp_path / "open", **anybody) as open_to_all, broker_at(tmp_path / "guarded", **users) as guarded:
        broker = open_to_all.server.broker

        async def bury() -> list[str]:
            await broker.create_topic("dead", 1, {})
            for number in range(3):
                await broker.dead_letters.dead_letter("dead", b"k", b"letter %d" % number, "manual", "said so")
            return [letter.id for letter in await broker.dead_letters.letters("dead")]

        letters = open_to_all.run(bury)
        login = {"FLYMQ_USERNAME": "admin", "FLYMQ_PASSWORD": PASSWORD, "FLYMQ_ADMIN_USER": "admin", "FLYMQ_ADMIN_PASS": PASSWORD}
        wrong = []
        for with_users, status, words, shown in published():
            known = variables(guarded) | login if with_users else variables(open_to_all)
            given = {
                "$ADDR": known["FLYMQ_ADDR"], "$ADMIN": known["FLYMQ_ADMIN_ADDR"], "$HEALTH": known["FLYMQ_HEALTH_ADDR"],
                "$PASSWORD": PASSWORD, "$NODE": guarded.server.config.node_id, "$SCHEMA": str(tmp_path / "schema"),
                "$GOOD": str(tmp_path / "good"), "$BAD": str(tmp_path / "bad"), "$OUT": str(tmp_path / "out.csv"),
                "$LETTER1": letters[0], "$LETTER2": letters[1],
            }  # fmt: skip
            with monkeypatch.context() as patch:
                patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TYPED.encode())))
                for name, value in {**known, "BRAID_PASSWORD": ""}.items():
                    patch.setenv(name, value)
                ended = main([given.get(word, word) for word in shlex.split(words)])
            out, err = capfdbinary.readouterr()
            text = (out + err).decode("utf-8", "replace")
            if ended != status or shown not in text:
                wrong.append(f"{words}: {ended}, without {shown!r}\n{text}")
    assert not wrong, "\n".join(wrong)
    assert "user.create" in (tmp_path / "out.csv").read_text()


def test_the_table_has_every_command_and_every_option() -> None:
    """Both ways: what the table has the tool takes, as the test above sees, and what the tool takes the table has."""
    tool = build_parser()
    used: set[tuple[str, str]] = set()
    for _, _, line, _ in published():
        path, parser = "", tool
        words = iter(shlex.split(line))
        for word in words:
            if word.startswith("-"):
                used.add((path, word))
                if parser._option_string_actions[word].nargs is None:
                    next(words)
            elif (found := _below(parser).get(word)) is not None:
                path, parser = f"{path} {word}".strip(), found
        used.add((path, ""))
    known = {(path, option) for path, option in _known("", tool) if option not in SECURE}
    assert {pair for pair in known - used - OURS - BY_HAND if not _by_other_name(pair, used)} == set()


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: found for action in actions for name, found in action.choices.items()}


def _known(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    below = _below(parser)
    if not below:
        yield path, ""
    for action in parser._actions:
        if path == "" or action.dest != "help":
            yield from ((path, option) for option in action.option_strings)
    for name, found in below.items():
        yield from _known(f"{path} {name}".strip(), found)


def _by_other_name(pair: tuple[str, str], used: set[tuple[str, str]]) -> bool:
    """Whether the same option was used at a command that shares its declaration: another name of the command, or its neighbour."""
    path, option = pair
    head = path.partition(" ")[0]
    families = ({"produce", "pub"}, {"consume", "sub"}, {"subscribe"})
    family = next((each for each in families if head in each), {head})
    return any(option == other and place.partition(" ")[0] in family for place, other in used)


def test_tls_on_every_port(tmp_path: Path, capsys: Captured) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("broker")
    mine, my_key = authority.issue("me")
    with EmbeddedBroker(
        RealDisk(), str(tmp_path / "data"), web=True, durability="os", listen=(Listen("flymqs", "127.0.0.1", 0),),
        tls_cert_file=str(certificate), tls_key_file=str(key),
        **{f"{name}_listen": HttpListen("https", "127.0.0.1", 0) for name in ("admin", "health")},
    ) as broker:  # fmt: skip
        assert broker.service is not None
        place = next(iter(broker.server.addresses.values()))
        for options in (
            f"-T --ca-cert {authority.file}", f"--tls --tls-ca {authority.file} --cert {mine} --key {my_key}",
            f"-T --tls-ca {authority.file} --tls-cert {mine} --tls-key {my_key}", "-T -k", "--tls --insecure", "-T --tls-insecure",
        ):  # fmt: skip
            run(capsys, f"-a {place} {options} topics")
        run(capsys, f"-a {place} -T topics", status=Exit.UNREACHABLE)
        for port, command in (("admin", "cluster status"), ("health", "health ready")):
            address = broker.service.addresses[port]
            for options in (f"--{port}-tls --{port}-ca-cert {authority.file}", f"--{port}-insecure"):
                assert "{" in run(capsys, f"{command} --{port}-addr {address} {options}")
            run(capsys, f"{command} --{port}-addr {address} --{port}-tls", status=Exit.UNREACHABLE)


def test_the_trail_is_followed(tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        begin = "from braidmq.cli.flymq_cli import main; raise SystemExit(main())"
        words = [sys.executable, "-c", begin, "-a", broker.address, "audit", "tail", "-f", "--type", "topic.create"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            try:
                for name in ("followed.1", "followed.2"):
                    broker.create(name)
                    assert name in tail.stdout.readline()
            finally:
                tail.send_signal(signal.SIGINT)
                assert tail.wait(60) == Exit.INTERRUPTED


def test_messages_go_in_and_come_out(served: ThreadBroker, capsys: Captured) -> None:
    run(capsys, "create t -p 2")
    assert "partition 1, offset 0" in run(capsys, "produce t hello -k me -p 1")
    run(capsys, "pub t 68690a -e hex -p 1")
    run(capsys, "pub t '{\"a\": 1}' -e json -p 1")
    assert run(capsys, "consume t -p 1 -n 1 -k") == "[0] me: hello\n"
    assert run(capsys, "sub t -p 1 -o 1 -n 1 -d hex -q") == "68690a\n"
    assert run(capsys, "consume t -p 1 -F $.a --no-offset") == '{"a":1}\n'
    assert run(capsys, "consume t") == ""
    assert "hello" in run(capsys, "subscribe t -p 1 -g g --from-beginning -n 1 -l")
    assert "t" in run(capsys, "topics") and "2 partitions" in run(capsys, "info t")
    assert "no hex" in run(capsys, "produce t zz -e hex", status=Exit.USAGE)
    run(capsys, "delete t")
    run(capsys, "info t", status=Exit.NOT_FOUND)


def test_delays_transactions_groups_and_dead_letters(served: ThreadBroker, capsys: Captured) -> None:
    run(capsys, "create t")
    run(capsys, "txn t a b c")
    assert run(capsys, "consume t -q") == "a\nb\nc\n"
    assert "id" in run(capsys, "produce-delayed t 60000 later")
    run(capsys, "produce-ttl t 60000 short")
    served.clock.advance(120)
    assert run(capsys, "consume t -q") == "a\nb\nc\nlater\n"
    run(capsys, "groups reset-offsets g -t t --to-offset 2")
    assert "g" in run(capsys, "groups list")
    assert "2" in run(capsys, "groups lag g")
    run(capsys, "groups delete g")
    run(capsys, "groups describe g", status=Exit.NOT_FOUND)
    assert "0 dead letters" in run(capsys, "dlq stats t")


def test_accounts(capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRAID_AUTH_ADMIN_PASSWORD", "Right-horse-7")
    with braidmq.testing.broker(auth_enabled=True, audit_enabled=True) as braid:
        login = f"-a {braid.address} -u admin -P Right-horse-7"
        run(capsys, f"-a {braid.address} users list", status=Exit.DENIED)
        assert "admin" in run(capsys, f"{login} whoami")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Other-horse-7\n")))
        run(capsys, f"{login} users create ana --roles producer")
        run(capsys, f"{login} acl set orders --users ana")
        assert "ana" in run(capsys, f"{login} acl list")
        run(capsys, f"{login} users update ana --enabled false")
        assert "create" in run(capsys, f"{login} audit query --limit 50")
        run(capsys, f"{login} audit export --format csv --output {tmp_path / 'a.csv'}")
        assert "admin" in (tmp_path / "a.csv").read_text()
        os.makedirs(os.path.dirname(credentials_path()))
        Path(credentials_path()).write_text("FLYMQ_USERNAME=admin\nFLYMQ_PASSWORD=Right-horse-7\n")
        monkeypatch.setenv("BRAID_PASSWORD", "")
        assert "ana" in run(capsys, f"-a {braid.address} users list")


def test_explore_runs_commands_until_quit(served: ThreadBroker, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("produce t hi\nnonsense\nconsume t -q\nquit\nconsume t\n"))
    shown = run(capsys, "explore")
    assert shown.count("flymq> ") == 4 and "hi\n" in shown and "invalid choice" in shown


def test_the_entry_points_lead_to_functions() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"].keys() >= {"braid", "flymq-cli"}
    for target in project["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))
