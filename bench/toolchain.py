"""Compiles the load generator and the bare C server into `bench/build/`, when their sources are newer than they are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from processes import BENCH, BUILD

FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra")
CEILING_SOURCES: Final = ("ceiling.c", "batch.c", "crc32c.c", "fail.c", "flymq.c")


class NoCompiler(Exception):
    """Neither gcc nor cc is installed."""


def build() -> None:
    """Bring both programs up to date."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("the load generator is C: install gcc to run the benchmarks")
    BUILD.mkdir(exist_ok=True)
    folder = BENCH / "load"
    every = sorted(folder.glob("*.c"))
    _compile(compiler, BUILD / "load", [source for source in every if source.name != "ceiling.c"])
    _compile(compiler, BUILD / "ceiling", [folder / name for name in CEILING_SOURCES])


def _compile(compiler: str, target: Path, sources: list[Path]) -> None:
    headers = (BENCH / "load").glob("*.h")
    newest = max(path.stat().st_mtime for path in [*sources, *headers])
    if target.exists() and target.stat().st_mtime > newest:
        return
    subprocess.run([compiler, *FLAGS, "-o", str(target), *map(str, sources)], check=True)
