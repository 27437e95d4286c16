"""Units: every element once, nothing mixed, cuts where the compressor allows them."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Int8, NoCompression, OneBit, TopK
from compressa.compressor import Compressor, Granularity
from compressa.config import load_config
from compressa.engine.units.units import Unit, UnitSizes, build_units
from compressa.parameters import ParameterInfo

COMPRESSORS = [NoCompression(), Int8(block=32), OneBit(block=64), TopK(), PowerSGD()]
SHAPES = [(0,), (1,), (7,), (97,), (16, 16), (40, 30), (3, 2, 5), (5000,)]
Model = tuple[list[ParameterInfo], dict[str, Compressor]]


@st.composite
def models(draw: st.DrawFn) -> Model:
    shapes = draw(st.lists(st.sampled_from(SHAPES), max_size=8))
    dtypes = st.sampled_from([torch.float32, torch.bfloat16])
    parameters = [ParameterInfo(i, f"p{i}", shape, draw(dtypes)) for i, shape in enumerate(shapes)]
    return parameters, {p.name: draw(st.sampled_from(COMPRESSORS)) for p in parameters}


counts = st.sampled_from([1, 100, 1000, 1 << 14])
unit_sizes = st.builds(UnitSizes, *[st.none() | counts, counts, *[st.none() | counts] * 2])


@settings(max_examples=80)
@given(model=models(), sizes=unit_sizes)
def test_every_element_is_in_exactly_one_unit(model: Model, sizes: UnitSizes) -> None:
    parameters, compressors = model
    units = build_units(parameters, compressors, sizes)
    assert [unit.layout.unit for unit in units] == list(range(len(units)))
    for parameter in parameters:
        parts = [s for u in units for s in u.layout.segments if s.parameter is parameter]
        covered = sorted(i for part in parts for i in range(part.start, part.stop))
        assert covered == list(range(parameter.elems))
        assert all(part.elems for part in parts)


@settings(max_examples=80)
@given(model=models(), sizes=unit_sizes)
def test_units_mix_neither_compressors_nor_dtypes_and_cut_where_allowed(
    model: Model, sizes: UnitSizes
) -> None:
    parameters, compressors = model
    for unit in build_units(parameters, compressors, sizes):
        for segment in unit.layout.segments:
            assert compressors[segment.parameter.name] == unit.compressor
            assert segment.parameter.dtype is unit.layout.dtype
            if unit.compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX):
                assert segment.elems == segment.parameter.elems
            assert segment.start % unit.compressor.block_elems == 0


@settings(max_examples=30)
@given(model=models(), sizes=unit_sizes)
def test_units_do_not_depend_on_the_order_of_the_rules(model: Model, sizes: UnitSizes) -> None:
    parameters, compressors = model
    turned = dict(reversed(compressors.items()))
    due = build_units(parameters, compressors, sizes)
    assert build_units(parameters, turned, sizes) == due


def dense_bytes(unit: Unit) -> int:
    return unit.layout.elems * unit.layout.dtype.itemsize


def test_units_come_in_the_order_in_which_backward_readies_them() -> None:
    parameters = [ParameterInfo(i, f"p{i}", (100,)) for i in range(5)]
    units = build_units(
        parameters, {p.name: NoCompression() for p in parameters}, UnitSizes(8, 1, 800)
    )
    names = [[s.parameter.name for s in unit.layout.segments] for unit in units]
    assert names == [["p4", "p3"], ["p2", "p1"], ["p0"]]


def test_large_parameters_are_cut_into_equal_units() -> None:
    parameters = [ParameterInfo(0, "w", (100_000,))]
    units = build_units(parameters, {"w": NoCompression()}, UnitSizes(8, 1, 100_000))
    assert [dense_bytes(unit) for unit in units] == [100_000] * 4


def test_units_grow_until_their_payload_is_worth_a_message() -> None:
    parameters = [ParameterInfo(i, f"p{i}", (256,)) for i in range(32)]
    compressors: dict[str, Compressor] = {p.name: Int8() for p in parameters}

    def units(payload_bytes: int) -> int:
        return len(build_units(parameters, compressors, UnitSizes(1024, payload_bytes, 1)))

    assert units(1) == 32
    assert units(4 * Int8().wire_bytes(256)) == 8
    assert units(1 << 30) == 4  # the most is 8 units


MODELS = st.lists(st.integers(1, 200_000), min_size=1, max_size=60)


@given(elems=MODELS, compressor=st.sampled_from([NoCompression(), Int8(), TopK()]))
def test_units_hold_a_part_of_what_is_left_where_no_sizes_are_given(
    elems: list[int], compressor: Compressor
) -> None:
    """So the forward waits for little at first, and units are few for models of any size."""
    parameters = [ParameterInfo(i, f"p{i}", (count,)) for i, count in enumerate(elems)]
    units = build_units(parameters, {p.name: compressor for p in parameters}, UnitSizes())
    total = left = 4 * sum(elems)
    for unit in units[:-1]:
        least = max(min(left / 16, (total - left) / 2), total / 64)
        assert dense_bytes(unit) >= int(min(least, 3 / 4 * left))
        left -= dense_bytes(unit)
    # Small ones at the beginning, sixteenths, those of 1/64, and quarters of the rest.
    assert len(units) <= 6 + 16 * math.log(4) + 16 + math.log(max(total / 48, 4), 4)


def test_what_comes_first_and_what_is_needed_first_has_units_of_its_own() -> None:
    # A layer's biases alone would wait for those of many others, to make 64 KiB of payload.
    layers = range(48)
    weights = [ParameterInfo(2 * i, f"{i}.weight", (600, 600)) for i in layers]
    biases = [ParameterInfo(2 * i + 1, f"{i}.bias", (600,)) for i in layers]
    parameters = sorted(weights + biases, key=lambda p: p.index)
    compressors: dict[str, Compressor] = {p.name: Int8() for p in weights}
    compressors |= {p.name: NoCompression() for p in biases}
    names = [
        [segment.parameter.name for segment in unit.layout.segments]
        for unit in build_units(parameters, compressors, UnitSizes())
    ]
    assert names[0] == ["47.weight"]
    assert ["0.weight"] in names
    assert ["0.bias"] in names
    assert len(names) <= 40


def test_the_first_dense_unit_is_that_of_ddp_and_no_parameter_is_cut_for_it() -> None:
    """Of a bias, and of layers of 4 MiB, as DDP puts them into buckets of 1 and 25 MiB."""
    parameters = [ParameterInfo(i, f"w{i}", (1 << 20,)) for i in range(9)]
    parameters.append(ParameterInfo(9, "bias", (100,)))
    sizes = UnitSizes.of(load_config({"compressor": "none"}))
    for compressor, due in ((NoCompression(), [2, 7, 1]), (Int8(), [2, 1, 1, 1, 1, 1, 1, 1, 1])):
        units = build_units(parameters, {p.name: compressor for p in parameters}, sizes)
        assert [len(unit.layout.segments) for unit in units] == due


def test_units_that_a_gpu_is_given_are_as_large_as_ddp_s_buckets_unless_a_size_is_given() -> None:
    parameters = [ParameterInfo(i, f"w{i}", (1 << 20,)) for i in range(14)]
    for exchange, due in ({}, [7, 7]), ({"unit_bytes": 8 << 20}, [2] * 7):
        config = load_config({"compressor": "int8", "exchange": exchange})
        sizes = UnitSizes.of(config, launched=True)
        units = build_units(parameters, {p.name: Int8() for p in parameters}, sizes)
        assert [len(unit.layout.segments) for unit in units] == due


def test_what_is_compressed_has_a_mebibyte_or_an_eighth_of_a_small_model() -> None:
    for count, most in ((48, 24), (8, 14)):
        parameters = [ParameterInfo(i, f"w{i}", (256, 256)) for i in range(count)]
        units = build_units(parameters, {p.name: Int8() for p in parameters}, UnitSizes())
        total = sum(map(dense_bytes, units))
        least = min(1 << 20, total // 8)
        assert all(dense_bytes(unit) >= least for unit in units[:-2])
        assert len(units) <= most


def test_small_models_and_large_ones_have_about_as_many_units() -> None:
    for width in (128, 256, 1024):
        parameters = [ParameterInfo(i, f"w{i}", (width, width)) for i in range(48)]
        compressors = {p.name: NoCompression() for p in parameters}
        units = build_units(parameters, compressors, UnitSizes())
        assert 24 <= len(units) <= 40
        layers = [dense_bytes(unit) / (4 * width * width) for unit in units]
        largest = layers.index(max(layers))
        assert layers[:largest] == sorted(layers[:largest])
        assert layers[largest:] == sorted(layers[largest:], reverse=True)
        assert layers[0] == layers[-1] == 1


def test_units_that_never_fill_come_in_the_order_of_backward_too() -> None:
    kinds = [("first", torch.float32), ("second", torch.float16), ("third", torch.bfloat16)]
    model = [ParameterInfo(i, name, (8,), dtype) for i, (name, dtype) in enumerate(kinds)]
    none = dict.fromkeys((name for name, _ in kinds), NoCompression())
    units = build_units(model, none, UnitSizes(1 << 20, 1, 1 << 20))
    assert [unit.layout.segments[0].name for unit in units] == ["third", "second", "first"]
