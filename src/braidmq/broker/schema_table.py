"""The schemas and their versions, as a state machine.

Whether a definition is valid and compatible is decided before its command is journaled, by libraries that a replay may not
have, or have in another version. The command carries the verdict as the revision of the schema it was reached against:
`apply` carries it out only if the schema is still at that revision, so of two registrations at once one is told to look again.

    planned = table.plan(name, kind, definition, mode, now_ms)      on the loop: cheap, a picture of the schema as it is
    command = planned.decide()                                      anywhere: compiles and compares, slow for large schemas
    version = table.apply(command)                                  through the journal

Faults: a crash before the command is durable leaves no trace; after it, the version is there with its number. Numbers are not
used again, even after every version was deleted: the name is remembered with the number that comes next.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.schemas.compatibility import DEFAULT_MODE, check_mode, incompatibilities
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.schema import canonical_kind

_LIMITS: Final = [limits.SCHEMA_NAMES_MAX, limits.SCHEMA_VERSIONS_MAX, limits.SCHEMA_TOTAL_BYTES_MAX]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    name: str
    version: int
    kind: str
    definition: bytes
    fingerprint: str
    created_ms: int

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"


@dataclass(slots=True)
class _Subject:
    """All about one name. It outlives its versions."""

    compatibility: str = DEFAULT_MODE
    next_version: int = 1
    revision: int = 0
    """Counts every change, so that a decision can say what it was based on."""
    versions: dict[int, SchemaVersion] = field(default_factory=dict)
    """In rising order, since numbers only grow."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration that is not decided yet, with everything the decision needs."""

    name: str
    kind: str
    definition: bytes
    compatibility: str
    now_ms: int
    revision: int
    versions: tuple[SchemaVersion, ...]

    def decide(self) -> list[Any]:
        """The command, or the error that refuses it. Touches nothing shared, so it may run on another thread."""
        new = compile_schema(self.kind, self.definition)
        if not any(old.fingerprint == new.fingerprint for old in self.versions):
            old_versions = [(old.version, compile_schema(old.kind, old.definition)) for old in self._compared()]
            reasons = incompatibilities(new, old_versions, self.compatibility)
            if reasons:
                raise BraidError("SCHEMA_INCOMPATIBLE", name=self.name, mode=self.compatibility, reasons="; ".join(reasons))
        return [
            "register", self.name, new.kind, base64.b64encode(self.definition).decode(), new.fingerprint, self.compatibility,
            self.revision, self.now_ms, list(_LIMITS),
        ]  # fmt: skip

    def _compared(self) -> tuple[SchemaVersion, ...]:
        if self.compatibility == "none":
            return ()
        return self.versions if self.compatibility.endswith("_transitive") else self.versions[-1:]


def _check_name(name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= limits.SCHEMA_NAME_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"a schema name of {size} bytes is not 1 to {limits.SCHEMA_NAME_BYTES_MAX}")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise BraidError("INVALID_ARGUMENT", reason="a schema name has no control characters")


