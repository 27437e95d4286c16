"""What aggregators keep by themselves: overflows and skipped steps leave what was put in."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from vector_world import VectorWorld, gaussians

from compressa.aggregators.chunked_topk import ChunkedTopK
from compressa.aggregators.gtopk import GTopK
from compressa.aggregators.oktopk import OkTopK
from compressa.aggregators.scalecom import ScaleCom
from compressa.aggregators.thc import THC
from compressa.compressor import Compressor
from compressa.testing.inputs import vectors

RANKS, ELEMS, PLACE = 3, 593, 263
COMPRESSORS: dict[str, Any] = {
    "chunked_topk": ChunkedTopK(density=0.3, chunk=64),
    "gtopk": GTopK(density=0.05),
    "gtopk-float16": GTopK(density=0.05, value_dtype="float16"),
    "oktopk": OkTopK(density=0.05),
    "scalecom": ScaleCom(density=0.05),
    "scalecom-filtered": ScaleCom(density=0.05, beta=0.5),
    "thc": THC(chunk=256),
}
gradients = partial(gaussians, RANKS, elems=ELEMS)


def trained(compressor: Compressor) -> tuple[VectorWorld, list[torch.Tensor]]:
    """A world after a step, and what its ranks keep then."""
    world = VectorWorld(RANKS, ELEMS, compressor)
    world.means(gradients())
    return world, [world.residual(rank).clone() for rank in range(RANKS)]


@pytest.mark.parametrize("where", range(RANKS))
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name != "scalecom-filtered"])
def test_overflow_on_any_rank_reaches_all_and_poisons_nothing(
    name: str, value: float, where: int
) -> None:
    """Also where a leader does not pick the element that overflowed."""
    compressor = COMPRESSORS[name]
    (world, before), given = trained(compressor), gradients(1)
    given[where][PLACE] = value
    assert not any(bool(mean.isfinite().all()) for mean in world.means(given))
    world.rollback()
    for rank in range(RANKS):
        due = before[rank] + given[rank]
        due = torch.where(due.isfinite(), due, before[rank])
        if isinstance(compressor, GTopK) and rank == where:
            due[0] = before[rank][0]  # the NaN was sent in its place
        torch.testing.assert_close(world.residual(rank), due, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [torch.inf, 2e30])
def test_an_overflow_of_thc_is_nan_on_all_in_its_chunk_alone(value: float) -> None:
    (world, before), given = trained(THC(chunk=256)), gradients(1)
    given[1][PLACE] = value
    for mean in world.means(given):
        assert mean.isnan().nonzero().ravel().tolist() == list(range(256, 512))
    world.rollback()
    assert world.residual(1)[PLACE] == before[1][PLACE]


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_skipped_step_sends_nothing(name: str) -> None:
    compressor = COMPRESSORS[name]
    (world, before), given = trained(compressor), gradients(1)
    world.means([512 * g for g in given], loss_scale=512.0)
    world.rollback()
    for rank in range(RANKS):
        due = before[rank] + getattr(compressor, "beta", 1.0) * given[rank]
        torch.testing.assert_close(world.residual(rank), due, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("what", ["gaussian", "laplace", "spiky", "constant", "one-hot"])
@pytest.mark.parametrize("elems", [1, 40, 64, 65, 1009])
def test_one_rank_contracts_as_top_k_does(what: str, elems: int) -> None:
    x = vectors(elems)[what]
    chunked, scalecom = COMPRESSORS["chunked_topk"], COMPRESSORS["scalecom"]
    for compressor, parts in ((chunked, -(-elems // chunked.chunk)), (scalecom, elems)):
        world = VectorWorld(1, elems, compressor)
        world.means([x])
        left = world.residual().double().square().sum() / x.double().square().sum()
        assert float(left) <= 1 - compressor.kept(elems) / parts + 1e-9
