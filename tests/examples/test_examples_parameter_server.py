"""The example of a parameter server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _ranks import Group
from _run_example import run_on


@pytest.mark.ranks
def test_its_workers_learn_the_same(fresh: Callable[[int], Group], tmp_path: Path) -> None:
    said = run_on(fresh, "parameter_server.py", tmp_path)
    found = re.fullmatch(r"(\d+)% right; all workers hold the same parameters\n", said)
    assert found, said
    assert int(found[1]) >= 90
