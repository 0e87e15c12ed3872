"""The reference pages are what the code says, and a page that is not is noticed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from braidmq.base.config import SETTINGS
from braidmq.base.errors import ERRORS

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "reference.py"


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generator, writing below `tmp_path`."""
    spec = importlib.util.spec_from_file_location("braid_reference", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGES_DIR", tmp_path)
    return module


def test_the_pages_are_current() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `make docs`"


def test_a_stale_or_missing_page_is_noticed(reference: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == [], "--check writes nothing"
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    capsys.readouterr()
    page = tmp_path / "commands.md"
    page.write_text(page.read_text().replace("--durability", "--durabilty"))
    assert reference.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: docs/reference/commands.md\n"


def test_pages_name_everything_once(reference: ModuleType) -> None:
    configuration, errors, limits = reference.configuration_page(), reference.errors_page(), reference.limits_page()
    for setting in SETTINGS:
        assert configuration.count(f"### {setting.key}\n") == 1
        assert f"`{setting.env}`" in configuration
    for code in ERRORS:
        assert errors.count(f"## {code}\n") == 1
    names = [name for name, _, _ in reference.declared_limits()]
    assert "FRAME_PAYLOAD_BYTES_MAX" in names and "MIB" not in names
    assert all(f"| `{name}` |" in limits for name in names)
