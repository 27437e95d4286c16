"""No fenced block of the README or of docs/ escapes: each is of a kind that some test checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from _documents import DOCS, README, ROOT, Block, all_blocks, blocks_of, name, pages

# What has a test for all blocks of its kind; the last two are what something printed.
KINDS = {"sh", "toml", "python", "diff", "text", "json"}
OPTIONS = {
    "sh": {"title"},
    "toml": {"title", "data-tested"},
    "python": {"title", "data-tested", "data-fragment"},
    "diff": {"title", "data-tested"},
    "text": {"title"},
    "json": {"title"},
}
LONGEST_README, LONGEST_CONCEPT = 1200, 1000
RECORD = range(80, 215)
"""Words of a decision, with its title."""


def known(block: Block) -> str:
    """Return what is wrong with a block's info string."""
    if block.language not in KINDS:
        return f"{block.location}: its language is none of {sorted(KINDS)}"
    if unknown := block.options.keys() - OPTIONS[block.language]:
        return f"{block.location}: {sorted(unknown)}: tests/docs/_documents.py has the options"
    if "data-fragment" in block.options and len(block.options["data-fragment"].split()) < 3:
        return f"{block.location}: say why it is not run, in a few words"
    return ""


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    found = all_blocks()
    assert {README, DOCS / "quickstart.md"} <= {block.page for block in found}
    assert not [wrong for wrong in map(known, found) if wrong]


@pytest.mark.parametrize(
    "fence",
    [
        "```",
        "```bash",
        '```{ .python data-fragment="" }',
        '```{ .python tests="a.py" }',
        '```{ .sh data-fragment="it is not run" }',
        "~~~yaml",
    ],
)
def test_a_block_of_no_known_kind_is_refused(fence: str) -> None:
    (block,) = blocks_of(README, f"Text.\n\n{fence}\nx = 1\n{fence[:3]}\n")
    assert known(block).startswith("README.md:3: ")


@pytest.mark.parametrize(
    "content",
    [
        "```sh\nls\n",
        "```python not run\nx\n```\n",
        '```python data-fragment="it is not run"\nx\n```\n',
    ],
)
def test_a_block_that_can_not_be_read_is_refused(content: str) -> None:
    with pytest.raises(ValueError, match=r":1: "):
        blocks_of(Path("page.md"), content)


def test_what_is_said_to_be_tested_elsewhere_is() -> None:
    tests = {file.name: file for file in (ROOT / "tests").rglob("test_*.py")}
    for block in all_blocks():
        if test := block.options.get("data-tested"):
            own = tests[test].read_text(encoding="utf-8")
            assert name(block.page).removeprefix("docs/") in own, f"{block.location}: not in {test}"


def test_fragments_are_python() -> None:
    for block in all_blocks("python"):
        if "data-fragment" in block.options:
            ast.parse(block.code, block.location)


def test_pages_are_short_and_concepts_have_a_picture() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= LONGEST_README
    for page in pages():
        words = len(page.read_text(encoding="utf-8").split())
        if page.parent.name == "concepts":
            assert words <= LONGEST_CONCEPT, name(page)
            assert page.read_text(encoding="utf-8").count("![") == 1, name(page)
        if page.parent.name == "decisions" and page.stem != "index":
            assert words in RECORD, name(page)
