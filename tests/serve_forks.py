"""A program that has imported what `braid serve` imports, and forks a process for each broker that is asked for.

The imports of a start take most of its processor time, the same ones hundreds of times over. A fork has them at once, and is a
process like any other from then on: it runs `python -m braidmq` to its end, with arguments, variables, directory and output of its
own, and SIGKILL ends it as it ends one that was started by name.

It is spoken to over the socket whose descriptor is its only argument (`serve_process.py` is the other end), and ends when that
closes. A message in is a JSON object with the output's descriptors beside it; messages out are `{"started": pid}` and
`{"ended": pid, "status": number}`, where the status is negative for a signal.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys

MESSAGE_BYTES_MAX = 1 << 20
_IMPORTED = ("asyncio", "uvloop", "braidmq.cli.main", "braidmq.cli.parser", "braidmq.cli.output", "braidmq.admin.service",
             "braidmq.server.app", "braidmq.server.clustering")  # fmt: skip
"""What every start imports. What only some of them need, each imports by itself."""


def main(control: socket.socket) -> list[str] | None:
    """Serve until the other end closes, which is None; in a fork the arguments that it is to run with."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # Ctrl-C goes to all processes of a terminal; the tests are the ones that end this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with selectors.DefaultSelector() as waiting:
        waiting.register(control, selectors.EVENT_READ)
        waiting.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is wake:
                    wake.recv(4096)
                    _tell_ended(control)
                    continue
                message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
                if not message:
                    return None
                wanted = json.loads(message)
                pid = os.fork()
                if pid == 0:
                    waiting.close()
                    signal.set_wakeup_fd(-1)
                    for each in (control, wake, woken):
                        each.close()
                    return _become(wanted, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                control.send(json.dumps({"started": pid}).encode())


def _tell_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _become(wanted: dict[str, object], descriptors: list[int]) -> list[str]:
    """Make this fork what a process is that was started with these things."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in zip((nothing, *descriptors), (0, 1, 2), strict=True):
        os.dup2(ours, theirs)
        os.close(ours)
    directory, variables, arguments = wanted["cwd"], wanted["env"], wanted["arguments"]
    assert isinstance(directory, str)
    assert isinstance(variables, dict)
    assert isinstance(arguments, list)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[0] = directory
    return ["braidmq", *arguments]


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        given = main(asked)
    if given is not None:
        sys.argv[:] = given
        runpy.run_module("braidmq", run_name="__main__", alter_sys=True)
