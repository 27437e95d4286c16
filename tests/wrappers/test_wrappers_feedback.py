"""How residuals are kept: narrow, decayed, averaged, dropped; and scaled quantisers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compressa.aggregators import State, narrow
from compressa.codecs import QSGD, Bf16, Int4, Int8, RandomK, TopK
from compressa.codecs.shrunk import Shrunk
from compressa.compressor import Compressor, Granularity
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld, MassLedger, check_codec
from compressa.testing.codec_checks import DRAW
from compressa.testing.conformance import check_among_ranks
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import ErrorFeedback, FeedbackRule, Warmup

WEIGHT = ParameterInfo(0, "w", (700,))
WIDTHS: tuple[narrow.Width, ...] = ("float32", "bfloat16", "int8")


def topk(**rule: Any) -> ErrorFeedback:
    return ErrorFeedback(codec=TopK(density=0.05), rule=FeedbackRule(**rule))


def delivered(compressor: Compressor, steps: int, size: int = 2) -> torch.Tensor:
    """Return the sum of what arrives of a gradient that does not change."""
    world = LoopbackWorld(size, [WEIGHT], compressor)
    gradient = torch.linspace(0.5, 1.0, WEIGHT.elems)
    outs = [world.step([{"w": gradient}] * size)[0]["w"] for _ in range(steps)]
    return torch.stack(outs).sum(dim=0) / (steps * gradient)


@pytest.mark.parametrize(
    "compressor",
    [
        topk(dtype="bfloat16"),
        ErrorFeedback(codec=Int4(block=32), rule=FeedbackRule(dtype="int8", beta=0.5)),
        ErrorFeedback(codec=Bf16(), rule=FeedbackRule(dtype="int8", decay=0.9, reset_steps=3)),
        ErrorFeedback(codec=QSGD(levels=16, block=64), scaled=True),
    ],
    ids=["bfloat16", "int8-averaged", "int8-reset", "scaled"],
)
def test_feedback_by_any_rule_conforms(compressor: Compressor) -> None:
    check_among_ranks(compressor)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_narrow_residual_is_read_back_to_its_rounding(width: narrow.Width) -> None:
    for elems in (0, 1, 255, 256, 257, 1031):
        kept = narrow.zeros(elems, width)
        assert narrow.elems_of(kept) == elems
        assert narrow.width_of(kept) == width
        values = torch.randn(elems, generator=torch.Generator().manual_seed(elems))
        narrow.write(kept, 0, values.clone())
        error = (narrow.widened(kept) - values).abs()
        blocks = [block.abs().max() for block in values.split(256) if elems]
        unit = torch.cat([torch.full((256,), float(m)) for m in blocks] or [values])[:elems] / 127
        allowed = {
            "float32": torch.zeros(elems),
            "bfloat16": values.abs() * 2.0**-8,
            "int8": unit * (0.5 + 1e-5),
        }[width]
        assert bool((error <= allowed).all())


def test_bfloat16_residuals_round_half_to_even_and_stay_finite() -> None:
    kept = narrow.zeros(4, "bfloat16")
    largest = torch.finfo(torch.float32).max
    narrow.write(kept, 0, torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, largest, -largest]))
    read = narrow.widened(kept)
    assert read[:2].tolist() == [1.0, 1 + 2.0**-6]
    assert bool(read.isfinite().all())


def test_parts_of_a_narrow_residual_leave_the_others_alone() -> None:
    kept = narrow.zeros(700, "int8")
    narrow.write(kept, 0, torch.ones(700))
    narrow.write(kept, 256, torch.full((256,), 3.0))
    due = torch.cat([torch.ones(256), torch.full((256,), 3.0), torch.ones(188)])
    assert torch.allclose(narrow.widened(kept), due, rtol=1e-6)


def test_cuts_fall_on_the_blocks_of_a_narrow_residual() -> None:
    rule = FeedbackRule(dtype="int8")
    cast = ErrorFeedback(codec=Bf16(), rule=rule)
    assert (cast.granularity, cast.block_elems) == (Granularity.BLOCK, 256)
    assert ErrorFeedback(codec=Int4(block=96), rule=rule).block_elems == math.lcm(96, 256)
    assert ErrorFeedback(codec=TopK(), rule=rule).block_elems == 1
    assert ErrorFeedback(codec=Int4(block=96)).block_elems == 96


@pytest.mark.parametrize("width", WIDTHS)
def test_state_takes_the_bytes_that_its_dtype_says(width: narrow.Width) -> None:
    state = State()
    vector = state.residual(ParameterInfo(0, "w", (2560,)), width)
    each = {"float32": 4.0, "bfloat16": 2.0, "int8": 1 + 4 / 256}[width]
    assert vector.numel() * vector.element_size() == 2560 * each


def test_a_residual_changes_its_form_with_the_compressor_in_force() -> None:
    switch = Warmup(dense=topk(), compressor=topk(dtype="bfloat16"), steps=3)
    world = LoopbackWorld(2, MODEL, switch)
    for step in range(3):
        world.step(model_gradients(2, step))
    before = world.states[0].vectors["residual/weight"].clone()
    world.prepare()
    after = world.states[0].vectors["residual/weight"]
    assert after.dtype is torch.bfloat16
    assert torch.equal(after, before.bfloat16())


@pytest.mark.parametrize("width", WIDTHS)
def test_narrow_feedback_delivers_what_a_codec_alone_loses(width: narrow.Width) -> None:
    assert float(delivered(topk(dtype=width), 200).min()) > 0.8
    assert float(delivered(TopK(density=0.05), 200).min()) == 0.0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_residuals_of_any_dtype_survive_a_change_of_world(width: narrow.Width, size: int) -> None:
    world = LoopbackWorld(3, MODEL, topk(dtype=width))
    for step in range(3):
        world.step(model_gradients(3, step))
    other = world.resized(size)
    for key, vector in world.states[0].vectors.items():
        assert other.states[0].vectors[key].dtype is vector.dtype
        old, new = (
            sum(narrow.widened(state.vectors[key]).double() for state in w.states) / w.size
            for w in (world, other)
        )
        bound = {"float32": 1e-6, "bfloat16": 2.0**-8, "int8": 1 / 127}[width]
        error = torch.as_tensor(old - new).abs().max()
        largest = max(
            float(narrow.widened(state.vectors[key]).abs().max()) for state in other.states
        )
        assert float(error) <= bound * max(largest, 1e-30)
    if size == 3:
        for mine, theirs in zip(world.states, other.states, strict=True):
            assert all(torch.equal(v, theirs.vectors[key]) for key, v in mine.vectors.items())


def test_a_checkpoint_goes_on_in_another_dtype(tmp_path: Path) -> None:
    world = LoopbackWorld(2, MODEL, topk())
    world.step(model_gradients(2, 0))
    world.save(tmp_path)
    other = LoopbackWorld(2, MODEL, topk(dtype="bfloat16"))
    other.load(tmp_path)
    for mine, theirs in zip(world.states, other.states, strict=True):
        for key, vector in mine.vectors.items():
            assert torch.equal(vector.bfloat16(), theirs.vectors[key])


def test_a_decayed_residual_is_multiplied_before_it_is_added() -> None:
    def kept(decay: float) -> torch.Tensor:
        world = LoopbackWorld(1, [WEIGHT], topk(decay=decay), exchange="all_gather")
        gradient = {"w": torch.arange(700.0)}
        world.step([gradient])
        first = world.states[0].vectors["residual/w"].clone()
        world.step([{"w": torch.zeros(700)}])
        second = world.states[0].vectors["residual/w"]
        sent = second == 0
        assert torch.equal(second[~sent], decay * first[~sent])
        return second

    assert float(kept(0.5).max()) == 0.5 * float(kept(1.0).max())


def test_a_residual_is_dropped_in_every_so_manieth_step() -> None:
    world = LoopbackWorld(1, [WEIGHT], topk(reset_steps=4), exchange="all_gather")
    gradient = {"w": torch.linspace(1.0, 2.0, 700)}
    sums = []
    for _ in range(9):
        world.step([gradient])
        sums.append(float(world.states[0].vectors["residual/w"].sum()))
    # After steps 4 and 8 there is what one step leaves, as after step 0.
    assert sums[4] == sums[8] == sums[0] < sums[3]


@pytest.mark.parametrize("exchange", ["all_gather", "scatter_reduce"])
def test_a_moving_average_keeps_beta_times_what_was_not_delivered(exchange: str) -> None:
    """e + beta (g - decode(c)) in each step: e / beta is the residual that conserves mass."""
    beta = 0.25
    compressor = ErrorFeedback(codec=Int4(block=32), rule=FeedbackRule(beta=beta))
    world = LoopbackWorld(3, MODEL, compressor, exchange=exchange)
    given = {p.name: torch.zeros(p.shape, dtype=torch.float64) for p in MODEL}
    for step in range(30):
        gradients = model_gradients(3, step)
        means = world.step(gradients)[0]
        if step == 20:
            world.rollback()
        for name, total in given.items():
            total += torch.stack([own[name].double() for own in gradients]).mean(dim=0)
            if step != 20:
                total -= means[name].double()
    for name, total in given.items():
        kept = [state.vectors[f"residual/{name}"].double() for state in world.states]
        mean = torch.stack(kept).mean(dim=0).view_as(total) / beta
        assert torch.allclose(mean, total, atol=1e-4 * float(total.abs().max()))


def test_a_float32_rule_without_changes_is_plain_error_feedback() -> None:
    plain, ruled = (
        LoopbackWorld(3, MODEL, ErrorFeedback(codec=Int8(block=32), rule=rule))
        for rule in (FeedbackRule(), FeedbackRule(decay=1.0, beta=1.0, reset_steps=10**9))
    )
    for step in range(4):
        first, second = (w.step(model_gradients(3, step))[1] for w in (plain, ruled))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_whole_residuals_conserve_mass() -> None:
    assert FeedbackRule().conserves_mass
    for rule in (
        FeedbackRule(dtype="bfloat16"),
        FeedbackRule(dtype="int8"),
        FeedbackRule(decay=0.999),
        FeedbackRule(beta=0.5),
        FeedbackRule(reset_steps=1024),
        FeedbackRule(owner=False),
    ):
        assert not rule.conserves_mass


@pytest.mark.parametrize(
    "codec",
    [QSGD(levels=16, block=64), RandomK(density=0.3, unbiased=True)],
)
def test_a_shrunk_quantiser_is_the_contraction_that_it_says(codec: Any) -> None:
    check_codec(Shrunk(codec=codec))


def test_a_contraction_is_not_scaled() -> None:
    assert ErrorFeedback(codec=TopK(), scaled=True).contraction == TopK()


def test_scaled_feedback_conserves_mass_and_unscaled_diverges() -> None:
    codec = RandomK(density=0.05, unbiased=True)
    world = LoopbackWorld(2, MODEL, ErrorFeedback(codec=codec, scaled=True))
    ledger = MassLedger(world)
    for step in range(60):
        ledger.step(world, model_gradients(2, step))
    ledger.check(world, "after 60 steps")
    largest = max(float(v.abs().max()) for v in world.states[0].vectors.values())

    x, residual = torch.randn(1000, generator=torch.Generator().manual_seed(1)), torch.zeros(1000)
    payload = torch.empty(codec.wire_bytes(1000), dtype=torch.uint8)

    for step in range(60):
        codec.encode_feedback(x, residual, payload, replace(DRAW, step=step))
    assert float(residual.abs().max()) > 1e3 * largest
