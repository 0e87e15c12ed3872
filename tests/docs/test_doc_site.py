"""The site of the documentation: every page is in it, every link and anchor resolves, and it asks nobody for anything."""

from __future__ import annotations

import html.parser
import importlib.util
import json
import posixpath
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from doc_pages import ROOT


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("braid_site", ROOT / "tools/site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["braid_site"] = module
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


class Reader(html.parser.HTMLParser):
    """Links, what is loaded, and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        for name in ("src", "href"):
            if tag != "a" and name in given:
                self.loaded.append(given[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    GENERATOR.build(ROOT, out)
    return out


@pytest.fixture(scope="module")
def read(site: Path) -> dict[str, Reader]:
    return {path.relative_to(site).as_posix(): Reader(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_page_is_in_it(read: dict[str, Reader]) -> None:
    assert set(read) == {GENERATOR.target_of(source) for source in GENERATOR.sources(ROOT)}
    wanted = {
        "quickstart.html", "concepts.html", "operations.html", "security.html", "backup.html", "testing.html",
        "protocols/flymq.html", "protocols/blipmq.html", "protocols/fq.html", "reference/commands.html",
        "project/deploy/README.html", "index.html",
    }  # fmt: skip
    assert wanted <= set(read)


def complaints(read: dict[str, Reader], site: Path) -> list[str]:
    wrong = []
    for path, page in read.items():
        for link in [*page.links, *page.loaded]:
            if "://" in link or link.startswith("mailto:"):
                continue
            place, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), place)) if place else path
            if not (site / target).is_file():
                wrong.append(f"{path}: {link} leads nowhere")
            elif anchor and target in read and anchor not in read[target].anchors:
                wrong.append(f"{path}: {link} has no such anchor")
    return wrong


def test_every_link_and_anchor_resolves(read: dict[str, Reader], site: Path) -> None:
    assert complaints(read, site) == []


def test_a_dead_link_is_noticed(site: Path) -> None:
    page = {"index.html": Reader('<a href="gone.html">x</a><a href="#gone">y</a><a href="site.css">z</a>')}
    assert len(complaints(page, site)) == 2
    with pytest.raises(ValueError, match="leads nowhere"):
        made = GENERATOR.render("docs/x.md", "# X\n[gone](gone.md)\n")
        GENERATOR.rewrite_links(made, {}, set(), ROOT)


def test_nothing_comes_from_elsewhere(read: dict[str, Reader], site: Path) -> None:
    for path, page in read.items():
        assert not [link for link in page.loaded if "://" in link or link.startswith("//")], path
    for path in ("site.css", "site.js"):
        assert not re.search(r"https?:|@import|fetch\(|XMLHttp|url\(", (site / path).read_text()), path


def test_the_navigation_is_the_index_and_reaches_every_page_of_docs(read: dict[str, Reader]) -> None:
    page = read["operations.html"]
    targets = {posixpath.normpath(link.partition("#")[0]) for link in page.links if "://" not in link}
    docs = {GENERATOR.target_of(source) for source in GENERATOR.sources(ROOT) if source.startswith("docs/")}
    assert docs - {"index.html"} <= targets | {"index.html"}


def test_search_knows_what_the_pages_say(site: Path) -> None:
    text = (site / "search-index.js").read_text(encoding="utf-8")
    entries = json.loads(text.removeprefix("window.SEARCH_INDEX = ").rstrip(";\n"))
    assert any(page == "backup.html" and "hard link" in words for page, _, _, _, words in entries)
    assert {page for page, *_ in entries} == {GENERATOR.target_of(source) for source in GENERATOR.sources(ROOT)}
    assert "<script" not in text.lower().replace("<\\/script", "") or "&lt;" not in text


def test_a_page_with_markup_in_its_title_stays_text() -> None:
    page = GENERATOR.render("docs/x.md", "# A `code` title\n\n## Two words & more\n\ntext\n")
    assert page.title == "A code title" and page.sections[1][0] == "two-words--more"
