"""`flymq-cli` and the HTTP servers: cluster and admin over the Admin API, health over the health port.

Answers are printed as they come, as indented JSON. A server that cannot be reached is status 3, one that refuses 6, as everywhere.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit

if TYPE_CHECKING:
    from braidmq.cli.flymq_cli import Grammar

_SECONDS: Final = 30
_CLUSTER: Final = {
    "status": "/api/v1/cluster", "info": "/api/v1/cluster", "members": "/api/v1/cluster/nodes",
    "metadata": "/api/v1/cluster/metadata", "partitions": "/api/v1/cluster/partitions", "leaders": "/api/v1/cluster/leaders",
}  # fmt: skip
_ADMIN: Final = {
    "cluster": "/api/v1/cluster", "topics": "/api/v1/topics", "groups": "/api/v1/consumer-groups", "schemas": "/api/v1/schemas",
}  # fmt: skip
_HEALTH: Final = {"status": "/health", "live": "/health/live", "ready": "/health/ready"}


def register(grammar: Grammar) -> None:
    cluster = grammar.group("cluster", "The cluster, over the Admin API.")
    for name, path in _CLUSTER.items():
        parser = cluster.add(name, f"Show the cluster's {name}.", perform=_get(path))
        parser.add_argument("--topic", metavar="TOPIC", help="only this topic")
        _admin_options(parser)
    _admin_options(cluster.add("rebalance", "Spread the leaders.", perform=lambda a: _ask(a, "POST", "/api/v1/cluster/rebalance")))
    reassign = cluster.add("reassign", "Give a partition another leader.", perform=_reassign)
    reassign.add_argument("topic", metavar="TOPIC", help="name of the topic")
    reassign.add_argument("partition", metavar="N", type=int, help="its partition")
    reassign.add_argument("-l", "--leader", metavar="NODE", required=True, help="node that leads from now on")
    reassign.add_argument("-r", "--replicas", default="", metavar="NODES", help="nodes that hold it, separated by commas")
    _admin_options(reassign)
    join = cluster.add("join", "Join a cluster.", perform=_membership)
    join.add_argument("--peer", metavar="ADDR", required=True, help="a member of the cluster")
    cluster.add("leave", "Leave the cluster.", perform=_membership).set_defaults(peer=None)
    admin = grammar.group("admin", "What the Admin API lists.")
    for name, path in _ADMIN.items():
        _admin_options(admin.add(name, f"Show {name}.", perform=_get(path)))
    health = grammar.group("health", "The health port.")
    for name, path in _HEALTH.items():
        parser = health.add(name, f"Ask for {path}.", perform=_health(path))
        parser.add_argument("--health-addr", metavar="ADDR", help="health port (FLYMQ_HEALTH_ADDR) [localhost:9095]")
        parser.add_argument("--health-tls", action="store_true", help="speak TLS")
        parser.add_argument("--health-insecure", action="store_true", help="trust whoever answers")
        parser.add_argument("--health-ca-cert", metavar="FILE", help="authorities to trust")


def _admin_options(parser: Any) -> None:
    parser.add_argument("--admin-addr", metavar="ADDR", help="Admin API (FLYMQ_ADMIN_ADDR) [localhost:9096]")
    parser.add_argument("--admin-tls", action="store_true", help="speak TLS")
    parser.add_argument("--admin-insecure", action="store_true", help="trust whoever answers")
    parser.add_argument("--admin-ca-cert", metavar="FILE", help="authorities to trust")
    parser.add_argument("--admin-user", metavar="NAME", help="user (FLYMQ_ADMIN_USER)")
    parser.add_argument("--admin-pass", metavar="PASSWORD", help="its password (FLYMQ_ADMIN_PASS, which nobody else can see)")


def _get(path: str) -> Callable[[argparse.Namespace], int]:
    def perform(args: argparse.Namespace) -> int:
        topic = getattr(args, "topic", None)
        return _ask(args, "GET", f"{path}?topic={quote(topic, safe='')}" if topic else path)

    return perform


def _health(path: str) -> Callable[[argparse.Namespace], int]:
    def perform(args: argparse.Namespace) -> int:
        address = args.health_addr or os.environ.get("FLYMQ_HEALTH_ADDR") or "localhost:9095"
        return _request("GET", path, address, args.health_tls, args.health_insecure, args.health_ca_cert, ("", ""), None)

    return perform


def _reassign(args: argparse.Namespace) -> int:
    body: dict[str, object] = {"new_leader": args.leader}
    if args.replicas:
        body["new_replicas"] = args.replicas.split(",")
    return _ask(args, "POST", f"/api/v1/cluster/partitions/{quote(args.topic, safe='')}/{args.partition}", body)


def _membership(args: argparse.Namespace) -> int:
    """Over the broker's own port, as the published tool does it."""
    from braidmq.cli.connection import open_client
    from braidmq.cli.flymq_cli import connection
    from braidmq.wire import flymq

    request = flymq.ClusterJoin(args.peer) if args.peer else flymq.ClusterLeave()
    with open_client(connection(args)) as client:
        client._asker.ask(request, flymq.Ok, again=False)
    print("OK")
    return Exit.OK


def _ask(args: argparse.Namespace, method: str, path: str, body: object = None) -> int:
    address = args.admin_addr or os.environ.get("FLYMQ_ADMIN_ADDR") or "localhost:9096"
    user = args.admin_user or os.environ.get("FLYMQ_ADMIN_USER", "")
    password = args.admin_pass or os.environ.get("FLYMQ_ADMIN_PASS", "")
    return _request(method, path, address, args.admin_tls, args.admin_insecure, args.admin_ca_cert, (user, password), body)


def _request(
    method: str, path: str, address: str, tls: bool, insecure: bool, ca_file: str | None, login: tuple[str, str], body: object
) -> int:
    """Print the answer; the status tells whether it was a good one."""
    scheme, _, place = address.rpartition("://")
    url = f"{scheme or ('https' if tls or insecure or ca_file else 'http')}://{place}{path}"
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("Accept", "application/json")
    if body is not None:
        request.add_header("Content-Type", "application/json")
    if login[0]:
        request.add_header("Authorization", "Basic " + base64.b64encode(":".join(login).encode()).decode())
    context = ssl.create_default_context(cafile=ca_file)
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
            _print(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            _print(refused.read())
        return {401: Exit.DENIED, 403: Exit.DENIED, 404: Exit.NOT_FOUND}.get(refused.code, Exit.FAILED)
    except urllib.error.URLError as fault:
        raise BraidError("UNREACHABLE", servers=place, reason=str(fault.reason)) from None
    return Exit.OK


def _print(raw: bytes) -> None:
    try:
        print(json.dumps(json.loads(raw), indent=2, ensure_ascii=False))
    except ValueError:
        print(raw.decode("utf-8", "replace").rstrip("\n"))