class SchemaTable:
    def __init__(self) -> None:
        self._subjects: dict[str, _Subject] = {}
        self._bytes = 0

    # --- questions

    def find(self, name: str, version: int = 0) -> SchemaVersion | None:
        """A version, or with 0 the latest; None when there is none."""
        subject = self._subjects.get(name)
        if subject is None or not subject.versions:
            return None
        return subject.versions.get(version or next(reversed(subject.versions)))

    def get(self, name: str, version: int = 0) -> SchemaVersion:
        found = self.find(name, version)
        if found is None:
            raise BraidError("SCHEMA_NOT_FOUND", name=f"{name}-v{version}" if version else name)
        return found

    def list_versions(self, name: str = "") -> list[SchemaVersion]:
        """Every version of one schema, or of all by name."""
        names = [name] if name else sorted(self._subjects)
        return [version for each in names if each in self._subjects for version in self._subjects[each].versions.values()]

    def compatibility(self, name: str) -> str:
        subject = self._subjects.get(name)
        return DEFAULT_MODE if subject is None else subject.compatibility

    # --- commands

    def plan(self, name: str, kind: str, definition: bytes, compatibility: str, now_ms: int) -> Registration:
        """Begin a registration. An empty `compatibility` is the mode the schema has, which is backward for a new one."""
        _check_name(name)
        mode = compatibility or self.compatibility(name)
        check_mode(mode)
        subject = self._subjects.get(name) or _Subject()
        return Registration(
            name, canonical_kind(kind), definition, mode, now_ms, subject.revision, tuple(subject.versions.values())
        )

    def register(self, name: str, kind: str, definition: bytes, compatibility: str, now_ms: int) -> list[Any]:
        """The command for a new version, decided at once: for small definitions, or where no loop waits."""
        return self.plan(name, kind, definition, compatibility, now_ms).decide()

    def delete(self, name: str, version: int = 0) -> list[Any]:
        """0 deletes every version. What is not there cannot be deleted."""
        self.get(name, version)
        return ["delete", name, version]

    def set_compatibility(self, name: str, compatibility: str) -> list[Any]:
        check_mode(compatibility)
        self.get(name)
        return ["set_compatibility", name, compatibility]

    def apply(self, command: list[Any]) -> Any:
        """`register` returns the version, new or as it was; `delete` the versions that are gone; the other nothing."""
        match command:
            case [
                "register",
                str(name),
                str(kind),
                str(encoded),
                str(fingerprint),
                str(mode),
                int(revision),
                int(now_ms),
                list(most),
            ]:
                return self._register(name, kind, base64.b64decode(encoded), fingerprint, mode, revision, now_ms, most)
            case ["delete", str(name), int(version)]:
                return self._delete(name, version)
            case ["set_compatibility", str(name), str(mode)]:
                self.get(name)
                subject = self._subjects[name]
                subject.compatibility = mode
                subject.revision += 1
                return None
        raise AssertionError(f"unknown schema command {command[:1]}")

    def _register(
        self, name: str, kind: str, definition: bytes, fingerprint: str, mode: str, revision: int, now_ms: int, most: list[int]
    ) -> SchemaVersion:
        subject = self._subjects.get(name) or _Subject()
        for known in subject.versions.values():
            if known.fingerprint == fingerprint:
                if mode != subject.compatibility and revision == subject.revision:
                    subject.compatibility = mode
                    subject.revision += 1
                return known
        if revision != subject.revision:
            raise BraidError("SCHEMA_CONFLICT", name=name)
        names_max, versions_max, bytes_max = most
        if name not in self._subjects and len(self._subjects) >= names_max:
            raise BraidError("SCHEMA_LIMIT", reason=f"{names_max} names were used")
        if len(subject.versions) >= versions_max:
            raise BraidError("SCHEMA_LIMIT", reason=f"{name} has {versions_max} versions")
        if self._bytes + len(definition) > bytes_max:
            raise BraidError("SCHEMA_LIMIT", reason=f"all definitions together take {bytes_max} bytes")
        made = SchemaVersion(name, subject.next_version, kind, definition, fingerprint, now_ms)
        self._subjects[name] = subject
        subject.versions[made.version] = made
        subject.next_version += 1
        subject.revision += 1
        subject.compatibility = mode
        self._bytes += len(definition)
        return made

    def _delete(self, name: str, version: int) -> list[SchemaVersion]:
        self.get(name, version)
        subject = self._subjects[name]
        gone = [subject.versions[number] for number in ([version] if version else list(subject.versions))]
        for each in gone:
            del subject.versions[each.version]
            self._bytes -= len(each.definition)
        if not subject.versions:
            # Whoever uses the name next begins anew, but for the numbers.
            subject.compatibility = DEFAULT_MODE
        subject.revision += 1
        return gone

    # --- snapshots

    def snapshot(self) -> Any:
        return [
            [
                name, subject.compatibility, subject.next_version, subject.revision,
                [
                    [each.version, each.kind, base64.b64encode(each.definition).decode(), each.fingerprint, each.created_ms]
                    for each in subject.versions.values()
                ],
            ]
            for name, subject in self._subjects.items()
        ]  # fmt: skip

    def restore(self, document: Any) -> None:
        for name, compatibility, next_version, revision, rows in document:
            subject = _Subject(compatibility, next_version, revision)
            for version, kind, encoded, fingerprint, created_ms in rows:
                definition = base64.b64decode(encoded)
                subject.versions[version] = SchemaVersion(name, version, kind, definition, fingerprint, created_ms)
                self._bytes += len(definition)
            self._subjects[name] = subject
