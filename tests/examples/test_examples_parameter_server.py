"""The example of a parameter server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _run_example import run_example


@pytest.mark.ranks
def test_its_workers_learn_the_same(tmp_path: Path) -> None:
    said = run_example("parameter_server.py", tmp_path)
    found = re.fullmatch(r"(\d+)% right; all workers hold the same parameters\n", said)
    assert found, said
    assert int(found[1]) >= 90
