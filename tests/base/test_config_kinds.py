"""What each kind of value accepts, refuses and shows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import config_kinds as kinds
from braidmq.base.config_keys import parse_api_key
from braidmq.base.config_links import FederationLink, Upstream
from braidmq.base.config_listen import HttpListen, Listen, parse_listen

GOOD: list[tuple[kinds.Kind[Any], object, object]] = [
    (kinds.http_listener(9096), "127.0.0.1:0", HttpListen("http", "127.0.0.1", 0)),
    (kinds.http_listener(9096), ":9096", HttpListen("http", "0.0.0.0", 9096)),
    (kinds.http_listener(9096), "https://[::1]:1/", HttpListen("https", "::1", 1)),
    (kinds.host_names(), "A.example, b.example.", ("a.example", "b.example")),
    (kinds.host_names(), ["*"], ("*",)),
    (kinds.size(0, 1 << 50), "256MiB", 256 * 1024**2),
    (kinds.size(0, 1 << 50), "1GB", 10**9),
    (kinds.size(0, 1 << 50), "1 gb", 10**9),
    (kinds.size(0, 1 << 50), "1.5KiB", 1536),
    (kinds.size(0, 1 << 50), "1_000", 1000),
    (kinds.size(0, 1 << 50), 4096, 4096),
    (kinds.size(10, 20, zero=True), 0, 0),
    (kinds.duration(0, 1e9), "7d", 604800.0),
    (kinds.duration(0, 1e9), "24h", 86400.0),
    (kinds.duration(0, 1e9), "500ms", 0.5),
    (kinds.duration(0, 1e9), "30s", 30.0),
    (kinds.duration(0, 1e9), "1h30m", 5400.0),
    (kinds.duration(0, 1e9), "1.5", 1.5),
    (kinds.duration(0, 1e9), 2, 2.0),
    (kinds.duration(10, 20, zero=True), "0", 0.0),
    (kinds.milliseconds(1, 10**6), "500ms", 500),
    (kinds.milliseconds(1, 10**6), "1m30s", 90_000),
    (kinds.milliseconds(1, 10**6), " 1_500 ", 1500),
    (kinds.milliseconds(1, 10**6), 7, 7),
    (kinds.milliseconds(1, 10**6), 7.0, 7),
    (kinds.milliseconds(10, 20, zero=True), "0", 0),
    (kinds.count(1, 1000), " 10 ", 10),
    (kinds.count(1, 1_000_000), "10_000", 10000),
    (kinds.boolean(), "Yes", True),
    (kinds.boolean(), "off", False),
    (kinds.boolean(), False, False),
    (kinds.choice("none", "os"), "OS", "os"),
    (kinds.choices("none", "os"), "OS, none,os", ("os", "none")),
    (kinds.choices("none", "os"), ["none"], ("none",)),
    (kinds.text(3), " ab ", "ab"),
    (kinds.optional_text(3), "", ""),
    (kinds.optional_text(3), None, ""),
    (kinds.optional_text(3), "abc", "abc"),
    (kinds.share(), "0.2", 0.2),
    (kinds.share(), 1, 1.0),
    (kinds.optional_address(9093), "", None),
    (kinds.optional_address(9093), ":9093", "0.0.0.0:9093"),
    (kinds.optional_address(9093), "[::1]:1", "[::1]:1"),
    (kinds.addresses(9093), "a:1, b:2,a:1", ("a:1", "b:2")),
    (kinds.addresses(9093), [], ()),
    (kinds.endpoints(), "a:2379,https://b:2379/", ("http://a:2379", "https://b:2379")),
    (kinds.ipv4_address(), " 10.0.0.1", "10.0.0.1"),
    (kinds.ipv4_address(), "", None),
    (kinds.ipv4_address(), None, None),
    (kinds.path(), "/a b", "/a b"),
    (kinds.optional_path(), "", None),
    (kinds.listeners(), "flymq://a:1, flymqs://b:2", (Listen("flymq", "a", 1), Listen("flymqs", "b", 2))),
    (kinds.listeners(), ["flymq://a:1,flymq://a:2"], (Listen("flymq", "a", 1), Listen("flymq", "a", 2))),
    (kinds.listeners(), "flymq://a:0,flymq://a:0", (Listen("flymq", "a", 0), Listen("flymq", "a", 0))),
    (kinds.api_keys(), "", ()),
    (kinds.api_keys(), "me=secret", (parse_api_key("me=secret"),)),
    (kinds.federation_links(), [], ()),
    (kinds.federation_links(), "blipmq://k@a:1,blipmqs://b:2", (FederationLink("a", 1, False, "k"), FederationLink("b", 2, True))),
    (
        kinds.upstreams(),
        "fq://a:1/q/mem:drop,private?exchange=x, fqs://b:2?exchange=y",
        (Upstream("a", 1, "x", queue="q"), Upstream("b", 2, "y", tls=True)),
    ),
]

BAD: list[tuple[kinds.Kind[Any], object, str]] = [
    (kinds.http_listener(9096), "localhost", "write localhost:9096"),
    (kinds.http_listener(9096), "flymq://127.0.0.1:1", "http:// or https://"),
    (kinds.http_listener(9096), 9096, "not text"),
    (kinds.host_names(), "http://a", "without scheme and port"),
    (kinds.size(0, 1 << 50), "256M", "KiB, MiB"),
    (kinds.size(0, 1 << 50), "MiB", "not a size"),
    (kinds.size(0, 1 << 50), "-1", "not a size"),
    (kinds.size(0, 1 << 50), "", "not a size"),
    (kinds.size(0, 1 << 50), "0.3B", "whole number of bytes"),
    (kinds.size(0, 1 << 50), True, "not a size"),
    (kinds.size(0, 1 << 50), 1.5, "not a size"),
    (kinds.size(0, 1 << 50), "١", "not a size"),
    (kinds.size(10, 20), 9, "10 to 20"),
    (kinds.size(10, 20), 21, "10 to 20"),
    (kinds.size(10, 20), 0, "10 to 20"),
    (kinds.size(10, 20, zero=True), 5, "0 (off)"),
    (kinds.duration(0, 1e9), "7x", "not a duration"),
    (kinds.duration(0, 1e9), "d", "not a duration"),
    (kinds.duration(0, 1e9), "", "not a duration"),
    (kinds.duration(0, 1e9), "1h nonsense", "not a duration"),
    (kinds.duration(0, 1e9), float("nan"), "not a duration"),
    (kinds.duration(0, 1e9), float("inf"), "not a duration"),
    (kinds.duration(0, 1e9), True, "not a duration"),
    (kinds.duration(0, 1e9), None, "not a duration"),
    (kinds.duration(10, 20), 9.5, "10s to 20s"),
    (kinds.duration(10, 20, zero=True), "-1", "not a duration"),
    (kinds.duration(10, 20, zero=True), -1, "out of range"),
    (kinds.milliseconds(10, 20), 9, "10ms to 20ms"),
    (kinds.milliseconds(10, 20), "21ms", "10ms to 20ms"),
    (kinds.milliseconds(1, 20), "1.5", "whole number of milliseconds"),
    (kinds.milliseconds(1, 20), "1.5ms", "whole number of milliseconds"),
    (kinds.milliseconds(1, 20), True, "not a duration"),
    (kinds.milliseconds(1, 20), "soon", "not a duration"),
    (kinds.count(1, 3), "0", "1 to 3"),
    (kinds.count(1, 3), 4, "1 to 3"),
    (kinds.count(1, 3), "two", "whole number"),
    (kinds.count(1, 3), "1.0", "whole number"),
    (kinds.count(1, 3), 1.0, "whole number"),
    (kinds.count(1, 3), True, "whole number"),
    (kinds.boolean(), "maybe", "neither true nor false"),
    (kinds.boolean(), 1, "neither true nor false"),
    (kinds.boolean(), "", "neither true nor false"),
    (kinds.choice("none", "os", "fsync"), "fsyn", "did you mean `fsync`"),
    (kinds.choice("none", "os", "fsync"), 3, "none, os, fsync"),
    (kinds.text(3), "", "1 to 3"),
    (kinds.text(3), "abcd", "1 to 3"),
    (kinds.text(9), "a\nb", "control characters"),
    (kinds.text(9), 3, "not text"),
    (kinds.choices("none", "os"), "none,o", "did you mean `os`"),
    (kinds.choices("none", "os"), "", "at least one of none, os"),
    (kinds.optional_text(3), "abcd", "up to 3"),
    (kinds.share(), "-0.1", "0 to 1"),
    (kinds.share(), True, "0 to 1"),
    (kinds.share(), "nan", "0 to 1"),
    (kinds.share(), None, "0 to 1"),
    (kinds.optional_address(9093), "a", "write a:9093"),
    (kinds.optional_address(9093), 9093, "not text"),
    (kinds.addresses(9093), "a:1,b", "write b:9093"),
    (kinds.endpoints(), "ftp://a:1", "http:// or https://"),
    (kinds.ipv4_address(), "10.0.0", "not an IPv4 address"),
    (kinds.ipv4_address(), "0.0.0.0", "every broker's"),
    (kinds.ipv4_address(), "127.0.0.1", "every broker's"),
    (kinds.ipv4_address(), 3, "not text"),
    (kinds.path(), "", "empty"),
    (kinds.path(), "a\0b", "control characters"),
    (kinds.optional_path(), 3, "not text"),
    (kinds.listeners(), "", "at least one"),
    (kinds.listeners(), [], "at least one"),
    (kinds.listeners(), [9092], "type int, not text"),
    (kinds.listeners(), "flymq://a:1,flymqs://a:1", "twice"),
    (kinds.listeners(), "flymq://a:1,fq://a:1", "twice"),
    (kinds.api_keys(), "me", "USER=KEY"),
    (kinds.api_keys(), ["me=k", 3], "type int, not text"),
    (kinds.federation_links(), "fq://a:1", "begins with blipmq://"),
    (kinds.upstreams(), "a:1", "begins with fq://"),
]


@pytest.mark.parametrize(("kind", "given_value", "expected"), GOOD)
def test_accepted(kind: kinds.Kind[Any], given_value: object, expected: object) -> None:
    found = kind.read(given_value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(("kind", "given_value", "reason"), BAD)
def test_refused_with_what_to_write_instead(kind: kinds.Kind[Any], given_value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        kind.read(given_value)


def test_every_kind_has_good_and_bad_samples() -> None:
    from braidmq.base.config import SETTINGS

    for samples in (GOOD, BAD):
        assert {setting.kind.name for setting in SETTINGS} <= {kind.name for kind, *_ in samples}


def test_a_path_expands_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert kinds.path().read("~/data") == "/home/someone/data"


@given(st.integers(0, 1 << 60))
def test_a_shown_size_reads_back(value: int) -> None:
    assert kinds.read_size(kinds.show_size(value)) == value


@given(st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000) | st.floats(0, 1e9).map(lambda value: round(value, 6)))
def test_a_shown_duration_reads_back(seconds: float) -> None:
    assert kinds.read_duration(kinds.show_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0"), (0.5, "500ms"), (90, "90s"), (7200, "2h"), (604800, "7d"), (1.5, "1500ms"), (1e-6, "0.000001")]
)
def test_durations_as_a_person_writes_them(seconds: float, shown: str) -> None:
    assert kinds.show_duration(seconds) == shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("flymq://127.0.0.1:9092", Listen("flymq", "127.0.0.1", 9092, "auto")),
        ("FLYMQ://localhost:0/", Listen("flymq", "localhost", 0, "auto")),
        ("flymqs://[::1]:9093?dialect=v126", Listen("flymqs", "::1", 9093, "v126")),
        ("flymq://:9092?dialect=documented", Listen("flymq", "0.0.0.0", 9092, "documented")),
        ("flymq://*:65535", Listen("flymq", "0.0.0.0", 65535, "auto")),
        ("flymq://[::]:1", Listen("flymq", "::", 1, "auto")),
        ("blipmq://127.0.0.1:7878", Listen("blipmq", "127.0.0.1", 7878)),
        ("BlipMQs://:0", Listen("blipmqs", "0.0.0.0", 0)),
        ("fq://[::1]:8765/", Listen("fq", "::1", 8765)),
        ("fqs://a:1", Listen("fqs", "a", 1)),
    ],
)
def test_listener_urls(url: str, expected: Listen) -> None:
    found = parse_listen(url)
    assert found == expected
    assert parse_listen(str(found)) == found


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:9092", "write flymq://127.0.0.1:9092"),
        ("http://127.0.0.1:80", "unknown scheme `http`"),
        ("flymq://127.0.0.1", "has no port"),
        ("flymq://", "has no port"),
        ("flymq://a:65536", "not a port"),
        ("flymq://a:-1", "not a port"),
        ("flymq://a:", "not a port"),
        ("flymq://a:९", "not a port"),
        ("flymq://::1:9092", "in brackets"),
        ("flymq://[::1]", "not [ipv6-address]:port"),
        ("flymq://[zz]:1", "not an IPv6 address"),
        ("flymq://u@h:1", "not a host"),
        ("flymq://a/b:1", "not a host"),
        ("flymq://a:1?dialect=v1", "unknown dialect `v1`"),
        ("flymq://a:1?dialekt=v126", "unknown option `dialekt`"),
        ("flymq://a:1/path", "not a port"),
        ("blipmq://a", "write a:7878"),
        ("fqs://a", "write a:8765"),
        ("fq://a:1?dialect=auto", "fq listeners take no options"),
        ("flymqss://a:1", "unknown scheme `flymqss`"),
    ],
)
def test_listener_urls_that_cannot_be_bound(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_listen(url)


@pytest.mark.parametrize("protocol", ["flymq", "blipmq", "fq"])
def test_the_scheme_says_what_is_spoken_and_whether_it_is_encrypted(protocol: str) -> None:
    plain, encrypted = parse_listen(f"{protocol}://a:1"), parse_listen(f"{protocol}s://a:1")
    assert (plain.protocol, plain.tls) == (protocol, False)
    assert (encrypted.protocol, encrypted.tls) == (protocol, True)


@given(st.text(max_size=40))
def test_any_text_is_a_listener_or_a_reason(text: str) -> None:
    for url in (text, f"flymq://{text}"):
        try:
            found = parse_listen(url)
        except ValueError as fault:
            assert str(fault)
        else:
            assert parse_listen(str(found)) == found
