"""docs/guides/fsdp.md: what a reader copies from it runs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, same

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "fsdp.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)


def follow(*, code: str, folder: str) -> list[float]:
    """Run the guide's code in a folder; return how much smaller what was sent is."""
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec(compile(code, GUIDE.name, "exec", dont_inherit=True), names)
    stats = names["stats"]
    return [stats.gradients.ratio, stats.weights.ratio]


@pytest.mark.ranks
def test_its_code_runs_on_two_ranks(two: Group, tmp_path: Path) -> None:
    (settings,) = blocks("toml")
    (tmp_path / "compressa.toml").write_text(settings, encoding="utf-8")
    found = two.run(follow, code="\n".join(blocks("python")), folder=str(tmp_path))
    gradients, weights = same(found)
    assert 3.5 < gradients < 4.0
    assert 3.5 < weights < 4.0
    assert len(list((tmp_path / "ckpt" / "unsent20" / "replica0").glob("rank-*"))) == 2


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    for place in re.findall(r"\]\(([^)]+)\)", text):
        assert (GUIDE.parent / place).exists(), place
