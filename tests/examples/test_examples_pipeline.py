"""The example of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _ranks import Group
from _run_example import run_on


@pytest.mark.ranks
def test_it_learns_and_sends_a_quarter_over_its_edge(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    said = run_on(fresh, "pipeline.py", tmp_path)
    found = re.fullmatch(r"(\d+)% right; gradients took ([\d.]+) times fewer bytes\n", said)
    assert found, said
    assert int(found[1]) >= 90
    assert 3.9 <= float(found[2]) < 4.0
