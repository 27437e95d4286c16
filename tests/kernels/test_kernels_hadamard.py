from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, odd, on_every_backend
from compressa.kernels import Noise
from compressa.kernels.hadamard import (
    Codebook,
    Sums,
    _hadamard,
    rotate_back,
    rotate_quantize,
    sum_codes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, SIZES, gradients, poisoned

TABLE = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
TABLES = (TABLE, tuple(range(16)), (*range(15), 255), (0, *range(241, 256)))
NOISE = Noise(seed=3, stream=5, step=7, parameter=1, start=0)
LONG = (8192, 16384, 65536)
books = st.builds(
    Codebook,
    table=st.sampled_from(TABLES),
    clip=st.sampled_from((0.5, 2.5, 8.0)),
    chunk=st.sampled_from((32, 64, 256, 512, 1024, 2048, 4096)),
)
norm_values = st.sampled_from((0.0, 1e-38, 1e-45, 1.0, 1e38, -1.0, np.inf, np.nan))


def norms_of(x: F32, book: Codebook) -> F32:
    parts = (x[low : low + book.chunk] for low in range(0, x.size, book.chunk))
    return np.array([np.sqrt((p.astype(np.float64) ** 2).sum()) for p in parts], np.float32)


def signs_for(n: int, book: Codebook, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, 2**32, book.rotated_elems(n) // 32, dtype=np.uint32)


def encode(x: F32, norms: F32, signs: np.ndarray, book: Codebook, noise: Noise) -> np.ndarray:
    codes = poisoned(book.rotated_elems(x.size) // 2, np.uint8)
    rotate_quantize(x, norms, signs, codes, book=book, noise=noise)
    return codes


def look_up(codes: np.ndarray, n: int, book: Codebook, dtype: type = np.uint8) -> Sums:
    sums = poisoned(book.rotated_elems(n), dtype)
    sum_codes(codes, n, sums, book=book)
    return sums


def decode(sums: Sums, norms: F32, signs: np.ndarray, n: int, book: Codebook, count: int) -> F32:
    out = poisoned(n, np.float32)
    rotate_back(sums, norms, signs, out, book=book, count=count)
    return out


def check_codes(x: F32, norms: F32, book: Codebook, start: int, **how: Any) -> None:
    signs, noise = signs_for(x.size, book), NOISE._replace(start=start)

    def run(kernels: Any) -> list[Array]:
        codes = poisoned(book.rotated_elems(x.size) // 2, np.uint8)
        kernels.rotate_quantize(x, norms, signs, codes, book=book, noise=noise)
        return [codes]

    alike("hadamard", run, reads=[x, norms], **how)


@on_every_backend
@given(
    gradients(sizes=(*SIZES, 2100)),
    books,
    st.sampled_from((0, 1, 255, 256, 1000, 1023)),
    st.none() | norm_values,
)
def test_codes_equal_reference(x: F32, book: Codebook, start: int, norm: float | None) -> None:
    with np.errstate(all="ignore"):
        norms = norms_of(x, book)
    if norm is not None:
        norms[::2] = norm
    check_codes(x, norms, book, start)


@on_every_backend
@settings(max_examples=10)
@given(
    gradients(sizes=(4095, 4096, 4097, 9000), specials=(), magnitudes=(1.0, 1e-6)),
    books,
    st.sampled_from((0, 77, 2**40 + 5)),
)
def test_codes_of_more_than_a_tile_equal_reference(x: F32, book: Codebook, start: int) -> None:
    check_codes(x, norms_of(x, book), book, start)


@on_every_backend
@pytest.mark.parametrize("chunk", LONG)
@pytest.mark.parametrize("over", [0, 1, 3000, 5000])
def test_codes_of_long_chunks_equal_reference(chunk: int, over: int) -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=chunk)
    n = over if chunk == LONG[-1] and over else chunk + over
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    check_codes(x, norms_of(x, book), book, 77)


def sums_for(n: int, book: Codebook, dtype: type, seed: int) -> Any:
    top = 3 * book.levels + 1
    return np.random.default_rng(seed).integers(0, top, book.rotated_elems(n)).astype(dtype)


@on_every_backend
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
    before = random.integers(0, 2**16, 2 * codes.size).astype(dtype)

    def run(kernels: Any) -> list[Array]:
        sums = before.copy()
        kernels.sum_codes(codes, n, sums, book=book, add=add)
        return [sums]

    alike("hadamard", run)


def check_back(
    sums: Array, norms: F32, n: int, book: Codebook, *, orders: Any = (), **options: Any
) -> None:
    signs, before = signs_for(n, book), np.random.default_rng(n).standard_normal(n)

    def run(kernels: Any) -> list[F32]:
        out = before.astype(np.float32)
        kernels.rotate_back(sums, norms, signs, out, book=book, count=3, **options)
        return [out]

    alike("hadamard", run, reads=[sums, norms], orders=orders)


@on_every_backend
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
    check_back(sums_for(n, book, dtype, n), norms, n, book, weight=weight, add=add)


@on_every_backend
@pytest.mark.parametrize("chunk", LONG)
@pytest.mark.parametrize("over", [0, 1, 3000, 5000])
def test_decoding_of_long_chunks_equals_reference(chunk: int, over: int) -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=chunk)
    n = over if chunk == LONG[-1] and over else chunk + over
    norms = np.linspace(0.1, 2, -(-n // chunk)).astype(np.float32)
    sums = sums_for(n, book, np.uint16, n)
    check_back(sums, norms, n, book, weight=-0.3, add=bool(over))
    norms[0] = np.nan
    for add in (False, True):
        check_back(sums, norms, n, book, add=add)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("chunk", [32, 64, 512, 4096])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    chunk: int, shift: int, dtype: type
) -> None:
    book, n, random = (
        Codebook(table=TABLE, clip=2.5, chunk=chunk),
        1301,
        np.random.default_rng(chunk),
    )
    size, before = book.rotated_elems(n), random.random(n).astype(np.float32)
    x = odd(random.random(n).astype(np.float32), shift)[1]
    norms = odd(30 * random.random(-(-n // chunk)).astype(np.float32), shift)[1]
    signs = odd(random.integers(0, 2**32, size // 32, dtype=np.uint32), shift)[1]

    def run(kernels: Any) -> list[Array]:
        all_codes, codes = odd(poisoned(size // 2, np.uint8), shift)
        (all_sums, sums), (whole, out) = odd(poisoned(size, dtype), shift), odd(before, shift)
        kernels.rotate_quantize(x, norms, signs, codes, book=book, noise=NOISE)
        kernels.sum_codes(codes, n, sums, book=book)
        kernels.sum_codes(codes, n, sums, book=book, add=True)
        kernels.rotate_back(sums, norms, signs, out, book=book, count=2, add=shift == 1)
        return [all_codes, all_sums, whole]

    alike("hadamard", run)


@on_every_backend
@pytest.mark.parametrize("chunk", [256, 4096, 8192])
def test_the_order_of_threads_does_not_matter(chunk: int) -> None:
    x = np.random.default_rng(0).standard_normal(20 * 4096 + 9).astype(np.float32)
    book = Codebook(table=TABLE, clip=2.5, chunk=chunk)
    norms = norms_of(x, book)
    check_codes(x, norms, book, 3, orders=range(4))
    norms[::3] = np.nan
    check_back(sums_for(x.size, book, np.uint8, 0), norms, x.size, book, orders=range(4))


def hadamard(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize("size", [32, 64, 128, 1024])
def test_the_rotation_is_sylvesters_with_signs(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    due = hadamard(size) @ x.astype(np.float64)
    np.testing.assert_allclose(_hadamard(x), due, atol=1e-5 * size**0.5)


@pytest.mark.parametrize("n", [1, 40, 512, 1000])
def test_decoding_is_unbiased_where_nothing_is_clipped(n: int) -> None:
    book = Codebook(table=TABLE, clip=8.0, chunk=256)
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    norms, signs, count = norms_of(x, book), signs_for(n, book), 300
    total, squares = np.zeros(n), 0.0
    for step in range(count):
        codes = encode(x, norms, signs, book, NOISE._replace(step=step))
        out = decode(look_up(codes, n, book), norms, signs, n, book, 1).astype(np.float64)
        total += out
        squares += ((out - x) ** 2).sum()
    off, spread = ((total / count - x) ** 2).sum(), squares / count
    # The square of the mean error is a sum of many nearly independent ones, or of one.
    assert off <= spread / count * (1 + 6 * (2 / n) ** 0.5 + (20 if n < 40 else 0))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_sum_of_integers_decodes_to_the_mean_of_the_decodes(count: int) -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=512)
    n, random = 1100, np.random.default_rng(count)
    signs = signs_for(n, book)
    ranks = [random.standard_normal(n).astype(np.float32) for _ in range(count)]
    norms = np.max([norms_of(x, book) for x in ranks], axis=0)
    codes = [encode(x, norms, signs, book, NOISE._replace(stream=r)) for r, x in enumerate(ranks)]
    sums = look_up(codes[0], n, book)
    for other in codes[1:]:
        sum_codes(other, n, sums, book=book, add=True)
    exact = sum(look_up(c, n, book, np.uint16).astype(np.int64) for c in codes)
    assert (sums == exact).all()  # in integers
    each = [decode(look_up(c, n, book), norms, signs, n, book, 1) for c in codes]
    mean = decode(sums, norms, signs, n, book, count)
    np.testing.assert_allclose(mean, np.mean(each, axis=0), atol=3e-6)


@pytest.mark.parametrize("kind", ["gaussian", "one-hot", "constant"])
def test_the_error_is_small_whatever_the_vector(kind: str) -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=1024)
    n = 4096
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    if kind != "gaussian":
        x[:] = 1.0 if kind == "constant" else 0.0
        x[::1024] = 5.0
    norms, signs = norms_of(x, book), signs_for(n, book)
    out = decode(look_up(encode(x, norms, signs, book, NOISE), n, book), norms, signs, n, book, 1)
    assert ((out - x) ** 2).sum() <= 0.05 * (x.astype(np.float64) ** 2).sum()


def test_zero_decodes_to_zero_and_nan_to_nan_in_its_chunk() -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=64)
    x, norms, signs = np.zeros(200, np.float32), np.zeros(4, np.float32), signs_for(200, book)
    sums = look_up(encode(x, norms, signs, book, NOISE), 200, book)
    assert not decode(sums, norms, signs, 200, book, 1).any()
    norms[1] = np.nan
    assert np.isnan(decode(sums, norms, signs, 200, book, 1)).nonzero()[0].tolist() == [
        *range(64, 128)
    ]
    kept = np.ones(200, np.float32)
    rotate_back(sums, norms, signs, kept, book=book, count=1, add=True)
    assert (kept == 1).all()


def test_bits_do_not_depend_on_slices() -> None:
    book = Codebook(table=TABLE, clip=2.5, chunk=1024)
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    norms, signs = norms_of(x, book), signs_for(x.size, book)

    def there_and_back() -> list[Array]:
        codes = encode(x, norms, signs, book, NOISE)
        sums = look_up(codes, x.size, book)
        return [codes, sums, decode(sums, norms, signs, x.size, book, 1)]

    alike_in_threads(there_and_back)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"table": (*range(1, 17),)}, "16 integers"),
        ({"table": (0, *range(15))}, "16 integers"),
        ({"table": (*range(15),)}, "16 integers"),
        ({"table": (*range(15), 256)}, "16 integers"),
        ({"chunk": 16}, "power of two"),
        ({"chunk": 96}, "power of two"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_impossible_codebooks_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Codebook(**{"table": TABLE, "clip": 2.5, "chunk": 64} | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "due"), [(0, 0), (1, 32), (32, 32), (33, 64), (64, 64), (65, 96), (1000, 1024)]
)
def test_the_last_chunk_is_padded_to_a_power_of_two(n: int, due: int) -> None:
    assert Codebook(table=TABLE, clip=2.5, chunk=64).rotated_elems(n) == due
