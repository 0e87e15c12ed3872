"""A checkout installs from what it says: pins, make targets, and the compiled hot path where it can be built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from proof_length import LONG
from toolchain import compiler_exists

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(parts) == 2 for parts in pinned), "every line of constraints.txt is name==version"
    return {canonical(name): Version(version) for name, version in pinned}


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    named = [Requirement(line) for line in [*PROJECT["build-system"]["requires"], *project["dependencies"], *extras]]
    return [requirement for requirement in named if requirement.name != project["name"]]


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    for requirement in requirements():
        assert pinned[canonical(requirement.name)] in requirement.specifier, requirement


def test_what_is_installed_is_pinned() -> None:
    """Dependencies of dependencies too: a new one must not come in unnoticed."""
    from importlib.metadata import PackageNotFoundError, distribution

    pinned = pins()
    waiting = [requirement.name for requirement in requirements()]
    seen: set[str] = set()
    while waiting:
        name = canonical(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # an extra that is not installed here
        for line in needed:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonical(requirement.name) in pinned, f"{name} needs {line}, which constraints.txt does not pin"
                waiting.append(requirement.name)
    assert {"numpy", "pytest", "cffi"} <= seen


def test_make_lists_its_targets() -> None:
    listed = subprocess.run(["make", "-C", str(ROOT), "--no-print-directory"], capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^  make ([a-z-]+) ", listed, re.MULTILINE))
    building = {"help", "setup", "setup-cluster", "lint", "wheel-check", "docs", "clean"}
    assert targets == building | {"run", "cluster", "test", "test-long", "sim", "bench"}
    documented = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()))
    assert documented <= targets
    assert {"run", "test"} <= documented


def test_the_gate_can_be_run() -> None:
    gate = ROOT / ".ci/run"
    assert os.access(gate, os.X_OK)
    assert "make test" in gate.read_text()


def test_too_old_a_python_is_refused_with_a_reason(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = _setup_elsewhere(tmp_path, PYTHON=str(old))
    assert done.returncode != 0
    assert "3.11" in done.stderr
    assert "3.9.2" in done.stderr


def test_a_python_without_venv_names_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/ensurepip.py").write_text("raise ImportError('Debian ships it apart')\n")
    done = _setup_elsewhere(tmp_path, PYTHON=sys.executable, PYTHONPATH=str(tmp_path / "modules"))
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / "checkout/.venv").exists()


def _setup_elsewhere(tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`make setup` in a copy of as much of the tree as it looks at before it installs anything."""
    checkout = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "src/braidmq/hot/_native.pyx"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    python = f"PYTHON={env.pop('PYTHON')}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return subprocess.run(
        ["make", "setup", python], cwd=checkout, env=environ | env, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_hot_path_is_compiled_where_it_can_be() -> None:
    if not compiler_exists():
        pytest.skip("no C compiler")
    program = "from braidmq import hot; print(hot.IMPLEMENTATION)"
    environ = {name: value for name, value in os.environ.items() if name != "BRAID_PURE"}
    compiled = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True).stdout
    assert compiled == "compiled\n"
    pure = subprocess.run(
        [sys.executable, "-c", program], env=environ | {"BRAID_PURE": "1"}, capture_output=True, text=True, check=True
    )
    assert pure.stdout == "pure\n"


def test_every_file_of_the_package_is_named_for_the_wheel() -> None:
    """Templates, scripts, cheat sheets and markers: what no pattern of the package data names would be left out without a word."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    named = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (ROOT / "src" / package.replace(".", "/")).glob(glob)
    }
    source = ROOT / "src" / "braidmq"
    there = {path for path in source.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".so")}
    assert there and there <= named, sorted(str(path.relative_to(source)) for path in there - named)
    assert {"py.typed", "base.html", "reference.js", "manifest.json", "htmx.min.js", "groups.txt"} <= {path.name for path in there}


@pytest.mark.skipif(not LONG, reason="builds the compiled module twice: `make wheel-check`, or `make test-long`")
def test_a_wheel_is_whole_and_runs_by_itself() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools/wheel_check.py")], check=True, timeout=1800)
