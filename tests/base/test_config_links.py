"""Keys and links: what their texts mean, what is wrong with a bad one, and that no secret is ever shown."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.config import load_config
from braidmq.base.config_keys import parse_api_key
from braidmq.base.config_links import FederationLink, Upstream, parse_federation_link, parse_upstream
from braidmq.base.errors import BraidError

SECRET = "correct horse"
DIGEST = hashlib.sha256(SECRET.encode())


def test_a_key_and_its_digest_are_the_same_key() -> None:
    plain, hashed = parse_api_key(f" me = {SECRET} "), parse_api_key(f"me=sha256:{DIGEST.hexdigest().upper()}")
    assert plain == hashed and plain.user == "me" and plain.digest == DIGEST.digest()
    assert parse_api_key("me=a=b").digest == hashlib.sha256(b"a=b").digest()


@pytest.mark.parametrize("text", ["", "me", "me=", "=key", "me=  ", "me=sha256:12", f"me=sha256:{'0' * 63}g"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"USER=KEY|64 hexadecimal digits"):
        parse_api_key(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blipmq://a:7878", FederationLink("a", 7878)),
        ("BLIPMQS://k%40y@[::1]:1/", FederationLink("::1", 1, True, "k@y")),
    ],
)
def test_links_of_a_federation(text: str, expected: FederationLink) -> None:
    assert parse_federation_link(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fq://a:8765?exchange=x", Upstream("a", 8765, "x")),
        ("fqs://me:pw@a:1/?exchange=x", Upstream("a", 1, "x", tls=True, user="me", password="pw")),
        (
            "fq://me@[::1]:1/q%2F1/disk:public,block?exchange=a%26b&program=prefix:%22c%22+d&permanent=true",
            Upstream("::1", 1, "a&b", 'prefix:"c" d', user="me", queue="q/1", queue_type="disk:public,block", permanent=True),
        ),
        ("fq://a:1//mem?exchange=x", Upstream("a", 1, "x", queue_type="mem")),
    ],
)
def test_upstreams(text: str, expected: Upstream) -> None:
    assert parse_upstream(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fq://a?exchange=x", "write a:8765"),
        ("fq://a:0?exchange=x", "not a place to connect to"),
        ("fq://:1?exchange=x", "not a place to connect to"),
        ("fq://a:1", "needs ?exchange=NAME"),
        ("fq://a:1?exchange=", "needs ?exchange=NAME"),
        ("fq://a:1?exchange=x&exhange=y", "unknown option `exhange`"),
        ("fq://a:1?exchange=x&permanent=1", "true or false"),
        ("blipmq://a:1?exchange=x", "begins with fq://"),
    ],
)
def test_what_is_no_upstream_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_upstream(text)


_NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)


@given(exchange=_NAMES.filter(bool), program=_NAMES, queue=_NAMES, user=_NAMES, tls=st.booleans(), permanent=st.booleans())
def test_a_shown_upstream_reads_back(exchange: str, program: str, queue: str, user: str, tls: bool, permanent: bool) -> None:
    upstream = Upstream("a", 1, exchange, program, tls, user, queue=queue, permanent=permanent)
    assert parse_upstream(str(upstream)) == upstream


def test_secrets_are_shown_nowhere() -> None:
    written = quote(SECRET)
    config = load_config(
        {
            "blipmq_api_keys": f"me={SECRET}",
            "blipmq_federation": f"blipmq://{written}@a:1",
            "fq_upstreams": f"fq://me:{written}@a:1?exchange=x",
        },
        {},
    )
    shown = repr(config) + ",".join(map(str, (*config.blipmq_api_keys, *config.blipmq_federation, *config.fq_upstreams)))
    assert config.fq_upstreams[0].password == config.blipmq_federation[0].api_key == SECRET
    for form in (SECRET, written, DIGEST.hexdigest(), repr(DIGEST.digest())):
        assert form not in shown
    assert "me" in shown and "a:1" in shown


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("blipmq_api_keys", SECRET),
        ("blipmq_api_keys", f"me=sha256:{SECRET}"),
        ("blipmq_federation", f"blipmq://{SECRET}@a"),
        ("blipmq_federation", f"flymq://{SECRET}@a:1"),
        ("fq_upstreams", f"fq://me:{SECRET}@a:1"),
    ],
)
def test_a_refusal_repeats_no_secret(key: str, value: str) -> None:
    with pytest.raises(BraidError) as caught:
        load_config({key: value}, {})
    assert SECRET not in caught.value.text and key in caught.value.text
