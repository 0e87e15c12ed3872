"""How many messages a second a route program decides about: `python bench/program_rate.py`. Prints one line of JSON.

The messages are a mix: the route does not begin right, the payload does not, the route lacks a part, and all of it fits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from braidmq.wire.fq.program import parse_program

TEXT: Final = b'prefix:foo (payload_prefix("M") && route_contains("bar"))'
MESSAGES: Final = (
    (b"fob.quux.bar", b"M" + b"x" * 99, False),
    (b"foo.quux.bar", b"N" + b"x" * 99, False),
    (b"foo.quux.baz", b"M" + b"x" * 99, False),
    (b"foo.quux.bar", b"M" + b"x" * 99, True),
)
ROUND: Final = 20_000


def rate(seconds: float) -> float:
    program = parse_program(TEXT)
    for route, payload, expected in MESSAGES:
        if program.matches(route, payload) is not expected:
            raise SystemExit(f"the program decides wrongly about {route!r}")
    messages = [(route, payload) for route, payload, _ in MESSAGES] * (ROUND // len(MESSAGES))
    matches, evaluated, found = program.matches, 0, 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for route, payload in messages:
            if matches(route, payload):
                found += 1
        evaluated += len(messages)
    if found * len(MESSAGES) != evaluated:
        raise SystemExit(f"{found} of {evaluated} messages fit, expected one of {len(MESSAGES)}")
    return evaluated / elapsed


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/program_rate.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for how long (2)")
    print(json.dumps({"evaluations_per_s": rate(parser.parse_args().seconds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
