"""What those who run a broker need of it: its documents, and backups. What `braid status`, `top`, `backup` and `debug` ask for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from braidmq.base.errors import BraidError
from braidmq.wire import flymq

from .asking import Asker

PIECE_BYTES: Final = 1 << 20


class Upkeep:
    """`client.upkeep`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def document(self, name: str) -> Any:
        """One of the broker's documents: `status`, `connections`, `recovery`, `configuration` or `cluster`."""
        answer = await self._asker.ask(flymq.Document(name), flymq.DocumentText)
        try:
            return json.loads(answer.document)
        except ValueError as fault:
            raise BraidError("UNEXPECTED_REPLY", reason=f"the document {name} is no JSON: {fault}") from None

    async def begin_backup(self) -> flymq.BackupFiles:
        """The files of this moment, which stay as they are until `end_backup`, or until nothing is read of them for ten minutes."""
        return await self._asker.ask(flymq.BackupBegin(), flymq.BackupFiles, again=False)

    async def read_backup(self, backup: str, file: flymq.BackupFile) -> AsyncIterator[bytes]:
        """The content of a file, in pieces."""
        position = 0
        while position < file.size:
            request = flymq.BackupRead(backup, file.path, position, min(PIECE_BYTES, file.size - position))
            piece = (await self._asker.ask(request, flymq.BackupPiece)).data
            if not piece:
                raise BraidError("UNEXPECTED_REPLY", reason=f"{file.path} ends at {position} of {file.size} bytes")
            position += len(piece)
            yield piece

    async def end_backup(self, backup: str) -> None:
        await self._asker.ask(flymq.BackupEnd(backup), flymq.Ok)
