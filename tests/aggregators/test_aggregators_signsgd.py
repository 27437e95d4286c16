"""Majority vote: the sign of the sum of signs, one bit each way."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators.signsgd import BLOCK, Signs, SignSGD
from compressa.codecs.base import Draw
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.codec_checks import decoded, encoded
from compressa.testing.hostile import CodecFuzz, UnitFuzz
from compressa.testing.inputs import generator

ELEMS = 5 * BLOCK + 77
VECTOR = ParameterInfo(0, "w", (ELEMS,))
DRAW = Draw(0, 0, 0, 0, 0)


def votes(size: int) -> list[torch.Tensor]:
    """Gradients with zeros of both signs, and ties where the number of ranks is even."""
    gradients = [torch.randn(ELEMS, generator=generator(rank)) for rank in range(size)]
    for rank, gradient in enumerate(gradients):
        gradient[rank::7] = 0.0
        gradient[rank::11] = -0.0
    return gradients


def majority(gradients: list[torch.Tensor]) -> torch.Tensor:
    count = sum(torch.where(gradient < 0, -1, 1) for gradient in gradients)
    assert isinstance(count, torch.Tensor)
    return torch.where(count < 0, -1.0, 1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 9])
def test_every_rank_gets_the_sign_of_the_sum_of_signs(size: int) -> None:
    gradients = votes(size)
    means = LoopbackWorld(size, [VECTOR], SignSGD()).step([{"w": g} for g in gradients])
    assert all(torch.equal(mean["w"], majority(gradients)) for mean in means)


def test_a_tie_and_a_zero_count_as_plus() -> None:
    two = [{"w": torch.full((ELEMS,), value)} for value in (-3.0, 0.5)]
    assert LoopbackWorld(2, [VECTOR], SignSGD()).step(two)[0]["w"].eq(1).all()
    zero = [{"w": torch.full((ELEMS,), -0.0)}]
    assert LoopbackWorld(1, [VECTOR], SignSGD()).step(zero)[0]["w"].eq(1).all()


def test_ties_can_alternate_and_nothing_else_does() -> None:
    gradients = votes(4)
    count = sum(torch.where(gradient < 0, -1, 1) for gradient in gradients)
    assert isinstance(count, torch.Tensor)
    world = LoopbackWorld(4, [VECTOR], SignSGD(ties="alternate"))
    even, odd = (world.step([{"w": g} for g in gradients])[0]["w"] for _ in range(2))
    assert torch.equal(even, majority(gradients))
    assert torch.equal(odd, torch.where(count == 0, -even, even))
    assert (count == 0).any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_on_one_rank_is_nan_on_all_in_its_block_alone(value: float) -> None:
    gradients = votes(3)
    gradients[1][2 * BLOCK + 5] = value
    due = majority(gradients)
    due[2 * BLOCK : 3 * BLOCK] = torch.nan
    for mean in LoopbackWorld(3, [VECTOR], SignSGD()).step([{"w": g} for g in gradients]):
        assert torch.equal(mean["w"].isnan(), due.isnan())
        assert torch.equal(mean["w"].nan_to_num(), due.nan_to_num())


def test_outputs_are_one_in_unscaled_units() -> None:
    gradients = votes(2)
    world = LoopbackWorld(2, [VECTOR], SignSGD())
    means = world.step([{"w": 512 * g} for g in gradients], loss_scale=512.0)
    assert torch.equal(means[0]["w"] / 512, majority(gradients))


@pytest.mark.parametrize("elems", [0, 1, 8, 77, BLOCK, BLOCK + 1, ELEMS])
def test_signs_take_a_bit_and_a_flag_per_block(elems: int) -> None:
    x = torch.randn(elems, generator=generator(elems))
    payload = encoded(Signs(), x, DRAW)
    blocks, (whole, rest) = -(-elems // BLOCK), divmod(elems, BLOCK)
    assert payload.numel() == blocks + whole * BLOCK // 8 + (rest + 7) // 8
    assert torch.equal(decoded(Signs(), payload, elems, DRAW), torch.where(x < 0, -1.0, 1.0))


def test_wire_format_is_as_documented() -> None:
    x = torch.tensor([1.0, -1, 1, 1, -1, -1, 1, 1, -1, 1])  # ceil(10 / 8) = 2 bytes, 8 planes
    assert encoded(Signs(), x, DRAW).tolist() == [0, 0b00010100, 0b00000101]
    x[3] = torch.nan
    assert encoded(Signs(), x, DRAW)[0] == 1


def test_hostile_signs_decode_in_bounds_or_are_refused() -> None:
    CodecFuzz(Signs(), seed=0).run(300)
    UnitFuzz(Signs(), seed=0).run(300)
    payload = encoded(Signs(), torch.ones(ELEMS), DRAW)
    payload[1] = 2
    with pytest.raises(PayloadError, match="flag"):
        Signs().check(payload, ELEMS)
