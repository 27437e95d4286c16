"""The pages of compressors: complete, drawn from the code, and true where they can be run."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import compressa.wrappers
from compressa.codecs import Codec
from compressa.compressors import COMPRESSORS, Entry
from compressa.config import load_config
from compressa.facts import facts
from compressa.page import hyper_parameters, page, type_text
from website import compressors, errors, wire


@functools.cache
def page_of(name: str) -> str:
    """A compressor's page; its errors are measured when it is made."""
    return compressors.page(COMPRESSORS[name])


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_page_says_all_that_the_command_says(name: str) -> None:
    entry = COMPRESSORS[name]
    for paragraph in page(entry, facts(entry)).split("\n\n")[1:]:
        if not paragraph.startswith(("Hyper-parameters", "At its defaults", "- Ratio", "```")):
            assert paragraph.strip() in page_of(name)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_parts_that_are_drawn_are_the_bytes_that_are_sent(name: str) -> None:
    codec = COMPRESSORS[name].compressor()
    if isinstance(codec, Codec):
        for elems in (1, 100, 4096, 100_000):
            parts = wire.parts_of(codec, elems)
            assert sum(part.bytes for part in parts) == codec.wire_bytes(elems)
    assert page_of(name).count("<figure") >= (1 if name == "none" else 3)


def test_parts_that_are_not_the_payload_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_arrays", lambda codec, elems: [wire.Part("values", 1)])
    with pytest.raises(ValueError, match="int8"):
        wire.parts_of(COMPRESSORS["int8"].compressor())  # type: ignore[arg-type]


def test_what_is_plotted_is_the_error_of_the_compressor_itself() -> None:
    assert errors.at_defaults("none").error == 0
    assert errors.at_defaults("fp16").error < 2**-10
    dense, sparse = errors.swept("topk")[-1], errors.swept("topk")[0]
    assert dense.element_bytes > 50 * sparse.element_bytes
    assert dense.error < sparse.error < 1
    for name in ("int8", "int4", "onebit", "topk", "powersgd"):  # with feedback, all arrives
        found = errors.over_steps(name)
        assert found[-1] < found[0]
    biased = errors.over_steps("signsgd")  # without, what is lost stays lost
    assert biased[-1] == pytest.approx(biased[0])


def test_every_wrapper_has_a_section() -> None:
    headings = set(re.findall(r"^## (.+)$", compressors.wrappers(), re.M))
    assert headings == set(compressa.wrappers.__all__)


def fenced(text: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_toml_block_of_a_page_loads(name: str, tmp_path: Path) -> None:
    (block,) = fenced(page_of(name))
    (tmp_path / "compressa.toml").write_text(block, encoding="utf-8")
    assert (
        load_config(tmp_path / "compressa.toml").compressor.build()
        == COMPRESSORS[name].compressor()
    )


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_hyper_parameter_is_explained(name: str) -> None:
    entry = COMPRESSORS[name]
    fields = [field.name for field in dataclasses.fields(entry.compressor) if field.init]
    lines = list(hyper_parameters(entry))
    assert [re.match(r"`(\w+)[` ]", line)[1] for line in lines] == fields  # type: ignore[index]
    for line in lines:
        assert re.fullmatch(r"`\w+( = [^`]+)?`: .+\. .+", line), line


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_compressor_says_what_it_puts_on_the_wire_and_what_it_loses(name: str) -> None:
    text = page(COMPRESSORS[name], facts(COMPRESSORS[name]))
    if "Wire id" in text:
        assert "**Wire format:**" in text
        assert "**Bias:**" in text


def test_formulas_are_not_read_as_lists_quotations_emphasis_or_tags() -> None:
    for entry in COMPRESSORS.values():
        words = page(entry, facts(entry))
        tokens = MarkdownIt("commonmark").parse(words)
        kinds = {token.type for token in tokens}
        inline = {child.type for token in tokens for child in token.children or []}
        assert not kinds & {"ordered_list_open", "blockquote_open", "hr", "lheading_open"}
        assert not inline & {"html_inline", "em_open"}
        items = [line for line in words.splitlines() if re.match(r" *[-+*] ", line)]
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
