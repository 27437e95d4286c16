"""Array types, argument checks and sizes that every kernel shares.

The checks read only what NumPy and CuPy arrays have in common (``dtype``, ``shape``, ``flags``),
so they cost no look at the data and run the same way for every device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
I8: TypeAlias = npt.NDArray[np.int8]
U8: TypeAlias = npt.NDArray[np.uint8]
U16: TypeAlias = npt.NDArray[np.uint16]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
Gradient: TypeAlias = npt.NDArray[Any]
"""float32, float16, or uint16 that holds the bits of bfloat16."""


def check_array(
    name: str,
    array: npt.NDArray[Any],
    dtype: npt.DTypeLike,
    shape: tuple[int, ...] | None = None,
    *,
    writable: bool = False,
) -> None:
    """Refuse an array that a kernel could not safely read or write.

    Args:
        name: What the caller named the array, for the message.
        array: The array to look at. It must be C-contiguous and aligned to its item size.
        dtype: The only dtype that is accepted.
        shape: The only shape that is accepted; None for any 1-D shape.
        writable: Whether the kernel writes into the array.

    Raises:
        TypeError: The dtype is another one.
        ValueError: Shape, contiguity, alignment or writability is wrong.
    """
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, not {array.dtype}")
    if shape is None and array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not shape {array.shape}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")
    if not getattr(array.flags, "carray", False):  # it says yes to all that follows
        _check_flags(name, array, writable)


def _check_flags(name: str, array: npt.NDArray[Any], writable: bool) -> None:
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
    if not getattr(flags, "aligned", True):
        raise ValueError(f"{name} must be aligned to {array.dtype.itemsize} bytes")
    if writable and not getattr(flags, "writeable", True):
        raise ValueError(f"{name} is written to, and must not be read-only")


def array_at(address: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of a CPU as long and of the same dtype as another, without its memory.

    It does not keep what is at the address allocated.

    Args:
        address: Where it begins, aligned to its dtype; not looked at if it is empty.
        like: The other one.

    Raises:
        TypeError: The other one lies on a GPU.
    """
    if not isinstance(like, np.ndarray):
        raise TypeError("only what lies on a CPU can be told of another address")
    if not like.size:
        return like
    memory: Any = (ctypes.c_uint8 * like.nbytes).from_address(address)
    return np.frombuffer(memory, like.dtype)


def check_gradient(x: Gradient) -> None:
    """Refuse what is no vector of float32, float16 or bfloat16 (as uint16); see `check_array`."""
    if x.dtype != np.float32 and x.dtype not in (np.float16, np.uint16):
        raise TypeError(f"x must be float32, float16, or bfloat16 as uint16, not {x.dtype}")
    check_array("x", x, x.dtype)


def check_feedback(residual: F32 | None, size_elems: int, loss_scale: float) -> None:
    """Refuse a residual that does not fit its gradient, or a useless loss scale.

    Args:
        residual: float32[size_elems], or None for a call without feedback.
        size_elems: Number of elements of the gradient.
        loss_scale: Loss scale; it and its inverse must be normal float32 numbers.

    Raises:
        TypeError: The residual's dtype is another one.
        ValueError: The residual's shape or layout is wrong, or so is the loss scale.
    """
    if residual is not None:
        check_array("residual", residual, np.float32, (size_elems,), writable=True)
    check_loss_scale(loss_scale)


def check_loss_scale(loss_scale: float) -> None:
    """Raise ValueError unless the loss scale and its inverse are normal float32 numbers."""
    if not 2.0**-126 <= loss_scale <= 2.0**126:
        raise ValueError(f"loss_scale must lie between 2**-126 and 2**126, not {loss_scale}")


def block_count(n: int, block: int) -> int:
    """Return how many blocks cover a vector; the last may be short.

    Args:
        n: Elements of the vector, not negative.
        block: Elements of a block, positive.
    """
    return -(-n // block)


def check_sum(out: Gradient, *arrays: Sequence[object] | None) -> None:
    """Refuse a sum's ``out``, or payloads of which some lack an array.

    Args:
        out: float32, float16, or uint16 for bfloat16.
        arrays: One array of each payload, for each array that a payload has; None for one that
            none of them has.

    Raises:
        TypeError: The dtype is another one.
        ValueError: The layout is wrong, or one array comes more often than another.
    """
    if out.dtype not in (np.float32, np.float16, np.uint16):
        raise TypeError(f"out must be float32, float16, or bfloat16 as uint16, not {out.dtype}")
    check_array("out", out, out.dtype, writable=True)
    counts = [len(column) for column in arrays if column is not None]
    if len(set(counts)) > 1:
        raise ValueError(f"each payload has one of each array, but there are {counts} of them")
