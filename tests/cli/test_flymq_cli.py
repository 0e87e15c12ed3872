"""`flymq-cli`: every command and flag of the published tool is understood, and does on BraidMQ what it is there for."""

from __future__ import annotations

import http.server
import io
import json
import os
import shlex
import threading
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import braidmq.testing
from braidmq.cli.exits import Exit
from braidmq.cli.flymq_cli import build_parser, credentials_path, main
from braidmq.testing.thread_broker import ThreadBroker

Captured = pytest.CaptureFixture[str]

PUBLISHED = """
-a h:1 -u x -P y -T -k --ca-cert c --cert d --key e topics
--tls-insecure --tls-ca c --tls-cert d --tls-key e list
produce t m -k key -p 1 -e string -s schema
pub t m --key key --partition 1 --encoder json --schema s
consume t -o 0 -n 10 -p 0 -k -F f -d string -s s -q -r --no-offset
sub t --offset 3 --count 1 --partition 0 --show-key --filter f --decoder hex --schema s --quiet --raw
subscribe t -g default -f earliest -p 0 -k -F f -d json -s s -l -q -r --no-timestamp --no-offset
subscribe t --group g --from-beginning --show-lag
subscribe t --from-latest
create t -p 3
delete t
info t
groups list
groups describe g -t t
groups lag g --topic t -p 0
groups reset-offsets g -t t -p 0 --to-earliest
groups reset g -t t --to-offset 5
groups delete g --topic t
produce-delayed t 1000 m
produce-ttl t 1000 m
txn t a b c
schema register s json file
schema list
schema validate s file
schema delete s
schema produce t s m
dlq list t -n 5
dlq replay t id
dlq purge t
dlq stats t
dlq re-inject t id
auth
whoami
users list
users create u --roles a,b
users delete u
users update u --roles a --enabled false
users get u
users passwd u
roles list
roles get r
acl list
acl get t
acl set t --public --users a,b --roles c
acl delete t
audit list --limit 5 --offset 2
audit query --user u --resource r --type a,b --result success --search s --start 2026-01-01T00:00:00Z --end 2026-01-02T00:00:00Z
audit tail -f
audit export --format csv --output file
cluster status --admin-addr a --admin-tls --admin-insecure --admin-ca-cert c --admin-user u --admin-pass p
cluster info
cluster members
cluster metadata --topic t
cluster partitions --topic t
cluster leaders
cluster rebalance
cluster reassign t 0 -l node -r a,b
cluster join --peer host:1
cluster leave
admin cluster
admin topics
admin groups
admin schemas
health status --health-addr a --health-tls --health-insecure --health-ca-cert c
health live
health ready
explore
"""


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


@pytest.mark.parametrize("words", PUBLISHED.strip().splitlines())
def test_the_published_command_line_is_understood(words: str) -> None:
    args = build_parser().parse_args(shlex.split(words))
    assert args.words is not None or args.perform is not None
    if args.words is not None:
        from braidmq.cli.parser import parse

        assert parse(args.words(args)).run


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


# --- the HTTP servers


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(503 if self.path == "/health" else 401 if "Authorization" not in self.headers and "api" in self.path else 200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200)

    def _answer(self, status: int) -> None:
        body = json.dumps({"path": self.path}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_admin_and_health_ask_the_paths_of_the_published_api(web: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    run(capsys, f"admin topics --admin-addr {web}", status=Exit.DENIED)
    monkeypatch.setenv("FLYMQ_ADMIN_USER", "a")
    monkeypatch.setenv("FLYMQ_ADMIN_ADDR", web)
    assert json.loads(run(capsys, "admin groups")) == {"path": "/api/v1/consumer-groups"}
    assert json.loads(run(capsys, "cluster partitions --topic a/b")) == {"path": "/api/v1/cluster/partitions?topic=a%2Fb"}
    assert json.loads(run(capsys, "cluster reassign t 1 -l n")) == {"path": "/api/v1/cluster/partitions/t/1"}
    assert json.loads(run(capsys, f"health ready --health-addr {web}")) == {"path": "/health/ready"}
    run(capsys, f"health status --health-addr {web}", status=Exit.FAILED)
    run(capsys, "health live --health-addr 127.0.0.1:1", status=Exit.UNREACHABLE)


def test_the_entry_points_lead_to_functions() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"].keys() >= {"braid", "flymq-cli"}
    for target in project["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))
