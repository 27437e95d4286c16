"""docs/compressors/index.md: what the script writes, complete, and true where it can be run."""

from __future__ import annotations

import dataclasses
import itertools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from _documents import DOCS
from markdown_it import MarkdownIt

import compressa.wrappers
from compressa.compressors import COMPRESSORS, Entry
from compressa.config import load_config
from compressa.facts import facts
from compressa.page import example_toml, hyper_parameters, page, type_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = (DOCS / "compressors" / "index.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^##+ (.+)$", PAGE, re.M)


def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "compressor_table.py"))


def test_the_page_is_what_the_script_writes() -> None:
    assert script()["with_page_blocks"](PAGE) == PAGE, "run python docs/compressor_table.py"


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(ValueError, match="overview:begin"):
        script()["with_page_blocks"]("")


def test_every_compressor_and_every_wrapper_has_a_section_and_every_link_a_target() -> None:
    assert set(COMPRESSORS) <= set(HEADINGS)
    assert set(compressa.wrappers.__all__) <= set(HEADINGS)
    assert len(HEADINGS) == len(set(HEADINGS))
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert {link for link in links if link.startswith("#")} == {f"#{n}" for n in COMPRESSORS}
    for link in links:
        assert (DOCS / "compressors" / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_example_of_a_compressor_is_its_defaults(name: str, tmp_path: Path) -> None:
    entry = COMPRESSORS[name]
    (tmp_path / "example.toml").write_text(example_toml(entry), encoding="utf-8")
    assert load_config(tmp_path / "example.toml").compressor.build() == entry.compressor()


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_hyper_parameter_is_explained(name: str) -> None:
    entry = COMPRESSORS[name]
    fields = [field.name for field in dataclasses.fields(entry.compressor) if field.init]
    lines = list(hyper_parameters(entry))
    assert [re.match(r"`(\w+) = ", line)[1] for line in lines] == fields  # type: ignore[index]
    for line in lines:
        assert re.fullmatch(r"`\w+ = [^`]+`: .+\. .+", line), line


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_compressor_says_what_it_puts_on_the_wire_and_what_it_loses(name: str) -> None:
    text = page(COMPRESSORS[name], facts(COMPRESSORS[name]))
    if "Wire id" in text:
        assert "**Wire format:**" in text
        assert "**Bias:**" in text


def test_formulas_are_not_read_as_lists_quotations_emphasis_or_tags() -> None:
    tokens = MarkdownIt("commonmark").parse(PAGE)
    kinds = {token.type for token in tokens}
    inline = {child.type for token in tokens for child in token.children or []}
    assert not kinds & {"ordered_list_open", "blockquote_open", "hr", "lheading_open"}
    assert "html_inline" not in inline
    pieces = [child for token in tokens for child in token.children or []]
    emphasised = [
        after.content for one, after in itertools.pairwise(pieces) if one.type == "em_open"
    ]
    assert emphasised  # in the part that is written by hand
    assert all(re.fullmatch(r"[A-Za-z -]+", words) for words in emphasised), emphasised
    items = [line for line in PAGE.splitlines() if re.match(r" *[-+*] ", line)]
    assert all(item.startswith("- ") for item in items)


def test_a_formula_that_meets_the_edge_of_the_line_stays_a_formula() -> None:
    class Wide(COMPRESSORS["topk"].compressor):  # type: ignore[misc, name-defined]
        __doc__ = f"{'w ' * 48}a + b * c > d - e 1. f\n\nWire format: n*m*k bytes, <b>.\n"

    entry = Entry(Wide, "A sentence.")
    text = page(entry, facts(entry))
    assert "1. f" in text
    assert not re.search(r"^(?:[-+*>]|1\.) ?[a-f]", text, re.M)
    assert r"**Wire format:** n\*m\*k bytes, \<b>." in text


def test_types_are_told_in_words() -> None:
    assert type_text(int) == "a whole number"
    assert type_text(bool | None) == "true or false or left out"
    assert type_text(tuple[float, ...]) == "a list, each a number"
    assert type_text(list) == "list"
