"""The example of DiLoCo across two sites."""

from __future__ import annotations

import re
from pathlib import Path

from _between_hosts import MARKS, own_testbeds
from _ranks import Pools
from _run_example import run_example

pytestmark = MARKS
__all__ = ["own_testbeds"]


def test_a_link_is_crossed_once_in_fifty_steps(pools: Pools, tmp_path: Path) -> None:
    said = run_example("diloco_sites.py", tmp_path, python=pools.zygote.python)
    found = re.fullmatch(
        r"(\d+)% right after 400 steps in ([\d.]+) s\n([\d.]+) MB left .* are 107 MB\n", said
    )
    assert found, said
    assert int(found[1]) >= 90
    assert float(found[3]) < 1.0
