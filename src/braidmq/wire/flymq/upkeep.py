"""What those who run a broker ask of it, D0 to D3: our own operations.

DOCUMENT answers with one of the broker's own documents as JSON: how it is, who is connected, with which settings it runs. A backup
begins with a list of files and their sizes, which stay as they are until the backup ends, whatever becomes of the log meanwhile;
they are read piece by piece.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK
from braidmq.wire.flymq.layout import BOOL, BYTES, STR, U32, U64, Layout, Many, WireType
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class Document:
    op: ClassVar[Op] = Op.DOCUMENT
    name: str
    """`status`, `connections`, `recovery`, `configuration` or `cluster`."""


@shape
class BackupBegin:
    op: ClassVar[Op] = Op.BACKUP_BEGIN


@shape
class BackupRead:
    op: ClassVar[Op] = Op.BACKUP_READ
    backup: str
    path: str
    position: int
    length: int


@shape
class BackupEnd:
    op: ClassVar[Op] = Op.BACKUP_END
    backup: str


UpkeepRequest = Document | BackupBegin | BackupRead | BackupEnd


@shape
class DocumentText:
    document: bytes
    """JSON."""


@shape
class BackupFile:
    path: str
    """Below the data directory."""
    size: int


@shape
class BackupFiles:
    backup: str
    """What to name in what follows."""
    version: str
    """Of the broker."""
    encrypted: bool
    """Whether something in it needs the broker's keys, which are not part of it."""
    files: tuple[BackupFile, ...]


@shape
class BackupPiece:
    data: bytes
    """Shorter than what was asked for only at the end of the file."""


UpkeepResponse = DocumentText | BackupFiles | BackupPiece

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.DOCUMENT: Layout(Document, name=STR),
    Op.BACKUP_BEGIN: Layout(BackupBegin),
    Op.BACKUP_READ: Layout(BackupRead, backup=STR, path=STR, position=U64, length=U32),
    Op.BACKUP_END: Layout(BackupEnd, backup=STR),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.DOCUMENT: Layout(DocumentText, document=BYTES),
    Op.BACKUP_BEGIN: Layout(
        BackupFiles, backup=STR, version=STR, encrypted=BOOL, files=Many(Layout(BackupFile, path=STR, size=U64))
    ),
    Op.BACKUP_READ: Layout(BackupPiece, data=BYTES),
    Op.BACKUP_END: OK,
}
