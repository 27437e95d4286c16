"""Lists of vectors are quantised and summed as vectors are one by one, and checked when made."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from compressa.kernels import (
    Form,
    KernelUnavailable,
    Noise,
    SignForm,
    dequantize_blockwise,
    quantize_blockwise,
    sign_dequantize,
    sign_quantize,
    sum_blockwise,
    sum_signs,
)
from compressa.kernels.blockwise_list import (
    MOST_ELEMS,
    BlockwiseList,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    dequantize_blockwise_list,
    quantize_blockwise_list,
    sum_blockwise_list,
)
from compressa.kernels.cuda import _gpu
from compressa.kernels.device_array import DeviceArray
from compressa.kernels.reference import blockwise_list as reference
from kernel_cases import KINDS, as_kind, poisoned, same_bits
from test_cuda_gpu import FakeCuPy, forget

FORM = Form(bits=8, block=64)


def vector(size: int, form: Form = FORM, kind: str = "float32", **others: Any) -> BlockwiseVector:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    codes, blocks = poisoned(form.code_bytes(size), np.uint8), -(-size // form.block)
    return BlockwiseVector(as_kind(x, kind), codes, poisoned(blocks, np.float32), **others)


def copied(vectors: list[BlockwiseVector]) -> list[BlockwiseVector]:
    return [
        BlockwiseVector(*(None if array is None else array.copy() for array in one[:5]), *one[5:])
        for one in vectors
    ]


def same(ours: list[BlockwiseVector], others: list[BlockwiseVector]) -> bool:
    return all(
        a is b is None or same_bits(a, b)
        for one, other in zip(ours, others, strict=True)
        for a, b in zip(one[:5], other[:5], strict=True)
    )


@pytest.mark.parametrize("noise", [None, Noise(1, 2, 3, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_list_equals_calls_one_by_one_and_the_reference(kind: str, noise: Noise | None) -> None:
    residuals = [np.ones(size, np.float32) for size in (0, 1, 64, 1000)]
    vectors = [
        vector(residual.size, FORM, kind, residual=residual, parameter=i, start=i * 77)
        for i, residual in enumerate(residuals)
    ]
    single, specified = copied(vectors), copied(vectors)
    for one in single:
        own = one.noise(noise)
        assert own is None or noise is None or own[:3] == noise[:3]
        quantize_blockwise(
            *one[:3], form=FORM, noise=one.noise(noise), residual=one.residual, scale=2.0
        )
    quantize_blockwise_list(BlockwiseList(vectors, form=FORM), noise=noise, scale=2.0)
    batch = BlockwiseList(specified, form=FORM)
    reference.quantize_blockwise_list(batch, noise=noise, scale=2.0)
    assert same(vectors, single)
    assert same(vectors, specified)


def test_a_list_may_be_empty() -> None:
    quantize_blockwise_list(BlockwiseList([], form=FORM))


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
        BlockwiseList([vector(100), vector(100)._replace(**changes)], form=FORM)


def test_a_wrong_loss_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale must lie between"):
        quantize_blockwise_list(BlockwiseList([vector(8)], form=FORM), scale=0.0)


RANGED = Form(bits=4, block=8, statistic="range")
DTYPES = (np.float32, np.float16, np.uint16)


def parts_of(form: Form, *outs: Any) -> BlockwiseParts:
    """Vectors whose arrays follow each other, with two bytes between them that nobody uses."""
    parts, end = [], 8
    for out in outs:
        units_bytes = 4 * -(-out.size // form.block)
        heads = [end] if form.statistic != "range" else [end, end + units_bytes]
        codes = heads[-1] + units_bytes
        parts.append(BlockwisePart(out, codes, *heads))
        end = -(-(codes + form.code_bytes(out.size) + 2) // 4) * 4
    return BlockwiseParts(parts, form=form, payload_bytes=end)


def payload_of(batch: BlockwiseParts, seed: int) -> Any:
    """A payload of what quantisation would write."""
    payload = poisoned(batch.payload_bytes, np.uint8)
    for i, part in enumerate(batch.parts):
        x = np.random.default_rng((seed, i)).standard_normal(part.out.size).astype(np.float32)
        codes, scales, offsets = part.arrays(payload, batch.form)
        quantize_blockwise(x, codes, scales, form=batch.form, offsets=offsets)
    return payload


@pytest.mark.parametrize("form", [FORM, RANGED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_a_list_equal_calls_one_by_one(form: Form, dtype: Any) -> None:
    ours, due = (parts_of(form, *(poisoned(n, dtype) for n in (0, 1, 64, 501))) for _ in "ab")
    payloads = [payload_of(ours, seed) for seed in range(3)]
    sum_blockwise_list(ours, payloads, weight=0.3)
    for part, own in zip(due.parts, ours.parts, strict=True):
        codes, scales, offsets = zip(*(part.arrays(p, form) for p in payloads), strict=True)
        some = None if offsets[0] is None else offsets
        sum_blockwise(codes, scales, part.out, form=form, offsets=some, weight=0.3)
        assert same_bits(part.out, own.out)
    reference.sum_blockwise_list(due, payloads, weight=0.3)
    assert all(same_bits(a.out, b.out) for a, b in zip(ours.parts, due.parts, strict=True))


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("form", [FORM, RANGED])
def test_a_list_is_decoded_as_calls_do_one_by_one(form: Form, add: bool) -> None:
    ours, due = (parts_of(form, *(np.ones(n, np.float32) for n in (9, 64, 501))) for _ in "ab")
    payload = payload_of(ours, 0)
    dequantize_blockwise_list(ours, payload, weight=0.3, add=add)
    for part, own in zip(due.parts, ours.parts, strict=True):
        codes, scales, offsets = part.arrays(payload, form)
        rest: dict[str, Any] = {"form": form, "offsets": offsets, "weight": 0.3, "add": add}
        dequantize_blockwise(codes, scales, part.out, **rest)
        assert same_bits(part.out, own.out)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_what_is_decoded_is_rounded_once(dtype: Any) -> None:
    ours, due = (parts_of(FORM, poisoned(500, dtype)) for _ in "ab")
    payload = payload_of(ours, 0)
    dequantize_blockwise_list(ours, payload, weight=0.3)
    reference.dequantize_blockwise_list(due, payload, weight=0.3)
    sum_blockwise_list(due, [payload], weight=0.3)
    assert same_bits(ours.parts[0].out, due.parts[0].out)


def test_a_list_without_vectors_takes_payloads() -> None:
    empty = BlockwiseParts([], form=FORM, payload_bytes=3)
    sum_blockwise_list(empty, [np.zeros(3, np.uint8)])
    dequantize_blockwise_list(empty, np.zeros(3, np.uint8), add=True)


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
        sum_blockwise_list(batch, [np.zeros(120, np.uint8), payload])
    with pytest.raises(error, match=message):
        dequantize_blockwise_list(batch, payload)


def test_nothing_is_added_to_what_has_sixteen_bits() -> None:
    batch = parts_of(FORM, np.zeros(100, np.float16))
    with pytest.raises(TypeError, match="what is added to must be float32"):
        dequantize_blockwise_list(batch, payload_of(batch, 0), add=True)


class OnGpu:
    """Memory that a GPU would have."""

    def __init__(self) -> None:
        self.free = 1 << 20

    def array(self, size: int, dtype: Any) -> Any:
        self.free += 1 << 12
        return DeviceArray(self.free, size, np.dtype(dtype), None)

    def vector(self, size: int, form: Form) -> BlockwiseVector:
        codes, blocks = self.array(form.code_bytes(size), np.uint8), -(-size // form.block)
        x, scales = self.array(size, np.float32), self.array(blocks, np.float32)
        return BlockwiseVector(x, codes, scales, None, self.array(size, np.float32), 7, 70)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = FakeCuPy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(_gpu, "_hosts", [])
    forget()
    yield fake
    forget()


Launch = tuple[str, int, tuple[Any, ...]]
"""Name, blocks and arguments."""


@pytest.fixture
def launches(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    noted: list[Launch] = []
    launch = _gpu.Gpu.launch

    def note(gpu: _gpu.Gpu, source: str, name: str, blocks: int, arguments: Any) -> None:
        noted.append((name, blocks, arguments))
        launch(gpu, source, name, blocks, arguments)

    monkeypatch.setattr(_gpu.Gpu, "launch", note)
    return noted


def test_sixty_four_vectors_take_one_launch_whose_parameter_says_where_they_lie(
    launches: list[Launch],
) -> None:
    place, form = OnGpu(), Form(bits=4, block=128)
    vectors = [place.vector(size, form) for size in [100_000, 0, 5] + 62 * [1024]]
    batch = BlockwiseList(vectors, form=form)
    for _ in range(2):
        quantize_blockwise_list(batch, scale=4.0)
    assert len(launches) == 4
    (name, blocks, arguments), (_, _, rest), (_, _, again) = launches[:3]
    # Of 128 elements eight blocks are taken at once: 98 times in 100,000, and once in 1024.
    assert (name, blocks) == ("quantize_list_4_by_warps", 98 + 0 + 1 + 61)
    (table,), (short,) = arguments[0].on_gpu, rest[0].on_gpu
    assert again[0].on_gpu is arguments[0].on_gpu  # worked out once
    assert arguments[0].on_gpu.nbytes + 8 * len(arguments) < 4096
    assert table["vectors"] == 64
    assert table["first_group"].tolist() == [0, 98, 98, *range(99, 161)]
    for i, one in enumerate(vectors[:64]):
        for field in ("x", "codes", "scales", "residual"):
            assert table[field][i] == getattr(one, field).pointer
        assert (table["offsets"][i], table["elems"][i]) == (0, one.x.size)
        assert (table["parameter"][i], table["start"][i]) == (7, 70)
    assert short["vectors"] == 1
    assert short["x"][0] == vectors[64].x.pointer


def test_sixty_four_vectors_are_summed_by_one_launch_for_every_eight_payloads(
    launches: list[Launch],
) -> None:
    place, form = OnGpu(), Form(bits=8, block=256)
    sizes = [100_000, 0, 5] + 61 * [1024]
    batch = parts_of(form, *(place.array(size, np.float32) for size in sizes))
    payloads = [place.array(batch.payload_bytes, np.uint8) for _ in range(9)]
    for _ in range(2):
        sum_blockwise_list(batch, payloads, weight=0.5)
    assert len(launches) == 4
    (name, blocks, arguments), (_, _, rest), (_, _, again) = launches[:3]
    assert (name, blocks) == ("sum_list_8_by_warps", 49 + 0 + 1 + 61)
    (table,) = arguments[0].on_gpu
    assert arguments[0].on_gpu is rest[0].on_gpu is again[0].on_gpu
    assert [p.pointer for p in arguments[1:9]] == [p.pointer for p in payloads[:8]]
    assert [p and p.pointer for p in rest[1:9]] == [payloads[8].pointer] + [None] * 7
    assert arguments[0].on_gpu.nbytes + 8 * len(arguments) < 4096
    for field in ("codes", "scales"):
        assert table[field].tolist() == [getattr(part, field) for part in batch.parts]
    assert table["out"].tolist() == [part.out.pointer for part in batch.parts]


def test_payloads_on_another_device_are_refused(cupy: FakeCuPy) -> None:
    batch = parts_of(FORM, OnGpu().array(100, np.float32))
    with pytest.raises(ValueError, match="one device"):
        sum_blockwise_list(batch, [np.zeros(batch.payload_bytes, np.uint8)])


def test_a_vector_that_is_too_long_for_a_list_is_refused(cupy: FakeCuPy) -> None:
    with pytest.raises(ValueError, match="at most 1073741824 elements"):
        parts_of(FORM, OnGpu().array(MOST_ELEMS + 1, np.float32))
    with pytest.raises(ValueError, match="at most 1073741824 elements"):
        BlockwiseList([OnGpu().vector(MOST_ELEMS + 1, FORM)], form=FORM)


def test_a_list_on_two_devices_is_refused(cupy: FakeCuPy) -> None:
    with pytest.raises(ValueError, match="one device"):
        BlockwiseList([vector(100), OnGpu().vector(100, FORM)], form=FORM)


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setitem(sys.modules, "cupy", None)
    batch = BlockwiseList([OnGpu().vector(100, FORM)], form=FORM)
    with pytest.raises(KernelUnavailable, match=r"pip install compressa\[cuda12\]"):
        quantize_blockwise_list(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_signs_of_a_list_equal_calls_one_by_one(kind: str) -> None:
    form = SignForm(block=64)
    bits = [np.zeros(form.code_bytes(n), np.uint8) for n in (0, 1, 64, 1000)]
    xs = [np.random.default_rng(n).standard_normal(n).astype(np.float32) for n in (0, 1, 64, 1000)]
    vectors = [
        BlockwiseVector(
            as_kind(x, kind), some, np.zeros(-(-x.size // 64), np.float32), residual=x.copy()
        )
        for x, some in zip(xs, bits, strict=True)
    ]
    single, specified = copied(vectors), copied(vectors)
    for one in single:
        sign_quantize(*one[:3], block=64, residual=one.residual, scale=2.0)
    quantize_blockwise_list(BlockwiseList(vectors, form=form), scale=2.0)
    reference.quantize_blockwise_list(BlockwiseList(specified, form=form), scale=2.0)
    assert same(vectors, single)
    assert same(vectors, specified)


def sign_parts(*outs: Any) -> BlockwiseParts:
    parts, end = [], 0
    for out in outs:
        codes = end + 4 * -(-out.size // 64)
        parts.append(BlockwisePart(out, codes, end))
        end = -(-(codes + -(-out.size // 8)) // 4) * 4
    return BlockwiseParts(parts, form=SignForm(block=64), payload_bytes=end)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_signs_equal_calls_one_by_one(dtype: Any) -> None:
    ours, due = (sign_parts(*(poisoned(n, dtype) for n in (0, 1, 64, 501))) for _ in "ab")
    random = np.random.default_rng(0)
    size = ours.payload_bytes // 4
    payloads = [random.standard_normal(size).astype(np.float32).view(np.uint8) for _ in range(3)]
    arrays = [[part.arrays(p, due.form)[:2] for p in payloads] for part in due.parts]
    sum_blockwise_list(ours, payloads, weight=0.3)
    for part, own, each in zip(due.parts, ours.parts, arrays, strict=True):
        codes, scales = zip(*each, strict=True)
        sum_signs(codes, scales, part.out, block=64, weight=0.3)
        assert same_bits(part.out, own.out)
    if dtype == np.float32:
        dequantize_blockwise_list(ours, payloads[0], weight=0.3, add=True)
        for part, own, each in zip(due.parts, ours.parts, arrays, strict=True):
            sign_dequantize(*each[0], part.out, block=64, weight=0.3, add=True)
            assert same_bits(part.out, own.out)


def test_signs_take_no_random_numbers_and_no_offsets() -> None:
    with pytest.raises(ValueError, match="noise must be None"):
        quantize_blockwise_list(BlockwiseList([], form=SignForm(block=8)), noise=Noise(1, 2, 3, 0))
    with pytest.raises(ValueError, match="block must be a positive multiple of 8"):
        SignForm(block=12)
    out, units = np.zeros(9, np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="offsets go with"):
        BlockwiseList(
            [BlockwiseVector(out, np.zeros(2, np.uint8), units, units)], form=SignForm(block=8)
        )
