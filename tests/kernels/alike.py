"""One property on every backend: the reference's bits on the CPU and on CUDA.

CUDA is emulated, or with `--gpu` a GPU; there the CPU is left out.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from compressa.kernels import KernelUnavailable, reference
from compressa.kernels.cuda._device import device, running_on
from compressa.kernels.threads import KernelThreads
from emulated_cuda import Emulated
from kernel_cases import poisoned, same_bits
from mirrored_cuda import Mirrored

on_every_backend = pytest.mark.usefixtures("every_backend")
"""The mark of a test that calls `alike`; see `conftest.py`."""

CPU = "the CPU"
Array = np.ndarray[Any, Any]
Run = Callable[[Any], Sequence[Any]]


def alike(
    algorithm: str,
    run: Run,
    *,
    reads: Sequence[Array] = (),
    orders: Sequence[int] = (),
    large: bool = False,
    on_cpu: bool = True,
) -> Sequence[Any]:
    """Assert that every backend gives the reference's bits; return them.

    Args:
        algorithm: A module of kernels, such as "blockwise".
        run: Calls the functions of such a module, and returns all arrays that they were given to
            write to, and their answers.
        reads: Arrays that no kernel may write to. Numba would compile anew for those that are
            locked, and nobody trains with such.
        orders: Seeds of the orders in which emulated threads run; one order if there are none.
        large: Too large for the emulation, which is left out.
        on_cpu: False leaves the CPU out, where numba would compile for seconds: it does so for each
            dtype and each set of arguments anew.
    """
    before = [array.copy() for array in reads]
    with np.errstate(all="ignore"), reference():
        due = run(_module(algorithm))
    for name, kernels, context in backends(algorithm, orders, large=large):
        if name == CPU and not on_cpu:
            continue
        with context:
            found = run(kernels)
        for number, (one, other) in enumerate(zip(found, due, strict=True)):
            assert _same(one, other), f"{name}: result {number} is {one}, not {other}"
        assert all(map(same_bits, reads, before)), f"{name} wrote to what it only reads"
    return due


def alike_in_threads(run: Callable[[], Sequence[Any]]) -> None:
    """Assert that a CPU's threads together give the bits that one of them gives.

    Args:
        run: Calls kernels on large arrays; returns all arrays that they were given to write to.
    """
    alone = run()
    with ThreadPoolExecutor(3) as pool, KernelThreads(pool, 4).enlisted():
        together = run()
    assert [_same(*pair) for pair in zip(together, alone, strict=True)] == [True] * len(alone)


def backends(
    algorithm: str, orders: Sequence[int] = (), *, large: bool = False
) -> Iterator[tuple[str, Any, AbstractContextManager[None]]]:
    """Yield each backend's name, its module, and where to call that; see `alike`."""
    if _on_a_gpu():
        yield "a GPU", _module("cuda", algorithm), nullcontext()
        return
    yield CPU, _module(algorithm), nullcontext()
    if shutil.which("g++") and not large:
        kernels = _module("cuda", algorithm)
        if not orders:
            yield "emulated CUDA", kernels, nullcontext()
        for order in orders:
            yield f"emulated CUDA in order {order}", kernels, running_on(Emulated(order))


def _on_a_gpu() -> bool:
    try:
        return isinstance(device(), Mirrored)
    except KernelUnavailable:
        return False


def _module(*path: str) -> Any:
    return importlib.import_module(".".join(("compressa.kernels", *path)))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return same_bits(one, other)
    return type(one) is type(other) and one == other


def odd(values: Array, shift: int) -> tuple[Array, Array]:
    """Return a copy at an address that is odd by some elements: all, with what is around it; it."""
    whole = poisoned(values.size + 2 * shift, values.dtype)
    part = whole[shift : shift + values.size]
    part[:] = values
    return whole, part


def copied(array: Array | None) -> Array | None:
    """Return a copy; None of None."""
    return None if array is None else array.copy()
