"""A network that can be cut: a namespace for each node, and one for clients with the bridge between all of them.

Nothing of it is reachable from the machine's own network, nor reaches it. A cut is a rule of nftables in the namespace of the node
that is cut off: packets vanish, connections stay open, as when a switch dies. A process belongs to a namespace, and so does a
thread: what a thread starts, and the connections that it opens, are where the thread is.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from node_processes import Place

CLIENTS = "clients"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


def why_not() -> str:
    """Why there can be no such network here; empty where there can."""
    missing = [program for program in ("ip", "nft") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: apt install iproute2 nftables"
    # No more than what has to be permitted: a network that cannot be made for another reason is a fault, and no reason to skip.
    probe = f"braid-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", probe)
        try:
            _run("ip", "-n", probe, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "other")
            _run("ip", "netns", "exec", probe, "nft", "add table inet cut")
        finally:
            _run("ip", "netns", "delete", probe)
    except OSError as error:
        return f"network namespaces are not permitted: {error}"
    return ""


def _enter(namespace: int) -> None:
    """Bring the thread that calls this into a network namespace."""
    if _libc.setns(namespace, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


class Network:
    """`with Network("abc") as network:` has a place for each of the nodes a, b and c."""

    def __init__(self, names: str) -> None:
        self.names = names
        self._stack = ExitStack()
        self.places = {
            name: Place(f"10.77.0.{number}", ("ip", "netns", "exec", self._namespace(name)))
            for number, name in enumerate(names, start=1)
        }

    @staticmethod
    def _namespace(name: str) -> str:
        # Namespaces have names that the whole machine shares, and several tests may run on it.
        return f"braid-{os.getpid()}-{name}"

    def __enter__(self) -> Network:
        with ExitStack() as made:
            for name in (CLIENTS, *self.names):
                _run("ip", "netns", "add", self._namespace(name))
                made.callback(_run, "ip", "netns", "delete", self._namespace(name))
                _run("ip", "-n", self._namespace(name), "link", "set", "lo", "up")
            self._join()
            self._stack = made.pop_all()
        return self

    def _join(self) -> None:
        clients = ("ip", "-n", self._namespace(CLIENTS))
        _run(*clients, "link", "add", "bridge", "type", "bridge")
        _run(*clients, "addr", "add", "10.77.0.100/24", "dev", "bridge")
        _run(*clients, "link", "set", "bridge", "up")
        for name, place in self.places.items():
            node = ("ip", "-n", self._namespace(name))
            _run(*clients, "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", self._namespace(name))
            _run(*clients, "link", "set", f"to-{name}", "master", "bridge", "up")
            _run(*node, "addr", "add", f"{place.host}/24", "dev", "eth0")
            _run(*node, "link", "set", "eth0", "up")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Have this thread in the namespace of a node, or in that of the clients."""
        with open("/proc/thread-self/ns/net", "rb") as before, open(f"/run/netns/{self._namespace(name)}", "rb") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut(self, name: str, *, receives: bool = False, sends: bool = False, clients: bool = False) -> None:
        """Cut a node off. What it `receives` or `sends` may still pass, or all that is between it and the `clients`."""
        rules = "table inet cut {\n"
        whom = f"ip {{}} {{{{ {', '.join(place.host for place in self.places.values())} }}}}" if clients else ""
        for hook, device, address, passes in (("input", "iifname", "saddr", receives), ("output", "oifname", "daddr", sends)):
            if not passes:
                rules += f'chain {hook} {{ type filter hook {hook} priority 0; {device} "eth0" {whom.format(address)} drop; }}\n'
        self._nft(name, rules + "}")

    def heal(self, name: str) -> None:
        self._nft(name, "delete table inet cut")

    def _nft(self, name: str, rules: str) -> None:
        _run("ip", "netns", "exec", self._namespace(name), "nft", rules)
