"""Runs the tests in several processes, and those that failed once more, alone.

Four processes on two cores run hundreds of brokers, a Spark and a browser side by side. A test that fails there may have found a
fault, or only a machine that had no time for it. Alone, with the machine to itself, it shows which: what fails again is a failure;
what passes is named, so that nobody mistakes it for a test that passed at once. More than a few failures are never the machine's.

Usage: run_tests.py WORKERS [arguments of pytest]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ALONE_MAX = 12
FAILED = 1
"""What pytest ends with when tests failed; anything else is no matter of tests."""


def main(workers: str, arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryDirectory() as folder:
        failed = Path(folder, "failed")
        command = [*pytest, "--numprocesses", workers, "--dist", "load", *arguments]
        status = subprocess.run(command, env=os.environ | {"TEST_FAILED_FILE": str(failed)}, check=False).returncode
        names = sorted(set(failed.read_text().splitlines())) if failed.exists() else []
    if status != FAILED or workers == "0" or not 0 < len(names) <= ALONE_MAX:
        return status
    print(f"\n{len(names)} failed beside others, and run again alone:", *names, sep="\n  ", flush=True)
    return subprocess.run([*pytest, *names], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
