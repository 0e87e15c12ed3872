"""The cluster map: nodes, who leads and who has each partition, how far behind replicas are; and moving leaders by hand."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View

_ROWS_MAX: Final = 500


async def show_cluster(view: View) -> Response:
    topic = view.asked.get("topic", "")
    cluster = await view.fetch("get_cluster")
    placed = await view.fetch("list_assignments", query={"topic": topic})
    rows = placed.assignments
    leaders = await view.fetch("list_leaders")
    wrong = [row for row in rows if not row.leader or len(row.isr) < len(row.replicas) or row.target]
    # What needs somebody comes first; a cluster may have more partitions than anybody reads.
    shown = sorted(rows, key=lambda row: (row not in wrong, row.topic, row.partition)) if len(rows) > _ROWS_MAX else rows
    return await view.render(
        "cluster.html", cluster=cluster, rows=shown[:_ROWS_MAX], total=len(rows), wrong=len(wrong), leaders=leaders.distribution,
        topic=topic,
    )  # fmt: skip


async def rebalance(view: View) -> Response:
    done = await view.act("rebalance", {})
    return view.go("/console/cluster", f"{done.message[:1].upper()}{done.message[1:]}.")


async def lead(view: View) -> Response:
    topic, partition, node = view.named("topic"), view.named("partition"), view.named("node")
    done = await view.act("reassign_partition", {"topic": topic, "partition": partition}, body={"new_leader": node})
    return view.go("/console/cluster", f"{topic}/{partition}: {done.message}.")


PAGES: Final = (
    PageRoute("GET", "/console/cluster", show_cluster),
    PageRoute("POST", "/console/cluster/rebalance", rebalance),
    PageRoute("POST", "/console/cluster/lead/{node}/{partition}/{topic:path}", lead),
)
