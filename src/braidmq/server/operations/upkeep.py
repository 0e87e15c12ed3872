"""What those who run a broker ask of it: its documents, and backups while it works."""

from __future__ import annotations

from braidmq import __version__
from braidmq.base.errors import BraidError
from braidmq.base.json_pieces import json_pieces
from braidmq.server.operations.calling import Answer, Caller, note, respond
from braidmq.wire import flymq


async def document(caller: Caller, request: flymq.Document) -> Answer:
    broker = caller.broker
    make = broker.documents.get(request.name)
    if make is None:
        known = ", ".join(sorted(broker.documents))
        raise BraidError("INVALID_ARGUMENT", reason=f"there is no document {request.name}; there are {known}")
    made = await make()
    text = await broker.compute(lambda: "".join(json_pieces(made)).encode("utf-8", "replace"))
    return respond(caller, request, flymq.DocumentText(text))


async def backup_begin(caller: Caller, request: flymq.BackupBegin) -> Answer:
    broker = caller.broker
    backup = await broker.backups.begin()
    note(caller, "config.change", backup.id, "begin backup")
    files = tuple(flymq.BackupFile(path, size) for path, size in sorted(backup.sizes.items()))
    return respond(caller, request, flymq.BackupFiles(backup.id, __version__, broker.store.keys is not None, files))


async def backup_read(caller: Caller, request: flymq.BackupRead) -> Answer:
    data = await caller.broker.backups.read(request.backup, request.path, request.position, request.length)
    return respond(caller, request, flymq.BackupPiece(data))


async def backup_end(caller: Caller, request: flymq.BackupEnd) -> Answer:
    await caller.broker.backups.end(request.backup)
    return respond(caller, request, flymq.Ok())
