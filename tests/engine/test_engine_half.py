"""Gradients of 16 bits are compressed where they lie, to the bits that float32 would give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressor_cases import ALL, with_feedback

from compressa.aggregators import scope_coding
from compressa.aggregators.base import State, World
from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Codec, Int8, Natural, NoCompression, TopK
from compressa.compressor import Compressor, Granularity
from compressa.compressors import COMPRESSORS
from compressa.engine.units.lockstep import Lockstep
from compressa.engine.units.unit_runtime import UnitRuntime
from compressa.engine.units.units import UnitSizes, build_units
from compressa.parameters import ParameterInfo
from compressa.testing.allocation import allocations
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits
from compressa.wrappers import MomentumCorrection

HALVES = [torch.bfloat16, torch.float16]
SHAPES = {"weight": (37, 101), "bias": (1300,)}
CODECS = {
    name: codec
    for name, codec in ALL.items()
    if isinstance(codec, Codec) and not isinstance(codec, NoCompression)
}


def model(dtype: torch.dtype) -> list[ParameterInfo]:
    return [ParameterInfo(i, n, shape, dtype) for i, (n, shape) in enumerate(SHAPES.items())]


def gradients(step: int, size: int, dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
    own = [
        {n: torch.randn(s, generator=generator(10 * step + rank)) for n, s in SHAPES.items()}
        for rank in range(size)
    ]
    own[0]["weight"][5] = 0.0
    if step == 2:
        own[size - 1]["bias"][700] = torch.nan
    return [{name: g.to(dtype) for name, g in of_rank.items()} for of_rank in own]


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all bits are the same, but for those of a NaN, which no rounding promises."""
    nans = a.isnan(), b.isnan()
    return same_bits(*nans) and same_bits(a.masked_fill(nans[0], 0), b.masked_fill(nans[1], 0))


def runtime(compressor: Compressor, dtype: torch.dtype, elems: int = 5000) -> UnitRuntime:
    parameters = [ParameterInfo(0, "w", (elems,), dtype)]
    (unit,) = build_units(parameters, {"w": compressor}, UnitSizes(1 << 30, 1, 1 << 30))
    return UnitRuntime(unit, World(0, 2, 0, "auto", State()))


def cases() -> list[Any]:
    """Every codec by every exchange that fits it."""
    found = []
    for name, codec in CODECS.items():
        lossless = codec.reduce is not None and codec.reduce.dtype.itemsize == 4
        divisible = codec.granularity in (Granularity.ELEMENT, Granularity.BLOCK)
        fits = {"all_gather": True, "all_reduce": lossless, "scatter_reduce": divisible}
        found += [pytest.param(codec, how, id=f"{name}-{how}") for how in fits if fits[how]]
    return found


@pytest.mark.parametrize(("codec", "exchange"), cases())
def test_the_bits_are_those_of_float32(
    codec: Codec, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope_coding, "_PIECE_ELEMS", 900)  # so that small vectors come in pieces
    for compressor in {codec, with_feedback(codec)}:
        for dtype, size in zip((*HALVES, HALVES[0]), (3, 3, 1), strict=True):
            assert_same_run(compressor, dtype, size, exchange)


def assert_same_run(compressor: Compressor, dtype: torch.dtype, size: int, exchange: str) -> None:
    half = Lockstep(size, model(dtype), compressor, exchange=exchange)
    single = Lockstep(size, model(torch.float32), compressor, exchange=exchange)
    for step in range(4):
        own = gradients(step, size, dtype)
        wide = [{name: g.float() for name, g in of_rank.items()} for of_rank in own]
        means, due = half.step(own), single.step(wide)
        for mean, wanted in zip(means, due, strict=True):
            for name, values in wanted.items():
                assert same_numbers(mean[name], values.to(dtype)), (compressor, dtype, size, name)
    for state, wanted_state in zip(half.states, single.states, strict=True):
        for key, vector in wanted_state.vectors.items():
            assert same_bits(state.vectors[key], vector), (compressor, dtype, size, key)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CODECS)
def test_gradients_are_worked_on_where_they_lie(name: str, dtype: torch.dtype) -> None:
    for compressor in {CODECS[name], with_feedback(CODECS[name])}:
        unit, gradient = runtime(compressor, dtype), torch.zeros(5000, dtype=dtype)
        (values,) = unit.collect({"w": gradient})
        assert values.data_ptr() == gradient.data_ptr()


def test_what_adds_to_gradients_has_them_in_float32() -> None:
    wrapped = MomentumCorrection(compressor=with_feedback(TopK()))
    for compressor in (PowerSGD(), wrapped):
        gradient = torch.ones(5000, dtype=torch.bfloat16)
        (values,) = runtime(compressor, torch.bfloat16).collect({"w": gradient})
        assert values.dtype is torch.float32
        assert (values == 1).all()


@pytest.mark.parametrize("codec", [Natural(levels=7), Natural(levels=100)])
def test_the_memory_between_is_as_long_as_a_piece(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    scratch = scope_coding.scratch_tensor

    def noted(name: str, elems: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        lengths.append(elems)
        return scratch(name, elems, dtype, device)

    monkeypatch.setattr(scope_coding, "scratch_tensor", noted)
    elems = 3 * scope_coding._PIECE_ELEMS + 1000
    ranks = Lockstep(2, [ParameterInfo(0, "w", (elems,), torch.bfloat16)], codec)
    ranks.step([{"w": torch.ones(elems, dtype=torch.bfloat16)} for _ in range(2)])
    assert max(lengths) == scope_coding._PIECE_ELEMS
    assert sum(lengths) == 2 * elems


ALLOCATE = {"fp16", "bf16", "topk", "dgc"}  # in float32 too; see test_conformance_allocations


@pytest.mark.parametrize("name", sorted((CODECS.keys() & COMPRESSORS.keys()) - ALLOCATE))
def test_a_step_needs_no_fresh_memory(name: str) -> None:
    shape = (512, 512)
    compressor = with_feedback(CODECS[name])
    own = [{"w": torch.randn(shape).bfloat16()} for _ in range(3)]
    for steps in (4, 2):  # the first run loads compiled code, the second one needs its own buffers
        ranks = Lockstep(3, [ParameterInfo(0, "w", shape, torch.bfloat16)], compressor)
        for _ in range(steps):
            ranks.step(own)
    with allocations() as seen:
        ranks.step(own)
    assert seen.total_bytes <= 1 << 17, str(seen)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_what_overflows_the_gradients_dtype_is_seen(dtype: torch.dtype) -> None:
    for value, finite in ((1.0, True), (torch.inf, False), (-torch.nan, False)):
        unit, gradient = runtime(PowerSGD(), dtype), torch.zeros(5000, dtype=dtype)
        unit.collect({"w": gradient})[0][-1] = value
        unit.deliver({"w": gradient}, check_finite=True)
        assert unit.finite is finite
    unit, gradient = runtime(PowerSGD(), torch.float16), torch.zeros(5000, dtype=torch.float16)
    unit.collect({"w": gradient})[0][-1] = 1e5  # finite in float32, but not as the user sees it
    unit.deliver({"w": gradient}, check_finite=True)
    assert not unit.finite


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_to_look_whether_all_is_finite_allocates_nothing(dtype: torch.dtype) -> None:
    unit, gradient = runtime(Int8(), dtype, 1 << 20), torch.zeros(1 << 20, dtype=dtype)
    for _ in range(2):
        unit.collect({"w": gradient})
        with allocations() as seen:
            unit.deliver({"w": gradient}, check_finite=True)
    assert unit.finite
    assert seen.total_bytes < 1 << 14, str(seen)
