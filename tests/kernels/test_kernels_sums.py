"""Sums of several payloads have the bits of one payload added after the other, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, odd, on_every_backend
from compressa.kernels import Form, block_count, sign_bytes
from compressa.kernels.blockwise import STATISTICS
from compressa.kernels.fp8 import FORMATS
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, poisoned, same_bits
from sum_cases import COUNTS, any_bytes, any_scales, counts, dtypes, one_by_one, weights

from compressa import kernels as public

SIZES = (0, 1, 9, 64, 191, 257, 1024, 1033, 2500, 3000, 20_003)
LONG = (1 << 20) + 13
BITS = {8: (8, 10, 64, 256, 2048), 4: (8, 10, 64, 128, 256, 1026), 2: (8, 12, 64, 256, 1028)}
FORMS = [
    Form(bits=b, block=n, statistic=s) for b, ns in BITS.items() for n in ns for s in STATISTICS
]
E4M3, E5M2 = FORMATS.values()

Options = dict[str, Any]
Make = Callable[[np.random.Generator, int, Options, int], dict[str, Array]]


class Summing(NamedTuple):
    """How an algorithm's payloads are decoded and summed.

    Attributes:
        algorithm: The module.
        decode: Name of the function that decodes one.
        sum: Name of the one that sums several.
        options: Of both, for any case.
        many: Of both, where more blocks are summed than teams are started.
        arrays: Makes the arrays of a payload at an odd address, by their names; offsets are named
            in calls.
        own: Options of `arrays` alone.
    """

    algorithm: str
    decode: str
    sum: str
    options: Sequence[Options]
    many: Sequence[Options]
    arrays: Make
    own: tuple[str, ...] = ()

    def payloads(self, n: int, options: Options, count: int, seed: int) -> dict[str, list[Array]]:
        """Arrays of any content, by name."""
        random = np.random.default_rng(seed)
        made = [self.arrays(random, n, options, seed % 4) for _ in range(max(count, 1))]
        return {name: [one[name] for one in made[:count]] for name in made[0]}

    def call(
        self, function: Callable[..., None], arrays: dict[str, Any], out: Array, **more: Any
    ) -> None:
        """Call it with arrays, or lists of them."""
        named = {name: arrays[name] for name in arrays if name == "offsets"}
        given_arrays = [arrays[name] for name in arrays if name != "offsets"]
        given_options = {name: value for name, value in more.items() if name not in self.own}
        function(*given_arrays, out, **named, **given_options)


def blockwise_arrays(
    random: np.random.Generator, n: int, options: Options, shift: int
) -> dict[str, Array]:
    form = options["form"]
    blocks, codes = block_count(n, form.block), any_bytes(random, form.code_bytes(n), shift)
    arrays = {"codes": codes, "scales": any_scales(random, blocks, shift)}
    if form.statistic == "range":
        arrays["offsets"] = any_scales(random, blocks, shift)
    return arrays


def sign_arrays(
    random: np.random.Generator, n: int, options: Options, shift: int
) -> dict[str, Array]:
    blocks, bits = block_count(n, options["block"]), sign_bytes(n, options["block"])
    return {"bits": any_bytes(random, bits, shift), "scales": any_scales(random, blocks, shift)}


def fp8_arrays(
    random: np.random.Generator, n: int, options: Options, shift: int
) -> dict[str, Array]:
    blocks = block_count(n, options["block"])
    return {"codes": any_bytes(random, n, shift), "scales": any_scales(random, blocks, shift)}


def natural_arrays(
    random: np.random.Generator, n: int, options: Options, shift: int
) -> dict[str, Array]:
    exponents, signs = (any_bytes(random, size, shift) for size in (n, (n + 7) // 8))
    return {"exponents": exponents, "signs": signs}


def halves(random: np.random.Generator, n: int, options: Options, shift: int) -> dict[str, Array]:
    return {"x": any_bytes(random, 2 * n, 2 * shift).view(options["dtype"])}


CASES = (
    Summing(
        "blockwise",
        "dequantize_blockwise",
        "sum_blockwise",
        [{"form": form} for form in FORMS],
        [{"form": Form(bits=4, block=64)}, {"form": Form(bits=8, block=2048)}],
        blockwise_arrays,
    ),
    Summing(
        "onebit",
        "sign_dequantize",
        "sum_signs",
        [{"block": block} for block in (8, 24, 64, 256, 1024, 1032, 1 << 16)],
        [{"block": 64}, {"block": 1032}],
        sign_arrays,
    ),
    Summing(
        "fp8",
        "dequantize_fp8",
        "sum_fp8",
        [
            {"form": form, "block": block}
            for form in (E4M3, E5M2)
            for block in (8, 10, 64, 127, 128, 1024, 1030, 2048)
        ],
        [{"form": E4M3, "block": 64}, {"form": E5M2, "block": 1030}],
        fp8_arrays,
    ),
    Summing("natural", "natural_dequantize", "sum_natural", [{}], [{}], natural_arrays),
    Summing(
        "casts",
        "widen",
        "sum_casts",
        [{"dtype": np.float16}, {"dtype": np.uint16}],
        [{"dtype": np.float16}, {"dtype": np.uint16}],
        halves,
        ("dtype",),
    ),
)
each_algorithm = pytest.mark.parametrize("case", CASES, ids=[case.algorithm for case in CASES])


def check_sum(
    case: Summing,
    n: int,
    options: Options,
    count: int,
    weight: float,
    dtype: Any,
    seed: int,
    **how: Any,
) -> None:
    """Sums at an odd address are the reference's, and those of one payload after the other."""
    arrays, decode = case.payloads(n, options, count, seed), getattr(public, case.decode)
    more = {**options, "weight": weight}

    def add(i: int, total: F32) -> None:
        one = {name: column[i] for name, column in arrays.items()}
        case.call(decode, one, total, **more, add=True)

    def summed(kernels: Any) -> list[Array]:
        whole, out = odd(poisoned(n, dtype), seed % 4)
        case.call(getattr(kernels, case.sum), arrays, out, **more)
        return [whole]

    (whole,) = alike(case.algorithm, summed, **how)
    assert same_bits(whole, odd(one_by_one(add, count, n, dtype), seed % 4)[0])


