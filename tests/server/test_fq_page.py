"""The page about fq names what there is: commands, parameters, functions, figures, settings and the lengths of things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braidmq.base import limits
from braidmq.base.config import SETTINGS
from braidmq.server.fq_http import CHECKPOINTS
from braidmq.wire.fq.commands import STATUS_KEYS, Code
from braidmq.wire.fq.modes import MODE_WORDS
from braidmq.wire.fq.program import _FUNCTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "protocols" / "fq.md").read_text(encoding="utf-8")


def words(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def test_every_command_and_mode_is_on_the_page() -> None:
    codes = {f"{code:04x}" for code in Code}
    assert len(codes) == 12 and codes <= words(PAGE)
    assert {word.hex() for word in MODE_WORDS.values()} <= words(PAGE)
    documented = {word for word in words(PAGE) if re.fullmatch(r"[0-9a-f]{4}", word)}
    flags = {"0001", "0110", "0100"}
    assert documented == codes | flags


@pytest.mark.parametrize(
    "name",
    [
        *STATUS_KEYS,
        *(f"{name[0]}(" for name in _FUNCTIONS),
        *(setting.key for setting in SETTINGS if setting.key.startswith("fq_")),
        *CHECKPOINTS,
        "/submit", "/stats.json", "X-Fq-Exchange", "X-Fq-Route", "X-Fq-Sender", "X-Fq-User",
        "mem", "disk", "private", "public", "drop", "block", "backlog=N", "permanent", "transient",
    ],
)  # fmt: skip
def test_a_name_is_on_the_page(name: str) -> None:
    assert any(word.startswith(name) for word in words(PAGE)), name


def test_numbers_are_those_of_the_limits() -> None:
    for number, text in (
        (limits.FQ_NAME_BYTES_MAX, "over 127 bytes"), (limits.FQ_KEY_BYTES_MAX, "of 127 bytes"),
        (limits.FQ_HOPS_MAX, "more than 32 hops"),
        (limits.FQ_PROGRAM_BYTES_MAX, "at most 1024 bytes"), (limits.FQ_PROGRAM_DEPTH_MAX, "32 levels"),
        (limits.FQ_PROGRAM_ARGUMENTS_MAX, "16 arguments"), (int(limits.FQ_HANDSHAKE_SECONDS_MAX), "30 s"),
        (limits.FQ_WEB_FILE_BYTES_MAX // limits.MIB, "16 MiB"),
    ):  # fmt: skip
        assert str(number) in text and text in PAGE, text
    assert f"{limits.FQ_QUEUE_BINDINGS_MAX:,}" in PAGE


def test_a_missing_name_would_be_noticed() -> None:
    assert "no_such_figure" not in words(PAGE)
