"""The example of OverlappedDataParallel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _ranks import Group
from _run_example import run_on


@pytest.mark.ranks
def test_it_learns_with_updates_deferred(fresh: Callable[[int], Group], tmp_path: Path) -> None:
    said = run_on(fresh, "overlapped.py", tmp_path)
    found = re.fullmatch(r"(\d+)% right; ([\d.]+) times fewer bytes; updates are deferred\n", said)
    assert found, said
    assert int(found[1]) >= 90
    assert 3.5 < float(found[2]) < 4.0
