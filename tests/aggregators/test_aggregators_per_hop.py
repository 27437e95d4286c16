"""Per hop: no algorithm loses anything, errors are as documented, what does not fit is refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from test_collectives_algorithms import same_bits

from compressa.aggregators.feedback import FeedbackRule
from compressa.codecs import (
    QSGD,
    Bf16,
    Codec,
    Fp8,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    Unbiased,
)
from compressa.collectives.algorithms import ALGORITHMS
from compressa.compressor import Compressor
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.hostile_rounds import RoundFuzz
from compressa.testing.inputs import MODEL, generator, model_gradients
from compressa.testing.mass import MassLedger
from compressa.testing.rank import Gradients
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.wrappers import ErrorFeedback

WAYS: dict[str, dict[str, Any]] = {name: {"algorithm": name} for name in ALGORITHMS} | {
    "hosts": {"algorithm": "hierarchical", "hosts": "abab"},
    "unequal hosts": {"algorithm": "hierarchical", "hosts": "aaba"},
    "hosts, bf16 inside": {"algorithm": "hierarchical", "hosts": "aabb", "inside": "bf16"},
    "unequal hosts, fp16 inside": {"algorithm": "hierarchical", "hosts": "abbb", "inside": "fp16"},
}
CODECS: dict[str, Codec] = {
    "int8": Int8(block=32),
    "onebit": OneBit(block=64),
    "qsgd": QSGD(block=64),
    "bf16": Bf16(),
}
ELEMS = 1 << 14
VECTOR = [ParameterInfo(0, "w", (ELEMS,))]


def fed(codec: Codec, **rule: Any) -> ErrorFeedback:
    scaled = isinstance(codec.bias(1 << 20), Unbiased)
    return ErrorFeedback(codec=codec, rule=FeedbackRule(**rule), scaled=scaled)


def world_of(
    compressor: Compressor,
    way: str,
    size: int = 4,
    parameters: Sequence[ParameterInfo] = MODEL,
    **options: Any,
) -> LoopbackWorld:
    settings = {"exchange": "per_hop", **WAYS[way], **options}
    return LoopbackWorld(size, parameters, compressor, **settings)


def vectors(size: int, step: int = 0) -> list[Gradients]:
    random = generator(100 + step)
    return [{"w": torch.randn(ELEMS, generator=random)} for _ in range(size)]


def all_same(world: LoopbackWorld, means: Sequence[Gradients]) -> bool:
    return all(same_bits([mean[p.name] for mean in means]) for p in world.parameters)


PAIRS = [*zip(WAYS, itertools.cycle(CODECS), strict=False), *(("ring", name) for name in CODECS)]
"""Every way with one codec, and a ring with each of them."""


@pytest.mark.parametrize(("way", "name"), sorted({*PAIRS}))
def test_nothing_is_lost_and_replicas_agree(way: str, name: str) -> None:
    world = world_of(fed(CODECS[name]), way)
    ledger = MassLedger(world)
    for size in (4, 3):
        if size < world.size:
            world = world.resized(size)
            ledger.check(world, "when 4 ranks became 3")
        for step in range(5):
            loss_scale = 1024.0 if step % 2 else 1.0
            given = model_gradients(size, world.next_step, loss_scale)
            ledger.step(world, given, loss_scale=loss_scale, skipped=step == 2)
            ledger.check(world, f"{size} ranks, step {step}")
    for compressor in (CODECS[name], fed(CODECS[name])):
        world = world_of(compressor, way)
        for step in range(2):
            assert all_same(world, world.step(model_gradients(4, step)))


@pytest.mark.parametrize("way", ["ring", "recursive_doubling", "hosts, bf16 inside"])
def test_an_overflow_reaches_all_and_leaves_what_was_put_in(way: str) -> None:
    world = world_of(fed(Int8(block=32)), way)
    world.step(model_gradients(4, 0))
    before = [state.vectors["residual/weight"].clone() for state in world.states]
    given = model_gradients(4, 1)
    given[2]["weight"][1, 1] = torch.inf
    for mean in world.step(given):
        assert not mean["weight"].isfinite().all()
    world.rollback()
    for rank, state in enumerate(world.states):
        put_in = given[rank]["weight"].flatten() + before[rank]
        due = torch.where(put_in.isfinite(), put_in, before[rank])
        assert torch.equal(state.vectors["residual/weight"], due)


RULES: list[dict[str, Any]] = [
    {"dtype": "bfloat16"},
    {"dtype": "int8"},
    {"decay": 0.5},
    {"beta": 0.25},
    {"reset_steps": 2},
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", ["ring", "recursive_doubling"])
def test_every_rule_of_feedback_is_kept(rule: dict[str, Any], way: str) -> None:
    """The residuals after a first step are those that the rule makes of what was lost."""
    plain, ruled = (world_of(fed(Int4(block=256), **own), way) for own in ({}, rule))
    for world in (plain, ruled):
        assert all_same(world, world.step(model_gradients(4, 0)))
    for parameter in MODEL:
        for state, lossy in zip(ruled.states, plain.states, strict=True):
            due = lossy.residual(parameter) * rule.get("beta", 1.0)
            error = state.residual(parameter) - due
            assert error.abs().max() <= 0.01 * due.abs().max()
    for step in (1, 2):
        assert all_same(ruled, ruled.step(model_gradients(4, step)))


def test_what_is_lost_in_sharing_is_kept_unless_the_rule_forbids_it() -> None:
    """Recursive doubling only shares; a tree's root shares, and the others give."""
    for way, keepers in (("recursive_doubling", []), ("tree", [1, 2, 3])):
        world = world_of(fed(Int4(block=32), owner=False), way)
        world.step(model_gradients(4, 0))
        kept = [rank for rank, state in enumerate(world.states) if state.residual(MODEL[0]).any()]
        assert kept == keepers


