"""Faults on purpose: each check of the suite must find the one that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import faulty_aggregators as aggregators
import faulty_codecs as codecs
import numpy as np
import pytest
import torch
from compressa.schedulers import Plan
from faulty_aggregators import Gathers
from ordered_loopback import OrderedLoopback

from compressa.aggregators.base import StepContext
from compressa.aggregators.gather import Gathered
from compressa.aggregators.intsgd import IntSGD
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs import Codec, Int8, NoCompression
from compressa.codecs.payload import check_header
from compressa.compressor import Compressor
from compressa.engine.units.phase import StepPlan
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing import (
    LoopbackWorld,
    MassLedger,
    check_allocations,
    check_codec,
    check_compressor,
)
from compressa.testing.allocation import check_codec_allocations
from compressa.testing.bias_checks import check_bias, check_bias_of_mean
from compressa.testing.compressor_checks import RankChecks
from compressa.testing.hostile import UnitFuzz
from compressa.testing.inputs import MODEL, model_gradients
from compressa.testing.mass import check_mass, check_mass_of_run
from compressa.testing.stream_checks import (
    check_mean_of_ranks,
    check_ranks_apart,
    check_streams,
)
from compressa.testing.thread_checks import check_codec_threads, check_threads
from compressa.wrappers import ErrorFeedback, FeedbackRule, Warmup


@pytest.mark.parametrize(
    ("codec", "finding"),
    [
        (codecs.DropsOneElement(), "squared error"),
        (codecs.DropsOneElementFromDecodeAdd(), "decode_add is not out"),
        (codecs.SumsWithoutTheWeight(), "decode_sum is not what"),
        (codecs.LiesAboutItsSize(), "declared are"),
        (codecs.LeavesAByteUnwritten(), "bytes that encode did not write"),
        (codecs.PromisesTooMuch(), "squared error"),
        (codecs.PromisesTooLittleNoise(), "squared error"),
        (codecs.ForgetsWhatFloat16Holds(), r"squared error of a gaussian \(smallest\)"),
        (codecs.PromisesTooSmallABias(), "squared error"),
        (codecs.ScalesByTheNorm(), "squared error of a (laplace|spiky|one-hot)"),
        (codecs.SaysThatItIsUnbiased(), "errs in the same way"),
        (codecs.ForgetsTheGain(density=0.3), "is off by"),
        (codecs.RoundsAlikeOnAllRanks(), "instead of 0.25"),
        (codecs.ChangesTheGradient(), "changed the gradient"),
        (codecs.DrawsFromTheUser(), r"drew from torch\.random"),
        (codecs.DrawsFromNumpy(), r"drew from numpy\.random"),
        (codecs.HidesNan(), "decodes to finite numbers"),
        (codecs.PoisonsItsResidual(), "poisons the residual"),
        (codecs.ResetsItsResidual(), "changes the residual|between payload and residual"),
        (codecs.ForgetsTheLossScale(), "corrected gradient differ"),
        (codecs.TakesAnyLength(), "decode_add took what check and decode refused"),
        (codecs.WritesBeforeItChecks(), "refused after `out` was written"),
        (codecs.WritesPastTheEnd(), "wrote outside"),
        (codecs.WritesPastThePayload(), "wrote outside"),
        (codecs.CountsItsSlices(), "other bits on 2 threads"),
        (codecs.TrustsItsCount(), "of a hostile payload allocates"),
        (codecs.TrustsItsIndices(), "instead of PayloadError|wrote outside"),
        (
            codecs.ChecksLessThanItDecodes(),
            "check took what decode|refused after `out` was written",
        ),
        (codecs.WritesIntoThePayload(), "decoding wrote to a payload|left some of"),
        (codecs.RaisesTheWrongError(), "raised IndexError"),
        (codecs.TakesPositions(), "keyword-only"),
        (codecs.HoldsAList(), "unhashable"),
        (codecs.EqualsOnlyItself(), "is not equal to it"),
        (codecs.HasAnOddName(), "'Int 8', not a word"),
        (codecs.HIDES_A_FIELD, "evaluates to"),
        (codecs.DeclaresAnotherBound(), r"ValidationError (.|\n)* a configuration"),
        (codecs.TakesAnothersWireId(), "wire id 3 is that of int8"),
        (codecs.WantsFeedbackInVain(unbiased=True), "only a contraction can have"),
        (codecs.HasBlocksOfElements(), "has blocks of 32, but granularity element"),
        (codecs.HidesABreakpoint(), "changes at step 2, which is no breakpoint"),
        (codecs.NeverDecides(), "changes when it is asked twice"),
        (codecs.CannotBeSummed(), "from the mean of vectors"),
        (codecs.CountsIn32Bits(), "bytes for every"),
        (codecs.CountsInFloat32(), "bytes for every"),
        (codecs.CountsInNumpy(), "which is no whole number"),
        (codecs.SendsMoreThanTheGradient(), "in float32"),
        (codecs.LosesItsBoundWhenLarge(), "the error bound of 2147483649 elements"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Codec) else "",
)
def test_check_codec_finds(codec: Codec, finding: str) -> None:
    before = torch.random.get_rng_state(), np.random.get_state()
    with pytest.raises(AssertionError, match=finding):
        check_codec(codec)
    torch.random.set_rng_state(before[0])
    np.random.set_state(before[1])


@pytest.mark.parametrize(
    ("codec", "finding"),
    [
        (codecs.ForgetsTheGain(density=0.3), "off by .* along the vector itself"),
        (codecs.GainsThreePercent(), "off by .* along the vector itself"),
        (codecs.DropsSmallElements(), "off by .* along its small elements"),
        (codecs.RoundsUpTooOften(), "off by .* along all ones"),
    ],
)
def test_bias_check_finds(codec: Codec, finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        check_bias(codec, 1009)


@pytest.mark.parametrize(
    ("codec", "finding"),
    [
        (codecs.RoundsAlikeOnAllRanks(), "has 1 of one rank's variance instead of 0.25"),
        (codecs.SharesInSilence(density=0.3), "has 1 of one rank's variance instead of 0.25"),
        (codecs.RoundsAlikeAsOwner(), "another stage of the owner correlate"),
        (codecs.RoundsAlikeInAllParameters(), "another parameter correlate"),
        (codecs.ForgetsWhereItStarts(), "another start at 64 correlate"),
        (codecs.StartsIn32Bits(), "another start at 4294967296 correlate"),
        (codecs.SharesWhatIsPrivate(), "declares a shared stream, but its bits depend"),
    ],
)
def test_stream_check_finds(codec: Codec, finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        check_streams(codec)


def test_the_check_of_means_finds_an_aggregator_that_draws_for_another() -> None:
    check_mean_of_ranks(codecs.Dithers())
    with pytest.raises(AssertionError, match="each rank must draw as itself"):
        check_mean_of_ranks(Gathers(kind=aggregators.DrawsAsRankZero, codec=codecs.Dithers()))


@pytest.mark.parametrize(
    ("compressor", "finding"),
    [
        (aggregators.PromisesTooMuch(), "on 3 ranks: the squared error of a gaussian vector"),
        (aggregators.GainsOnePercent(), "off by .* along the vector itself"),
    ],
)
def test_the_check_of_an_aggregators_bound_finds(compressor: Compressor, finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        check_bias_of_mean(compressor, 1009, 3)
    with pytest.raises(AssertionError, match=finding):
        check_compressor(compressor, most_ranks=3)


def test_the_check_of_opposites_finds_ranks_that_round_alike() -> None:
    check_ranks_apart(IntSGD())
    with pytest.raises(AssertionError, match="each rank must draw as itself"):
        check_ranks_apart(aggregators.SumsAsRankZero())


def test_the_bases_of_the_faulty_codecs_are_sound() -> None:
    for sound in (codecs.FaultyInt8(), codecs.Dithers()):  # an outsider's test checks `Lists`
        check_codec(sound)


def test_check_compressor_checks_codecs_by_themselves_and_among_ranks() -> None:
    with pytest.raises(AssertionError, match="decode_add is not out"):
        check_compressor(codecs.DropsOneElementFromDecodeAdd)
    with pytest.raises(AssertionError, match="differs from rank 0"):
        check_compressor(Gathers(kind=aggregators.PrefersItself))


def test_check_compressor_checks_wrappers_in_their_last_phase() -> None:
    check_compressor(Warmup(compressor=ErrorFeedback(codec=Int8(block=32)), steps=2), most_ranks=2)
    late = Warmup(compressor=Gathers(kind=aggregators.KeepsNanToItself), steps=2)
    with pytest.raises(AssertionError, match="rank 0 does not see"):
        check_compressor(late, most_ranks=1)


def test_check_compressor_says_what_a_class_without_defaults_lacks() -> None:
    with pytest.raises(AssertionError, match=r"ErrorFeedback\(\) can not be made: .*'codec'"):
        check_compressor(ErrorFeedback)


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
        check_mass(ErrorFeedback(codec=codecs.ForgetsTheLossScale()), "all_gather")


def test_mass_check_finds_the_owners_error_where_nobody_keeps_it() -> None:
    compressor = ErrorFeedback(codec=Int8(block=32), rule=FeedbackRule(owner=False))
    run_with_ledger(compressor, exchange="all_gather")
    with pytest.raises(AssertionError, match="neither delivered"):
        run_with_ledger(compressor, exchange="scatter_reduce")


def test_mass_check_finds_a_lossy_codec_without_feedback() -> None:
    with pytest.raises(AssertionError, match="neither delivered"):
        run_with_ledger(Int8(block=32))


def mass(ranks: RankChecks) -> None:
    check_mass(ranks.compressor, ranks.exchange)


@pytest.mark.parametrize(
    ("check", "kind", "finding"),
    [
        (mass, aggregators.DoesNotRollBack, r"after a skipped step: .* neither delivered"),
        (mass, aggregators.LeaksATenThousandth, "neither delivered"),
        (RankChecks.state, aggregators.MakesItsStateLate, r"there before the first step: .*late/"),
        (RankChecks.dtypes, aggregators.RoundsTwice, "float16: is not what float32 gives"),
        (
            RankChecks.hostile_rounds,
            aggregators.KeepsWhatOthersSend,
            r"leaves residual/.* not finite",
        ),
        (RankChecks.hostile_rounds, aggregators.RaisesTheWrongError, "raised KeyError"),
        (
            partial(RankChecks.replicas, size=3),
            aggregators.PrefersItself,
            "rank 1 differs from rank 0",
        ),
        (RankChecks.repeats, aggregators.SumsAsTheyCome, "a second run differs"),
        (RankChecks.order, aggregators.SumsAsTheyCome, "depend on the order of arrival"),
        (RankChecks.overflow, aggregators.KeepsNanToItself, "rank 0 does not see"),
        (RankChecks.hold_zeros, aggregators.IgnoresHoldZeros, "was used up"),
    ],
)
def test_a_check_among_ranks_finds(
    check: Callable[[RankChecks], None], kind: type[Gathered], finding: str
) -> None:
    check(RankChecks(Gathers()))
    with pytest.raises(AssertionError, match=finding):
        check(RankChecks(Gathers(kind=kind)))


def test_the_check_of_a_long_run_finds_a_residual_lost_in_a_switch() -> None:
    check_mass(Gathers(kind=aggregators.ResetsOnBuild), "auto")
    with pytest.raises(AssertionError, match=r"after 35 steps .* neither delivered"):
        check_mass_of_run(Gathers(kind=aggregators.ResetsOnBuild))


def test_layout_check_finds_values_at_wrong_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    RankChecks(Gathers()).layouts()
    monkeypatch.setattr("compressa.engine.units.unit_runtime._put_back", lambda *arguments: None)
    with pytest.raises(AssertionError, match="not contiguous come out wrong"):
        RankChecks(Gathers()).layouts()


def test_thread_checks_find_bits_that_depend_on_slices() -> None:
    check_codec_threads(codecs.Dithers())
    with pytest.raises(AssertionError, match="encode gives other bits on 2 threads"):
        check_codec_threads(codecs.CountsItsSlices())
    check_threads(Gathers(codec=codecs.Dithers()))
    with pytest.raises(AssertionError, match="means have other bits on 2 threads"):
        check_threads(Gathers(codec=codecs.CountsItsSlices()))


def test_hostile_units_find_what_is_refused_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    UnitFuzz(codecs.Lists(), 1).run(200)
    monkeypatch.setattr(ScopePayload, "check", check_header_only)
    with pytest.raises(AssertionError, match=r"refused .* after its check had passed"):
        UnitFuzz(codecs.Lists(), 1).run(200)


def check_header_only(
    self: ScopePayload, payload: torch.Tensor, context: StepContext, sender: int
) -> None:
    check_header(payload, self._header(context, self.body_bytes), sender, self.exact)


def test_allocation_checks_find_fresh_memory() -> None:
    with pytest.raises(AssertionError, match="faulty: encode_feedback allocates"):
        check_codec_allocations(codecs.Allocates())
    with pytest.raises(AssertionError, match=r"a step allocates .*aten\.mul"):
        check_allocations(ErrorFeedback(codec=codecs.Allocates()))


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


def swap_on_rank_one(rank: int, step_plan: StepPlan) -> StepPlan:
    if rank != 1:
        return step_plan
    turned = {0: 1, 1: 0}
    order, launches = (
        tuple((turned.get(unit, unit), stage) for unit, stage in names)
        for names in (step_plan.plan.order, step_plan.launches)
    )
    return StepPlan(Plan(order, step_plan.plan.first_step), launches)


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
    for replan, finding in (
        (lambda rank, step_plan: step_plan, None),
        (swap_on_rank_one, "neither"),
    ):
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
