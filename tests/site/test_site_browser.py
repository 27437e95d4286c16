"""The built site in a browser, as files: as wide as a phone, by day and by night, and searched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _browser import PROGRAM, Browser, browser
from _built import site

__all__ = ["site"]

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed: apt install chromium"),
]

PAGES = (
    "index.html",
    "compressors/index.html",
    "compressors/int8.html",
    "compressors/powersgd.html",
    "benchmarks/kernels.html",
    "benchmarks/exchange.html",
    "benchmarks/training.html",
    "reference/compressa.html",
    "reference/compressa.kernels.html",
)
PHONE, DESK = 390, 1300
SEARCH = """
new Promise((found, lost) => {
  const field = document.querySelector("input.md-search__input");
  document.querySelector("#__search").click();
  field.focus();
  field.value = "%s";
  field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
  field.dispatchEvent(new Event("input", { bubbles: true }));
  const begin = Date.now();
  const look = () => {
    const links = [...document.querySelectorAll("a.md-search-result__link")];
    if (links.length) found(links.map((link) => link.href));
    else if (Date.now() - begin > 30000) lost(new Error("nothing was found"));
    else setTimeout(look, 50);
  };
  look();
})
"""
WIDE = """
[...document.querySelectorAll("body *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && e.scrollWidth <= e.clientWidth
    && !e.closest("pre, table, .md-sidebar, .md-search, .highlight, .md-typeset__scrollwrap, svg"))
  .map((e) => e.outerHTML.slice(0, 120)).slice(0, 5)
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as own:
        yield own


@pytest.fixture
def quiet(tab: Browser) -> Iterator[Browser]:
    """The tab, which must have nothing to complain of, and ask for nothing but files."""
    tab.complaints.clear()
    tab.requested.clear()
    yield tab
    assert tab.complaints == []
    strangers = [url for url in tab.requested if not url.startswith(("file:", "data:", "about:"))]
    assert strangers == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_readable_on_a_phone_and_on_a_desk(page: str, site: Path, quiet: Browser) -> None:
    for width, dark in ((PHONE, False), (PHONE, True), (DESK, False)):
        quiet.open((site / page).as_uri(), width, dark=dark)
        assert quiet.evaluate("innerWidth") == width
        assert quiet.evaluate("document.documentElement.scrollWidth") <= width, page
        assert quiet.evaluate(WIDE) == []
        size = quiet.evaluate("parseFloat(getComputedStyle(document.querySelector('p')).fontSize)")
        assert size >= 14


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_drawn_in_the_colours_of_the_page(
    scheme: str, site: Path, quiet: Browser
) -> None:
    quiet.open((site / "compressors/int8.html").as_uri(), DESK, dark=scheme == "dark")
    background, ink = quiet.evaluate(
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.drawn text')).fill]"
    )
    assert luminance(ink) - luminance(background) > 100 if scheme == "dark" else True
    assert luminance(background) - luminance(ink) > 100 if scheme == "light" else True


def luminance(colour: str) -> float:
    red, green, blue = (float(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(("words", "page"), [("powersgd", "powersgd.html"), ("int8", "int8.html")])
def test_search_finds_a_page_without_a_server(
    words: str, page: str, site: Path, quiet: Browser
) -> None:
    quiet.open((site / "index.html").as_uri(), DESK)
    assert any(page in link for link in quiet.evaluate(SEARCH % words))
