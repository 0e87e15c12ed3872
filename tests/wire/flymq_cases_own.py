"""BraidMQ's own operations and additions, as values beside the bytes that the protocol page promises."""

from __future__ import annotations

from typing import NamedTuple

from braidmq.wire import flymq
from braidmq.wire.flymq import Op, Request, Response


class Own(NamedTuple):
    request: Request
    request_hex: str
    """The payload, both in hexadecimal with `.` between fields."""
    response: Response
    response_hex: str


_PLACE = "000000016b" "." "00000002"
"""Key `k`, partition 2."""
_META = "000174" "." "00000002" "." "0000000000000000" "." "0000000000000009" "." "00000001" "." "00000001"
_RECORD = flymq.RecordMetadata("t", 2, 0, 9, 1, 1)
_OK = "01.00024f4b"
_OFFSETS = (flymq.TopicOffset("t", 1, 7),)
_OFFSETS_HEX = "00000001" "." "000174" "." "00000001" "." "0000000000000007"
_FILTER = flymq.AuditFilter(1, 2, ("x",), "u", "r", "s", "q", 3, 4)
_FILTER_HEX = (
    "0000000000000001.0000000000000002" "." "00000001.000178" "." "000175.000172.000173.000171" "." "00000003.00000004"
)
_EVENT = flymq.AuditEvent("i", 5, "t", "u", "c", "r", "a", "s", "n", (("k", "v"),))
_EVENT_HEX = "000169.0000000000000005.000174.000175.000163.000172.000161.000173.00016e.00000001.00016b.000176"

