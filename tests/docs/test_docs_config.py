"""Every configuration that a page shows is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _documents import DOCS, ROOT, all_blocks, running_text

from compressa import load_config

READY = {file.name: file for file in (ROOT / "experiments" / "configs").glob("*.toml")}
BLOCKS = [block for block in all_blocks("toml") if "data-tested" not in block.options]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.location) for block in BLOCKS])
def test_it_loads_from_a_file(block: object, tmp_path: Path) -> None:
    file = tmp_path / "compressa.toml"
    file.write_text(block.code, encoding="utf-8")
    assert load_config(file).model_dump(exclude_unset=True)


def test_a_ready_file_is_shown_as_it_is() -> None:
    shown = [block for block in BLOCKS if block.options.get("title") in READY]
    assert {block.options["title"] for block in shown} >= {"byteps.toml", "horovod.toml"}
    for block in shown:
        assert block.code == READY[block.options["title"]].read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "least"), [("tensorflow", 15), ("horovod", 4), ("byteps", 8)])
def test_every_ready_file_that_a_page_names_is_there(page: str, least: int) -> None:
    named = set(re.findall(r"`(\w+\.toml)`", running_text(DOCS / "from" / f"{page}.md")))
    assert len(named) >= least
    assert named <= READY.keys()
