"""`braid log`: look into the files of a log, for people who debug.

`dump` and `verify` only read, and work beside a running broker as well. `rebuild-index` writes indexes and therefore takes the data
directory's lock: it refuses while a broker runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option

if TYPE_CHECKING:
    from braidmq.cli.data_dir import PartitionPlace
    from braidmq.cli.log_walk import Batch, PartitionReport, SegmentReport

_PATH_HELP = "a data directory, DATA_DIR/TOPIC or DATA_DIR/TOPIC/PARTITION"


def register(commands: Subparsers) -> None:
    group = add_group(commands, "log", "Look into the files of a log: show, check, rebuild indexes.")

    about = "Show the batches of a log: offsets, sizes, times, checksums, gaps."
    dump = group.add_parser("dump", help=about, description=f"{about} Only reads.")
    dump.add_argument("path", metavar="DATA_DIR", help=_PATH_HELP)
    dump.add_argument("--from", dest="start", type=int, default=0, metavar="OFFSET", help="leave out batches before this offset")
    dump.add_argument("--limit", type=int, metavar="N", help="show so many batches of each partition")
    dump.add_argument("--records", action="store_true", help="show the records of each batch too")
    add_output_option(dump)
    dump.set_defaults(run=run_dump)

    about = "Check every batch, the run of the offsets, and the indexes."
    verify = group.add_parser(
        "verify", help=about, description=f"{about} Only reads. Status {int(Exit.DAMAGED)} when there is damage."
    )
    verify.add_argument("path", metavar="DATA_DIR", help=_PATH_HELP)
    add_output_option(verify)
    verify.set_defaults(run=run_verify)

    about = "Write the indexes of all segments anew."
    rebuild = group.add_parser("rebuild-index", help=about, description=f"{about} Refuses while a broker uses the directory.")
    rebuild.add_argument("path", metavar="DATA_DIR", help=_PATH_HELP)
    rebuild.add_argument("--dry-run", action="store_true", help="say which indexes would be written, and write none")
    rebuild.set_defaults(run=run_rebuild)


# --- dump


def run_dump(args: argparse.Namespace) -> int:
    from braidmq.cli.data_dir import find_partitions
    from braidmq.cli.log_walk import segment_paths

    for place in find_partitions(args.path):
        left = args.limit
        expected: int | None = None
        for path in segment_paths(place.directory):
            if left == 0:
                break
            expected, left = _dump_segment(args, place, path, expected, left)
    return Exit.OK


def _dump_segment(
    args: argparse.Namespace, place: PartitionPlace, path: str, expected: int | None, left: int | None
) -> tuple[int | None, int | None]:
    """Show one segment; returns the offset that should follow and how many more batches may be shown."""
    from braidmq.cli.log_walk import mapped, walk
    from braidmq.cli.output import printable

    view = mapped(path)
    as_json = args.output == "json"
    if not as_json:
        print(f"{printable(place.name)}  {path}  {len(view):,} bytes")
    for item in walk(view):
        if isinstance(item, str):
            _show_fault(as_json, place, path, item)
            break
        if expected is not None and item.header.base_offset != expected:
            _show_fault(as_json, place, path, f"byte {item.position}: offset {item.header.base_offset} where {expected} comes next")
        expected = item.header.next_offset
        if expected > args.start:
            _show_batch(as_json, place, path, item)
            if args.records:
                _show_records(as_json, place, view, item, args.start)
            left = None if left is None else left - 1
            if left == 0:
                break
    return expected, left


def _show_fault(as_json: bool, place: PartitionPlace, path: str, text: str) -> None:
    import json

    print(json.dumps({"partition": place.name, "segment": path, "fault": text}) if as_json else f"  FAULT {text}")


def _show_batch(as_json: bool, place: PartitionPlace, path: str, batch: Batch) -> None:
    import json

    header = batch.header
    if as_json:
        document = {"partition": place.name, "segment": path, "position": batch.position, **header._asdict(), "checksum_ok": True}
        print(json.dumps(document))
        return
    producer = f"  producer {header.producer_id} seq {header.base_sequence}" if header.producer_id >= 0 else ""
    offsets = f"offsets {header.base_offset}..{header.next_offset - 1}"
    print(
        f"  {batch.position:>12}  {offsets}  {header.records} records  {header.length} bytes  {shown_time(header.base_timestamp)}"
        f"  crc {header.checksum:08x} ok  flags {shown_flags(header.flags)}{producer}"
    )


def _show_records(as_json: bool, place: PartitionPlace, view: memoryview, batch: Batch, start: int) -> None:
    from braidmq import hot
    from braidmq.cli.record_format import formatter
    from braidmq.client.models import Record
    from braidmq.hot import layout

    if batch.header.flags & layout.FLAGS_OPAQUE:
        if not as_json:
            print("      (compressed or encrypted)")
        return
    topic, _, partition = place.name.rpartition("/")
    number = int(partition) if partition.isdigit() else -1
    data = view[batch.position : batch.position + batch.header.length]
    found, _ = hot.decode_records(
        data,
        start,
        batch.header.records,
        lambda offset, at, key, value, attrs: Record(topic, number, offset, at, key, value, attrs),
    )
    as_line = formatter("json", False, False)
    for record in found:
        line = as_line(record).decode().rstrip("\n")
        print(line if as_json else f"      {line}")


def shown_time(timestamp_ms: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"time {timestamp_ms}"


def shown_flags(flags: int) -> str:
    """The names of the flags that are set, or `-`."""
    from braidmq.hot import layout

    names = {value: name[5:].lower() for name, value in vars(layout).items() if name.startswith("FLAG_")}
    return ",".join(name for value, name in names.items() if flags & value) or "-"


# --- verify


def run_verify(args: argparse.Namespace) -> int:
    from braidmq.cli.data_dir import find_partitions
    from braidmq.cli.log_walk import inspect_partition
    from braidmq.cli.output import note, print_json, print_table, printable

    reports = [(place, inspect_partition(place.directory)) for place in find_partitions(args.path)]
    damaged = [report for _, report in reports if report.damaged]
    if args.output == "json":
        print_json([_document(place, report) for place, report in reports])
    else:
        rows = []
        for place, report in reports:
            parts = report.segments
            first = parts[0].base_offset if parts else 0
            end = parts[-1].next_offset if parts else 0
            state = "DAMAGED" if report.damaged else "torn tail" if any(part.torn_bytes for part in parts) else "ok"
            totals = (sum(part.batches for part in parts), sum(part.records for part in parts), sum(part.size for part in parts))
            rows.append((place.name, len(parts), *totals, first, end, state))
        print_table(("PARTITION", "SEGMENTS", "BATCHES", "RECORDS", "BYTES", "OLDEST", "NEXT", "STATE"), rows)
        for place, report in reports:
            for line in _findings(report):
                note(f"{printable(place.name)}: {line}")
    return Exit.DAMAGED if damaged else Exit.OK


def _findings(report: PartitionReport) -> Iterator[str]:
    for segment in report.segments:
        yield from (f"{segment.path}: {fault}" for fault in segment.faults)
        if segment.torn_bytes:
            yield f"{segment.path}: {segment.torn_bytes} bytes of an unfinished batch at the end, which the next start removes"
        if segment.index == "wrong":
            yield f"{segment.path}: its index does not fit; the broker makes it anew when it needs it"
    yield from report.faults


def _document(place: PartitionPlace, report: PartitionReport) -> dict[str, object]:
    return {
        "partition": place.name,
        "directory": report.directory,
        "damaged": report.damaged,
        "faults": report.faults,
        "segments": [_segment_document(segment) for segment in report.segments],
    }


def _segment_document(segment: SegmentReport) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(segment)


# --- rebuild-index


def run_rebuild(args: argparse.Namespace) -> int:
    from braidmq.cli.data_dir import data_dir_of, find_partitions
    from braidmq.cli.log_walk import rebuild_index, segment_paths

    places = find_partitions(args.path)
    with _locked(data_dir_of(args.path)):
        for place in places:
            paths = [path for path in segment_paths(place.directory) if os.path.getsize(path)]
            for path in paths:
                if args.dry_run:
                    print(f"would write the index of {path}")
                    continue
                entries = rebuild_index(path, newest=path == paths[-1])
                print(f"{path}: skipped, it ends in an unfinished batch" if entries is None else f"{path}: {entries} entries")
    return Exit.OK


@contextmanager
def _locked(data_dir: str | None) -> Iterator[None]:
    """Hold the data directory, so that no broker writes the same files meanwhile."""
    from braidmq.base.disk_real import RealDisk

    if data_dir is None:
        yield
        return
    try:
        lock = RealDisk().lock(os.path.join(data_dir, "LOCK"))
    except BlockingIOError:
        raise BraidError("DATA_DIR_LOCKED", path=data_dir) from None
    try:
        yield
    finally:
        lock.release()
