"""What an acknowledgement of a whole cluster costs: level `quorum` on three nodes beside level `fsync` on one broker.

The C generator asks, so that no client sets the pace, and asks the node that leads. Both entrants share both cores with the
generator; the three nodes share them with each other, too, which no cluster in earnest does. Turns are taken, and the median of
their ratios counts. Asked for is 0.3 x with many requests under way. One at a time is a question of latency and is shown beside it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any, Final

import toolchain
from cluster_nodes import single_broker, three_nodes
from processes import BUILD

from braidmq.client import sync

SHAPES: Final = {
    "one_at_a_time": {"connections": 1, "window": 1},
    "some_under_way": {"connections": 8, "window": 8},
    "many_under_way": {"connections": 8, "window": 1000},
}
SECONDS: Final = 3
TURNS: Final = 5
VALUE_BYTES: Final = 100
TOPIC: Final = "acks"


def measure(directory: Path, port: int) -> dict[str, Any]:
    toolchain.build()
    with single_broker(directory, port), three_nodes(directory, port + 100) as nodes:
        with sync.connect(f"127.0.0.1:{port}") as client:
            client.create_topic(TOPIC, 1)
        with sync.connect(nodes[0].at("flymq")) as client:
            client.create_topic(TOPIC, 1)
            leader = client.cluster.metadata(TOPIC)[0].partitions[0].leader
        led_at = next(node for node in nodes if node.name == leader).ports["flymq"]
        found: dict[str, Any] = {}
        for name, shape in SHAPES.items():
            single, three = zip(*[(_rate(port, shape), _rate(led_at, shape)) for _ in range(TURNS)], strict=True)
            ratios = [round(three / single, 2) for single, three in zip(single, three, strict=True)]
            found[name] = {
                "single_fsync_per_s": round(median(single)), "three_quorum_per_s": round(median(three)), "ratio": median(ratios),
                "ratios": ratios,
            }  # fmt: skip
        return found


def _rate(port: int, shape: dict[str, int]) -> int:
    """Messages a second that were acknowledged."""
    words = [str(BUILD / "load"), "produce", "--port", str(port), "--topic", TOPIC, "--partition", "0", "--no-create"]
    for name, value in (shape | {"value_bytes": VALUE_BYTES, "duration": SECONDS}).items():
        words += ["--" + name.replace("_", "-"), str(value)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return round(json.loads(done.stdout)["messages_per_s"])
