"""The example of Ray Train: a run that lost a worker ends as one that lost none."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from _ranks import Group
from _run_example import EXAMPLES, run_example

import compressa

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray here")


def uninterrupted(rank: int) -> str:
    """Train without Ray, and without a loss; return the last loss and the step after the last."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    spec = importlib.util.spec_from_file_location("ray_train", EXAMPLES / "ray_train.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = DistributedDataParallel(example.network())
    handle = compressa.register_comm_hook(model, {"compressor": "int4"})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(example.STEPS):
        points, labels = example.batch(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
    handle.close()
    return repr(loss.item())


@pytest.mark.ranks
@needs_ray
@pytest.mark.timeout(400)  # Ray starts ten processes, and the workers twice
def test_a_run_that_lost_a_worker_has_the_bits_of_one_that_did_not(
    fresh: Callable[[int], Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A short name, since it is part of those of sockets.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # only the loopback interface is used
        said = run_example("ray_train.py", tmp_path, timeout_s=300.0)
    # Ray takes a checkpoint up a moment after it was reported, and so may have missed the last one.
    found = re.search(r"^began at (?:20|40), loss ([\d.e-]+), ratio ([\d.]+)$", said, re.M)
    assert found, said
    assert 6.0 < float(found[2]) < 8.0
    losses = fresh(2).run(uninterrupted, per_rank=[{"rank": 0}, {"rank": 1}])
    assert found[1] == losses[0]
