"""The example of ranks that mpiexec starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _ranks_mpi import missing
from _run_example import run_example


@pytest.mark.ranks
@pytest.mark.skipif(bool(missing()), reason=missing() or "all is here")
def test_two_ranks_of_mpiexec_learn_and_send_a_quarter(tmp_path: Path) -> None:
    said = run_example("mpi.py", tmp_path)
    found = re.fullmatch(r"2 ranks: (\d+)% right; ([\d.]+) times fewer bytes than float32\n", said)
    assert found, said
    assert int(found[1]) >= 90
    assert 3.5 < float(found[2]) < 4.0
