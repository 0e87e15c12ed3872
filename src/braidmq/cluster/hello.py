"""How two nodes find out that they belong together, before anything else is said.

    caller    {"node", "cluster", "generation", "address", "nonce"}
    answerer  {"node", "cluster", "generation", "nonce", "proof"}
    caller    {"proof"}

A proof is an HMAC with the join token over everything that both said, with a word for the side that makes it: it can be used
neither again nor by the other side, and the token itself is never sent. Who listens can try out tokens, so a token has to be
one that nobody guesses. A proof says who is there when the connection begins; that nobody takes it over later is the work of
TLS.

No sockets here: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from braidmq.base.errors import BraidError

_NONCE_BYTES: Final = 32
_TEXT_CHARACTERS_MAX: Final = 255


@dataclass(slots=True)
class Identity:
    """Who a node is. `cluster` is empty as long as it belongs to none."""

    node: str
    cluster: str
    token: str
    generation: int = 0
    address: str = ""
    """Where others reach it, for the calls they make."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who the other side is."""

    node: str
    cluster: str
    generation: int
    address: str


class Greeting:
    """One handshake, seen from one side."""

    def __init__(self, me: Identity, nonce: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._me = me
        self._nonce = nonce(_NONCE_BYTES).hex()
        self._said: list[bytes] = []

    # --- the side that connects

    def open(self) -> bytes:
        me = self._me
        said = {"node": me.node, "cluster": me.cluster, "generation": me.generation, "address": me.address, "nonce": self._nonce}
        return self._note(json.dumps(said).encode())

    def accept(self, answer: bytes) -> tuple[Peer, bytes]:
        """Who answered, and our proof. Raises CLUSTER_REFUSED."""
        document = _parsed(answer)
        proof = document.pop("proof", None)
        peer = self._peer(document)
        self._note(json.dumps(document).encode())
        self._check(proof, "answerer", peer)
        return peer, json.dumps({"proof": self._proof("caller")}).encode()

    # --- the side that is connected to

    def answer(self, opening: bytes) -> tuple[Peer, bytes]:
        """Who calls, as it says, and what to answer. Raises CLUSTER_REFUSED."""
        document = _parsed(opening)
        peer = self._peer(document)
        self._note(opening)
        me = self._me
        said = {"node": me.node, "cluster": me.cluster, "generation": me.generation, "address": me.address, "nonce": self._nonce}
        self._note(json.dumps(said).encode())
        return peer, json.dumps({**said, "proof": self._proof("answerer")}).encode()

    def verify(self, closing: bytes, peer: Peer) -> None:
        """Raises CLUSTER_REFUSED unless the caller has the token."""
        self._check(_parsed(closing).get("proof"), "caller", peer)

    # --- both

    def _note(self, said: bytes) -> bytes:
        self._said.append(said)
        return said

    def _proof(self, side: str) -> str:
        heard = b"".join(hashlib.sha256(said).digest() for said in self._said)
        return hmac.new(self._me.token.encode(), f"braidmq {side}\n".encode() + heard, hashlib.sha256).hexdigest()

    def _check(self, proof: object, side: str, peer: Peer) -> None:
        if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), self._proof(side).encode()):
            raise BraidError("CLUSTER_REFUSED", node=peer.node, reason="the join tokens differ")

    def _peer(self, document: dict[str, Any]) -> Peer:
        match document:
            case {
                "node": str(node), "cluster": str(cluster), "generation": int(generation), "address": str(address), "nonce": str(),
            }:  # fmt: skip
                texts = (node, cluster, address)
            case _:
                raise BraidError("MALFORMED_PAYLOAD", reason="a greeting without a name")
        if not node or any(len(text) > _TEXT_CHARACTERS_MAX or not text.isprintable() for text in texts):
            raise BraidError("MALFORMED_PAYLOAD", reason="a greeting with an impossible name")
        me = self._me
        if node == me.node:
            raise BraidError("CLUSTER_REFUSED", node=node, reason="it has the same node_id")
        if cluster and me.cluster and cluster != me.cluster:
            raise BraidError("CLUSTER_REFUSED", node=node, reason=f"it belongs to cluster {cluster}, and this node to {me.cluster}")
        return Peer(node, cluster, generation, address)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BraidError("MALFORMED_PAYLOAD", reason="a greeting that is not JSON") from None
    if not isinstance(document, dict):
        raise BraidError("MALFORMED_PAYLOAD", reason="a greeting that is not a JSON object")
    return document
