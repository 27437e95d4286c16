"""The CUDA kernels of Hadamard rotations, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import Noise
from compressa.kernels.cuda import hadamard
from compressa.kernels.cuda._device import running_on
from compressa.kernels.hadamard import Codebook
from compressa.kernels.reference import hadamard as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, SIZES, gradients, poisoned, same_bits

pytestmark = on_emulated_cuda

TABLE = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
TABLES = (TABLE, tuple(range(16)), (*range(15), 255), (0, *range(241, 256)))
NOISE = Noise(seed=3, stream=5, step=7, parameter=1, start=0)
SHORT, LONG = (32, 64, 256, 512, 1024, 2048, 4096), (8192, 16384, 65536)
STARTS = (0, 1, 255, 256, 1000, 1023)
books = st.builds(
    Codebook,
    table=st.sampled_from(TABLES),
    clip=st.sampled_from((0.5, 2.5, 8.0)),
    chunk=st.sampled_from(SHORT),
)
norm_values = st.sampled_from((0.0, 1e-38, 1e-45, 1.0, 1e38, -1.0, np.inf, np.nan))


def norms_of(x: F32, book: Codebook) -> F32:
    parts = (x[low : low + book.chunk] for low in range(0, x.size, book.chunk))
    return np.array([np.sqrt((p.astype(np.float64) ** 2).sum()) for p in parts], np.float32)


def signs_for(n: int, book: Codebook, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return random.integers(0, 2**32, book.rotated_elems(n) // 32, dtype=np.uint32)


def same_codes(x: F32, norms: F32, book: Codebook, start: int) -> bool:
    signs, results = signs_for(x.size, book), []
    for module in (hadamard, reference):
        codes = poisoned(book.rotated_elems(x.size) // 2, np.uint8)
        noise = NOISE._replace(start=start)
        with np.errstate(all="ignore"):
            module.rotate_quantize(x, norms, signs, codes, book=book, noise=noise)
        results.append(codes)
    return same_bits(*results)


@given(gradients(sizes=(*SIZES, 2100)), books, st.sampled_from(STARTS), st.none() | norm_values)
def test_codes_equal_reference(x: F32, book: Codebook, start: int, norm: float | None) -> None:
    with np.errstate(all="ignore"):
        norms = norms_of(x, book)
    if norm is not None:
        norms[::2] = norm
    assert same_codes(x, norms, book, start)


@settings(max_examples=10)
@given(
    gradients(sizes=(4095, 4096, 4097, 9000), specials=(), magnitudes=(1.0, 1e-6)),
    books,
    st.sampled_from((0, 77, 2**40 + 5)),
)
def test_codes_of_more_than_a_tile_equal_reference(x: F32, book: Codebook, start: int) -> None:
    assert same_codes(x, norms_of(x, book), book, start)


@pytest.mark.parametrize("chunk", LONG)
@pytest.mark.parametrize("over", [0, 1, 3000, 5000])
def test_codes_of_long_chunks_equal_reference(chunk: int, over: int) -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=chunk)
    n = over if chunk == LONG[-1] and over else chunk + over
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    assert same_codes(x, norms_of(x, book), book, 77)


def sums_for(n: int, book: Codebook, dtype: type, seed: int) -> Any:
    top = 3 * book.levels + 1
    return np.random.default_rng(seed).integers(0, top, book.rotated_elems(n)).astype(dtype)


@given(
    st.sampled_from((0, 1, 31, 32, 33, 100, 700, 4097)),
    books,
    st.sampled_from((np.uint8, np.uint16)),
    st.booleans(),
    st.integers(0, 99),
)
def test_sums_equal_reference(n: int, book: Codebook, dtype: type, add: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, book.rotated_elems(n) // 2, dtype=np.uint8)
    ours = random.integers(0, 2**16, 2 * codes.size).astype(dtype)
    due = ours.copy()
    hadamard.sum_codes(codes, n, ours, book=book, add=add)
    reference.sum_codes(codes, n, due, book=book, add=add)
    assert same_bits(ours, due)


def same_back(sums: Any, norms: F32, n: int, book: Codebook, options: dict[str, Any]) -> bool:
    signs, results = signs_for(n, book), []
    for module in (hadamard, reference):
        out = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        with np.errstate(all="ignore"):
            module.rotate_back(sums, norms, signs, out, book=book, **options)
        results.append(out)
    return same_bits(*results)


@given(
    st.sampled_from((0, 1, 31, 32, 33, 100, 700, 4097)),
    books,
    st.sampled_from((np.uint8, np.uint16)),
    norm_values,
    st.sampled_from((1.0, -0.3)),
    st.booleans(),
)
def test_decoding_equals_reference(
    n: int, book: Codebook, dtype: type, norm: float, weight: float, add: bool
) -> None:
    norms = np.random.default_rng(n).random(-(-n // book.chunk)).astype(np.float32)
    norms[::2] = norm
    options = {"count": 3, "weight": weight, "add": add}
    assert same_back(sums_for(n, book, dtype, n), norms, n, book, options)


@pytest.mark.parametrize("chunk", LONG)
@pytest.mark.parametrize("over", [0, 1, 3000, 5000])
def test_decoding_of_long_chunks_equals_reference(chunk: int, over: int) -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=chunk)
    n = over if chunk == LONG[-1] and over else chunk + over
    norms = np.linspace(0.1, 2, -(-n // chunk)).astype(np.float32)
    sums = sums_for(n, book, np.uint16, n)
    assert same_back(sums, norms, n, book, {"count": 3, "weight": -0.3, "add": bool(over)})
    norms[0] = np.nan
    for add in (False, True):
        assert same_back(sums, norms, n, book, {"count": 3, "add": add})


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("chunk", [32, 64, 512, 4096])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    chunk: int, shift: int, dtype: type
) -> None:
    book, n, inner = Codebook(table=TABLE, clip=2.5, chunk=chunk), 1301, slice(shift, -shift)
    size, chunks = book.rotated_elems(n), -(-n // chunk)

    def arrays() -> list[Any]:
        random = np.random.default_rng(chunk)
        given_x = [random.random(s + 2 * shift).astype(np.float32) for s in (n, chunks, n)]
        signs = random.integers(0, 2**32, size // 32 + 2 * shift, dtype=np.uint32)
        given_x[1] *= 30
        outputs = (size // 2, np.uint8), (size, dtype)
        return [*given_x, signs, *(poisoned(s + 2 * shift, d) for s, d in outputs)]

    results = arrays(), arrays()
    for module, whole in zip((hadamard, reference), results, strict=True):
        x, norms, out, signs, codes, sums = (array[inner] for array in whole)
        module.rotate_quantize(x, norms, signs, codes, book=book, noise=NOISE)
        module.sum_codes(codes, n, sums, book=book)
        module.sum_codes(codes, n, sums, book=book, add=True)
        module.rotate_back(sums, norms, signs, out, book=book, count=2, add=shift == 1)
    for ours, due in zip(*results, strict=True):
        assert same_bits(ours, due)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(20 * 4096 + 9).astype(np.float32)
    with running_on(Emulated(1000 * seed)):
        for chunk in (256, 4096, 8192):
            book = Codebook(table=TABLE, clip=2.5, chunk=chunk)
            norms = norms_of(x, book)
            assert same_codes(x, norms, book, seed)
            norms[:: seed + 2] = np.nan
            sums = sums_for(x.size, book, np.uint8, seed)
            assert same_back(sums, norms, x.size, book, {"count": 3})
