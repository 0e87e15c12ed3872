"""A row of the table that the admin API is made from.

Method, path and right are said here; what a request may carry and what it is answered with follow from the annotations of the
handler, and the description from its docstring. Routes, checks, the OpenAPI document and the reference page are made from the
same rows.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from braidmq.admin.call import Call
from braidmq.security.rules import Rule

Handler = Callable[[Call[Any, Any]], Any]


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    """With its parameters in braces."""
    rule: Rule
    handler: Handler
    status: int = 200
    """Of a success; 204 has no body."""
    about: str = "topic"
    """The parameter that names the topic, or the schema, that the right is about."""
    raw_tail: bool = False
    """Whether the last parameter may hold slashes as they are, as FlyMQ's own paths do."""
    hashes: bool = False
    """Whether it checks or hashes a password: then it may wait for the throttle of logins, and must not hold up the others."""
    media: str = "application/json"
    """What a success is answered with."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def group(self) -> str:
        """Endpoints of one module belong together in the documentation."""
        return self.handler.__module__.rpartition(".")[2].replace("_", " ")

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.handler, include_extras=True)

    @cached_property
    def query(self) -> type:
        found: type = typing.get_args(self._hints["call"])[0]
        return found

    @cached_property
    def body(self) -> type:
        found: type = typing.get_args(self._hints["call"])[1]
        return found

    @cached_property
    def answer(self) -> Any:
        """The type of what comes back."""
        return self._hints["return"]

    @property
    def doc(self) -> str:
        return " ".join((self.handler.__doc__ or "").split())
