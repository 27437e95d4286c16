"""The hook with gradients on a GPU, as a CPU emulates one: the same bits, however late it is."""

from __future__ import annotations

import pytest
from _ranks import Group, same, settings

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("transport", ["tcp", "gloo", "gloo-group"])
@pytest.mark.parametrize("compressor", ["int8", "none", "topk"])
@pytest.mark.parametrize("seed", [None, 1])
def test_training_on_a_gpu_gives_the_bits_of_the_cpu(
    compressor: str, transport: str, seed: int | None, two: Group
) -> None:
    config = settings(compressor, exchange={"transport": transport})
    due = same([r["parameters"] for r in two.run("_rank_jobs.train", config=config, steps=4)])
    results = two.run("_rank_jobs_cuda.train_on_gpu", config=config, steps=4, seed=seed)
    assert same([result["parameters"] for result in results]) == due
