"""Lists of vectors are quantised and summed as vectors are one by one, and checked when made."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from alike import alike, copied, odd, on_every_backend
from compressa.kernels import (
    Form,
    Noise,
    SignForm,
    dequantize_blockwise,
    multi_tensor,
    quantize_blockwise,
    sign_dequantize,
    sign_quantize,
    sum_blockwise,
    sum_signs,
)
from compressa.kernels.cuda._work import HELD, quantizer_for
from compressa.kernels.multi_tensor import (
    BlockForm,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
    multi_tensor_dequantize,
    multi_tensor_quantize,
    multi_tensor_sum,
)
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
from sum_cases import COUNTS, DTYPES, Array, any_bytes, any_scales, counts, dtypes, weights

FORM, RANGED = Form(bits=8, block=64), Form(bits=4, block=8, statistic="range")
SIGNS = SignForm(block=64)
forms: st.SearchStrategy[BlockForm] = st.sampled_from(
    [
        FORM,
        Form(bits=8, block=10, statistic="range"),
        Form(bits=4, block=128),
        Form(bits=4, block=1026, statistic="l2"),
        Form(bits=2, block=64, statistic="clipped"),
        SIGNS,
        SignForm(block=1032),
    ]
)
vectors_of = st.lists(st.tuples(gradients(), st.none() | st.integers(0, 99)), max_size=7)
noises = st.none() | st.builds(
    Noise, st.integers(0, 9), st.just(3), st.integers(0, 9), st.just(0), st.just(0)
)
sizes_of = st.lists(st.sampled_from(SIZES), max_size=7)
seeds = st.integers(0, 2**32 - 1)


def ranged(form: BlockForm) -> bool:
    return isinstance(form, Form) and form.statistic == "range"


def drawn(size: int, seed: int = 0) -> F32:
    return np.random.default_rng((seed, size)).standard_normal(size).astype(np.float32)


def vector_for(x: Any, residual: F32 | None, form: BlockForm, parameter: int) -> BlockwiseVector:
    """A vector with poisoned outputs, and a residual of its own."""
    blocks = -(-x.size // form.block)
    return BlockwiseVector(
        x,
        poisoned(form.code_bytes(x.size), np.uint8),
        poisoned(blocks, np.float32),
        poisoned(blocks, np.float32) if ranged(form) else None,
        copied(residual),
        parameter,
        parameter * 1002,  # fours of every other vector have numbers beside each other
    )


def check_launches(kernels: Any, batch: BlockwiseVectors | BlockwiseParts) -> None:
    """Assert that CUDA takes 64 vectors to a launch."""
    count = len(batch.vectors if isinstance(batch, BlockwiseVectors) else batch.parts)
    if kernels.__package__ == "compressa.kernels.cuda" and count:
        assert len(batch.prepared.launches) == -(-count // 64)


def quantized(
    kernels: Any,
    xs: list[tuple[Any, F32 | None]],
    form: BlockForm,
    noise: Noise | None = None,
    loss_scale: float = 1.0,
    times: int = 1,
) -> list[Any]:
    """All that is written for vectors and their residuals."""
    vectors = [vector_for(x, residual, form, number) for number, (x, residual) in enumerate(xs)]
    batch = BlockwiseVectors(vectors, form=form)
    for _ in range(times):
        kernels.multi_tensor_quantize(batch, noise=noise, loss_scale=loss_scale)
    check_launches(kernels, batch)
    return [array for vector in vectors for array in vector[1:5]]


@on_every_backend
@pytest.mark.parametrize(("bits", "block"), [(b, n) for b, ns in HELD.items() for n in ns])
@pytest.mark.parametrize("noise", [None, Noise(1, 2, 3, 0)])
def test_blocks_held_in_registers(bits: int, block: int, noise: Noise | None) -> None:
    """Whole groups, some with a rest, some at odd addresses, some of a rest only."""
    form = SignForm(block=block) if bits == 1 else Form(bits=bits, block=block)
    group = 256 // quantizer_for(bits, block, at_random=noise is not None)[1] * block
    sizes = (2 * group + block + 3, group, block - 1, 0, 3 * group, group + 1)
    xs = [drawn(n, number) for number, n in enumerate(sizes)]
    xs[4] = odd(xs[4], 1)[1]
    given_xs = [(x, residual_for(x, 3 * number or None)) for number, x in enumerate(xs)]
    noise = None if bits == 1 else noise
    alike("multi_tensor", lambda k: quantized(k, given_xs, form, noise, 3.0), on_cpu=False)


@on_every_backend
@settings(max_examples=40)
@given(vectors_of, st.sampled_from(KINDS), forms, st.sampled_from(SCALES), noises)
def test_a_list_equals_reference(
    given_vectors: list[tuple[F32, int | None]],
    kind: str,
    form: BlockForm,
    loss_scale: float,
    noise: Noise | None,
) -> None:
    noise = None if isinstance(form, SignForm) else noise
    xs = [(as_kind(x, kind), residual_for(x, seed)) for x, seed in given_vectors]
    on_cpu = kind == "float32"
    reads = [x for x, _ in xs]
    alike(
        "multi_tensor",
        lambda k: quantized(k, xs, form, noise, loss_scale),
        reads=reads,
        on_cpu=on_cpu,
    )


@on_every_backend
@pytest.mark.parametrize("noise", [None, Noise(1, 2, 3, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_list_equals_calls_one_by_one(kind: str, noise: Noise | None) -> None:
    xs = [(as_kind(drawn(size), kind), np.ones(size, np.float32)) for size in (0, 1, 64, 1000)]
    written = alike("multi_tensor", lambda k: quantized(k, xs, FORM, noise, 2.0))
    for number, (x, residual) in enumerate(xs):
        one = vector_for(x, residual, FORM, number)
        own = one.noise(noise)
        assert own is None or noise is None or own[:3] == noise[:3]
        quantize_blockwise(*one[:3], form=FORM, noise=own, residual=one.residual, loss_scale=2.0)
        codes, scales, _, left = written[4 * number : 4 * number + 4]
        assert same_bits(codes, one.codes)
        assert same_bits(scales, one.scales)
        assert same_bits(left, one.residual)


@on_every_backend
@pytest.mark.parametrize("start", [-1, 2**64])
def test_the_start_of_a_lists_noise_is_not_read(start: int) -> None:
    """Each vector has its own, and its own parameter."""
    xs, noise = [(drawn(100), None)], Noise(1, 2, 3, 0)
    plain = alike("multi_tensor", lambda k: quantized(k, xs, FORM, noise))
    other = noise._replace(parameter=9, start=start)
    written = alike("multi_tensor", lambda k: quantized(k, xs, FORM, other))
    assert all(map(same_bits, written[:2], plain[:2]))


@on_every_backend
@pytest.mark.parametrize("kind", KINDS)
def test_signs_of_a_list_equal_calls_one_by_one(kind: str) -> None:
    xs = [(as_kind(drawn(size), kind), drawn(size)) for size in (0, 1, 64, 1000)]
    written = alike("multi_tensor", lambda k: quantized(k, xs, SIGNS, None, 2.0))
    for number, (x, residual) in enumerate(xs):
        one = vector_for(x, residual, SIGNS, number)
        sign_quantize(*one[:3], block=64, residual=one.residual, loss_scale=2.0)
        codes, scales, _, left = written[4 * number : 4 * number + 4]
        assert same_bits(codes, one.codes)
        assert same_bits(scales, one.scales)
        assert same_bits(left, one.residual)


@on_every_backend
@pytest.mark.parametrize("count", [63, 64, 65, 130])
def test_lists_of_any_length_are_quantised_again_and_again(count: int) -> None:
    random, form = np.random.default_rng(count), Form(bits=4, block=8)
    xs = [(x, x) for x in (drawn(n) for n in random.choice([0, 1, 8, 9, 70, 513], count))]
    alike("multi_tensor", lambda k: quantized(k, xs, form, times=2))


@on_every_backend
@pytest.mark.parametrize("block", [256, 2048])
def test_random_numbers_are_those_of_each_vector_in_any_order(block: int) -> None:
    form, noise = Form(bits=8, block=block), Noise(4, 2, 7, 0)
    xs = [(drawn(size), None) for size in (9000, 1, 0, 2048, 5000)]
    alike("multi_tensor", lambda k: quantized(k, xs, form, noise), orders=range(4))


@on_every_backend
@pytest.mark.parametrize("block", [256, 2048, 10_000])
def test_signs_of_a_list_are_those_of_each_vector_in_any_order(block: int) -> None:
    xs = [(x, x) for x in map(drawn, (9000, 1, 0, 2048, 11_000))]
    alike("multi_tensor", lambda k: quantized(k, xs, SignForm(block=block)), orders=range(3))


@on_every_backend
@pytest.mark.parametrize("shift", [1, 3])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(shift: int) -> None:
    x, parts = drawn(1000, shift), pairwise((shift, 300 + shift, 301 + shift, 1000 - shift))
    spans = [slice(*ends) for ends in parts]

    def quantized_there(kernels: Any) -> list[Array]:
        left, codes = x.copy(), poisoned(1000, np.uint8)
        scales = [poisoned(-(-(part.stop - part.start) // 64), np.float32) for part in spans]
        vectors = [
            BlockwiseVector(x[part], codes[part], own, None, left[part])
            for part, own in zip(spans, scales, strict=True)
        ]
        batch = BlockwiseVectors(vectors, form=FORM)
        kernels.multi_tensor_quantize(batch, noise=None, loss_scale=2.0)
        return [left, codes, *scales]

    alike("multi_tensor", quantized_there)


def test_a_list_may_be_empty() -> None:
    multi_tensor_quantize(BlockwiseVectors([], form=FORM))


def vector(size: int) -> BlockwiseVector:
    return vector_for(drawn(size), None, FORM, 0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"codes": np.zeros(9, np.uint8)}, ValueError, r"codes must have shape \(100,\)"),
        ({"scales": np.zeros(1, np.float32)}, ValueError, r"scales must have shape \(2,\)"),
        ({"offsets": np.zeros(2, np.float32)}, ValueError, "offsets go with the statistic"),
        ({"residual": np.zeros(99, np.float32)}, ValueError, "residual must have shape"),
        ({"x": np.zeros(100)}, TypeError, "x must be float32"),
        ({"x": np.zeros(100, np.float16)}, TypeError, "must have one dtype"),
        ({"start": 2**63}, ValueError, r"noise\.start must lie between"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BlockwiseVectors([vector(100), vector(100)._replace(**changes)], form=FORM)


def test_a_wrong_loss_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale must lie between"):
        multi_tensor_quantize(BlockwiseVectors([vector(8)], form=FORM), loss_scale=0.0)


class Decoding:
    """Payloads of any content, and where in them the arrays of some vectors are.

    Between those of two vectors are two bytes that nobody uses.
    """

    def __init__(
        self, sizes: list[int], form: BlockForm, count: int, dtype: Any, seed: int
    ) -> None:
        random = np.random.default_rng(seed)
        self.form, self.dtype, end = form, dtype, 4 * seed % 12
        self.begins: list[tuple[int, ...]] = []
        self.sizes = sizes
        for size in sizes:
            units_bytes = 4 * -(-size // form.block)
            heads = 2 if ranged(form) else 1
            firsts = [end + i * units_bytes for i in range(heads + 1)]
            self.begins.append((firsts[-1], *firsts[:-1]))
            end = -(-(firsts[-1] + form.code_bytes(size) + 2) // 4) * 4
        self.payload_bytes = end
        self.payloads = [self._payload(random) for _ in range(count)]

    def batch(self, outs: list[Array] | None = None) -> BlockwiseParts:
        """Vectors to decode to, whatever is in them now."""
        outs = outs or [poisoned(size, self.dtype) for size in self.sizes]
        parts = [BlockwisePart(o, *own) for o, own in zip(outs, self.begins, strict=True)]
        return BlockwiseParts(parts, form=self.form, payload_bytes=self.payload_bytes)

    def _payload(self, random: np.random.Generator) -> Array:
        payload = any_bytes(random, self.payload_bytes)
        for part in self.batch().parts:
            for scales in part.arrays(payload, self.form)[1:]:
                if scales is not None:
                    scales[:] = any_scales(random, scales.size)
        return payload

    def summed(self, kernels: Any, weight: float) -> list[Array]:
        """The sums of all payloads, made twice: once with what the first time has worked out."""
        batch = self.batch()
        for _ in range(2):
            kernels.multi_tensor_sum(batch, self.payloads, weight=weight)
        check_launches(kernels, batch)
        return [part.out for part in batch.parts]

    def decoded(self, kernels: Any, weight: float, add: bool) -> list[Array]:
        """What the first payload holds, or that and what was there before."""
        before = [drawn(size, 1).astype(self.dtype) for size in self.sizes]
        batch = self.batch(before)
        kernels.multi_tensor_dequantize(batch, self.payloads[0], weight=weight, add=add)
        return [part.out for part in batch.parts]


@on_every_backend
@settings(max_examples=40)
@given(sizes_of, forms, counts, dtypes, weights, seeds)
def test_sums_of_a_list_equal_those_of_the_reference(
    sizes: list[int], form: BlockForm, count: int, dtype: Any, weight: float, seed: int
) -> None:
    case = Decoding(sizes, form, count, dtype, seed)
    alike("multi_tensor", lambda k: case.summed(k, weight))


@on_every_backend
@settings(max_examples=40)
@given(sizes_of, forms, dtypes, weights, st.booleans(), seeds)
def test_a_decoded_list_equals_that_of_the_reference(
    sizes: list[int], form: BlockForm, dtype: Any, weight: float, add: bool, seed: int
) -> None:
    case = Decoding(sizes, form, 1, np.float32 if add else dtype, seed)
    alike("multi_tensor", lambda k: case.decoded(k, weight, add))


@pytest.mark.parametrize("form", [FORM, RANGED, SIGNS], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_a_list_equal_calls_one_by_one(form: BlockForm, dtype: Any) -> None:
    case = Decoding([0, 1, 64, 501], form, 3, dtype, 0)
    found = case.summed(multi_tensor, 0.3)
    for part, own in zip(case.batch().parts, found, strict=True):
        codes, scales, offsets = zip(*(part.arrays(p, form) for p in case.payloads), strict=True)
        if isinstance(form, SignForm):
            sum_signs(codes, scales, part.out, block=64, weight=0.3)
        else:
            some = None if offsets[0] is None else offsets
            sum_blockwise(codes, scales, part.out, form=form, offsets=some, weight=0.3)
        assert same_bits(part.out, own)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("form", [FORM, RANGED, SIGNS], ids=repr)
def test_a_list_is_decoded_as_calls_do_one_by_one(form: BlockForm, add: bool) -> None:
    case = Decoding([9, 64, 501], form, 1, np.float32, 0)
    found = case.decoded(multi_tensor, 0.3, add)
    for part, own in zip(case.batch().parts, found, strict=True):
        out = drawn(part.out.size, 1)
        codes, scales, offsets = part.arrays(case.payloads[0], form)
        if isinstance(form, SignForm):
            sign_dequantize(codes, scales, out, block=64, weight=0.3, add=add)
        else:
            options: dict[str, Any] = {"offsets": offsets, "weight": 0.3, "add": add}
            dequantize_blockwise(codes, scales, out, form=form, **options)
        assert same_bits(out, own)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_what_is_decoded_is_rounded_once(dtype: Any) -> None:
    case = Decoding([500], FORM, 1, dtype, 0)
    (decoded,), (summed,) = (
        case.decoded(multi_tensor, 0.3, False),
        case.summed(multi_tensor, 0.3),
    )
    assert same_bits(decoded, summed)


@on_every_backend
@pytest.mark.parametrize("form", [Form(bits=8, block=8), SignForm(block=8)], ids=repr)
def test_what_is_decoded_alone_keeps_the_sign_of_zero(form: BlockForm) -> None:
    case = Decoding([20], form, 1, np.float32, 0)
    codes, scales, _ = case.batch().parts[0].arrays(case.payloads[0], form)
    codes[:], scales[:] = 255, 0.0  # -1, or all signs
    (out,) = alike("multi_tensor", lambda k: case.decoded(k, 1.0, False))
    assert np.signbit(out).all()


@on_every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "form",
    [Form(bits=4, block=64), Form(bits=8, block=2048), SIGNS, SignForm(block=2048)],
    ids=repr,
)
def test_sums_of_more_vectors_than_a_launch_takes_in_any_order(
    form: BlockForm, count: int, dtype: Any
) -> None:
    case = Decoding([0, 1, 5000, 64, 9001, *[70] * 65], form, count, dtype, form.block)
    alike("multi_tensor", lambda k: case.summed(k, 0.3), orders=[form.block])


@on_every_backend
def test_the_sums_of_no_payload_are_zeros() -> None:
    case = Decoding([100, 1], Form(bits=8, block=8), 0, np.float32, 0)
    assert not any(out.any() for out in alike("multi_tensor", lambda k: case.summed(k, 1.0)))


@on_every_backend
def test_sums_may_lie_at_odd_addresses_and_nothing_beside_them_is_written() -> None:
    case = Decoding([90, 90], Form(bits=4, block=8), 9, np.float32, 3)

    def summed(kernels: Any) -> list[Array]:
        wholes, outs = zip(*(odd(poisoned(90, np.float32), shift) for shift in (1, 3)), strict=True)
        batch = case.batch(list(outs))
        kernels.multi_tensor_sum(batch, case.payloads, weight=0.5)
        return list(wholes)

    alike("multi_tensor", summed)


def test_a_list_without_vectors_takes_payloads() -> None:
    empty = BlockwiseParts([], form=FORM, payload_bytes=3)
    multi_tensor_sum(empty, [np.zeros(3, np.uint8)])
    multi_tensor_dequantize(empty, np.zeros(3, np.uint8), add=True)


OUT = np.zeros(100, np.float32)


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        (BlockwisePart(np.zeros(100), 8, 0), TypeError, "out must be float32"),
        (BlockwisePart(OUT.astype(np.float16), 8, 0), TypeError, "must have one dtype"),
        (BlockwisePart(OUT, 8, 0, 100), ValueError, "offsets go with the statistic"),
        (BlockwisePart(OUT, 8, 2), ValueError, "begin at multiples of 4 bytes"),
        (BlockwisePart(OUT, 21, 0), ValueError, "do not lie in 120 bytes"),
        (BlockwisePart(OUT, 8, 116), ValueError, "do not lie in 120 bytes"),
        (BlockwisePart(OUT, 8, -4), ValueError, "do not lie in 120 bytes"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(
    part: BlockwisePart, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BlockwiseParts([BlockwisePart(OUT, 8, 0), part], form=FORM, payload_bytes=120)


@pytest.mark.parametrize(
    ("payload", "error", "message"),
    [
        (np.zeros(119, np.uint8), ValueError, r"payload must have shape \(120,\)"),
        (np.zeros(120, np.int8), TypeError, "payload must be uint8"),
        (np.zeros(240, np.uint8)[::2], ValueError, "must be C-contiguous"),
        (np.zeros(124, np.uint8)[2:122], ValueError, "must be aligned to 4 bytes"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(
    payload: Any, error: type[Exception], message: str
) -> None:
    batch = BlockwiseParts([BlockwisePart(OUT, 8, 0)], form=FORM, payload_bytes=120)
    with pytest.raises(error, match=message):
        multi_tensor_sum(batch, [np.zeros(120, np.uint8), payload])
    with pytest.raises(error, match=message):
        multi_tensor_dequantize(batch, payload)


def test_nothing_is_added_to_what_has_sixteen_bits() -> None:
    case = Decoding([100], FORM, 1, np.float16, 0)
    with pytest.raises(TypeError, match="what is added to must be float32"):
        multi_tensor_dequantize(case.batch(), case.payloads[0], add=True)


def test_signs_take_no_random_numbers_and_no_offsets() -> None:
    with pytest.raises(ValueError, match="noise must be None"):
        multi_tensor_quantize(BlockwiseVectors([], form=SignForm(block=8)), noise=Noise(1, 2, 3, 0))
    with pytest.raises(ValueError, match="block must be a positive multiple of 8"):
        SignForm(block=12)
    out, scales = np.zeros(9, np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="offsets go with"):
        BlockwiseVectors(
            [BlockwiseVector(out, np.zeros(2, np.uint8), scales, scales)], form=SignForm(block=8)
        )