OWN = [
    Own(flymq.ProduceBatch("t", 2, b"abc"), "000174.00000002.00000003616263",
        flymq.BatchProduced("t", 2, 7, 9, 3, True), "000174.00000002.0000000000000007.0000000000000009.00000003.01"),
    Own(flymq.FetchBatches("t", 2, 7, 8, 1, 5), "000174.00000002.0000000000000007.00000008.00000001.00000005",
        flymq.FetchedBatches("t", 2, 9, 4, b"abc"), "000174.00000002.0000000000000009.0000000000000004.00000003616263"),
    Own(flymq.FetchBatches("t", 2, 7, 8, 1, 5, True), "000174.00000002.0000000000000007.00000008.00000001.00000005.01",
        flymq.FetchedBatches("t", 2, 9, 4, b""), "000174.00000002.0000000000000009.0000000000000004.00000000"),
    Own(flymq.TxnOffsets("x", "g", _OFFSETS), "000178.000167." + _OFFSETS_HEX, flymq.Ok(), _OK),
    Own(flymq.RegisterSchema("s", "avro", b"{}", "full"), "000173.046176726f.000000027b7d.0466756c6c",
        flymq.SchemaRegistered("s", "avro", 2), "000173.046176726f.00000002"),
    Own(flymq.ProduceWithSchema("t", "s", b"v", b"k", 2), "000174.000173.0000000176." + _PLACE, _RECORD, _META),
    Own(flymq.FetchDlq("t", 9, "l"), "000174.00000009.00016c",
        flymq.DeadLetters((flymq.DeadLetter("l", b"v", "e", 3),)), "00000001.00016c.0000000176.000165.00000003"),
    Own(flymq.ReplayDlq("t", filter="f", all=True, max=9), "000174.0000.000166.01.00000009",
        flymq.DlqReplayed(count=5), _OK + ".00000005"),
    Own(flymq.ProduceDelayed("t", b"v", 300, b"k", 2), "000174.0000000176.000000000000012c." + _PLACE,
        flymq.Delayed("t", 2, 0, 9, 1, 1, "d"), _META + ".000164"),
    Own(flymq.ProduceWithTtl("t", b"v", 300, b"k", 2), "000174.0000000176.000000000000012c." + _PLACE, _RECORD, _META),
    Own(flymq.TxnBegin("me", 500, 7), "00026d65.000001f4.0000000000000007",
        flymq.TxnDone("x", epoch=9), "000178.01.0000000000000009"),
    Own(flymq.TxnProduce("x", "t", b"v", b"k", 2), "000178.000174.0000000176." + _PLACE, _RECORD, _META),
    Own(flymq.GroupJoin("g", "", ("t", "u"), "range", 500), "000167.0000.00000002.000174.000175.000572616e6765.000001f4",
        flymq.GroupAssignment("m", 3, (flymq.TopicPartition("t", 1),)), "00016d.00000003.00000001.000174.00000001"),
    Own(flymq.GroupHeartbeat("g", "m", 3), "000167.00016d.00000003", flymq.HeartbeatReply(4, True), "00000004.01"),
    Own(flymq.GroupLeave("g", "m"), "000167.00016d", flymq.Ok(), _OK),
    Own(flymq.GroupCommit("g", "m", 3, _OFFSETS), "000167.00016d.00000003." + _OFFSETS_HEX, flymq.Ok(), _OK),
    Own(flymq.GroupLag("t", "g"), "000174.000167",
        flymq.PartitionLags((flymq.PartitionLag(1, 2, 6, 4, 1500),)),
        "00000001.00000001.0000000000000002.0000000000000006.0000000000000004.00000000000005dc"),
    Own(flymq.DlqFail("t", 1, 7, "g", "r", "e", 6), "000174.00000001.0000000000000007.000167.000172.000165.0000000000000006",
        flymq.FailureRecorded(False, 2, 9), "00.00000002.0000000000000009"),
    Own(flymq.TopicConfig("t", (("k", "v"),)), "000174.00000001.00016b.000176",
        flymq.TopicProperties((("k", "v"), ("l", ""))), "00000002.00016b.000176.00016c.0000"),
    Own(flymq.DelayedList("t", 10), "000174.0000000a",
        flymq.DelayedMessages((flymq.DelayedMessage("d", "t", 9, 5),)), "00000001.000164.000174.0000000000000009.00000005"),
    Own(flymq.TxnList(), "", flymq.Transactions((flymq.Transaction("x", "o", "s", 9, 5),)),
        "00000001.000178.00016f.000173.0000000000000009.00000005"),
    Own(flymq.StageBatch("w", 3, 1, 7, 2, "t", 1, b"B"),
        "000177.0000000000000003.00000001.0000000000000007.00000002.000174.00000001.0000000142",
        flymq.StageState(False, 1, 3, 9), "00.00000001.00000003.0000000000000009"),
    Own(flymq.StagePublish("w", 3, (flymq.StageChoice(1, 7, 2),), "g", _OFFSETS),
        "000177.0000000000000003.00000001.00000001.0000000000000007.00000002.000167." + _OFFSETS_HEX,
        flymq.StagePublished(True), "01"),
    Own(flymq.StageAbort("w", 3), "000177.0000000000000003",
        flymq.StageState(True, 0, 0, 0), "01.00000000.00000000.0000000000000000"),
    Own(flymq.StageStatus("w", 3), "000177.0000000000000003",
        flymq.StageState(False, 1, 3, 9), "00.00000001.00000003.0000000000000009"),
    Own(flymq.StageList(), "", flymq.StagedEpochs((flymq.StagedEpoch("w", 3, "o", 9, 1, 2, 5),)),
        "00000001.000177.0000000000000003.00016f.0000000000000009.00000001.00000002.0000000000000005"),
    Own(flymq.GroupPlan("g", _OFFSETS), "000167." + _OFFSETS_HEX, flymq.Ok(), _OK),
    Own(flymq.TopicPlaces(("t", "u")), "00000002.000174.000175",
        flymq.Places((flymq.TopicPlace("t", 7, (flymq.PartitionPlace(1, 2, 3),)),)),
        "00000001.000174.0000000000000007.00000001.0000000000000001.0000000000000002.0000000000000003"),
    Own(flymq.AuditQuery(_FILTER), _FILTER_HEX,
        flymq.AuditEvents((_EVENT,), 8, True), f"00000001.0000002a.{_EVENT_HEX}.00000008.01"),
    Own(flymq.AuditExport(_FILTER, "csv"), f"0000002b.{_FILTER_HEX}.0003637376",
        flymq.AuditDocument(b"ID", "csv"), "0003637376.000000024944"),
    Own(flymq.RoleCreate("r", ("read", "write"), "d"), "01.000172.00000002.000472656164.00057772697465.000164",
        flymq.Ok(True, "r"), "01.000172"),
    Own(flymq.RoleUpdate("r", (), "d"), "02.000172.00000000.000164", flymq.Ok(True, "r"), "01.000172"),
    Own(flymq.RoleDelete("r"), "03.000172", flymq.Ok(True, "r"), "01.000172"),
    Own(flymq.QuotaSet("u", 1000, None), "04.000175.00000000000003e8.ffffffffffffffff", flymq.Ok(True, "u"), "01.000175"),
    Own(flymq.QuotaList("u"), "05.000175", flymq.Quotas(5, 0, (flymq.Quota("u", None, 0),)),
        "0000000000000005.0000000000000000.00000001.000175.ffffffffffffffff.0000000000000000"),
    Own(flymq.PipelinePut("p", "yaml", b"x"), "000170.000479616d6c.0000000178", flymq.Ok(), _OK),
    Own(flymq.PipelineList(), "",
        flymq.PipelineSummaries((flymq.PipelineSummary("p", "o", "s", "run", "once", 5, 6, b"{}"),)),
        "00000001.000170.00016f.000173.000372756e.00046f6e6365.0000000000000005.0000000000000006.000000027b7d"),
    Own(flymq.PipelineGet("p"), "000170",
        flymq.PipelineDetail(
            "p", "o", "s", "run", "yaml", b"x", 5, (flymq.PipelineRun(1, "once", "w", 6, 7, "failed", "r", b"{}"),),
            (flymq.PipelineEvent(8, 1, "info", "t"),), (flymq.PipelineProgress(9, b"{}"),)),
        "000170.00016f.000173.000372756e.000479616d6c.0000000178.0000000000000005."
        "00000001.00000001.00046f6e6365.000177.0000000000000006.0000000000000007.00066661696c6564.000172.000000027b7d."
        "00000001.0000000000000008.00000001.0004696e666f.000174.00000001.0000000000000009.000000027b7d"),
    Own(flymq.PipelineSteer("p", "pause"), "000170.00057061757365", flymq.Ok(), _OK),
    Own(flymq.PipelineRemove("p"), "000170", flymq.Ok(), _OK),
    Own(flymq.PipelineStart("p", "once", "w", True), "000170.00046f6e6365.000177.01",
        flymq.PipelineStarted(3, "run"), "00000003.000372756e"),
    Own(flymq.PipelineStart("p", "once", "w", False, "k"), "000170.00046f6e6365.000177.00.00016b",
        flymq.PipelineStarted(3, "run"), "00000003.000372756e"),
    Own(flymq.PipelineReport("p", 3, b"{}", (("info", "t"),)), "000170.00000003.000000027b7d.00000001.0004696e666f.000174",
        flymq.PipelineDesired("stop"), "000473746f70"),
    Own(flymq.PipelineEnd("p", 3, "failed", "r"), "000170.00000003.00066661696c6564.000172", flymq.Ok(), _OK),
    Own(flymq.PipelineReplay("p", b"{}"), "000170.000000027b7d",
        flymq.PipelineReplays((flymq.ReplayEntry(1, "done", "b", b"{}", 5, 3, 6, 7, "r", "o"),)),
        "00000001.00000001.0004646f6e65.000162.000000027b7d.0000000000000005.00000003.0000000000000006.0000000000000007.000172.00016f"),
    Own(flymq.PipelineReplayList("p"), "000170", flymq.PipelineReplays(()), "00000000"),
    Own(flymq.PipelineReplayTake("p", 3), "000170.00000003", flymq.PipelineReplays(()), "00000000"),
    Own(flymq.PipelineReplayEnd("p", 1, "done", "r"), "000170.00000001.0004646f6e65.000172", flymq.Ok(), _OK),
    Own(flymq.DlqDiscard("t", "i"), "000174.000169", flymq.Ok(), _OK),
    Own(flymq.Document("status"), "0006737461747573", flymq.DocumentText(b"{}"), "000000027b7d"),
    Own(flymq.BackupBegin(), "", flymq.BackupFiles("b", "1", True, (flymq.BackupFile("f", 9),)),
        "000162.000131.01.00000001.000166.0000000000000009"),
    Own(flymq.BackupRead("b", "f", 7, 2), "000162.000166.0000000000000007.00000002",
        flymq.BackupPiece(b"ab"), "000000026162"),
    Own(flymq.BackupEnd("b"), "000162", flymq.Ok(), _OK),
    Own(flymq.ClusterMap("t"), "000174",
        flymq.ClusterTopics("c", (flymq.ClusterTopic("t", (flymq.ClusterPartition(0, "n", "h:1", 2, "online", ("n",), ("n",)),)),)),
        "000163.00000001.000174.00000001.00000000.00016e.0003683a31.0000000000000002.00066f6e6c696e65."
        "00000001.00016e.00000001.00016e"),
    Own(flymq.ClusterMap("t", True), "000174.01",
        flymq.ClusterTopics("c", (), (flymq.ReplicaReader("n", "h:1", "r"),)),
        "000163.00000000.00000001.00016e.0003683a31.000172"),
    Own(flymq.ClusterSteer("lead", ("t", "2", "n")), "00046c656164.00000003.000174.000132.00016e",
        flymq.Steered(b"{}"), "000000027b7d"),
]  # fmt: skip

OWN_REQUESTS: list[Request] = [own.request for own in OWN]
OWN_RESPONSES: list[tuple[Op, Response]] = [(own.request.op, own.response) for own in OWN]
