"""The metadata quorum kept by etcd, through its JSON gateway.

Every key lies below a prefix, so that one etcd can serve several clusters and other programs beside them. A time-out is an unknown
outcome. A watch that breaks, or is silent for a while, is asked anew at the next endpoint from where it was: nothing is missed,
and a member that hangs is noticed. Where etcd has forgotten what a watch asks for, the watcher is told to read again.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.cluster.etcd_client import NOT_FOUND, EtcdClient, OutcomeUnknown, Refused
from braidmq.cluster.quorum import Changed, Compacted, Conflict, Entry, Event, Guard, Ok, Op, Put, Reading, TxnResult, Unknown
from braidmq.cluster.quorum_session import LeasedQuorum

_WATCH_SILENCE_S: Final = 5.0
_WATCH_PAUSE_S: Final = 0.05

logger = logging.getLogger("braidmq.quorum")


class EtcdQuorum(LeasedQuorum):
    def __init__(self, client: EtcdClient, clock: Clock, prefix: str = "braidmq/") -> None:
        super().__init__(clock)
        self.client = client
        self._prefix = prefix.encode()

    async def close(self) -> None:
        await self.abandon_sessions()
        self.client.close()

    # --- keys

    def _key(self, key: str) -> str:
        return _text(self._prefix + key.encode())

    def _range(self, prefix: str) -> dict[str, str]:
        first = self._prefix + prefix.encode()
        # The prefix ends in UTF-8, which has no byte FF: the next larger prefix differs in the last byte alone.
        return {"key": _text(first), "range_end": _text(first[:-1] + bytes([first[-1] + 1]))}

    def _name(self, text: str) -> str:
        return base64.b64decode(text)[len(self._prefix) :].decode()

    async def txn(self, guards: Sequence[Guard], ops: Sequence[Op]) -> TxnResult:
        body = {
            "compare": [
                {"key": self._key(guard.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(guard.revision)}
                for guard in guards
            ],
            "success": [self._request(op) for op in ops],
            "failure": [{"request_range": {"key": self._key(guard.key)}} for guard in guards],
        }
        try:
            answer = await self.client.call("/v3/kv/txn", body, repeatable=False)
        except OutcomeUnknown as unknown:
            return Unknown(str(unknown))
        except Refused as refused:
            if refused.code == NOT_FOUND:
                # The lease that a key is bound to is over.
                return await self._conflict(guards)
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None
        except BraidError as fault:
            return Unknown(fault.text)
        if answer.get("succeeded"):
            return Ok(int(answer["header"]["revision"]))
        found = [response["response_range"].get("kvs", []) for response in answer["responses"]]
        return Conflict({guard.key: _entry(rows[0]) if rows else None for guard, rows in zip(guards, found, strict=True)})

    def _request(self, op: Op) -> dict[str, Any]:
        if not isinstance(op, Put):
            return {"request_delete_range": {"key": self._key(op.key)}}
        return {"request_put": {"key": self._key(op.key), "value": _text(op.value), "lease": str(op.lease)}}

    async def _conflict(self, guards: Sequence[Guard]) -> Conflict:
        entries = {}
        for guard in guards:
            entries[guard.key] = (await self.read(guard.key)).entries.get(guard.key)
        return Conflict(entries)

    async def read(self, prefix: str, *, linearizable: bool = True) -> Reading:
        try:
            body = {**self._range(prefix), "serializable": not linearizable}
            answer = await self.client.call("/v3/kv/range", body, repeatable=True)
        except Refused as refused:
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None
        entries = {self._name(row["key"]): _entry(row) for row in answer.get("kvs", ())}
        return Reading(int(answer["header"]["revision"]), entries)

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Event]:
        while True:
            body = {"create_request": {**self._range(prefix), "start_revision": str(after_revision + 1)}}
            try:
                async for answer in self.client.stream("/v3/watch", body, _WATCH_SILENCE_S):
                    result = answer.get("result", {})
                    if result.get("canceled"):
                        compacted = int(result.get("compact_revision", 0))
                        if compacted:
                            yield Compacted(compacted)
                            return
                        logger.info("a watch was ended by etcd: %s", result.get("cancel_reason", "it did not say why"))
                        break
                    for event in result.get("events", ()):
                        change = self._change(event)
                        after_revision = max(after_revision, change.revision)
                        yield change
            except BraidError as fault:
                logger.debug("a watch of %s goes on elsewhere: %s", prefix, fault)
                await asyncio.sleep(_WATCH_PAUSE_S)
            except Refused as refused:
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None

    def _change(self, event: dict[str, Any]) -> Changed:
        row = event["kv"]
        entry = None if event.get("type") == "DELETE" else _entry(row)
        return Changed(self._name(row["key"]), entry, int(row["mod_revision"]))

    # --- leases

    async def grant_lease(self, ttl_s: float) -> int:
        answer = await self._asked("/v3/lease/grant", {"TTL": str(math.ceil(ttl_s))})
        return int(answer["ID"])

    async def renew_lease(self, lease: int) -> bool:
        answer = await self._asked("/v3/lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def end_lease(self, lease: int) -> None:
        try:
            await self.client.call("/v3/lease/revoke", {"ID": str(lease)}, repeatable=True)
        except Refused as refused:
            if refused.code != NOT_FOUND:
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None

    async def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.client.call(path, body, repeatable=True)
        except Refused as refused:
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(base64.b64decode(row.get("value", "")), int(row["mod_revision"]))
