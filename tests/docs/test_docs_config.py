"""Every configuration that a page shows is valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from _documents import all_blocks

from compressa import load_config

BLOCKS = [block for block in all_blocks("toml") if "data-tested" not in block.options]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in BLOCKS])
def test_it_loads_from_a_file(block: object, tmp_path: Path) -> None:
    file = tmp_path / "compressa.toml"
    file.write_text(block.code, encoding="utf-8")
    assert load_config(file).model_dump(exclude_unset=True)
