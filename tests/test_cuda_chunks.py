"""The CUDA kernels that move chunks, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from compressa.kernels.chunks import FLOAT32_MAX, NO_CHUNK, Missing, add_chunks, take_largest_chunks
from compressa.kernels.cuda import answers_later, chunks
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import chunks as reference
from emulated_cuda import Emulated, on_device, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, SIZES, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

CHUNKS = (1, 7, 16, 64, 100, 256, 1000, 1024, 1025)
LONG = (8191, 8192, 8193, 20_011)


def absorbed_alike(
    x: F32, chunk: int, seed: int, scale: float, clear: bool, largest: float = FLOAT32_MAX
) -> bool:
    left = residual_for(x, seed)
    assert left is not None
    results = []
    for module in (chunks, reference):
        given_x, residual = x.copy(), left.copy()
        norms = poisoned(-(-x.size // chunk), np.float64)
        with np.errstate(all="ignore"):
            options = {"chunk": chunk, "scale": scale, "clear": clear, "largest": largest}
            module.absorb_chunks(given_x, residual, norms, **options)
        results.append((given_x, residual, norms))
    return all(same_bits(a, b) for a, b in zip(*results, strict=True))


@given(
    gradients(sizes=(*SIZES, 2500)),
    st.sampled_from(CHUNKS),
    st.integers(0, 99),
    st.sampled_from(SCALES),
    st.booleans(),
    st.sampled_from((FLOAT32_MAX, 1e20, 0.5)),
)
def test_absorbing_equals_reference(
    x: F32, chunk: int, seed: int, scale: float, clear: bool, largest: float
) -> None:
    assert absorbed_alike(x, chunk, seed, scale, clear, largest)


@settings(max_examples=12)
@given(gradients(sizes=LONG), st.sampled_from((64, 256, 1024, 3001, 8192, 9000)), st.booleans())
def test_absorbing_of_more_than_one_turn_equals_reference(x: F32, chunk: int, clear: bool) -> None:
    assert absorbed_alike(x, chunk, 3, 3.0, clear)


def test_absorbing_of_more_tiles_than_warps_are_started_equals_reference() -> None:
    x = np.random.default_rng(0).standard_normal(140_001).astype(np.float32)
    assert absorbed_alike(x, 300, 1, 3.0, True)


def taken_alike(norms: F32, n: int, chunk: int, k: int, hold: bool) -> None:
    results = []
    for module in (chunks, reference):
        residual = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        chosen, values = poisoned(k, np.uint32), poisoned(k * chunk, np.float32)
        module.take_largest_chunks(norms, residual, chosen, values, chunk=chunk, hold=hold)
        results.append((residual, chosen, values))
    for ours, due in zip(*results, strict=True):
        assert same_bits(ours, due)


@given(
    st.sampled_from((0, 1, 63, 64, 65, 1000, 4097)),
    st.sampled_from((1, 7, 64, 100, 1024, 2049)),
    st.sampled_from((None, None, np.nan, -np.nan, np.inf)),
    st.booleans(),
    st.data(),
)
def test_taking_equals_reference(
    n: int, chunk: int, bad: float | None, hold: bool, data: st.DataObject
) -> None:
    number, seed = -(-n // chunk), data.draw(st.integers(0, 99))
    norms = np.random.default_rng(seed).integers(0, 9, number).astype(np.float32)
    if number and bad is not None:
        norms[data.draw(st.integers(0, number - 1))] = bad
    taken_alike(norms, n, chunk, data.draw(st.integers(0, number)), hold)


def awkward_norms(kind: str, size: int) -> F32:
    x = np.random.default_rng(5).standard_normal(size)
    bits = 0x3F800000 + np.arange(size, dtype=np.uint32) * 7919 % 1024
    made = {
        "squares": x**2,
        "equal": np.full(size, 2.5),
        "few values": np.abs(np.round(x)),
        "zeros of both signs": np.where(x > 0, 0.0, -0.0),
        "denormal": np.abs(x) * 1e-42,
        "the largest": np.where(x > 0, np.finfo(np.float32).max, 1.0),
        "all bits differ": np.abs(x) * 10.0 ** (x * 9),
    }
    if kind == "last bits":
        return bits.view(np.float32)
    return made[kind].astype(np.float32)


@pytest.mark.parametrize("size", [255, 256, 1031, 10_007])
@pytest.mark.parametrize(
    "kind",
    [
        "squares",
        "equal",
        "few values",
        "zeros of both signs",
        "denormal",
        "the largest",
        "all bits differ",
        "last bits",
    ],
)
def test_the_same_chunks_are_chosen_whatever_the_norms(kind: str, size: int) -> None:
    norms = awkward_norms(kind, size)
    for k in (1, size // 3, size - 1, size):
        taken_alike(norms, size, 1, k, False)


@given(
    st.sampled_from((1, 63, 64, 65, 1000, 4097)),
    st.sampled_from((1, 7, 64, 100, 1024, 2049)),
    st.sampled_from((1.0, -0.3, 1e38)),
    st.integers(0, 999),
    st.sampled_from((None, 0, 1, 2**31)),
    st.booleans(),
)
def test_adding_equals_reference(
    n: int, chunk: int, weight: float, seed: int, beyond: int | None, or_nan: bool
) -> None:
    random, number = np.random.default_rng(seed), -(-n // chunk)
    chosen = np.sort(random.permutation(number)[: random.integers(0, number + 1)])
    chosen = chosen.astype(np.uint32)
    if beyond is not None and chosen.size:
        chosen[random.integers(0, chosen.size)] = number + beyond
    words = random.integers(0, 2**32, chosen.size * chunk, dtype=np.uint32)
    values, ours = words.view(np.float32), random.standard_normal(n).astype(np.float32)
    due, options = ours.copy(), {"chunk": chunk, "weight": weight, "or_nan": or_nan}
    with np.errstate(all="ignore"):
        reference.add_existing_chunks(values, chosen, due, **options)
    chunks.add_existing_chunks(values, chosen, ours, **options)
    assert same_bits(ours, due)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("chunk", [60, 256, 1100])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    chunk: int, shift: int
) -> None:
    n, k, inner = 2501, 2, slice(shift, -shift)
    number = -(-n // chunk)

    def arrays() -> list[Any]:
        random, sizes = np.random.default_rng(chunk), (n, n, number, k * chunk)
        made = [random.standard_normal(s + 2 * shift).astype(np.float32) for s in sizes]
        made[2] = np.abs(made[2])
        return [*made, poisoned(number + 2 * shift, np.float64), poisoned(k + 2 * shift, np.uint32)]

    results = arrays(), arrays()
    for module, whole in zip((chunks, reference), results, strict=True):
        x, residual, largest, values, norms, chosen = (array[inner] for array in whole)
        module.absorb_chunks(x, residual, norms, chunk=chunk, scale=3.0, clear=True)
        module.take_largest_chunks(largest, residual, chosen, values, chunk=chunk)
        module.add_existing_chunks(values, chosen, x, chunk=chunk, weight=0.3)
    for ours, due in zip(*results, strict=True):
        assert same_bits(ours, due)


NUMBERS = ([5, 10], [5, 11], [5, 2**31], [5, NO_CHUNK], [NO_CHUNK, NO_CHUNK])


@pytest.mark.parametrize("missing", ["skip", "nan", "refuse"])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_nothing_beside_an_array_is_written_whatever_the_numbers(
    numbers: list[int], missing: Missing
) -> None:
    whole = np.zeros(3 * 2500, np.float32)  # of whose middle part number 10 would be
    out, due = whole[2501:4999], whole.copy()
    chosen, values = np.array(numbers, np.uint32), np.ones(2 * 256, np.float32)
    answer = np.zeros(1, np.uint64)
    if missing == "nan":
        due[2501:4999] = np.nan
    elif 5 in numbers:
        due[2501 + 5 * 256 :][:256] = 1
    arrays = on_device(values), on_device(chosen), on_device(out)
    with answers_later(lambda: on_device(answer)):
        add_chunks(*arrays, chunk=256, missing=missing)
    assert whole.tobytes() == due.tobytes()
    assert answer[0] == (missing == "refuse")


def test_numbers_that_no_chunk_has_are_refused_before_anything_is_written() -> None:
    out, values = np.zeros(2500, np.float32), on_device(np.ones(512, np.float32))
    with pytest.raises(ValueError, match="below 10"):
        add_chunks(values, on_device(np.array([5, 10], np.uint32)), on_device(out), chunk=256)
    assert not out.any()


@pytest.mark.parametrize("largest", [9.0, np.nan])
def test_what_take_left_is_put_back_and_no_one_waits(largest: float) -> None:
    norms, residual = np.array([1, largest, 4], np.float32), np.arange(1, 10, dtype=np.float32)
    before, out = residual.copy(), np.zeros(9, np.float32)
    chosen, values = poisoned(1, np.uint32), poisoned(4, np.float32)
    with mock.patch.object(Emulated, "read") as read:
        arrays = on_device(values), on_device(chosen)
        take_largest_chunks(on_device(norms), on_device(residual), *arrays[::-1], chunk=4)
        taken = residual.copy()
        add_chunks(*arrays, on_device(out), chunk=4, missing="nan")
        add_chunks(*arrays, on_device(residual), chunk=4, missing="skip")
    read.assert_not_called()
    assert same_bits(residual, before)
    if np.isnan(largest):
        assert chosen[0] == NO_CHUNK
        assert same_bits(taken, before)
        assert np.isnan(out).all()
    else:
        assert same_bits(out, before - taken)
        assert out.any()


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(20_011).astype(np.float32)
    with running_on(Emulated(1000 * seed)):
        for chunk in (100, 2000, 9000):
            assert absorbed_alike(x, chunk, seed, 1.0, True)
        taken_alike(awkward_norms("few values", 3001), 3001 * 3, 3, 700, False)
