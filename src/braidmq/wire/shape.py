"""`@shape`: what a message of a protocol is declared with.

To whoever reads or checks types it is a frozen dataclass with slots. There are two hundred of them, and every start of a broker
or a command makes them all: `dataclass` would write and compile six methods for each, a third of the time of a start. So those that
can be the same for all are: equality, hash and repr look at the fields. That nothing is assigned is left to the type checker.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def shape(declared: type[T]) -> type[T]:
    """A class decorator."""
    if declared.__repr__ is object.__repr__:
        # One that hides something is inherited.
        declared.__repr__ = _shown  # type: ignore[method-assign]
    declared.__eq__ = _equals  # type: ignore[method-assign]
    declared.__hash__ = _hashed  # type: ignore[method-assign]
    return dataclass(slots=True, repr=False, eq=False)(declared)


def _shown(self: object) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)  # type: ignore[arg-type]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equals(self: object, other: object) -> bool:
    return type(other) is type(self) and _compared(self) == _compared(other)


def _hashed(self: object) -> int:
    return hash(_compared(self))


def _compared(of: object) -> tuple[object, ...]:
    return tuple(getattr(of, each.name) for each in fields(of) if each.compare)  # type: ignore[arg-type]
