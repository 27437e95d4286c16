"""Faults on purpose: each check of the suite must find the one that it is there for."""

from __future__ import annotations

from typing import Any

import faulty_aggregators as aggregators
import faulty_codecs as codecs
import numpy as np
import pytest
import torch
from compressa.schedulers import Plan
from faulty_aggregators import Gathers
from ordered_loopback import OrderedLoopback

from compressa.aggregators.gather import Gathered
from compressa.codecs import (
    Codec,
    Int8,
    NoCompression,
)
from compressa.compressor import Compressor
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld, MassLedger, check_codec, check_compressor
from compressa.testing.compressor_checks import (
    check_hold_zeros,
    check_mass,
    check_order,
    check_overflow,
    check_repeats,
    check_replicas,
)
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import ErrorFeedback


@pytest.mark.parametrize(
    ("codec", "finding"),
    [
        (codecs.DropsOneElement(), "squared error"),
        (codecs.DropsOneElementFromDecodeAdd(), "decode_add is not out"),
        (codecs.LiesAboutItsSize(), "declared are"),
        (codecs.LeavesAByteUnwritten(), "bytes that encode did not write"),
        (codecs.PromisesTooMuch(), "squared error"),
        (codecs.SaysThatItIsUnbiased(), "errs in the same way"),
        (codecs.ForgetsTheGain(density=0.3), "is off by"),
        (codecs.ChangesTheGradient(), "changed the gradient"),
        (codecs.DrawsFromTheUser(), r"drew from torch\.random"),
        (codecs.DrawsFromNumpy(), r"drew from numpy\.random"),
        (codecs.HidesNan(), "decodes to finite numbers"),
        (codecs.PoisonsItsResidual(), "poisons the residual"),
        (codecs.ResetsItsResidual(), "changes the residual|between payload and residual"),
        (codecs.ForgetsTheLossScale(), "corrected gradient differ"),
        (codecs.TakesAnyLength(), "bytes were decoded"),
        (codecs.WritesBeforeItChecks(), "refused after `out` was written"),
        (codecs.WritesPastTheEnd(), "wrote outside"),
        (codecs.WritesPastThePayload(), "wrote outside"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Codec) else "",
)
def test_check_codec_finds(codec: Codec, finding: str) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()
    with pytest.raises(AssertionError, match=finding):
        check_codec(codec)
    torch.random.set_rng_state(before[0])
    np.random.set_state(before[1])


def test_check_codec_lets_no_other_error_pass_for_a_refusal() -> None:
    with pytest.raises(IndexError):
        check_codec(codecs.RaisesTheWrongError())


def test_the_base_of_the_faulty_codecs_is_sound() -> None:
    check_codec(codecs.FaultyInt8())
    check_compressor(ErrorFeedback(codec=codecs.FaultyInt8()), most_ranks=3)


def run_with_ledger(compressor: Compressor, steps: int = 12, **options: Any) -> None:
    world = LoopbackWorld(3, MODEL, compressor, **options)
    ledger = MassLedger(world)
    for step in range(steps):
        ledger.step(world, model_gradients(3, step))
        ledger.check(world, f"step {step}")


def test_mass_check_finds_a_residual_reset_on_rebuild() -> None:
    run_with_ledger(aggregators.KeptOnRebuild())
    with pytest.raises(AssertionError, match=r"step 5: .* neither delivered nor in a residual"):
        run_with_ledger(aggregators.ResetOnRebuild())


@pytest.mark.parametrize("exchange", ["all_gather", "scatter_reduce"])
def test_mass_check_finds_a_residual_reset_every_step(exchange: str) -> None:
    with pytest.raises(AssertionError, match="neither delivered"):
        run_with_ledger(ErrorFeedback(codec=codecs.ResetsItsResidual()), exchange=exchange)


def test_mass_check_finds_a_forgotten_loss_scale() -> None:
    with pytest.raises(AssertionError, match="neither delivered"):
        check_mass(ErrorFeedback(codec=codecs.ForgetsTheLossScale()), "all_gather", (3, 2, 4))


def test_mass_check_finds_the_owners_error_where_nobody_keeps_it() -> None:
    compressor = ErrorFeedback(codec=Int8(block=32), owner=False)
    run_with_ledger(compressor, exchange="all_gather")
    with pytest.raises(AssertionError, match="neither delivered"):
        run_with_ledger(compressor, exchange="scatter_reduce")


def test_mass_check_finds_a_lossy_codec_without_feedback() -> None:
    with pytest.raises(AssertionError, match="neither delivered"):
        run_with_ledger(Int8(block=32))


def test_mass_check_finds_a_step_that_is_not_rolled_back() -> None:
    check_mass(Gathers(), "auto", (3, 2, 4))
    with pytest.raises(AssertionError, match=r"after a skipped step: .* neither delivered"):
        check_mass(Gathers(kind=aggregators.DoesNotRollBack), "auto", (3, 2, 4))


def test_replica_check_finds_a_rank_that_goes_on_with_its_own_values() -> None:
    check_replicas(Gathers(), "auto", 3)
    with pytest.raises(AssertionError, match="of 3 ranks, rank 1 differs from rank 0"):
        check_replicas(Gathers(kind=aggregators.PrefersItself), "auto", 3)


def test_repeat_check_finds_what_is_remembered_between_runs() -> None:
    check_repeats(Gathers(), "auto")
    with pytest.raises(AssertionError, match="a second run differs"):
        check_repeats(Gathers(kind=aggregators.SumsAsTheyCome), "auto")


def test_order_check_finds_sums_in_order_of_arrival() -> None:
    check_order(Gathers(), "auto")
    with pytest.raises(AssertionError, match="depend on the order of arrival"):
        check_order(Gathers(kind=aggregators.SumsAsTheyCome), "auto")


def test_overflow_check_finds_a_rank_that_sees_none() -> None:
    check_overflow(Gathers(), "auto")
    with pytest.raises(AssertionError, match="rank 0 does not see"):
        check_overflow(Gathers(kind=aggregators.KeepsNanToItself), "auto")


def test_hold_check_finds_a_residual_that_is_used_up() -> None:
    check_hold_zeros(Gathers(), "auto")
    with pytest.raises(AssertionError, match="was used up"):
        check_hold_zeros(Gathers(kind=aggregators.IgnoresHoldZeros), "auto")


@pytest.mark.parametrize(
    "kind", [aggregators.OneByte, aggregators.OneByteTooMany, aggregators.OneByteTooFew]
)
def test_a_payload_of_the_wrong_length_is_a_payload_error(kind: type[Gathered]) -> None:
    world = LoopbackWorld(3, MODEL, Gathers(kind=kind))
    with pytest.raises(PayloadError, match=r"rank 1 sends \d+ bytes .* where \d+ are due"):
        world.step(model_gradients(3, 0))
    assert isinstance(world.errors()[0], PayloadError)
    assert isinstance(world.errors()[2], PayloadError)


def test_a_payload_for_another_unit_is_a_payload_error() -> None:
    with pytest.raises(PayloadError, match=r"rank 1 has unit \d+ where \d+ is due"):
        LoopbackWorld(3, MODEL, Gathers(kind=aggregators.FlipsAByte)).step(model_gradients(3, 0))


SAME = [ParameterInfo(i, f"p{i}", (64,)) for i in range(3)]


def same_gradients(size: int) -> list[dict[str, torch.Tensor]]:
    return [
        {p.name: torch.full((64,), float(10**p.index * (rank + 1))) for p in SAME}
        for rank in range(size)
    ]


def swap_on_rank_one(rank: int, plan: Plan) -> Plan:
    if rank != 1:
        return plan
    turned = {0: 1, 1: 0}
    order = tuple((turned.get(unit, unit), stage) for unit, stage in plan.order)
    return Plan(order, plan.first_step)


def test_tagged_transports_tolerate_a_plan_that_swaps_two_units_on_one_rank() -> None:
    for compressor in (NoCompression(), Int8(block=32)):
        due = LoopbackWorld(3, SAME, compressor, unit_bytes=256).step(same_gradients(3))
        world = LoopbackWorld(3, SAME, compressor, unit_bytes=256, replan=swap_on_rank_one)
        assert world.unit_count == 3
        means = world.step(same_gradients(3))
        assert all(torch.equal(m[n], d[n]) for m, d in zip(means, due, strict=True) for n in d)


def test_ordered_transports_find_swapped_units_by_their_payload_header() -> None:
    options: dict[str, Any] = {"unit_bytes": 256, "exchange": "all_gather"}
    sound = LoopbackWorld(3, SAME, Int8(block=32), loopback=OrderedLoopback(3), **options)
    sound.step(same_gradients(3))
    world = LoopbackWorld(
        3, SAME, Int8(block=32), loopback=OrderedLoopback(3), replan=swap_on_rank_one, **options
    )
    with pytest.raises(PayloadError, match=r"has unit \d where \d is due"):
        world.step(same_gradients(3))


def test_swapped_dense_sums_on_ordered_transports_are_found_by_the_mass_check() -> None:
    """Raw values bear no header: the sum of unrelated tensors is silent, but mass is missing."""
    for replan, finding in ((lambda rank, plan: plan, None), (swap_on_rank_one, "neither")):
        world = LoopbackWorld(
            3, SAME, NoCompression(), unit_bytes=256, loopback=OrderedLoopback(3), replan=replan
        )
        ledger = MassLedger(world)
        ledger.step(world, same_gradients(3))
        if finding is None:
            ledger.check(world, "sound")
        else:
            with pytest.raises(AssertionError, match=finding):
                ledger.check(world, "swapped")
