"""Reads a definition from YAML, or from a Python file, with a place for everything that is wrong.

YAML is taken apart as nodes, not as values, so that each complaint has a line and a column, also when it is about something that
is found out much later. `${NAME}` in a value is the environment variable NAME, and `$${` stands for `${`; the definition that the
broker keeps has the names, never what they stand for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.definition import Pipeline
from braidmq.spark.pipeline.kinds import Complaint, Fault, Path
from braidmq.spark.pipeline.sections import KEY, build

_VARIABLE: Final = re.compile(r"\$(\$)?\{([^}]*)\}")
_DEPTH_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Place:
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a definition, and where."""

    file: str
    place: Place | None
    where: str
    """The part of the definition, such as `steps.1.sql`."""
    text: str

    def __str__(self) -> str:
        place = f":{self.place.line}:{self.place.column}" if self.place else ""
        where = f" {self.where}:" if self.where else ""
        return f"{self.file}{place}:{where} {self.text}"


@dataclass(slots=True)
class Reading:
    """A definition as it was read: the pipeline when it is well formed, and what is wrong with it."""

    file: str
    text: str
    pipeline: Pipeline | None = None
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def folder(self) -> FilePath:
        """Where names of files in the definition begin."""
        return FilePath(self.file).resolve().parent

    def complain(self, complaint: Complaint) -> None:
        path = complaint.path
        while path not in self.places and path:
            path = path[:-1]
        where = ".".join(str(part) for part in complaint.path if part != KEY)
        problem = Problem(self.file, self.places.get(path), where, complaint.text)
        if problem not in self.problems:
            self.problems.append(problem)

    def require(self) -> Pipeline:
        """The pipeline; PIPELINE_INVALID with everything that is wrong where something is."""
        if self.problems or self.pipeline is None:
            raise BraidError("PIPELINE_INVALID", problems="; ".join(map(str, self.problems)))
        return self.pipeline


def read_file(path: str, environ: Mapping[str, str]) -> Reading:
    """A definition from a file: Python where it ends in `.py`, YAML else."""
    text = FilePath(path).read_bytes()
    if len(text) > limits.PIPELINE_DEFINITION_BYTES_MAX:
        size = f"{len(text)} bytes are more than {limits.PIPELINE_DEFINITION_BYTES_MAX}"
        return Reading(path, "", problems=[Problem(path, None, "", size)])
    try:
        decoded = text.decode()
    except UnicodeDecodeError as fault:
        return Reading(path, "", problems=[Problem(path, None, "", f"not UTF-8: {fault}")])
    return _read_python(path, decoded) if path.endswith(".py") else read_yaml(decoded, path, environ)


def read_yaml(text: str, file: str, environ: Mapping[str, str]) -> Reading:
    """A definition from YAML text; `file` is what complaints call it."""
    import yaml

    reading = Reading(file, text)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else None
        reading.problems.append(Problem(file, place, "", f"not YAML: {fault.problem or fault.context}"))
        return reading
    except yaml.YAMLError as fault:
        reading.problems.append(Problem(file, None, "", f"not YAML: {fault}"))
        return reading
    if node is None:
        reading.problems.append(Problem(file, Place(1, 1), "", "is empty"))
        return reading
    plain = _Nodes(reading, environ).plain(node, ())
    if not isinstance(plain, Mapping):
        reading.problems.append(Problem(file, Place(1, 1), "", "a definition is a mapping, as `name: orders`"))
        return reading
    _build(reading, plain)
    return reading


def _build(reading: Reading, plain: Mapping[str, Any]) -> None:
    try:
        reading.pipeline = build(Pipeline, plain)
    except Fault as fault:
        for complaint in fault.complaints:
            reading.complain(complaint)
    if reading.problems:
        reading.pipeline = None
        reading.problems.sort(key=lambda each: (each.place.line, each.place.column) if each.place else (0, 0))


class _Nodes:
    """YAML nodes as plain values, noting where each one stands."""

    def __init__(self, reading: Reading, environ: Mapping[str, str]) -> None:
        import yaml

        self._yaml = yaml
        self._reading = reading
        self._environ = environ
        self._constructor = yaml.SafeLoader("")

    def plain(self, node: Any, path: Path) -> Any:
        place = Place(node.start_mark.line + 1, node.start_mark.column + 1)
        self._reading.places[path] = place
        if len(path) > _DEPTH_MAX:
            self._reading.complain(Complaint("is nested too deeply", path))
            return None
        if isinstance(node, self._yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            return [self.plain(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value
        try:
            value = self._constructor.construct_object(node)
        except (self._yaml.YAMLError, ValueError) as fault:
            self._reading.complain(Complaint(f"cannot be read: {getattr(fault, 'problem', fault)}", path))
            return None
        return self._expanded(value, path) if isinstance(value, str) else value

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, self._yaml.ScalarNode) else ""
            self._reading.places[(*path, name, KEY)] = Place(key.start_mark.line + 1, key.start_mark.column + 1)
            # YAML 1.1 takes `on` for true. It is a key of ours, and nobody means that.
            if name in plain:
                self._reading.complain(Complaint(f"`{name}` stands here twice", (*path, name, KEY)))
            plain[name] = self.plain(value, (*path, name))
        return plain

    def _expanded(self, text: str, path: Path) -> str:
        def one(found: re.Match[str]) -> str:
            if found[1]:
                return f"${{{found[2]}}}"
            if found[2] not in self._environ:
                self._reading.complain(Complaint(f"the environment variable {found[2] or '(no name)'} is not set", path))
                return "?"
            return self._environ[found[2]]

        return _VARIABLE.sub(one, text)


def _read_python(path: str, text: str) -> Reading:
    """A Python file says what its `pipeline` is."""
    import runpy

    reading = Reading(path, text)
    folder = str(reading.folder)
    sys.path.insert(0, folder)
    try:
        found = runpy.run_path(path).get("pipeline")
    except Fault as fault:
        for complaint in fault.complaints:
            reading.problems.append(Problem(path, _line_of(fault, path), ".".join(map(str, complaint.path)), complaint.text))
        return reading
    except SyntaxError as fault:
        reading.problems.append(Problem(path, Place(fault.lineno or 1, fault.offset or 1), "", f"not Python: {fault.msg}"))
        return reading
    except Exception as fault:  # whatever a program of somebody else may raise is what is wrong with it
        reading.problems.append(Problem(path, _line_of(fault, path), "", f"{type(fault).__name__}: {fault}"))
        return reading
    finally:
        sys.path.remove(folder)
    if isinstance(found, Pipeline):
        reading.pipeline = found
    else:
        reading.problems.append(Problem(path, None, "", "has no variable `pipeline` that is a Pipeline"))
    return reading


def _line_of(fault: BaseException, path: str) -> Place | None:
    """The last line of the file that an exception came through."""
    place = None
    trace = fault.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            place = Place(trace.tb_lineno, 1)
        trace = trace.tb_next
    return place
