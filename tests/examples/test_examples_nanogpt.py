"""The example of a GPT: interrupted and resumed, it ends with the bits of one that was not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from _ranks import Group
from _run_example import run_on, start_on
from safetensors.torch import load_file


def last(folder: Path) -> dict[str, Any]:
    """Read parameters, momenta and each rank's residuals of the last step."""
    checkpoint = folder / "checkpoints" / "60"
    weights, momenta = torch.load(checkpoint / "model.pt")
    moments = {f"{i}/{k}": v for i, s in momenta["state"].items() for k, v in s.items()}
    found = {**weights, **moments}
    for file in sorted((checkpoint / "compressa").glob("*.safetensors")):
        found |= {f"{file.name}/{key}": value for key, value in load_file(file).items()}
    assert any("residual" in key for key in found)
    return found


@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_it_learns_and_an_interrupted_run_ends_with_the_same_bits(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    said = run_on(fresh, "nanogpt.py", whole)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 3
    assert losses[-1] < 3.2  # a guess among characters has 4.9

    group, _ = start_on(fresh, "nanogpt.py", broken)
    deadline_s = time.monotonic() + 100
    while not (broken / "checkpoints" / "20" / "model.pt").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    group.end()
    assert not (broken / "checkpoints" / "60").exists()
    resumed = run_on(fresh, "nanogpt.py", broken)
    assert resumed == said[said.index("step 40") :]
    one, other = last(whole), last(broken)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
