"""A broker with something on every page of the console: what its tests look at, and what somebody looks at who draws the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from embedded_broker import EmbeddedBroker

from braidmq.base.config import Listen
from braidmq.base.disk_real import RealDisk
from braidmq.broker.broker import Broker
from braidmq.broker.features import BROKER
from braidmq.client import fq as fq_names
from braidmq.client.blipmq import sync as blipmq
from braidmq.client.fq import sync as fq
from braidmq.client.sync import connect
from braidmq.server.authorization import owner_text

ADMIN = ("admin", "adminpass1")
READER = ("reader", "readerpass1")
LISTENERS = tuple(Listen(protocol, "127.0.0.1", 0) for protocol in ("flymq", "blipmq", "fq"))
SCRIPT = "<script>document.title = 'owned'</script>"
_FIRST = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "total": {"type": "number"}}}
_SECOND = {**_FIRST, "properties": {**_FIRST["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
_AVRO = {"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}, {"name": "ms", "type": "int"}]}


_PIPELINE = """name: enrich
source: {topics: [orders, clicks]}
steps:
  - validate: {expect: [{name: has_customer, sql: customer IS NOT NULL}]}
  - sql: SELECT * FROM input
sinks:
  - table: {path: lake/orders}
  - topic: {name: orders.clean}
"""


@contextmanager
def sample_broker(directory: Path, *, auth: bool = True) -> Iterator[EmbeddedBroker]:
    """With users `admin` and `reader`, who may only read, where `auth` is on."""
    (directory / "password").write_text(ADMIN[1])
    settings: dict[str, object] = {}
    if auth:
        settings = {"auth_enabled": True, "auth_default_public": False, "auth_admin_password_file": str(directory / "password")}
    with EmbeddedBroker(
        RealDisk(), str(directory / "data"), web=True, durability="os", listen=LISTENERS, audit_enabled=True, **settings
    ) as broker:
        broker.run(lambda: _fill(broker.server.broker, auth))
        with _clients(broker, auth):
            yield broker


async def _fill(broker: Broker, auth: bool) -> None:
    if auth:
        await broker.security.accounts.create_user(BROKER, READER[0], READER[1], ["consumer"])
    await broker.schemas.register("orders", "json", json.dumps(_FIRST).encode())
    await broker.schemas.register("orders", "json", json.dumps(_SECOND).encode())
    await broker.schemas.register("clicks", "avro", json.dumps(_AVRO).encode())
    orders = await broker.create_topic("orders", 3, {"schema": "orders", "schema_rule": "dead-letter"})
    for number in range(120):
        value = {"id": number, "total": number * 1.5, "note": SCRIPT if number == 119 else f"order {number}"}
        await broker.admission.produce(orders, -1, b"customer-%d" % (number % 7), json.dumps(value).encode())
    for number in range(3):
        await broker.admission.produce(orders, 0, b"broken", b'{"total": %d}' % number)
    await broker.admission.produce(orders, 1, b"broken", b'{"id": "seven"}')
    clicks = await broker.create_topic("clicks", 1, {"schema": "clicks"})
    for number in range(10):
        await broker.admission.produce(clicks, 0, b"", b"\x0a/home" + bytes([number * 2]))
    people = await broker.create_topic("people", 1, {"mask_fields": "email, phone"})
    for number in range(5):
        value = {"id": number, "email": f"person{number}@example.org", "home": {"phone": f"0{number}", "city": "Berlin"}}
        await broker.append(people, 0, b"person-%d" % number, json.dumps(value).encode())
    odd = await broker.create_topic("odd/name with space", 1, {})
    await broker.append(odd, 0, b"\xff\xfe", bytes(range(256)))
    await broker.coordinator.commit_offset("orders", "billing", 0, 10)
    await broker.coordinator.commit_offset("orders", "billing", 1, 5)
    await broker.coordinator.commit_offset("people", "mailer", 0, 5)
    for number in range(3):
        await broker.delayed.produce("orders", b"later-%d" % number, b'{"id": 9}', 3_600_000 * (number + 1))
    await broker.pipelines.put("enrich", owner_text(BROKER.principal), "yaml", _PIPELINE)
    run = await broker.pipelines.start("enrich", "continuous", "somebody on local[2]", replace=False)
    for batch in range(5):
        report = {
            "state": "running", "batch": batch, "rows": 1000 * batch, "rate": 480.5, "batch_ms": 900, "lag": 40 - batch,
            "lag_ms": 1200, "late": 3, "rejected": {"has_customer": 2}, "written": {"orders.clean": 998},
        }  # fmt: skip
        await broker.pipelines.report("enrich", run.number, json.dumps(report).encode(), [("warning", "2 rows were rejected")])
    transaction = await broker.transactions.begin(object(), name="import")
    await broker.transactions.produce(transaction.id, "orders", b"k", b'{"id": 1}')


@contextmanager
def _clients(broker: EmbeddedBroker, auth: bool) -> Iterator[None]:
    """Somebody of every protocol."""
    addresses = broker.server.addresses
    user, password = ADMIN if auth else ("", "")
    with ExitStack() as stack:
        stack.enter_context(connect(addresses["flymq"], username=user or None, password=password or None)).list_topics()
        key = f"{user}:{password}" if auth else ""
        subscriber = stack.enter_context(blipmq.connect(addresses["blipmq"], api_key=key, client_id="dashboard"))
        subscriber.subscribe("sensors/#", qos=1)
        subscriber.publish("sensors/1", b'{"degrees": 21}', qos=1)
        reader = stack.enter_context(
            fq.connect(
                addresses["fq"], user=user or "me", password=password, queue="audit-log", queue_type="disk:public,block,permanent"
            )
        )
        reader.bind("logs", 'prefix:"web."', fq_names.FLAGS_PERMANENT)
        reader.publish("logs", b"web.access", b"GET /")
        reader.flush(confirm=True)
        yield
