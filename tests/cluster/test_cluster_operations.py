"""Operating three real nodes: the command line under both names, REST, health, metrics, and the console's map in a browser.

The tests follow each other on one cluster, the last of which kill a node and go on without it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from web_client import WebClient

from braidmq.cli.exits import Exit
from braidmq.cli.flymq_cli import main as flymq_main
from braidmq.cli.main import main
from braidmq.client import sync
from tests.cluster.node_processes import Processes, until

Captured = pytest.CaptureFixture[str]
CHROMIUM = os.environ.get("BRAID_CHROMIUM") or shutil.which("chromium") or ""

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd: `make setup-cluster` installs it")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    web = {f"{name}-enabled": "true" for name in ("admin", "metrics", "health")}
    web |= {f"{name}-listen": "127.0.0.1:0" for name in ("admin", "metrics", "health")}
    with Processes(tmp_path_factory.mktemp("operations"), **web) as found:
        with sync.connect(found.addresses) as client:
            client.create_topic("orders", 6)
            with client.producer() as producer:
                for number in range(600):
                    producer.send("orders", b"%d" % number, key=b"%d" % number)
        yield found


@pytest.fixture(autouse=True)
def environment(nodes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", ",".join(nodes.addresses))


def web(nodes: Processes, name: str, what: str = "admin") -> WebClient:
    return WebClient(json.loads((nodes.nodes[name].directory / "ready.json").read_text())[what])


def printed(capsys: Captured, *words: str, status: Exit = Exit.OK) -> str:
    ended = main(list(words))
    out, err = capsys.readouterr()
    assert ended == status, (out, err)
    return out


def leader_of(capsys: Captured, partition: int) -> str:
    rows = json.loads(printed(capsys, "cluster", "metadata", "--topic", "orders", "-o", "json"))
    return str(rows[partition]["leader"])


def main_text(capsys: Captured, *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


def in_sync(capsys: Captured) -> bool:
    ended = main(["cluster", "status"])
    capsys.readouterr()
    return ended == Exit.OK


def test_status_leaders_and_metadata(nodes: Processes, capsys: Captured) -> None:
    until(lambda: in_sync(capsys))
    assert "all replicas are in sync" in printed(capsys, "cluster", "status")
    assert json.loads(printed(capsys, "cluster", "leaders", "-o", "json")) == {"a": 2, "b": 2, "c": 2}
    rows = json.loads(printed(capsys, "cluster", "metadata", "--topic", "orders", "-o", "json"))
    assert [row["partition"] for row in rows] == list(range(6))
    assert all(sorted(row["isr"]) == ["a", "b", "c"] and set(row["lag"]) <= {"a", "b", "c"} for row in rows)
    assert "orders" in printed(capsys, "cluster", "metadata")
    printed(capsys, "cluster", "metadata", "--topic", "nothing", status=Exit.NOT_FOUND)


def test_leaders_move_and_are_spread_again(nodes: Processes, capsys: Captured) -> None:
    was = leader_of(capsys, 0)
    other = next(name for name in "abc" if name != was)
    assert other in printed(capsys, "cluster", "reassign", "orders", "0", "--leader", other)
    assert leader_of(capsys, 0) == other
    assert was in printed(capsys, "cluster", "rebalance")
    assert json.loads(printed(capsys, "cluster", "leaders", "-o", "json")) == {"a": 2, "b": 2, "c": 2}
    printed(capsys, "cluster", "reassign", "orders", "0", status=Exit.USAGE)
    printed(capsys, "cluster", "reassign", "orders", "0", "--leader", "nobody", status=Exit.USAGE)


def test_a_partition_goes_to_other_nodes_and_comes_back(nodes: Processes, capsys: Captured) -> None:
    printed(capsys, "cluster", "reassign", "orders", "1", "--replicas", "c,a", "--wait")
    row = json.loads(printed(capsys, "cluster", "metadata", "--topic", "orders", "-o", "json"))[1]
    assert (row["leader"], row["replicas"]) == ("c", ["c", "a"])
    with sync.connect(nodes.addresses[0]) as client:
        assert len(client.fetch("orders", 1, 0).records) > 50
    printed(capsys, "cluster", "reassign", "orders", "1", "--replicas", "b,c,a", "--wait")


def test_a_node_is_emptied_and_taken_back(nodes: Processes, capsys: Captured) -> None:
    printed(capsys, "cluster", "decommission", "c", "--dry-run")
    printed(capsys, "cluster", "decommission", "c", "--yes", "--wait")
    assert not any("c" in row["replicas"] for row in json.loads(printed(capsys, "cluster", "metadata", "-o", "json")))
    assert json.loads(printed(capsys, "cluster", "leaders", "-o", "json"))["c"] == 0
    printed(capsys, "cluster", "decommission", "c", "--undo")
    with sync.connect(nodes.addresses) as client:
        for partition in range(6):
            client.cluster.reassign("orders", partition, "abc"[partition % 3 :] + "abc"[: partition % 3])
        until(lambda: not client.cluster.progress())
    until(lambda: in_sync(capsys))


def test_the_documents_names_and_rest_work_on_any_node(nodes: Processes, capsys: Captured) -> None:
    for name in "abc":
        api = web(nodes, name)
        cluster = api.get("/api/v1/cluster").json
        assert (cluster["node_count"], len(cluster["nodes"])) == (3, 3) and cluster["leader_id"] in "abc"
        assert {row["id"] for row in api.get("/api/v1/cluster/members").json if row["state"] == "alive"} == {"a", "b", "c"}
        placed = api.get("/api/v1/cluster/partitions?topic=orders").json
        assert placed["count"] == 6 and all(row["leader_addr"] in nodes.addresses for row in placed["assignments"])
        assert api.post("/api/v1/cluster/rebalance").json["success"] is True
        # It was another node that moved them, perhaps: this one learns of it a moment later.
        until(lambda api=api: api.get("/api/v1/cluster/leaders").json["balanced"])  # type: ignore[misc]
        moved = api.post("/api/v1/cluster/partitions/orders/2", {"new_leader": name}).json
        described = api.get("/api/v1/cluster/metadata?topic=orders").json["topics"][0]
        assert moved["success"] and described["partitions"][2]["leader_id"] == name
        assert api.post("/api/v1/cluster/partitions/orders/2", {"new_leader": "nobody"}).status == 400
    address = json.loads((nodes.nodes["b"].directory / "ready.json").read_text())["admin"]
    for words in (["leaders"], ["metadata", "--topic", "orders"], ["rebalance"], ["reassign", "orders", "2", "--leader", "c"]):
        assert flymq_main(["cluster", *words, "--admin-addr", address]) == Exit.OK, words
        assert json.loads(capsys.readouterr().out)


def test_health_and_metrics(nodes: Processes) -> None:
    found: dict[str, float] = {}
    for name in "abc":
        ready = web(nodes, name, "health").get("/ready")
        assert ready.status == 200 and "cluster" in [check["name"] for check in ready.json["checks"]]
        text = web(nodes, name, "metrics").get("/metrics").body.decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(("braid_cluster", "flymq_cluster"))]
        values = {key: float(value) for key, value in lines}
        assert values["braid_cluster_nodes_live"] == values["flymq_cluster_nodes"] == 3
        assert values["braid_cluster_quorum_up"] == 1 and values["braid_cluster_quorum_seconds_count"] > 0
        for key, value in values.items():
            found[key] = found.get(key, 0) + value
    assert found["braid_cluster_leaders"] == 6 and found["braid_cluster_replicas"] == 18
    assert found["braid_cluster_coordinator"] == 1 and found['braid_cluster_isr_partitions{isr="3"}'] == 6
    assert found["braid_cluster_partitions_offline"] == 0 and found["braid_cluster_elections_total"] > 0


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: `apt install chromium`, or name one in BRAID_CHROMIUM")
def test_the_map_shows_a_loss_while_one_looks(nodes: Processes, capsys: Captured) -> None:
    from playwright.sync_api import expect, sync_playwright

    victim = leader_of(capsys, 0)
    watching = next(name for name in "abc" if name != victim)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        address = json.loads((nodes.nodes[watching].directory / "ready.json").read_text())["admin"]
        page = browser.new_page(base_url=f"http://{address}")
        page.set_default_timeout(60_000)
        page.goto("/console/cluster")
        row = page.locator("[data-partition='orders/0']")
        expect(row.locator("td").first).to_have_text(victim, timeout=60_000)
        expect(page.locator("[data-node]")).to_have_count(3)
        page.screenshot(path=Path(nodes.nodes[watching].directory) / "map.png", full_page=True)
        nodes.nodes[victim].kill()
        expect(row.locator("td").first).not_to_have_text(victim, timeout=60_000)
        expect(page.locator(f"[data-node='{victim}']")).to_contain_text("dead", timeout=60_000)
        expect(page.locator("h2", has_text="Partitions")).to_contain_text("6 not in order", timeout=60_000)
        browser.close()
    assert f"node {victim} is dead" in printed(capsys, "cluster", "status", status=Exit.FAILED)
    with sync.connect(nodes.addresses) as client:
        assert client.produce("orders", b"after").offset >= 0


def test_a_lost_machine_is_forgotten_and_counts_no_more(nodes: Processes, capsys: Captured) -> None:
    dead = next((name for name in "abc" if (process := nodes.nodes[name].process) is not None and process.poll() is not None), "")
    if not dead:
        # Where there is no browser, nobody was killed yet.
        dead = "c"
        nodes.nodes[dead].kill()
    asked = next(name for name in "abc" if name != dead)
    printed(capsys, "cluster", "forget", asked, "--yes", status=Exit.USAGE)
    until(lambda: f"node {dead} is dead" in main_text(capsys, "cluster", "status"))
    until(lambda: main(["cluster", "forget", dead, "--yes", "--wait"]) == Exit.OK)
    capsys.readouterr()
    printed(capsys, "cluster", "require", "orders", "--min-insync", "1")
    until(lambda: in_sync(capsys))
    document = json.loads(printed(capsys, "cluster", "status", "-o", "json"))
    assert {row["node"] for row in document["nodes"]} == set("abc") - {dead}
    assert set(document["journals"]["replicas"]) == set("abc") - {dead}
    client = nodes.nodes[asked].etcd_client
    listing = json.loads(urlopen(Request(f"http://{client}/v3/cluster/member/list", b"{}", method="POST"), timeout=10).read())
    assert {row["name"] for row in listing["members"]} == set("abc") - {dead}, "the etcd waits for it no more"
