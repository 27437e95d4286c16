"""The example of HSDP."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _ranks import Group
from _run_example import run_on


@pytest.mark.ranks
def test_it_learns_and_replicas_exchange_a_few_percent(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    said = run_on(fresh, "hsdp.py", tmp_path)
    found = re.fullmatch(r"(\d+)% right; ([\d.]+) times fewer bytes between replicas\n", said)
    assert found, said
    assert int(found[1]) >= 90
    assert float(found[2]) > 5.0
