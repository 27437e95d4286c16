"""Links between pages lead somewhere: to files, and to headings within them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _documents import DOCS, README, blocks, name, pages, running_text, text

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.+)$", running_text(page), re.M)
    plain = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"\s+", "-", title) for title in plain}


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in pages()])
def test_every_link_has_a_target(page: Path) -> None:
    for link in LINK.findall(running_text(page)):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert page == README or target.is_relative_to(DOCS), f"{link} is not on the site"
        if heading:
            assert heading in anchors(target), link


def test_pages_begin_with_their_title() -> None:
    for page in pages():
        assert re.match(r"(---\n.*?\n---\n+)?# \S", text(page), re.S), name(page)
        assert len(re.findall(r"^# ", running_text(page), re.M)) == 1, name(page)


def test_pictures_are_small_and_follow_the_scheme() -> None:
    for file in (DOCS / "pictures").glob("*.svg"):
        drawn = file.read_text(encoding="utf-8")
        assert len(drawn) < 12_000, file.name
        assert "currentColor" in drawn, file.name
        assert "prefers-color-scheme:dark" in drawn, file.name
        assert re.search(r'role="img".*<title>', drawn, re.S), file.name


def test_code_is_no_part_of_running_text() -> None:
    quickstart = DOCS / "quickstart.md"
    script = next(block for block in blocks(quickstart) if block.title == "train.py")
    assert script.code in text(quickstart)
    assert script.code.splitlines()[0] not in running_text(quickstart)
