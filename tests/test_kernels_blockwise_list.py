"""A list of vectors is quantised as its vectors are one by one, and is checked when it is made."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from compressa.kernels import Form, KernelUnavailable, Noise, quantize_blockwise
from compressa.kernels.blockwise_list import (
    MOST_ELEMS,
    BlockwiseList,
    BlockwiseVector,
    quantize_blockwise_list,
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


def test_sixty_four_vectors_take_one_launch_whose_parameter_says_where_they_lie(
    cupy: FakeCuPy,
) -> None:
    place, form = OnGpu(), Form(bits=4, block=128)
    vectors = [place.vector(size, form) for size in [100_000, 0, 5] + 62 * [1024]]
    batch = BlockwiseList(vectors, form=form)
    for _ in range(2):
        quantize_blockwise_list(batch, scale=4.0)
    assert len(cupy.launched) == 4
    (name, grid, block, arguments, _), (*_, rest, _), (*_, again, _) = cupy.launched[:3]
    # Of 128 elements eight blocks are taken at once: 98 times in 100,000, and once in 1024.
    assert (name, grid, block) == ("quantize_list_4_by_warps", (98 + 0 + 1 + 61,), (256,))
    (table,) = arguments[0]
    assert arguments[0].size == rest[0].size == 1  # which is how CuPy passes a struct by value
    assert again[0] is arguments[0]  # and worked out once
    assert sum(np.asarray(argument).nbytes for argument in arguments) < 4096
    assert table["vectors"] == 64
    assert table["first_group"].tolist() == [0, 98, 98, *range(99, 161)]
    for i, one in enumerate(vectors[:64]):
        for field in ("x", "codes", "scales", "residual"):
            assert table[field][i] == getattr(one, field).pointer
        assert (table["offsets"][i], table["elems"][i]) == (0, one.x.size)
        assert (table["parameter"][i], table["start"][i]) == (7, 70)
    assert rest[0]["vectors"] == 1
    assert rest[0]["x"][0, 0] == vectors[64].x.pointer


def test_a_vector_that_is_too_long_for_a_list_is_refused(cupy: FakeCuPy) -> None:
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
