"""Renders the documentation as a static site: pages, navigation, search, dark and light.

    python tools/site.py [DIRECTORY]     writes `site/`, or another directory

Pages are those under `docs/`, and the few elsewhere that they lead to. The navigation is `docs/index.md` itself: its headings and
its links, in its order. What a page links to that is no page (a unit file, a manifest) is copied. A site asks nobody for anything:
no fonts, no scripts, no pictures from elsewhere, and it works from the disk as well as from a server.
"""

from __future__ import annotations

import html
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import markdown

ROOT = Path(__file__).resolve().parent.parent
PARTS = Path(__file__).resolve().parent / "site_parts"
ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md")
"""Pages that are not under `docs/`."""
_LINK = re.compile(r'(href|src)="([^"]*)"')
_TEXT_MAX = 4000
"""Characters of a section that search looks at."""


@dataclass(slots=True)
class Page:
    source: str
    """Path in the tree."""
    target: str
    """Path in the site."""
    title: str
    body: str
    sections: list[tuple[str, str, str]] = field(default_factory=list)
    """Anchor, heading and text, for search."""


def target_of(source: str) -> str:
    """Where a page of the tree is in the site."""
    path = source.removeprefix("docs/") if source.startswith("docs/") else f"project/{source}"
    return path.removesuffix(".md") + ".html"


def slug(title: str, separator: str = "-") -> str:
    """The anchor of a heading, as links in the pages have it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def sources(root: Path) -> list[str]:
    found = [path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*.md"))]
    return [*found, *(path for path in ELSEWHERE if (root / path).exists())]


def render(source: str, text: str) -> Page:
    """A page, with links as they are in the tree."""
    converter = markdown.Markdown(
        extensions=["tables", "fenced_code", "toc", "sane_lists"],
        extension_configs={"toc": {"slugify": slug, "permalink": "#", "permalink_title": "link to this section"}},
    )
    body = converter.convert(text)
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    title = re.sub(r"[`*]", "", found[1]) if found else source
    return Page(source, target_of(source), title, body, list(_sections(body, title)))


def _sections(body: str, title: str) -> list[tuple[str, str, str]]:
    parts = re.split(r'<h[1-4] id="([^"]*)">(.*?)</h[1-4]>', body, flags=re.DOTALL)
    sections = []
    for anchor, heading, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        words = _plain(text)[:_TEXT_MAX]
        sections.append((anchor, _plain(heading).rstrip("# ") or title, words))
    return sections


def _plain(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


# --- links


def rewrite_links(page: Page, targets: Mapping[str, str], copied: set[str], root: Path) -> str:
    """The body with links as they are in the site; files that are no pages are noted in `copied`."""

    def replaced(found: re.Match[str]) -> str:
        attribute, link = found[1], html.unescape(found[2])
        if "://" in link or link.startswith(("#", "mailto:")):
            return found[0]
        path, _, anchor = link.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.source), path))
        if place in targets:
            target = targets[place]
        elif (root / place).is_file():
            copied.add(place)
            target = f"files/{place}"
        else:
            raise ValueError(f"{page.source}: {link} leads nowhere")
        there = posixpath.relpath(target, posixpath.dirname(page.target) or ".")
        return f'{attribute}="{html.escape(there + ("#" + anchor if anchor else ""))}"'

    return _LINK.sub(replaced, page.body)


def navigation(index: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Headings of the index with the links below each: name, and source of the page."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for line in index.splitlines():
        if line.startswith("## "):
            groups.append((line[3:], []))
        elif groups and (found := re.match(r"- \[([^\]]+)\]\(([^)#]+)", line)):
            groups[-1][1].append((found[1], posixpath.normpath(posixpath.join("docs", found[2]))))
    return groups


def _navigation_html(page: Page, groups: list[tuple[str, list[tuple[str, str]]]], targets: Mapping[str, str]) -> str:
    parts = []
    for heading, links in groups:
        parts.append(f"<h2>{html.escape(heading)}</h2>\n<ul>")
        for name, source in links:
            if source not in targets:
                continue
            there = posixpath.relpath(targets[source], posixpath.dirname(page.target) or ".")
            here = ' aria-current="page"' if source == page.source else ""
            parts.append(f'<li><a href="{html.escape(there)}"{here}>{html.escape(name)}</a></li>')
        parts.append("</ul>")
    return "\n".join(parts)


# --- the whole


def build(root: Path, out: Path) -> list[Page]:
    """Write the site; what was there before is gone."""
    texts = {source: (root / source).read_text(encoding="utf-8") for source in sources(root)}
    pages = [render(source, text) for source, text in texts.items()]
    targets = {page.source: page.target for page in pages}
    groups = navigation(texts["docs/index.md"])
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    copied: set[str] = set()
    making = out.with_name(out.name + ".new")
    shutil.rmtree(making, ignore_errors=True)
    for page in pages:
        up = posixpath.relpath(".", posixpath.dirname(page.target) or ".")
        filled = {
            "title": html.escape(page.title), "root": up, "navigation": _navigation_html(page, groups, targets),
            "body": rewrite_links(page, targets, copied, root),
        }  # fmt: skip
        text = re.sub(r"\{\{(\w+)\}\}", lambda found, filled=filled: filled[found[1]], template)  # type: ignore[misc]
        place = making / page.target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    entries = [[page.target, page.title, anchor, heading, text] for page in pages for anchor, heading, text in page.sections]
    index = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    (making / "search-index.js").write_text(f"window.SEARCH_INDEX = {index};\n", encoding="utf-8")
    for name in ("site.css", "site.js"):
        shutil.copy(PARTS / name, making / name)
    for path in sorted(copied):
        (making / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, making / "files" / path)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(making, out)
    return pages


def main(arguments: list[str]) -> int:
    out = Path(arguments[0]) if arguments else ROOT / "site"
    pages = build(ROOT, out)
    print(f"{out}: {len(pages)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
