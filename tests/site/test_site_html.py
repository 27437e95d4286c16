"""The built site: every link has a target, and nothing comes from elsewhere."""

from __future__ import annotations

import json
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from _built import site

from compressa.compressors import COMPRESSORS

__all__ = ["site"]

pytestmark = pytest.mark.timeout(500)


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.anchors |= {known.get("id") or "", known.get("name") or ""}
        if tag == "a" and known.get("href"):
            self.links.append(str(known["href"]))
        if tag in ("link", "use") and known.get("href") and known.get("rel") != "canonical":
            self.loaded.append(str(known["href"]))
        if known.get("src"):
            self.loaded.append(str(known["src"]))


@cache
def page(file: Path) -> Page:
    return Page(file)


def pages(site: Path) -> dict[str, Page]:
    return {file.relative_to(site).as_posix(): page(file) for file in site.rglob("*.html")}


def missing(site: Path, where: str, link: str) -> str:
    """What a link lacks; nothing if it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https", "mailto"):
        return ""
    file = ((site / where).parent / unquote(parts.path)).resolve() if parts.path else site / where
    if where == "404.html":  # is served for any address, and so has absolute ones
        file = site / unquote(parts.path).lstrip("/") if parts.path else site / where
    if file.is_dir():
        file /= "index.html"
    if not file.is_file():
        return f"{where}: {link}: no such file"
    fragment = unquote(parts.fragment)
    if fragment and not fragment.startswith("__") and fragment not in page(file).anchors:
        return f"{where}: {link}: no such place"
    return ""


def test_every_link_leads_somewhere(site: Path) -> None:
    found = pages(site)
    assert len(found) > len(COMPRESSORS) + 10
    lost = [missing(site, where, link) for where, own in found.items() for link in own.links]
    assert [line for line in lost if line] == []


def test_pages_load_what_the_site_has_and_nothing_else(site: Path) -> None:
    for where, own in pages(site).items():
        for source in own.loaded:
            assert urlsplit(source).scheme in ("", "data"), f"{where} loads {source}"
            assert not missing(site, where, source)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text.replace('"', "")
        assert "@import" not in text


def test_every_compressor_has_a_page_with_its_pictures(site: Path) -> None:
    for name in COMPRESSORS:
        text = (site / "compressors" / f"{name}.html").read_text(encoding="utf-8")
        assert text.count("<figure") >= (1 if name == "none" else 3), name
        assert f'<h1 id="{name}">' in text


def test_every_word_of_the_glossary_can_be_linked_to(site: Path) -> None:
    anchors = page(site / "glossary.html").anchors
    assert {"codec", "error-feedback", "control-channel"} <= anchors
    assert len(anchors) > 40


def test_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    known = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert set(pages(site)) - {"404.html"} <= known | {""}
    inlined = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert inlined.startswith("var __index = ")


def test_sources_have_no_absolute_paths_of_this_machine(site: Path) -> None:
    root = str(Path(__file__).resolve().parents[2])
    for file in site.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert root not in text, file
        assert "compressa-sources-" not in text, file
