"""`braid`: the way from an argument list to an exit status.

A fault that has a name (`BraidError`, `OSError`, Ctrl-C, a closed pipe) ends as one or two lines on standard error and a documented
status, never as a traceback. Any other exception is a bug of ours, and Python's own report of it is what a bug report
needs: it passes through.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit, exit_for


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit status."""
    return guarded(lambda: run_command(argv))


def run_command(argv: Sequence[str] | None) -> int:
    from braidmq.cli.parser import parse

    args = parse(argv)
    return int(args.run(args))


def guarded(run: Callable[[], int]) -> int:
    """What `run` answers; a fault that has a name becomes its status, and what is said about it."""
    try:
        try:
            status = run()
        except SystemExit as ended:
            # argparse has printed the help, the version or what is wrong.
            return ended.code if isinstance(ended.code, int) else Exit.USAGE
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return Exit.PIPE_CLOSED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except (BraidError, OSError) as fault:
        from braidmq.cli.output import print_fault

        try:
            print_fault(fault)
        except BrokenPipeError:
            _drop_output()
        return exit_for(fault)


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter's last flush would meet the closed pipe again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (sys.stdout, sys.stderr):
            if _has_closed_pipe(stream.fileno()):
                os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):
        # A stream that is not a file (under a test's capture) has no pipe to protect.
        return
    finally:
        os.close(nowhere)


def _has_closed_pipe(descriptor: int) -> bool:
    """Whether nobody reads the other end any more."""
    import select

    poller = select.poll()
    poller.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))


if __name__ == "__main__":
    sys.exit(main())
