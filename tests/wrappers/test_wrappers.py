"""Wrappers stand where what they wrap stands, and refuse what cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compressa.aggregators import State, World, build_aggregator
from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Bf16, Int4, Int8, NoCompression, OneBitSGD, RandomK
from compressa.codecs.shrunk import Shrunk
from compressa.compressor import Compressor
from compressa.errors import ConfigError, StateError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import (
    EF21,
    DenseBelow,
    ErrorFeedback,
    FeedbackRule,
    Flushed,
    MomentumCorrection,
    Warmup,
)

WEIGHT = ParameterInfo(0, "w", (64, 64))
BIAS = ParameterInfo(1, "b", (64,))


@pytest.mark.parametrize(
    "wrapper",
    [
        ErrorFeedback(codec=OneBitSGD()),
        EF21(codec=OneBitSGD()),
        MomentumCorrection(compressor=ErrorFeedback(codec=OneBitSGD())),
        DenseBelow(compressor=EF21(codec=OneBitSGD()), elems=10),
        Warmup(compressor=OneBitSGD(), steps=0),
        Flushed(compressor=OneBitSGD()),
    ],
    ids=lambda wrapper: wrapper.name,
)
def test_a_wrapped_codec_looks_at_the_parameter(wrapper: Compressor) -> None:
    """onebit_sgd takes the rows of a matrix for its groups: two means and 64 signs for each."""
    resolved = wrapper.for_parameter(WEIGHT).at(0)
    assert resolved.payload_bytes(WEIGHT.shape) == 64 * (2 * 4 + 64 // 8)
    assert resolved.block_elems == 64


def test_owner_feedback_can_be_left_out() -> None:
    sums = {}
    for owner in (True, False):
        compressor = ErrorFeedback(codec=Int4(block=32), rule=FeedbackRule(owner=owner))
        world = LoopbackWorld(3, MODEL, compressor)
        error = {p.name: torch.zeros(p.shape) for p in MODEL}
        for step in range(30):
            gradients = model_gradients(3, step)
            mean = world.step(gradients)[0]
            for name in error:
                error[name] += sum(own[name] for own in gradients) / 3 - mean[name]
        sums[owner] = float(error["weight"].norm())
    # With it the owner's rounding errors are corrected; without it they add up.
    assert sums[True] < 0.7 * sums[False]


def test_dense_below_chooses_by_size() -> None:
    inner, dense = Int8(), Bf16()
    wrapper = DenseBelow(compressor=inner, elems=65, dense=dense)
    assert wrapper.for_parameter(WEIGHT) == inner
    assert wrapper.for_parameter(BIAS) == dense
    assert DenseBelow(compressor=inner, elems=64).for_parameter(BIAS) == inner
    assert DenseBelow(compressor=inner, elems=65).for_parameter(BIAS) == NoCompression()


def test_dense_below_leaves_vectors_to_powersgd() -> None:
    wrapper = DenseBelow(compressor=PowerSGD(), elems=5000)
    assert wrapper.for_parameter(BIAS) == PowerSGD()
    assert wrapper.for_parameter(WEIGHT) == NoCompression()


def test_small_vectors_have_the_momentum_of_the_factors_they_travel_beside() -> None:
    inner = MomentumCorrection(compressor=PowerSGD())
    dense = MomentumCorrection(compressor=NoCompression())
    wrapper = DenseBelow(compressor=inner, elems=5000, dense=dense)
    assert wrapper.for_parameter(BIAS) == inner
    assert wrapper.for_parameter(WEIGHT) == dense


def test_a_wrapper_says_what_the_inner_one_says_of_itself() -> None:
    for wrapper in (Warmup(compressor=PowerSGD(), steps=3), Flushed(compressor=PowerSGD())):
        assert wrapper.built_in_feedback
    assert not Warmup(compressor=Int8(), steps=3).built_in_feedback
    assert Shrunk(codec=RandomK(unbiased=True)).takes_half


def test_warmup_switches_at_its_step_and_resolves_what_it_wraps() -> None:
    inner = DenseBelow(compressor=Int8(), elems=65)
    warm = Warmup(compressor=inner, steps=3)
    assert warm.breakpoints == (3,)
    assert [type(warm.at(step)) for step in (0, 2, 3, 9)] == [
        NoCompression,
        NoCompression,
        DenseBelow,
        DenseBelow,
    ]
    resolved = warm.for_parameter(BIAS)
    assert resolved.at(3) == NoCompression()
    assert warm.for_parameter(WEIGHT).at(3) == Int8()


def test_nested_warmups_have_all_their_breakpoints() -> None:
    inner = Warmup(compressor=Int4(), dense=Int8(), steps=7)
    outer = Warmup(compressor=inner, steps=3)
    assert outer.breakpoints == (3, 7)
    assert [outer.at(step) for step in (0, 3, 7)] == [NoCompression(), Int8(), Int4()]
    assert Warmup(compressor=Int8(), steps=0).breakpoints == ()
    assert Warmup(compressor=Int8(), steps=0).at(0) == Int8()


def test_warmup_is_resolved_before_it_is_built() -> None:
    layout = Layout(0, (Segment(WEIGHT, 0, WEIGHT.elems),))
    world = World(0, 1, 0, "auto", State())
    with pytest.raises(ConfigError, match=r"at\(step\)"):
        build_aggregator(Warmup(compressor=Int8(), steps=1), layout, world)


@pytest.mark.parametrize("size", [2, 3])
def test_a_checkpoint_of_the_third_phase_has_the_state_of_the_second(size: int) -> None:
    second = Warmup(dense=EF21(codec=Int8(block=32)), compressor=NoCompression(), steps=4)
    world = LoopbackWorld(2, MODEL, Warmup(dense=Int8(), compressor=second, steps=2))
    while world.next_step < 6:
        world.step(model_gradients(2, world.next_step))
    before = {key: vector.clone() for key, vector in world.states[0].vectors.items()}
    assert before["ef21_mean/weight"].any()
    after = world.resized(size).states[0].vectors
    assert before.keys() == after.keys()
    assert torch.equal(after["ef21_mean/weight"], before["ef21_mean/weight"])


def test_warmup_is_bit_for_bit_dense_and_then_as_if_it_had_begun_there() -> None:
    compressor = ErrorFeedback(codec=Int8(block=32))
    warm = LoopbackWorld(2, MODEL, Warmup(compressor=compressor, steps=2))
    dense = LoopbackWorld(2, MODEL, NoCompression())
    late = LoopbackWorld(2, MODEL, compressor)
    late.next_step = 2
    for step in range(5):
        gradients = model_gradients(2, step)
        due = (dense if step < 2 else late).step(gradients)[1]
        mean = warm.step(gradients)[1]
        assert all(torch.equal(mean[name], due[name]) for name in due)


def test_a_checkpoint_of_another_compressor_is_refused(tmp_path: Path) -> None:
    world = LoopbackWorld(2, MODEL, Int8(block=32))
    world.save(tmp_path)
    other = LoopbackWorld(2, MODEL, ErrorFeedback(codec=Int8(block=32)))
    with pytest.raises(StateError, match="saved with another compressor"):
        other.load(tmp_path)
