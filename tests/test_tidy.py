"""The repository checks itself. Each check runs on the tree, and on a snippet that it has to reject."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import tidy_checks as checks

ROOT = Path(__file__).resolve().parent.parent
MADE = {
    ".git",
    ".venv",
    "build",
    "dist",
    "data",
    "site",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "results",
    "artefacts",
}
TEXT = {
    ".py", ".pyx", ".pyi", ".c", ".h", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".json", ".service",
    ".html", ".css", ".js", "",
}  # fmt: skip

UNREFERENCED: dict[str, str] = {
    "src/braidmq/client/__init__.py:__getattr__": "Python, for a name that the module does not have yet",
    "src/braidmq/client/__init__.py:__dir__": "Python's `dir`",
}
"""`path:name` of what nothing in the tree refers to, and who does."""


@pytest.fixture(scope="module", autouse=True)
def forgotten_afterwards() -> Iterator[None]:
    yield
    checks.forget()
    tree.cache_clear()


@cache
def tree() -> Mapping[str, str]:
    """Text of every file that belongs to the project, by path."""
    files = {}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in MADE and not name.endswith(".egg-info"))
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in TEXT and name not in MADE:
                files[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return files


def below(*prefixes: str, ending: tuple[str, ...] = (".py",)) -> dict[str, str]:
    return {path: source for path, source in tree().items() if path.startswith(prefixes) and path.endswith(ending)}


def assert_tidy(check: Callable[[str, str], list[str]], files: Mapping[str, str]) -> None:
    assert files, "nothing was looked at"
    assert_none([line for path, source in files.items() for line in check(path, source)])


def assert_none(complaints: list[str]) -> None:
    assert not complaints, "\n" + "\n".join(complaints)


def test_the_tree_was_read() -> None:
    assert {"README.md", "Makefile", "setup.py", ".ci/run", "src/braidmq/base/errors.py", "tests/test_tidy.py"} <= set(tree())
    assert not any(path.startswith((".venv", ".git/", "build/")) for path in tree())


# --- layers


def test_imports_point_downwards() -> None:
    assert_tidy(checks.check_layers, below("src/", ending=(".py", ".pyx")))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("log/a.py", "from braidmq.broker.topics import Topic"),
        ("log/a.py", "import braidmq.broker.topics"),
        ("log/a.py", "from braidmq import broker"),
        ("log/a.py", "from ..broker import topics"),
        ("log/a.py", "from .. import broker"),
        ("log/deep/a.py", "from ...server.app import serve"),
        ("base/a.py", "def f():\n    from braidmq import hot\n"),
        ("base/a.py", "if TYPE_CHECKING:\n    from braidmq.log.segment import Segment\n"),
        ("hot/_native.pyx", "from braidmq.wire import flymq"),
        ("hot/_native.pyx", "from braidmq.log.segment cimport Segment"),
        ("server/a.py", "from braidmq.client import connect"),
        ("client/a.py", "from braidmq.server.app import serve"),
        ("client/a.py", "from braidmq.broker.topics import Topic"),
        ("admin/a.py", "from braidmq.spark import source"),
        ("broker/a.py", "from braidmq.cluster.quorum import Guard"),
        ("cluster/a.py", "from braidmq.server.app import serve"),
        ("cluster/a.py", "from braidmq.sim.network import Network"),
        ("tools/a.py", "import os"),
    ],
)
def test_an_import_upwards_is_noticed(path: str, source: str) -> None:
    assert len(checks.check_layers(checks.PACKAGE + path, source)) >= 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("log/a.py", "from braidmq import hot, __version__\nfrom braidmq.log.segment import Segment"),
        ("log/a.py", "from .segment import Segment\nfrom . import segment\nimport os"),
        ("client/a.py", "from braidmq.log.attrs import decode_headers\nfrom braidmq.client.models import Record"),
        ("cli/a.py", "from braidmq.server.app import serve\nfrom braidmq.client import connect\nfrom braidmq.admin import api"),
        ("__main__.py", "from braidmq.cli.main import main"),
        ("sim/a.py", "from braidmq.server.app import serve\nfrom braidmq.cluster.quorum import Guard"),
        ("cli/a.py", "from braidmq.sim.network import Network"),
        ("hot/_native.pyx", "from braidmq.base import limits\nfrom libc.stdlib cimport free"),
    ],
)
def test_an_import_downwards_is_fine(path: str, source: str) -> None:
    assert checks.check_layers(checks.PACKAGE + path, source) == []


def test_codecs_and_logic_know_no_sockets() -> None:
    assert_tidy(checks.check_pure_wire, below("src/"))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("wire/a.py", "import asyncio"),
        ("wire/a.py", "from asyncio import Queue"),
        ("wire/flymq/a.py", "def f():\n    import socket\n"),
        ("log/a.py", "import socket"),
        ("broker/a.py", "import ssl"),
        ("cluster/a.py", "import socket"),
    ],
)
def test_a_socket_where_none_belongs_is_noticed(path: str, source: str) -> None:
    assert checks.check_pure_wire(checks.PACKAGE + path, source)
    assert not checks.check_pure_wire(checks.PACKAGE + "server/a.py", source)


def test_only_the_disk_opens_files() -> None:
    assert_tidy(checks.check_disk_is_given, below("src/"))
    assert set(checks.FILES_ALLOWED) <= set(tree()), "exceptions for files that are gone"


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "def f():\n    with open('x') as y:\n        return y\n",
        "import os\nos.open('x', 0)",
        "os.path.exists('x')",
        "from pathlib import Path",
        "import mmap",
    ],
)
def test_a_file_opened_elsewhere_is_noticed(source: str) -> None:
    for layer in ("base", "log", "broker", "cluster"):
        assert checks.check_disk_is_given(f"{checks.PACKAGE}{layer}/a.py", source)
    for path in ("cli/a.py", "base/disk_real.py"):
        assert not checks.check_disk_is_given(checks.PACKAGE + path, source)
    assert not checks.check_disk_is_given(checks.PACKAGE + "log/a.py", "disk.open_append('x')\nself.open()\nopened = 1")


def test_only_the_clock_reads_the_time() -> None:
    assert_tidy(checks.check_clock_is_given, below("src/"))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time\nnow = time.monotonic",
        "from time import time_ns",
        "from time import *",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_time_read_elsewhere_is_noticed(source: str) -> None:
    for layer in ("log", "broker", "cluster", "server", "sim"):
        assert checks.check_clock_is_given(f"{checks.PACKAGE}{layer}/a.py", source)
    assert not checks.check_clock_is_given(checks.CLOCK_MODULE, source)
    given = "loop.time()\nclock.monotonic()\nfrom time import gmtime"
    assert not checks.check_clock_is_given(checks.PACKAGE + "server/a.py", given)


# --- shape


def test_no_file_grew_long_without_a_reason() -> None:
    assert_tidy(checks.check_length, below("src/", "tests/", "tools/", "bench/", ending=(".py", ".pyx")))


def test_a_long_file_is_noticed() -> None:
    lines = ["x = 1"] * checks.LINES_MAX
    assert not checks.check_length("src/a.py", "\n".join(lines))
    assert checks.check_length("src/a.py", "\n".join([*lines, "y = 2"]))
    assert checks.check_length("src/a.py", "\n".join(["# long file:", *lines]))
    assert checks.check_length("src/a.py", "\n".join([*lines, "# long file: too late to say"]))
    assert not checks.check_length("src/a.py", "\n".join(["# long file: one table, nothing to split", *lines]))


def test_names_say_what_things_are() -> None:
    assert_tidy(checks.check_names, below("src/", "tests/", "tools/", "bench/", ending=(".py", ".pyx")))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("src/braidmq/log/utils.py", ""),
        ("src/braidmq/helpers.py", ""),
        ("src/braidmq/common/a.py", ""),
        ("src/braidmq/broker/topic_manager.py", ""),
        ("src/braidmq/broker/a.py", "class TopicManager: ..."),
        ("tests/a.py", "def f():\n    class RetryHelper: ...\n"),
    ],
)
def test_an_empty_name_is_noticed(path: str, source: str) -> None:
    assert checks.check_names(path, source)


def test_nothing_is_left_for_later() -> None:
    assert_tidy(checks.check_no_notes, tree())


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_a_note_is_noticed(mark: str) -> None:
    assert checks.check_no_notes("a.py", f"x = 1  # {mark}: later")
    assert checks.check_no_notes("a.md", f"{mark}")
    assert not checks.check_no_notes("a.py", f"{mark}X = '\\x{mark.lower()}'")


def test_no_exception_is_swallowed() -> None:
    assert_tidy(checks.check_no_swallowing, below("src/", "tests/", "tools/", "bench/"))


@pytest.mark.parametrize(
    "handler",
    [
        "except OSError: pass",
        "except OSError: ...",
        "except Exception:\n    'a reason'",
        "except:\n    raise",
        "except OSError:\n    pass\nexcept Exception as e:\n    print(e)",
    ],
)
def test_a_swallowed_exception_is_noticed(handler: str) -> None:
    assert checks.check_no_swallowing("a.py", f"try:\n    f()\n{handler}\n")
    assert not checks.check_no_swallowing("a.py", "try:\n    f()\nexcept OSError as error:\n    g(error)\n")


def test_suppressing_everything_is_noticed() -> None:
    assert checks.check_no_swallowing("a.py", "with contextlib.suppress(Exception):\n    f()\n")
    assert checks.check_no_swallowing("a.py", "with suppress(OSError, BaseException):\n    f()\n")
    assert not checks.check_no_swallowing("a.py", "with contextlib.suppress(FileNotFoundError):\n    f()\n")


def test_every_module_says_why_it_exists() -> None:
    assert_tidy(checks.check_docstring, below("src/", "tests/", "tools/", "bench/"))


@pytest.mark.parametrize("source", ["", "x = 1", "x = 1\n'late'", "# a comment"])
def test_a_module_without_docstring_is_noticed(source: str) -> None:
    assert checks.check_docstring("src/a.py", source)
    assert not checks.check_docstring("src/a.py", '"""Why."""')


def test_no_machine_and_no_package_index_is_named() -> None:
    assert_tidy(checks.check_no_places, {path: text for path, text in tree().items() if path != "tests/tidy_checks.py"})


@pytest.mark.parametrize(
    "line",
    [
        "/" + "home/dev/project",
        'PATH = "/' + 'root/x"',
        "cd /" + "work/main",
        "cp x /" + "tmp/y",
        "--index" + "-url x",
        "https://py" + "pi.org/p",
        "https://mirror.example/sim" + "ple/",
    ],
)
def test_a_machine_or_package_index_is_noticed(line: str) -> None:
    assert checks.check_no_places("a.md", line)


@pytest.mark.parametrize(
    "line",
    [
        "#!/usr/bin/env bash",
        "/var/lib/braidmq",
        "./data/tmp/x",
        "a/work/b",
        "tmp_path / 'x'",
        "$HOME/work/x",
        "/" + "home/someone/data",
    ],
)
def test_other_paths_are_fine(line: str) -> None:
    assert checks.check_no_places("a.md", line) == []


# --- the tree as a whole


def test_every_link_leads_somewhere() -> None:
    assert_tidy(lambda path, source: checks.check_links(path, source, tree()), below("", ending=(".md",)))


def test_a_broken_link_is_noticed() -> None:
    existing = {"README.md", "docs/index.md", "docs/a/b.md"}
    page = "[a](a/b.md) [b](../README.md#two) [c](https://example.org/x.md) [d](#here)"
    assert checks.check_links("docs/index.md", page, existing) == []
    assert checks.check_links("docs/a/b.md", "[a](../index.md), [b](c.md)", existing) == ["docs/a/b.md:1: leads nowhere: c.md"]


def test_nothing_is_dead() -> None:
    files = below("src/", "tests/", "bench/", "tools/", "setup.py", ending=(".py", ".pyx"))
    assert_none(checks.check_nothing_dead(files, UNREFERENCED))


def test_dead_code_is_noticed() -> None:
    files = {
        "src/braidmq/log/a.py": (
            "class Used: ...\ndef alone(n): return alone(n - 1)\ndef _inner(): ...\ndef outer(): return _inner()\n"
        ),
        "src/braidmq/log/b.py": "from braidmq.log.a import Used\nimport braidmq.log.b\nprint(Used)\n",
        "tests/test_a.py": "import braidmq.log.a\nfrom braidmq.log import b\nbraidmq.log.a.outer()\n",
    }
    assert checks.check_nothing_dead(files, []) == ["src/braidmq/log/a.py:2: nothing uses `alone`"]
    assert checks.check_nothing_dead(files, ["src/braidmq/log/a.py:alone"]) == []
    assert checks.check_nothing_dead(files, ["src/braidmq/log/a.py:alone", "x.py:gone"]) == ["allowed without need: x.py:gone"]
    assert "src/braidmq/log/c.py: nothing imports it" in checks.check_nothing_dead(files | {"src/braidmq/log/c.py": ""}, [])
    commented = files | {"src/braidmq/log/b.py": "# alone\n'alone'\n" + files["src/braidmq/log/b.py"]}
    assert checks.check_nothing_dead(commented, []), "a comment or a string keeps nothing alive"


def test_every_limit_is_tested() -> None:
    assert_none(checks.check_limits_are_tested(tree()["src/braidmq/base/limits.py"], below("tests/")))


def test_an_untested_limit_is_noticed() -> None:
    limits = "KIB: Final = 1024\nNAME_BYTES_MAX: Final = 255\nOTHER_MAX: Final = 1\n"
    tests = {"tests/test_a.py": "from braidmq.base import limits\n# OTHER_MAX\nassert limits.NAME_BYTES_MAX\n"}
    assert checks.check_limits_are_tested(limits, tests) == ["no test names the limit OTHER_MAX"]


def test_every_error_is_raised_and_in_the_table() -> None:
    files = below("src/", ending=(".py", ".pyx"))
    errors = files.pop("src/braidmq/base/errors.py")
    assert len(checks.error_codes(errors)) > 20
    assert_none(checks.check_errors_are_raised(errors, files))


def test_an_error_nobody_raises_is_noticed() -> None:
    table = 'ROWS = (ErrorSpec("ONE", "text"), ErrorSpec("TWO", "text"), ErrorSpec("THREE", "text"))'
    raising = 'raise BraidError("ONE", x=1)\ncode = "TWO" if x else "ONE"\n'
    pyx = 'raise BraidError("THREE", reason="x")'
    assert checks.check_errors_are_raised(table, {"a.py": raising, "b.pyx": pyx}) == []
    assert checks.check_errors_are_raised(table, {"a.py": raising}) == ["nothing raises THREE"]
    comparing = 'if e.code == "THREE": ...\nif e.code in {"THREE"}: ...\nmatch e.code:\n    case "THREE": ...\nERRORS["THREE"]\n'
    assert checks.check_errors_are_raised(table, {"a.py": raising + comparing}) == ["nothing raises THREE"]
    unknown = raising + 'raise errors.BraidError("FOUR")\n'
    found = checks.check_errors_are_raised(table, {"a.py": unknown, "b.pyx": pyx})
    assert found == ["a.py:3: `FOUR` is not in the table of errors"]


def run_unasync_check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools/unasync.py"), "--check"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_the_blocking_client_is_current() -> None:
    done = run_unasync_check(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_blocking_client_is_noticed(tmp_path: Path) -> None:
    for path, source in below("tools/unasync.py", "src/braidmq/client/").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    done = run_unasync_check(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    changed = next((tmp_path / "src/braidmq/client/_async").glob("c*.py"))
    changed.write_text(changed.read_text() + "\nADDED = 1\n")
    done = run_unasync_check(tmp_path)
    assert done.returncode == 1
    assert changed.name in done.stdout + done.stderr
