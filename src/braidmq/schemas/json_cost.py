"""How much work a JSON Schema can make of one value: an upper bound, taken before the schema is used.

References make a short schema long: forty definitions that each name the next one twice ask for 2^40 evaluations of a single
number, and one that refers back to itself twice for 2^depth. The bound counts how often one place of a message may be
evaluated, in units of one keyword entry, for each depth of the message. Schemas applied to the same value add up; of the
schemas for children only those that can meet at one child do, so a tree with two branches costs no more than a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from braidmq.base import limits
from braidmq.schemas.schema import invalid

IN_PLACE_ONE: Final = ("not", "if", "then", "else", "propertyNames", "contentSchema")
IN_PLACE_MANY: Final = ("allOf", "anyOf", "oneOf")
IN_PLACE_NAMED: Final = ("dependentSchemas", "dependencies")
ITEM_ONE: Final = ("items", "additionalItems", "unevaluatedItems", "contains")
OTHER_PROPERTY: Final = ("additionalProperties", "unevaluatedProperties")
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_TOO_MANY: Final = limits.SCHEMA_WORK_MAX + 1
"""Counts stop here: no message is checked that needs more."""
_OPAQUE: Final = ("enum", "const", "default", "examples")


class References:
    """Where the references of one document lead. Only the document itself is looked at: nothing is ever fetched."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._base: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": document}
        self._anchors: dict[tuple[str, str], Any] = {}
        pending: list[tuple[Any, str]] = [(document, "")]
        while pending:
            node, base = pending.pop()
            if isinstance(node, list):
                pending.extend((child, base) for child in node)
            if not isinstance(node, dict):
                continue
            own = node.get("$id", node.get("id"))
            if isinstance(own, str):
                address, fragment = urldefrag(urljoin(base, own))
                if not own.startswith("#"):
                    base = address
                    self._resources.setdefault(base, node)
                if fragment:
                    self._anchors.setdefault((base, fragment), node)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    self._anchors.setdefault((base, node[keyword]), node)
            self._base[id(node)] = base
            pending.extend((child, base) for key, child in node.items() if key not in _OPAQUE)

    def follow(self, node: dict[str, Any], reference: str) -> Any:
        address, fragment = urldefrag(urljoin(self._base.get(id(node), ""), reference) if reference[:1] != "#" else reference)
        if reference[:1] == "#":
            address = self._base.get(id(node), "")
        if address not in self._resources:
            raise invalid("json", f"reference {reference!r} leads out of the definition")
        if (address, fragment) in self._anchors:
            return self._anchors[address, fragment]
        found = self._resources[address]
        if fragment and not fragment.startswith("/"):
            raise invalid("json", f"reference {reference!r} leads nowhere")
        for part in fragment.split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(found):
                found = found[int(part[:9])]
            else:
                raise invalid("json", f"reference {reference!r} leads nowhere")
        return found


@dataclass(slots=True)
class _Node:
    """One schema of the document, with its neighbours as places in the list of nodes."""

    weight: int
    in_place: list[int]
    named: list[int]
    others: list[int]
    placed: list[int]
    items: list[int]


def evaluations_by_depth(document: dict[str, Any]) -> list[int]:
    """For each depth a message may have: most evaluations of one of its values. Refuses what is out of proportion at once."""
    nodes = _Graph(References(document)).nodes_from(document)
    order = _in_place_order(nodes)
    here = [0] * len(nodes)
    for index in order:
        here[index] = nodes[index].weight + sum(here[part] for part in nodes[index].in_place)
        if here[index] > limits.SCHEMA_EVALUATIONS_MAX:
            raise invalid("json", f"one value may need more than {limits.SCHEMA_EVALUATIONS_MAX} evaluations")
    most, by_depth = here, [here[0]]
    while len(by_depth) <= limits.SCHEMA_DEPTH_MAX:
        below = [0] * len(nodes)
        for index in order:
            node = nodes[index]
            total = max(_largest(most, node.named) + _sum(most, node.others), _largest(most, node.placed) + _sum(most, node.items))
            below[index] = min(total + sum(below[part] for part in node.in_place), _TOO_MANY)
        deeper = [max(pair) for pair in zip(here, below, strict=True)]
        if deeper == most or deeper[0] >= _TOO_MANY:
            by_depth += [deeper[0]] * (limits.SCHEMA_DEPTH_MAX + 1 - len(by_depth))
            break
        most = deeper
        by_depth.append(most[0])
    return by_depth


def _largest(values: list[int], chosen: list[int]) -> int:
    return max((values[index] for index in chosen), default=0)


def _sum(values: list[int], chosen: list[int]) -> int:
    return sum(values[index] for index in chosen)


def _in_place_order(nodes: list[_Node]) -> list[int]:
    """Every node after those that judge the same value for it. One that comes back to itself there is judged once."""
    order: list[int] = []
    state = [0] * len(nodes)
    for start in range(len(nodes)):
        pending = [start]
        while pending:
            index = pending[-1]
            if state[index] == 0:
                state[index] = 1
                pending.extend(part for part in nodes[index].in_place if state[part] == 0)
                continue
            pending.pop()
            if state[index] == 1:
                state[index] = 2
                order.append(index)
    return order


class _Graph:
    def __init__(self, references: References) -> None:
        self._references = references
        self._places: dict[int, int] = {}
        self._found: list[Any] = []

    def nodes_from(self, document: dict[str, Any]) -> list[_Node]:
        self._place(document)
        nodes: list[_Node] = []
        while len(nodes) < len(self._found):
            # Neighbours are added to the list while it is walked.
            nodes.append(self._node(self._found[len(nodes)]))
        return nodes

    def _place(self, schema: Any) -> int:
        if id(schema) not in self._places:
            self._places[id(schema)] = len(self._found)
            self._found.append(schema)
        return self._places[id(schema)]

    def _node(self, schema: Any) -> _Node:
        if not isinstance(schema, dict):
            return _Node(1, [], [], [], [], [])
        placed, items = _values(schema.get("prefixItems")), []
        for keyword in ITEM_ONE:
            if isinstance(schema.get(keyword), list):
                placed = placed + schema[keyword]
            elif keyword in schema:
                items.append(schema[keyword])
        others = _values(schema.get("patternProperties")) + [schema[keyword] for keyword in OTHER_PROPERTY if keyword in schema]
        parts = (self._in_place(schema), _values(schema.get("properties")), others, placed, items)
        weight = 1 + sum(len(value) for value in schema.values() if isinstance(value, (dict, list)))
        return _Node(weight, *([self._place(child) for child in part] for part in parts))

    def _in_place(self, schema: dict[str, Any]) -> list[Any]:
        found = [self._references.follow(schema, schema[word]) for word in REFERENCES if isinstance(schema.get(word), str)]
        found += [schema[keyword] for keyword in IN_PLACE_ONE if keyword in schema]
        for keyword in (*IN_PLACE_MANY, *IN_PLACE_NAMED):
            found += _values(schema.get(keyword))
        return found


def _values(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else container if isinstance(container, list) else []
