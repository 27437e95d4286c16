"""A run under torchrun that lost workers ends with the bits of one that lost none."""

from __future__ import annotations

from pathlib import Path

import pytest
from _ranks import Pools, same
from _restart_rank import train
from restarts import STEPS_PER_KILL, run


@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_restarted_workers_go_on_with_their_residuals(pools: Pools, tmp_path: Path) -> None:
    kills, killed, whole = 2, tmp_path / "killed", tmp_path / "whole"
    steps = kills * STEPS_PER_KILL
    for folder in (killed, whole):
        folder.mkdir()
    how = {"ranks": 2, "kills": kills, "steps": steps, "seed": 1, "within_s": 240.0}
    found = run(killed, "int8", python=pools.zygote.python, **how)
    due = same(pools.get(2).run(train, folder=str(whole), compressor="int8", steps=steps))
    assert found == [due, due]
