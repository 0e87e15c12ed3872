"""Dead letters: an inbox by topic and error. A letter is sent back as it is, or after somebody mended it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response

from braidmq.admin.api.dead_letters import LetterRow
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path

_LETTERS: Final = 200
_SHOWN_CHARACTERS: Final = 4000


@dataclass(slots=True)
class Pile:
    """Letters with one error."""

    reason: str
    error: str
    letters: list[LetterRow] = field(default_factory=list)


async def list_letter_topics(view: View) -> Response:
    return await view.render("letter_topics.html", rows=await view.fetch("list_letter_topics"))


async def show_letters(view: View) -> Response:
    name, search = view.named("topic"), view.asked.get("search", "")
    start = view.asked.get("start", "")
    # One more than is shown tells whether, and where, it goes on.
    found = await view.fetch("list_letters", {"topic": name}, {"max_messages": _LETTERS + 1, "filter": search, "start": start})
    return await view.render(
        "letters.html", topic=name, search=search, start=start, piles=_piles(found[:_LETTERS]), shown=_SHOWN_CHARACTERS,
        following=found[_LETTERS].id if len(found) > _LETTERS else "",
    )  # fmt: skip


async def show_letter(view: View) -> Response:
    name, number = view.named("topic"), view.named("id")
    found = await view.fetch("list_letters", {"topic": name}, {"max_messages": 1, "start": number})
    letter: Any = found[0] if found and found[0].id == number else None
    return await view.render("letter.html", 200 if letter else 404, topic=name, number=number, letter=letter)


async def retry_letter(view: View) -> Response:
    name, form = view.named("topic"), await view.form()
    place = {"topic": name, "id": view.named("id")}
    if "value" in form:
        await view.act("retry_letter", place, body={"value": form["value"], "value_encoding": form.get("value_encoding", "text")})
    else:
        await view.act("replay_letter", place)
    return view.go(_base(name), f"Sent back to {name}.")


async def retry_letters(view: View) -> Response:
    name, form = view.named("topic"), await view.form()
    search = form.get("search", "")
    counted = await view.act("replay_letters", {"topic": name}, body={"filter": search, "all": not search})
    return view.go(_base(name), f"Sent {counted.count} back to {name}.")


async def discard_letter(view: View) -> Response:
    name = view.named("topic")
    await view.act("discard_letter", {"topic": name, "id": view.named("id")})
    return view.go(_base(name), "The letter is gone.")


async def purge_letters(view: View) -> Response:
    name = view.named("topic")
    await view.act("purge_letters", {"topic": name})
    return view.go("/console/dead-letters", f"Let the dead letters of {name} go.")


def _base(topic: str) -> str:
    return f"/console/dead-letters/{in_path(topic)}"


def _piles(letters: list[LetterRow]) -> list[Pile]:
    """By error, the largest pile first."""
    found: dict[tuple[str, str], list[LetterRow]] = defaultdict(list)
    for letter in letters:
        found[letter.reason, letter.error].append(letter)
    piles = [Pile(reason, error, rows) for (reason, error), rows in found.items()]
    return sorted(piles, key=lambda pile: -len(pile.letters))


PAGES: Final = (
    PageRoute("GET", "/console/dead-letters", list_letter_topics),
    PageRoute("GET", "/console/dead-letters/{topic}", show_letters),
    PageRoute("POST", "/console/dead-letters/{topic}/retry", retry_letters),
    PageRoute("POST", "/console/dead-letters/{topic}/purge", purge_letters),
    PageRoute("GET", "/console/dead-letters/{topic}/{id}", show_letter),
    PageRoute("POST", "/console/dead-letters/{topic}/{id}/retry", retry_letter),
    PageRoute("POST", "/console/dead-letters/{topic}/{id}/discard", discard_letter),
)
