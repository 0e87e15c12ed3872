"""The parts of the command line that need no broker: inputs, formats, pacing, search by time, progress."""

from __future__ import annotations

import base64
import io
import json
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import ERRORS, BraidError
from braidmq.cli import exits, messages
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.output import print_table, printable
from braidmq.cli.pace import Pace
from braidmq.cli.record_format import formatter
from braidmq.cli.starting_point import parse_time
from braidmq.cli.terminal import Progress, paint
from braidmq.client.models import Record
from braidmq.log.attrs import encode_headers

# --- messages


def test_lines_keep_everything_but_the_newline() -> None:
    stream = io.BytesIO(b"one\n\n two \r\nlast")
    assert list(messages.from_lines(stream)) == [b"one", b"", b" two \r", b"last"]


def test_files_by_line_and_whole(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"1\n2\n")
    second.write_bytes(b"3\xff")
    paths = [str(first), str(second)]
    assert list(messages.from_line_files(paths)) == [b"1", b"2", b"3\xff"]
    assert list(messages.from_whole_files(paths)) == [b"1\n2\n", b"3\xff"]


def test_arguments_that_are_not_utf8_stay_the_bytes_they_were() -> None:
    assert list(messages.from_arguments([b"\xff\xfe".decode("utf-8", "surrogateescape"), "ä"])) == [b"\xff\xfe", "ä".encode()]


def test_keys_for_all_or_before_the_first_separator() -> None:
    assert list(messages.with_keys([b"a", b"b"], b"k", None)) == [(b"k", b"a"), (b"k", b"b")]
    assert list(messages.with_keys([b"k1:v:1", b":v"], None, b":")) == [(b"k1", b"v:1"), (None, b"v")]
    with pytest.raises(BraidError) as caught:
        list(messages.with_keys([b"k:v", b"plain"], None, b":"))
    assert caught.value.code == "INVALID_ARGUMENT" and "message 2" in caught.value.text


def test_headers() -> None:
    assert messages.parse_headers(["a=1", "b=x=y", "c="]) == {"a": b"1", "b": b"x=y", "c": b""}
    for wrong in ("a", "=1", ""):
        with pytest.raises(BraidError):
            messages.parse_headers([wrong])


@pytest.mark.parametrize(("text", "rate"), [("1000", 1000), ("1000/s", 1000), ("60/m", 1), ("0.5", 0.5), ("36/h", 0.01)])
def test_rates(text: str, rate: float) -> None:
    assert messages.parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1/d", "nan", "inf", "1e12"])
def test_rates_that_make_no_sense(text: str) -> None:
    with pytest.raises(BraidError) as caught:
        messages.parse_rate(text)
    assert caught.value.code == "INVALID_ARGUMENT"


# --- pace


class Watch:
    """A clock that its own sleep moves."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


def test_a_pace_keeps_the_average_through_short_delays() -> None:
    watch = Watch()
    pace = Pace(10, watch.now, watch.sleep)
    for turn in range(101):
        pace.wait()
        if turn == 50:
            watch.time += 0.5
    assert watch.time == pytest.approx(110.0)


def test_a_pace_does_not_burst_after_a_long_pause() -> None:
    watch = Watch()
    pace = Pace(10, watch.now, watch.sleep)
    pace.wait()
    watch.time += 60
    started = watch.time
    for _ in range(11):
        pace.wait()
    assert watch.time - started == pytest.approx(1.0)


# --- formats


def record(value: bytes, key: bytes | None = None, attrs: bytes = b"") -> Record:
    return Record("t", 2, 7, 1_700_000_000_123, key, value, attrs)


def test_text_and_raw() -> None:
    assert formatter("text", False, False)(record(b"v\xff")) == b"v\xff\n"
    assert formatter("text", True, True)(record(b"v", b"k")) == b"2:7\tk\tv\n"
    assert formatter("text", True, False)(record(b"v")) == b"-\tv\n"
    assert formatter("raw", True, True)(record(b"v\n")) == b"v\n"


@given(st.binary(max_size=50), st.none() | st.binary(min_size=1, max_size=50))
def test_json_loses_nothing(value: bytes, key: bytes | None) -> None:
    line = formatter("json", False, False)(record(value, key))
    assert line.count(b"\n") == 1
    document = json.loads(line)

    def back(name: str) -> bytes | None:
        if f"{name}_base64" in document:
            assert name not in document
            return base64.b64decode(document[f"{name}_base64"])
        found = document[name]
        return None if found is None else found.encode()

    assert (back("value"), back("key")) == (value, key)
    assert (document["topic"], document["partition"], document["offset"], document["timestamp"]) == ("t", 2, 7, 1_700_000_000_123)


def test_json_headers() -> None:
    attrs = encode_headers({"a": b"1", "b": b"\xff"})
    assert json.loads(formatter("json", False, False)(record(b"v", None, attrs)))["headers"] == {"a": "1", "b_base64": "/w=="}


# --- times


def test_times() -> None:
    assert parse_time("1700000000123") == 1_700_000_000_123
    assert parse_time("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert parse_time("2023-11-14T23:13:20.500+01:00") == 1_700_000_000_500
    for wrong in ("", "yesterday", "2023-13-01", "-5"):
        with pytest.raises(ValueError, match="neither an ISO 8601"):
            parse_time(wrong)


# --- Ctrl-C


def test_an_interrupt_waits_for_a_good_moment() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    with Interrupts() as interrupts:
        interrupts.check()
        interrupts.waiting = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_is_obeyed_at_once_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


# --- what people see


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_and_unless_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("x", "red", Screen()) == "\x1b[31mx\x1b[0m"
    assert paint("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "red", Screen()) == "x"
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert paint("x", "red", Screen()) == "x"


def test_progress_is_drawn_on_a_terminal_and_removed() -> None:
    screen = Screen()
    progress = Progress("messages", 200, screen)
    progress.update(50)
    assert "25%" in screen.getvalue() and "50 messages" in screen.getvalue()
    progress.update(51)
    assert "51 messages" not in screen.getvalue(), "a second drawing within a tenth of a second"
    progress.close()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_progress_off_a_terminal_writes_nothing() -> None:
    stream = io.StringIO()
    progress = Progress("messages", None, stream)
    progress.update(50)
    progress.close()
    assert stream.getvalue() == ""


def test_a_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("TOPIC", "N"), [("a", 1234567), ("long\x1bname", 1)])
    assert capsys.readouterr().out == "TOPIC                 N\na             1,234,567\nlong\\x1bname          1\n"
    print_table(("TOPIC", "N"), [])
    assert capsys.readouterr().out == "TOPIC  N\n"


def test_names_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"
    assert printable("früh") == "früh"


# --- exit statuses


def test_every_status_has_a_meaning_and_every_mapped_code_exists() -> None:
    assert set(exits.MEANINGS) == set(exits.Exit)
    assert set(exits._BY_CODE) <= set(ERRORS)
    assert exits.exit_for(BraidError("TOPIC_LIMIT", limit=1)) == exits.Exit.FAILED
    assert exits.exit_for(BraidError("TOPIC_NOT_FOUND", topic="t")) == exits.Exit.NOT_FOUND
    assert exits.exit_for(FileNotFoundError()) == exits.Exit.NOT_FOUND
    assert exits.exit_for(ConnectionRefusedError()) == exits.Exit.UNREACHABLE
    assert exits.exit_for(PermissionError()) == exits.Exit.FAILED
