"""How lists of vectors are launched on a GPU: as a table of addresses for every 64 of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from compressa.kernels import Form, KernelUnavailable
from compressa.kernels.cuda import _gpu
from compressa.kernels.device_array import DeviceArray
from compressa.kernels.multi_tensor import (
    MOST_ELEMS,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
    multi_tensor_quantize,
    multi_tensor_sum,
)
from fake_cupy import FakeCuPy, forget
from kernel_cases import poisoned

FORM = Form(bits=8, block=64)


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
    gpu, form = OnGpu(), Form(bits=4, block=128)
    vectors = [gpu.vector(size, form) for size in [100_000, 0, 5] + 62 * [1024]]
    batch = BlockwiseVectors(vectors, form=form)
    for _ in range(2):
        multi_tensor_quantize(batch, loss_scale=4.0)
    assert len(launches) == 4
    (name, blocks, arguments), (_, _, rest), (_, _, again) = launches[:3]
    # Of 128 elements sixteen blocks are taken at once: 49 times in 100,000, and once in 1024.
    assert (name, blocks) == ("quantize_many_4_of_128", 49 + 0 + 1 + 61)
    (table,), (short,) = arguments[0].on_gpu, rest[0].on_gpu
    assert again[0].on_gpu is arguments[0].on_gpu  # worked out once
    assert arguments[0].on_gpu.nbytes + 8 * len(arguments) < 4096
    assert table["vectors"] == 64
    assert table["first_group"].tolist() == [0, 49, 49, *range(50, 112)]
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
    gpu, form = OnGpu(), Form(bits=8, block=256)
    sizes = [100_000, 0, 5] + 61 * [1024]
    batch = parts_of(form, *(gpu.array(size, np.float32) for size in sizes))
    payloads = [gpu.array(batch.payload_bytes, np.uint8) for _ in range(9)]
    for _ in range(2):
        multi_tensor_sum(batch, payloads, weight=0.5)
    assert len(launches) == 4
    (name, blocks, arguments), (_, _, rest), (_, _, again) = launches[:3]
    assert (name, blocks) == ("sum_many_8_by_warps", 49 + 0 + 1 + 61)
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
        multi_tensor_sum(batch, [np.zeros(batch.payload_bytes, np.uint8)])


def test_a_vector_that_is_too_long_for_a_list_is_refused(cupy: FakeCuPy) -> None:
    with pytest.raises(ValueError, match="at most 1073741824 elements"):
        parts_of(FORM, OnGpu().array(MOST_ELEMS + 1, np.float32))
    with pytest.raises(ValueError, match="at most 1073741824 elements"):
        BlockwiseVectors([OnGpu().vector(MOST_ELEMS + 1, FORM)], form=FORM)


def test_a_list_on_two_devices_is_refused(cupy: FakeCuPy) -> None:
    codes, scales = poisoned(100, np.uint8), poisoned(2, np.float32)
    on_cpu = BlockwiseVector(np.ones(100, np.float32), codes, scales)
    with pytest.raises(ValueError, match="one device"):
        BlockwiseVectors([on_cpu, OnGpu().vector(100, FORM)], form=FORM)


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setitem(sys.modules, "cupy", None)
    batch = BlockwiseVectors([OnGpu().vector(100, FORM)], form=FORM)
    with pytest.raises(KernelUnavailable, match=r"pip install compressa\[cuda12\]"):
        multi_tensor_quantize(batch)
