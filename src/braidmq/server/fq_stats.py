"""The figures of exchanges, queues and clients, as the document that `/stats.json` has always been.

Names are any bytes; what is no UTF-8 is written out with backslashes, so that the document is one whatever clients call things.
"""

from __future__ import annotations

from typing import Any, Final

from braidmq.broker.broker import Broker
from braidmq.broker.fq_binding import Binding
from braidmq.broker.fq_exchanges import Figures
from braidmq.broker.fq_queue import FqQueue, Member
from braidmq.server.fq_client import FqClient
from braidmq.wire.fq.commands import STATUS_KEYS

VERSION: Final = "0.13.12"
"""Of the published broker whose figures these are; programs look at it."""


def stats_document(broker: Broker) -> dict[str, Any]:
    fq = broker.fq
    routes: dict[bytes, dict[str, Any]] = {}
    for queue in fq.all():
        for binding in queue.bindings.values():
            routes.setdefault(binding.exchange, {})[str(binding.route_id)] = _route(queue, binding)
    exchanges: dict[str, Any] = {
        _text(exchange.name): _figures(exchange.figures) | {"routes": routes.get(exchange.name, {})}
        for exchange in fq.exchanges.all()
    }
    total = {"no_exchange": fq.exchanges.no_exchange} | _figures(fq.exchanges.total)
    exchanges["_aggregate"] = total | {"size_dropped": fq.exchanges.size_dropped}
    return {
        "version": VERSION,
        "exchanges": exchanges,
        "queues": {_text(queue.detail.name): _queue(queue) for queue in fq.all()},
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in ("messages", "octets", "no_route", "routed", "dropped")}


def _route(queue: FqQueue, binding: Binding) -> dict[str, Any]:
    return {
        "route_id": binding.route_id,
        "prefix": _text(binding.program.head),
        "queue": _text(queue.detail.name),
        "permanent": binding.permanent,
        "invocations": binding.invocations,
        "avg_ns": round(binding.spent_s * 1e9 / binding.invocations) if binding.invocations else 0,
        "program": _text(binding.program.text),
    }


def _queue(queue: FqQueue) -> dict[str, Any]:
    return {
        "private": queue.detail.private,
        "type": queue.detail.kind,
        "policy": queue.detail.policy,
        "backlog_limit": queue.detail.backlog,
        "backlog": queue.backlog,
        "dropped_to": queue.counters.dropped + queue.counters.lost,
        "refcnt": len(queue.members),
        "clients": [_client(member) for member in queue.members],
    }


def _client(member: Member) -> dict[str, str]:
    assert isinstance(member, FqClient)
    host, _, port = member.address.rpartition(":")
    shown = {"user": _text(member.sender), "remote_addr": host, "remote_port": port}
    data = member.data
    if data is not None:
        shown["mode"] = "peer" if data.full else "client"
        shown |= {key: str(getattr(data.intake.tally, key)) for key in STATUS_KEYS[1:]}
    return shown


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
