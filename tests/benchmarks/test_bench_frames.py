"""What MACs cost is told by steps with checksums and steps with MACs, in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from _ranks import Group

from benchmarks.frames import keyed, measured


def cost_of_macs(path: str) -> tuple[float, float]:
    """Return the seconds of a step, and how many times as long one with MACs is."""
    with keyed(Path(path)) as settings:
        found = measured(settings, "int8", pairs=2)
    return found.off_s, found.ratio


@pytest.mark.ranks
def test_steps_with_checksums_and_with_macs_are_timed(two: Group, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for off_s, ratio in two.run(cost_of_macs, path=str(secret)):
        assert off_s > 0
        assert 0.1 < ratio < 10
    assert not secret.exists()