def test_a_reset_drops_the_residual() -> None:
    kept, dropped = (
        world_of(fed(Int4(block=32), **own), "ring") for own in ({}, {"reset_steps": 1})
    )
    none = world_of(Int4(block=32), "ring")
    for step in range(2):
        means = [w.step(model_gradients(4, step))[0]["weight"] for w in (kept, dropped, none)]
    assert torch.equal(means[1], means[2])
    assert not torch.equal(means[0], means[2])


# In units of the squared error of one rank's own encode; see `compressa.aggregators.per_hop`.
SQUARED = {
    "all_to_all": 8,
    "round_robin": 15,
    "master_worker": 15,
    "halving_doubling": 20,
    "tree": 20,
    "recursive_doubling": 24,
    "ring": 36,
}


@pytest.mark.parametrize("codec", [Int8(), Int4(), Fp8()], ids=lambda codec: codec.name)
def test_errors_on_random_data_are_those_of_the_table(codec: Codec) -> None:
    def error(**options: Any) -> float:
        given = vectors(8)
        due = torch.stack([own["w"] for own in given]).double().mean(0)
        world = LoopbackWorld(8, VECTOR, codec, unit_bytes=1 << 20, **options)
        return float((world.step(given)[0]["w"].double() - due).norm())

    scattered = error(exchange="scatter_reduce")
    for name, squared in SQUARED.items():
        share = error(exchange="per_hop", algorithm=name) / scattered
        assert share == pytest.approx((squared / 15) ** 0.5, rel=0.05), name


