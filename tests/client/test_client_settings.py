"""Settings of the client: which source wins, what each refuses, and that no list of them has drifted from another."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from braidmq.base.errors import BraidError
from braidmq.client.addresses import Address, parse_address, parse_addresses
from braidmq.client.settings import DOCS, KINDS, ClientSettings, SettingArguments, load_settings, override, variable

KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"


def test_an_argument_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('servers = "file:1"\ntimeout_s = 1\nlinger_ms = 1\nbatch_bytes = "64KiB"\n')
    environ = {"BRAID_SERVERS": "env:2", "BRAID_CLIENT_LINGER_MS": "2"}
    settings = load_settings({"servers": "arg:3"}, environ, str(file))
    assert settings.servers == (Address("arg", 3),)
    assert settings.linger_ms == 2
    assert settings.timeout_s == 1
    assert settings.batch_bytes == 65536
    assert settings.fetch_bytes == ClientSettings().fetch_bytes


def test_an_argument_of_none_is_not_given() -> None:
    assert load_settings({"servers": None, "timeout_s": None}, {"BRAID_CLIENT_TIMEOUT_S": "7"}).timeout_s == 7


def test_a_variable_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text(json.dumps({"servers": ["a:1", "b:2"], "retries_may_duplicate": True}))
    settings = load_settings({}, {"BRAID_CLIENT_CONFIG": str(file)})
    assert settings.servers == (Address("a", 1), Address("b", 2))
    assert settings.retries_may_duplicate is True


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("BRAID_SERVERS", "a:1,flymqs://b:2", (Address("a", 1), Address("b", 2, True))),
        ("BRAID_TLS_CA_FILE", "ca.pem", "ca.pem"),
        ("BRAID_TLS_CERT_FILE", "cert.pem", "cert.pem"),
        ("BRAID_TLS_KEY_FILE", "key.pem", "key.pem"),
        ("BRAID_ENCRYPTION_KEY", KEY, KEY),
        ("BRAID_CLIENT_TIMEOUT_S", "1m30s", 90.0),
        ("BRAID_CLIENT_AUTO_COMMIT", "off", False),
        ("BRAID_CLIENT_PREFETCH_BYTES", "1MiB", 1024 * 1024),
    ],
)
def test_each_variable_reaches_its_setting(name: str, value: str, wanted: object) -> None:
    setting = next(setting for setting in KINDS if variable(setting) == name)
    assert getattr(load_settings({}, {name: value}), setting) == wanted


def test_an_unknown_key_names_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text("lingerms = 5\n")
    with pytest.raises(BraidError, match=r"CONFIG_UNKNOWN_KEY.*linger_ms"):
        load_settings({}, {}, str(file))
    with pytest.raises(BraidError, match=r"CONFIG_UNKNOWN_KEY.*timeout_s"):
        load_settings({"timeout": 5}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("servers", ""), ("servers", []), ("servers", [7]), ("servers", 7), ("timeout_s", 0), ("timeout_s", "soon"),
        ("linger_ms", -1), ("linger_ms", "x"), ("linger_ms", True), ("batch_bytes", "1GB"), ("pool_size", 0), ("tls", "maybe"),
        ("fetch_wait_ms", 30_001), ("max_poll_records", 1.5),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_origin(name: str, value: object) -> None:
    with pytest.raises(BraidError) as caught:
        load_settings({name: value}, {})
    assert caught.value.code == "CONFIG_INVALID_VALUE"
    assert f"`{name}` from the arguments" in str(caught.value)


def test_a_wrong_key_is_refused_before_anything_connects() -> None:
    with pytest.raises(BraidError, match="INVALID_KEY"):
        load_settings({"encryption_key": KEY[:-1]}, {})


@pytest.mark.parametrize("content", [b"servers = ", b"\xff", b"[1]"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ("client.json" if content == b"[1]" else "client.toml")
    file.write_bytes(content)
    with pytest.raises(BraidError, match=r"CONFIG_UNREADABLE.*client\."):
        load_settings({}, {}, str(file))
    with pytest.raises(BraidError, match="CONFIG_UNREADABLE"):
        load_settings({}, {}, str(tmp_path / "absent.toml"))


def test_a_producer_overrides_only_what_it_is_given() -> None:
    settings = load_settings({"linger_ms": 1, "batch_bytes": 2048}, {})
    changed = override(settings, {"linger_ms": 0, "batch_bytes": None})
    assert (changed.linger_ms, changed.batch_bytes, settings.linger_ms) == (0, 2048, 1)


def test_tls_is_implied_by_what_needs_it() -> None:
    assert not ClientSettings().wants_tls
    assert ClientSettings(tls=True).wants_tls
    assert ClientSettings(tls_ca_file="x").wants_tls
    assert ClientSettings(tls_cert_file="x").wants_tls


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("h", Address("h", 9092)),
        ("h:1", Address("h", 1)),
        (":1", Address("127.0.0.1", 1)),
        ("[::1]:5", Address("::1", 5)),
        ("[::1]", Address("::1", 9092)),
        ("flymq://h:1/", Address("h", 1, False)),
        ("FLYMQS://h", Address("h", 9092, True)),
    ],
)
def test_addresses_are_read(text: str, wanted: Address) -> None:
    assert parse_address(text) == wanted
    assert parse_addresses([text, wanted]) == (wanted,)


@pytest.mark.parametrize("text", ["", "http://h:1", "h:x", "h:0", "h:70000", "::1", "[::1", "a b:1"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


def test_every_setting_is_an_argument_and_is_documented() -> None:
    names = {item.name for item in fields(ClientSettings)}
    assert names - {"servers"} == set(SettingArguments.__annotations__)
    page = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text()
    for name in names:
        assert DOCS[name].endswith(".")
        assert f"`{name}`" in page, f"docs/client.md does not tell about {name}"
        if name in KINDS:
            assert f"`{variable(name)}`" in page, f"docs/client.md does not tell about {variable(name)}"
