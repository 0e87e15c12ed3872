"""Sections of a definition: frozen dataclasses whose fields know their kind, their default and what they are for.

`field_of(kind, doc)` is a field that has to be given, `field_of(kind, doc, default)` one that may be left out. Making a section
runs every field through its kind, from whatever language it came, so a section that exists is well formed.
`Inner` and `OneOf` nest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, ClassVar

from braidmq.spark.pipeline.kinds import Complaint, Complaints, Fault, Kind, did_you_mean, shown


class Section:
    """Base of all sections."""

    short: ClassVar[str] = ""
    """The field that is meant where only a value stands, as in `sql: SELECT ...`."""

    def __post_init__(self) -> None:
        complaints = Complaints()
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                object.__setattr__(self, each.name, complaints.take((each.name,), kind_of(each).accept, value))
        complaints.end()


def field_of(kind: Kind, doc: str, default: Any = MISSING) -> Any:
    about = {"kind": kind, "doc": doc}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=about)
    return field(metadata=about) if default is MISSING else field(default=default, metadata=about)


def kind_of(each: Field[Any]) -> Kind:
    kind: Kind = each.metadata["kind"]
    return kind


def required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def build(section: type[Section], value: Any) -> Any:
    """A section from a mapping, from the value of its short form, or from itself."""
    if isinstance(value, section):
        return value
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        if not section.short:
            raise Fault(f"expected a mapping, found {shown(value)}")
        value = {section.short: value}
    known = [each.name for each in fields(section)]  # type: ignore[arg-type]
    complaints = Complaints()
    complaints.found += [
        Complaint(f"unknown key `{name}`{did_you_mean(str(name), known)}; known: {', '.join(known)}", (str(name), KEY))
        for name in value
        if name not in known
    ]
    missing = [each for each in fields(section) if required(each) and each.name not in value]  # type: ignore[arg-type]
    complaints.found += [Complaint(f"`{each.name}` is missing: {each.metadata['doc']}") for each in missing]
    given = {str(name): each for name, each in value.items() if name in known}
    if missing:
        # It cannot be made, but what is there is looked at all the same.
        by_name = {each.name: kind_of(each) for each in fields(section)}  # type: ignore[arg-type]
        for name, each in given.items():
            complaints.take((name,), by_name[name].accept, each)
        complaints.end()
    made = complaints.take((), lambda each: section(**each), given)
    complaints.end()
    return made


KEY = "\0key"
"""In the path of a fault: the key itself is meant, not what it leads to."""


class Inner:
    """A section inside another."""

    def __init__(self, section: type[Section]) -> None:
        self.section = section

    def accept(self, value: Any) -> Any:
        return build(self.section, value)

    def describe(self) -> str:
        return self.section.__name__


class OneOf:
    """A mapping with one key, which says what kind of section its value is."""

    def __init__(self, sections: Mapping[str, type[Section]]) -> None:
        self.sections = dict(sections)

    def accept(self, value: Any) -> Any:
        if isinstance(value, tuple(self.sections.values())):
            return value
        if isinstance(value, str) and value in self.sections:
            value = {value: None}
        known = ", ".join(self.sections)
        if not isinstance(value, Mapping) or len(value) != 1:
            raise Fault(f"expected exactly one of {known}, found {_found(value)}")
        ((name, content),) = value.items()
        if name not in self.sections:
            raise Fault(f"unknown key `{name}`{did_you_mean(str(name), list(self.sections))}; known: {known}", (str(name), KEY))
        complaints = Complaints()
        made = complaints.take((str(name),), lambda each: build(self.sections[name], each), content)
        complaints.end()
        return made

    def describe(self) -> str:
        return "one of " + ", ".join(f"`{name}`" for name in self.sections)


def _found(value: Any) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, Mapping) else shown(value)
