"""The CUDA kernels that take a list of vectors, run on the CPU, against calls of the reference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from compressa.kernels import Form, Noise, SignForm
from compressa.kernels.blockwise_list import (
    BlockwiseList,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    ListForm,
)
from compressa.kernels.cuda import blockwise_list
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import blockwise as reference
from compressa.kernels.reference import blockwise_list as reference_list
from compressa.kernels.reference import onebit as signs
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    KINDS,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    poisoned,
    residual_for,
    same_bits,
)
from sum_cases import COUNTS, Array, any_bytes, any_units, counts, dtypes, weights

pytestmark = on_emulated_cuda


def ranged(form: ListForm) -> bool:
    return isinstance(form, Form) and form.statistic == "range"


forms: st.SearchStrategy[ListForm] = st.sampled_from(
    [
        Form(bits=8, block=64),
        Form(bits=8, block=10, statistic="range"),
        Form(bits=4, block=128),
        Form(bits=4, block=1026, statistic="l2"),
        Form(bits=2, block=64, statistic="clipped"),
        SignForm(block=64),
        SignForm(block=1032),
    ]
)
vectors_of = st.lists(st.tuples(gradients(), st.none() | st.integers(0, 99)), max_size=7)
noises = st.none() | st.builds(Noise, st.integers(0, 9), st.just(3), st.integers(0, 9), st.just(0))


def vector_for(x: Any, residual: F32 | None, form: ListForm, parameter: int) -> BlockwiseVector:
    """A vector with poisoned outputs."""
    blocks = -(-x.size // form.block)
    return BlockwiseVector(
        x,
        poisoned(form.code_bytes(x.size), np.uint8),
        poisoned(blocks, np.float32),
        poisoned(blocks, np.float32) if ranged(form) else None,
        residual,
        parameter,
        parameter * 1001,
    )


def same_as_single_calls(batch: BlockwiseList, noise: Noise | None, scale: float) -> None:
    """Quantise a list, and each of its vectors alone by the reference; all bits are equal."""
    specified = [
        vector._replace(
            codes=vector.codes.copy(),
            scales=vector.scales.copy(),
            offsets=None if vector.offsets is None else vector.offsets.copy(),
            residual=None if vector.residual is None else vector.residual.copy(),
        )
        for vector in batch.vectors
    ]
    blockwise_list.quantize_blockwise_list(batch, noise=noise, scale=scale)
    for ours, due in zip(batch.vectors, specified, strict=True):
        rest: dict[str, Any] = {"residual": due.residual, "scale": scale}
        with np.errstate(all="ignore"):
            if isinstance(batch.form, SignForm):
                signs.sign_quantize(*due[:3], block=batch.form.block, **rest)
            else:
                own = due.noise(noise)
                reference.quantize_blockwise(
                    *due[:3], form=batch.form, offsets=due.offsets, noise=own, **rest
                )
        for name in ("codes", "scales", "offsets", "residual"):
            found, expected = getattr(ours, name), getattr(due, name)
            assert found is expected is None or same_bits(found, expected), name


@settings(max_examples=40)
@given(vectors_of, st.sampled_from(KINDS), forms, st.sampled_from(SCALES), noises)
def test_a_list_equals_calls_of_the_reference(
    given_vectors: list[tuple[F32, int | None]],
    kind: str,
    form: ListForm,
    scale: float,
    noise: Noise | None,
) -> None:
    noise = None if isinstance(form, SignForm) else noise
    vectors = [
        vector_for(as_kind(x, kind), residual_for(x, seed), form, number)
        for number, (x, seed) in enumerate(given_vectors)
    ]
    same_as_single_calls(BlockwiseList(vectors, form=form), noise, scale)


@pytest.mark.parametrize("count", [63, 64, 65, 130])
def test_lists_of_any_length_take_as_many_launches_as_they_need(count: int) -> None:
    random, form = np.random.default_rng(count), Form(bits=4, block=8)
    sizes = random.choice([0, 1, 8, 9, 70, 513], count)
    xs = [random.standard_normal(size).astype(np.float32) for size in sizes]
    batch = BlockwiseList([vector_for(x, x.copy(), form, 0) for x in xs], form=form)
    same_as_single_calls(batch, None, 1.0)
    assert len(batch.prepared.launches) == -(-count // 64)
    same_as_single_calls(batch, None, 1.0)  # again, with what was left behind


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [256, 2048])
def test_random_numbers_are_those_of_each_vector_in_any_order(block: int, seed: int) -> None:
    random, form = np.random.default_rng(seed), Form(bits=8, block=block)
    xs = [random.standard_normal(size).astype(np.float32) for size in (9000, 1, 0, 2048, 5000)]
    vectors = [vector_for(x, None, form, number) for number, x in enumerate(xs)]
    with running_on(Emulated(seed)):
        same_as_single_calls(BlockwiseList(vectors, form=form), Noise(seed, 2, 7, 0), 1.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", [256, 2048, 10_000])
def test_signs_of_a_list_are_those_of_each_vector_in_any_order(block: int, seed: int) -> None:
    random, form = np.random.default_rng(seed), SignForm(block=block)
    xs = [random.standard_normal(size).astype(np.float32) for size in (9000, 1, 0, 2048, 11_000)]
    vectors = [vector_for(x, x.copy(), form, 0) for x in xs]
    with running_on(Emulated(seed)):
        same_as_single_calls(BlockwiseList(vectors, form=form), None, 1.0)


@pytest.mark.parametrize("shift", [1, 3])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(shift: int) -> None:
    form = Form(bits=8, block=64)
    whole = np.random.default_rng(shift).standard_normal(1000).astype(np.float32)
    left, codes = whole.copy(), poisoned(1000, np.uint8)
    untouched = codes.copy()
    ends = (shift, 300 + shift, 301 + shift, 1000 - shift)
    vectors = []
    for low, high in pairwise(ends):
        scales = poisoned(-(-(high - low) // 64), np.float32)
        part = slice(low, high)
        vectors.append(BlockwiseVector(whole[part], codes[part], scales, None, left[part]))
    same_as_single_calls(BlockwiseList(vectors, form=form), None, 2.0)
    for edge in (slice(0, shift), slice(1000 - shift, None)):
        assert same_bits(codes[edge], untouched[edge])
        assert same_bits(left[edge], whole[edge])


class Decoding:
    """Vectors to decode to, beside what the reference decodes to, and payloads of any content."""

    def __init__(self, sizes: list[int], form: ListForm, count: int, dtype: Any, seed: int) -> None:
        random = np.random.default_rng(seed)
        parts, end = [], 4 * seed % 12
        for size in sizes:
            units_bytes = 4 * -(-size // form.block)
            heads = 2 if ranged(form) else 1
            places = [end + i * units_bytes for i in range(heads + 1)]
            parts.append(BlockwisePart(poisoned(size, dtype), places[-1], *places[:-1]))
            end = -(-(places[-1] + form.code_bytes(size)) // 4) * 4
        self.payloads = [self._payload(random, parts, form, end) for _ in range(count)]
        self.ours = BlockwiseParts(parts, form=form, payload_bytes=end)
        copies = [part._replace(out=part.out.copy()) for part in parts]
        self.due = BlockwiseParts(copies, form=form, payload_bytes=end)

    @staticmethod
    def _payload(
        random: np.random.Generator, parts: list[BlockwisePart], form: ListForm, size: int
    ) -> Array:
        payload = any_bytes(random, size)
        for part in parts:
            for units in part.arrays(payload, form)[1:]:
                if units is not None:
                    units[:] = any_units(random, units.size)
        return payload

    def fill(self, seed: int) -> None:
        for ours, due in zip(self.ours.parts, self.due.parts, strict=True):
            due.out[:] = ours.out[:] = np.random.default_rng(seed).standard_normal(ours.out.size)

    def same(self) -> bool:
        pairs = zip(self.ours.parts, self.due.parts, strict=True)
        return all(same_bits(ours.out, due.out) for ours, due in pairs)

    def check_sum(self, weight: float) -> None:
        for _ in range(2):  # the second time with what the first has worked out
            blockwise_list.sum_blockwise_list(self.ours, self.payloads, weight=weight)
        with np.errstate(all="ignore"):
            reference_list.sum_blockwise_list(self.due, self.payloads, weight=weight)
        assert self.same()


sizes_of = st.lists(st.sampled_from(SIZES), max_size=7)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(sizes_of, forms, counts, dtypes, weights, seeds)
def test_sums_of_a_list_equal_those_of_the_reference(
    sizes: list[int], form: ListForm, count: int, dtype: Any, weight: float, seed: int
) -> None:
    Decoding(sizes, form, count, dtype, seed).check_sum(weight)


@settings(max_examples=40)
@given(sizes_of, forms, dtypes, weights, st.booleans(), seeds)
def test_a_decoded_list_equals_that_of_the_reference(
    sizes: list[int], form: ListForm, dtype: Any, weight: float, add: bool, seed: int
) -> None:
    case = Decoding(sizes, form, 1, np.float32 if add else dtype, seed)
    case.fill(seed)
    options: dict[str, Any] = {"weight": weight, "add": add}
    blockwise_list.dequantize_blockwise_list(case.ours, case.payloads[0], **options)
    with np.errstate(all="ignore"):
        reference_list.dequantize_blockwise_list(case.due, case.payloads[0], **options)
    assert case.same()


@pytest.mark.parametrize("form", [Form(bits=8, block=8), SignForm(block=8)])
def test_what_is_decoded_alone_keeps_the_sign_of_zero(form: ListForm) -> None:
    case = Decoding([20], form, 1, np.float32, 0)
    codes, scales, _ = case.ours.parts[0].arrays(case.payloads[0], form)
    codes[:], scales[:] = 255, 0.0  # -1, or all signs
    blockwise_list.dequantize_blockwise_list(case.ours, case.payloads[0])
    reference_list.dequantize_blockwise_list(case.due, case.payloads[0])
    assert np.signbit(case.due.parts[0].out).all()
    assert case.same()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_more_vectors_than_a_launch_takes_in_any_order(count: int, dtype: Any) -> None:
    some: tuple[ListForm, ...] = Form(bits=4, block=64), Form(bits=8, block=2048)
    for seed, form in enumerate((*some, SignForm(block=64), SignForm(block=2048))):
        sizes = [0, 1, 5000, 64, 9001, *[70] * 65]
        with running_on(Emulated(seed)):
            case = Decoding(sizes, form, count, dtype, seed)
            case.check_sum(0.3)
        assert len(case.ours.prepared.launches) == 2


def test_the_sums_of_no_payload_are_zeros() -> None:
    case = Decoding([100, 1], Form(bits=8, block=8), 0, np.float32, 0)
    case.check_sum(1.0)
    assert not any(part.out.any() for part in case.ours.parts)


def test_sums_may_lie_at_odd_addresses_and_nothing_beside_them_is_written() -> None:
    form, out = Form(bits=4, block=8), poisoned(200, np.float32)
    untouched = out.copy()
    case = Decoding([90, 90], form, 9, np.float32, 3)
    places = (slice(1, 91), slice(93, 183))
    parts = [p._replace(out=out[at]) for p, at in zip(case.ours.parts, places, strict=True)]
    case.ours = BlockwiseParts(parts, form=form, payload_bytes=case.ours.payload_bytes)
    case.check_sum(0.5)
    for beside in (slice(0, 1), slice(91, 93), slice(183, None)):
        assert same_bits(out[beside], untouched[beside])
