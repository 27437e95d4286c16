"""The examples of Accelerate, Lightning and Trainer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _ranks import Group, Pools
from _run_example import run_on

EXAMPLES = {
    "accelerate_trainer": "accelerate",
    "lightning_module": "lightning.pytorch",
    "hf_trainer": "transformers.trainer",
}


@pytest.mark.ranks
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_learns_sends_a_quarter_and_resumes(
    name: str, pools: Pools, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    pools.zygote.preload(EXAMPLES[name])
    said = run_on(fresh, f"{name}.py", tmp_path)
    told = r"^(\d+)% right; ([\d.]+) times fewer bytes; it repeats its bits$"
    (found,) = re.findall(told, said, re.MULTILINE)
    assert int(found[0]) >= 90
    assert 3.5 < float(found[1]) < 4.0
