"""Inputs for the kernel tests: awkward sizes and values, poisoned outputs, comparison by bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st

# The first call of a kernel compiles it, which no deadline per example can tell from slowness.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")

F32 = npt.NDArray[np.float32]

SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, 255, 256, 257, 515, 1031)
FINITE = (0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-39, -2e-38, 2.0**-100, -(2.0**-101), 3e38, -3e38)
NONFINITE = (np.nan, np.inf, -np.inf)
MAGNITUDES = (0.0, 1e-44, 1e-40, 1e-30, 1e-6, 1.0, 1e6, 1e30, 1e38)
KINDS = ("float32", "float16", "bfloat16")
kinds = st.sampled_from(("float32", *KINDS))  # on the CPU, float32 alone is compared
SCALES = (1.0, 65536.0, 2.0**-3, 3.0)


@st.composite
def gradients(
    draw: st.DrawFn,
    sizes: tuple[int, ...] = SIZES,
    specials: tuple[float, ...] = FINITE + NONFINITE,
    magnitudes: tuple[float, ...] = MAGNITUDES,
) -> F32:
    """Normal, one-hot, rounded (many ties) or constant values, with a few special ones put in."""
    n, seed = draw(st.sampled_from(sizes)), draw(st.integers(0, 2**32 - 1))
    x = np.random.default_rng(seed).standard_normal(n)
    shape = draw(st.sampled_from(["normal", "normal", "one-hot", "rounded", "constant"]))
    if shape == "one-hot":
        x[np.arange(n) != n // 2] = 0
    elif shape == "rounded":
        x = np.round(x)
    elif shape == "constant":
        x[:] = x[:1]
    x = (np.clip(x, -3, 3) * draw(st.sampled_from(magnitudes))).astype(np.float32)
    if n and specials:
        changes = st.tuples(st.integers(0, n - 1), st.sampled_from(specials))
        for index, value in draw(st.lists(changes, max_size=3)):
            x[index] = value
    return x


def as_kind(x: F32, kind: str) -> npt.NDArray[Any]:
    """A gradient of 16 bits, as kernels take it, or of 32."""
    if kind == "bfloat16":
        return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(kind)


def residual_for(x: F32, seed: int | None) -> F32 | None:
    """A finite residual of the gradient's own size, or None for no feedback."""
    if seed is None:
        return None
    largest = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
    noise = np.random.default_rng(seed).uniform(-1, 1, x.size) * min(largest, 1e38)
    return noise.astype(np.float32)


def poisoned(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An output array full of rubbish that a kernel has to overwrite."""
    out = np.empty(shape, dtype)
    out.reshape(-1).view(np.uint8)[:] = 0xA7
    return out


def same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether all bits are equal; a NaN equals any NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    equal = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    if a.dtype.kind == "f":
        equal |= np.isnan(a) & np.isnan(b)
    return bool(equal.all())


def block_max(p: F32, block: int) -> npt.NDArray[np.float64]:
    """For each element, the largest magnitude in its block."""
    largest = [np.abs(p[i : i + block]).max() for i in range(0, p.size, block)]
    return np.repeat(np.array(largest, np.float64), block)[: p.size]


def said_by(*calls: Callable[[], object]) -> list[str]:
    """What calls say of what they are given: that it is right, or why it is refused."""
    said = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("right")
    return said
