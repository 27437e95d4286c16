"""The examples of Accelerate, Lightning and Trainer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _run_example import run_example


@pytest.mark.ranks
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["accelerate_trainer", "lightning_module", "hf_trainer"])
def test_it_learns_sends_a_quarter_and_resumes(name: str, tmp_path: Path) -> None:
    said = run_example(f"{name}.py", tmp_path, timeout_s=200.0)
    told = r"^(\d+)% right; ([\d.]+) times fewer bytes; it repeats its bits$"
    (found,) = re.findall(told, said, re.MULTILINE)
    assert int(found[0]) >= 90
    assert 3.5 < float(found[1]) < 4.0
