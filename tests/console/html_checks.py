"""Reads a page as a strict reader would, and complains: tags that do not match, ids given twice, fields without a name, anything
that the content security policy would refuse."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.complaints: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._look(tag, attributes)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._look(tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            self._complain(f"</{tag}> closes nothing")
        elif not self.open or self.open[-1] != tag:
            self._complain(f"</{tag}> closes {self.open[-1:]}")
        else:
            self.open.pop()

    def _look(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        names = [name for name, _ in attributes]
        if len(names) != len(set(names)):
            self._complain(f"<{tag}> has an attribute twice")
        for name, value in attributes:
            if name == "style" or name.startswith("on") or (value or "").strip().lower().startswith("javascript:"):
                self._complain(f"<{tag} {name}> is refused by the policy")
            if name == "id":
                if value in self.ids:
                    self._complain(f"id {value} is given twice")
                self.ids.add(value or "")
        if tag == "script" and not given.get("src"):
            self._complain("a script inside the page is refused by the policy")
        if tag == "img" and "alt" not in given:
            self._complain("a picture without words")
        hidden = given.get("type") in ("hidden", "submit")
        if tag in ("input", "select", "textarea") and not hidden and "label" not in self.open and "aria-label" not in given:
            self._complain(f"<{tag} name={given.get('name')}> has no label")
        if tag == "form" and given.get("method") == "post" and not (given.get("action") or "").startswith("/console/"):
            self._complain(f"a form leads to {given.get('action')}")

    def _complain(self, text: str) -> None:
        line, column = self.getpos()
        self.complaints.append(f"{line}:{column}: {text}")


def check_html(text: str) -> list[str]:
    """What is wrong with a page."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    if reader.open:
        reader.complaints.append(f"never closed: {reader.open}")
    if not text.lstrip().lower().startswith("<!doctype html>"):
        reader.complaints.append("no doctype")
    return reader.complaints
