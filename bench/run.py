"""Runs the benchmarks: `python bench/run.py --help`. What the figures mean is in docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import report
import results
import scenario
import toolchain
from processes import allow_many_descriptors, cores
from scenarios import SCENARIOS
from settings import Settings, quick


def arguments() -> argparse.Namespace:
    names = [known.name for known in SCENARIOS]
    parser = argparse.ArgumentParser(
        prog="bench/run.py",
        description="Measure the broker on one core with a load generator on another, beside peers where installed.",
        epilog="scenarios:\n" + "\n".join(f"  {known.name:<16} {known.about}" for known in SCENARIOS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=names, metavar="SCENARIO", help="run this one; repeatable")
    parser.add_argument("--quick", action="store_true", help="one short run of each: does it work, and roughly how fast")
    parser.add_argument("--pure", action="store_true", help="our broker on the plain-Python hot path throughout")
    parser.add_argument("--huge", action="store_true", help="also a partition of 100 million records (13 GB of disk)")
    parser.add_argument("--repeats", type=int, metavar="N", help="interleaved repeats (3)")
    parser.add_argument("--duration", type=float, metavar="S", help="measured seconds of each run (3)")
    parser.add_argument("--connections", type=int, metavar="N", help="connections of pipelined produce (8)")
    parser.add_argument("--window", type=int, metavar="N", help="requests in flight on each of them (1000)")
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="where servers keep their data (bench/build/data)")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the results in this file")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the results go (a new file in bench/results)")
    return parser.parse_args()


def chosen_settings(args: argparse.Namespace) -> Settings:
    settings = Settings(pure=args.pure, huge=args.huge)
    if args.quick:
        settings = quick(settings)
    given = {
        "repeats": args.repeats, "duration_s": args.duration, "connections": args.connections, "window": args.window,
        "data_root": args.data_root.resolve() if args.data_root else None,
    }  # fmt: skip
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def main() -> int:
    args = arguments()
    before = results.read(args.against) if args.against else None
    settings = chosen_settings(args)
    try:
        toolchain.build()
    except toolchain.NoCompiler as missing:
        print(missing, file=sys.stderr)
        return 1
    allow_many_descriptors()
    if len(set(cores())) == 1:
        print("only one core: broker and generator share it, so rates say little; look at CPU per message", file=sys.stderr)

    started = time.monotonic()
    outcomes, rows = [], []
    for known in SCENARIOS:
        if args.only and known.name not in args.only:
            continue
        print(f"{known.name}: {known.about}", flush=True)
        outcome = scenario.run(known, settings, lambda text: print(text, flush=True))
        outcomes.append(outcome)
        rows += scenario.rows(known, outcome)

    choices = {
        "repeats": settings.repeats, "duration_s": settings.duration_s, "connections": settings.connections,
        "window": settings.window, "pure": settings.pure, "quick": settings.quick,
    }  # fmt: skip
    found = results.document(outcomes, rows, choices)
    path = results.write(found, args.output)
    print(f"\n{report.entrants(outcomes)}\n\n{report.table(rows)}\n")
    if before is not None:
        print(f"beside {args.against}:\n{report.comparison(found, before)}\n")
    print(f"{time.monotonic() - started:.0f} s; results in {path}")
    return 1 if any(outcome.failures for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
