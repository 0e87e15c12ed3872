"""What the tests of the HTTP ports share: brokers in this process, one open to everybody and one with users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from embedded_broker import EmbeddedBroker
from web_client import WebClient, basic

from braidmq.base.config import Listen
from braidmq.base.disk_real import RealDisk

ADMIN = ("admin", "adminpass1")
LISTENERS = tuple(Listen(protocol, "127.0.0.1", 0) for protocol in ("flymq", "blipmq", "fq"))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker of all protocols, without logins. Others use it too: names have to be one's own."""
    data_dir = str(tmp_path_factory.mktemp("admin") / "data")
    with EmbeddedBroker(RealDisk(), data_dir, web=True, durability="os", listen=LISTENERS) as broker:
        yield broker


@pytest.fixture
def web(standing: EmbeddedBroker) -> WebClient:
    assert standing.service is not None
    return WebClient(standing.service.addresses["admin"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with users: `admin`, `reader` (consumer), `writer` (producer), `guest`, each with the password NAMEpass1."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "password").write_text(ADMIN[1])
    with EmbeddedBroker(
        RealDisk(), str(directory / "data"), web=True, durability="os", listen=LISTENERS, auth_enabled=True,
        auth_default_public=False, auth_admin_password_file=str(directory / "password"),
    ) as broker:  # fmt: skip
        admin = WebClient(broker.service.addresses["admin"], basic(*ADMIN))  # type: ignore[union-attr]
        for name, role in (("reader", "consumer"), ("writer", "producer"), ("guest", "guest")):
            made = admin.post("/api/v1/users", {"username": name, "password": f"{name}pass1", "roles": [role]})
            assert made.status == 201, made
        yield broker


@pytest.fixture
def admin(guarded: EmbeddedBroker) -> WebClient:
    assert guarded.service is not None
    return WebClient(guarded.service.addresses["admin"], basic(*ADMIN))


@pytest.fixture
def stranger(guarded: EmbeddedBroker) -> WebClient:
    assert guarded.service is not None
    return WebClient(guarded.service.addresses["admin"])