def test_across_hosts_errors_are_those_of_the_hosts() -> None:
    """Two hosts of four: one message from each position, and one with the result of each share."""
    given = vectors(8)
    due = torch.stack([own["w"] for own in given]).double().mean(0)
    options = {"exchange": "per_hop", "unit_bytes": 1 << 20}

    def error(**more: Any) -> float:
        world = LoopbackWorld(8, VECTOR, Int8(), **options, **more)
        return float((world.step(given)[0]["w"].double() - due).norm())

    ranks = error(algorithm="round_robin")
    hosts = error(algorithm="hierarchical", hosts="aaaabbbb")
    assert hosts / ranks == pytest.approx(((4 + 8) / 15) ** 0.5, rel=0.05)


@pytest.mark.parametrize("codec", [Int4(), OneBit(block=64)], ids=lambda codec: codec.name)
@pytest.mark.parametrize("way", ["ring", "recursive_doubling"])
def test_residuals_do_not_grow(codec: Codec, way: str) -> None:
    parameters = [ParameterInfo(0, "w", (512,))]
    world, random, norms = world_of(fed(codec), way, 4, parameters), generator(5), []
    for _ in range(60):
        world.step([{"w": torch.randn(512, generator=random)} for _ in range(4)])
        norms.append(sum(float(state.vectors["residual/w"].norm()) for state in world.states))
    assert max(norms[40:]) < 1.3 * max(norms[20:40])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_are_summed_as_float32_and_rounded_once(dtype: torch.dtype) -> None:
    narrow = [ParameterInfo(0, "w", (ELEMS,), dtype)]
    for compressor in (Int8(), fed(Int8())):
        ours, plain = (
            world_of(compressor, "ring", 3, parameters, unit_bytes=1 << 20)
            for parameters in (narrow, VECTOR)
        )
        for step in range(2):
            given = [{"w": own["w"].to(dtype)} for own in vectors(3, step)]
            mean = ours.step(given)[1]["w"]
            due = plain.step([{"w": own["w"].float()} for own in given])[1]["w"]
            assert torch.equal(mean, due.to(dtype))


@pytest.mark.parametrize("way", ["all_to_all", "tree", "master_worker", "recursive_doubling"])
def test_how_parameters_are_packed_changes_no_bit_where_all_is_summed_in_one_order(
    way: str,
) -> None:
    packed, apart = (world_of(fed(Int8(block=32)), way, unit_bytes=n) for n in (1 << 20, 64))
    assert packed.unit_count < apart.unit_count
    for step in range(2):
        given = model_gradients(4, step)
        for mean, due in zip(packed.step(given), apart.step(given), strict=True):
            assert all(torch.equal(mean[name], due[name]) for name in due)


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_alone_makes_no_message(way: str) -> None:
    given = vectors(1)
    (mean,) = world_of(fed(OneBit()), way, 1, VECTOR).step(given)
    assert torch.equal(mean["w"], given[0]["w"])


def test_bytes_on_the_wire_are_those_of_payloads() -> None:
    world = world_of(Int8(), "halving_doubling", 4, VECTOR, unit_bytes=1 << 20)
    world.step(vectors(4))
    traffic = world.loopback.transports[1].traffic
    sent = traffic.sent_bytes - FRAME_HEADER_BYTES * traffic.messages
    # Half, a quarter, then a quarter and its neighbour's: five payloads, each with a header.
    assert sent == 5 * 24 + 3 * Int8().wire_bytes(ELEMS) // 2


@pytest.mark.parametrize("algorithm", ["ring", "all_to_all", "tree", "halving_doubling"])
def test_hostile_messages_are_refused_or_lead_to_a_step_like_any_other(algorithm: str) -> None:
    for compressor in (fed(Int8(block=32)), QSGD(block=64)):
        fuzz = RoundFuzz(compressor, 3, "per_hop", algorithm)
        fuzz.run(60)
        assert fuzz.tally.refused
        assert fuzz.tally.decoded


def test_what_is_not_compressed_is_summed_as_ever() -> None:
    given = model_gradients(3, 0)
    ours, plain = (
        LoopbackWorld(3, MODEL, NoCompression(), exchange=kind).step(given)[2]
        for kind in ("per_hop", "auto")
    )
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