@on_every_backend
@each_algorithm
@given(st.sampled_from(SIZES), counts, weights, dtypes, st.integers(0, 99), st.data())
def test_a_sum_is_that_of_one_payload_after_the_other(
    case: Summing, n: int, count: int, weight: float, dtype: Any, seed: int, data: st.DataObject
) -> None:
    options = data.draw(st.sampled_from(case.options))
    check_sum(case, n, options, count, weight, dtype, seed, large=n > 3000)


@on_every_backend
@each_algorithm
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_more_blocks_than_teams_in_any_order(case: Summing, count: int, dtype: Any) -> None:
    n = 140_003 if case.algorithm == "natural" else 40_001
    for options in case.many:
        check_sum(case, n, options, count, 0.3, dtype, count, orders=[count])


@each_algorithm
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sums_in_threads_are_those_of_the_whole(case: Summing, dtype: Any) -> None:
    options = case.many[-1]
    arrays, function = case.payloads(LONG, options, 3, 0), getattr(public, case.sum)

    def summed() -> list[Array]:
        out = poisoned(LONG, dtype)
        case.call(function, arrays, out, **options)
        return [out]

    alike_in_threads(summed)


@each_algorithm
def test_unfit_payloads_are_refused_and_nothing_is_written(case: Summing) -> None:
    options, out = case.options[0], poisoned(16, np.float32)
    arrays, function = case.payloads(16, options, 2, 0), getattr(public, case.sum)
    for name, (first, second) in arrays.items():
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            case.call(function, {**arrays, name: [first, second[:-1]]}, out, **options)
        if len(arrays) > 1:
            with pytest.raises(ValueError, match="one of each array"):
                case.call(function, {**arrays, name: [first]}, out, **options)
    with pytest.raises(TypeError, match="out must be float32, float16, or bfloat16"):
        case.call(function, arrays, out.astype(np.float64), **options)
    assert same_bits(out, poisoned(16, np.float32))
