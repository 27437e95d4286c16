"""Gradients as kernels take them: arrays, of float32 or of 16-bit floats."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from compressa.errors import BackendUnavailable
from compressa.kernels import casts, cuda
from compressa.kernels.device_array import DeviceArray
from compressa.kernels.feedback import all_finite
from compressa.kernels.scratch import scratch

HALVES = (torch.float16, torch.bfloat16)

# The handle of the current stream; to have torch make an object of it takes microseconds.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def as_array(x: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's memory as kernels take it: NumPy has no bfloat16, so its bits as uint16.

    A tensor on the CPU becomes a NumPy array, and one on a GPU a `DeviceArray`; both share its
    memory.

    Args:
        x: Contiguous, of any shape.

    Raises:
        BackendUnavailable: It lies on another GPU than the current one, where kernels would run.

    Example:
        >>> as_array(torch.ones(2, dtype=torch.bfloat16)).dtype
        dtype('uint16')
    """
    if x.is_cuda:
        _serve_torch()
        if x.get_device() != torch.cuda.current_device():
            raise BackendUnavailable(
                f"a tensor on GPU {x.get_device()} came while GPU {torch.cuda.current_device()} is "
                "current; call torch.cuda.set_device with that of the model, one for each rank"
            )
        array: Any = DeviceArray(x.data_ptr(), x.numel(), _dtype_of(x.dtype), x)
        vector: npt.NDArray[Any] = array  # kernels look at what both kinds have
        return vector
    return x.view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.numpy()


@cache
def _dtype_of(dtype: torch.dtype) -> np.dtype[Any]:
    return as_array(torch.empty(0, dtype=dtype, device="cpu")).dtype


class _TorchHost:
    """Kernels run on torch's streams and take memory from its pool, so that a user sees one."""

    def stream(self) -> int:
        if _raw_stream is not None:
            return int(_raw_stream(torch.cuda.current_device()))
        return int(torch.cuda.current_stream().cuda_stream)

    def empty(self, size_bytes: int) -> DeviceArray:
        memory = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        return DeviceArray(memory.data_ptr(), size_bytes, np.dtype(np.uint8), memory)


@cache
def _serve_torch() -> None:
    cuda.serve(_TorchHost())


def scratch_tensor(name: str, elems: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory for a thread's own use, with whatever it holds.

    On a CPU the thread keeps it for the next use of the name; on a GPU torch's pool does.

    Args:
        name: Of the memory; see `compressa.kernels.scratch`.
        elems: Number of elements.
        dtype: A dtype that NumPy has; the same for every use of the name.
        device: Where it is.

    Returns:
        1-D and contiguous.
    """
    if device.type == "cpu":
        return torch.from_numpy(scratch(name, elems, _dtype_of(dtype)))
    return torch.empty(elems, dtype=dtype, device=device)


def surely_finite(x: torch.Tensor) -> bool:
    """Whether all values are known to be finite: on a GPU nothing is, where to know is to wait.

    Args:
        x: 1-D, contiguous, float32.
    """
    return not x.is_cuda and all_finite(as_array(x))


def widened(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return a gradient in float32: itself, or a copy in memory that the thread keeps.

    Args:
        x: 1-D, contiguous; float32, float16 or bfloat16.
        name: Of the memory; see `compressa.kernels.scratch`.
    """
    if x.dtype is torch.float32:
        return x
    values = scratch_tensor(name, x.numel(), torch.float32, x.device)
    casts.widen(as_array(x), as_array(values))
    return values


def copied(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return a copy of float32 values, in memory of their device that the thread may use again.

    Args:
        x: 1-D, contiguous, float32.
        name: Of the memory; see `compressa.kernels.scratch`. Its next use overwrites the copy.
    """
    return scratch_tensor(name, x.numel(), torch.float32, x.device).copy_(x)


def put(values: torch.Tensor, out: torch.Tensor) -> None:
    """Round float32 values to the dtype of `out`, unless they are `out` itself.

    Args:
        values: 1-D, contiguous, float32.
        out: As long; float32, float16 or bfloat16.
    """
    if out.dtype is not torch.float32:
        casts.narrow(as_array(values), as_array(out))
    elif values is not out:
        out.copy_(values)


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of values in row-major order, uint8, 1-D; a copy if they lie otherwise."""
    rows = values.contiguous()  # which leaves one element with the stride that it has
    return rows.as_strided((rows.numel(),), (1,)).view(torch.uint8)


def carried_over(now: torch.Tensor, sent: torch.Tensor, came: torch.Tensor) -> torch.Tensor:
    """Return what values become when what has come takes the place of what was sent some time ago.

    They change as much, but no further than to what has come: what decays, such as a running
    variance, has decayed here meanwhile, and would become negative. What all ranks had alike, such
    as a constant or a count, changes by nothing.

    Args:
        now: The values, which were changed since: floating-point, of any shape.
        sent: What they were, of the same shape and dtype.
        came: What takes the place of that, likewise.

    Returns:
        A new tensor, likewise.
    """
    low, high = torch.minimum(now, came), torch.maximum(now, came)
    return torch.where(came == sent, now, (now + (came - sent)).clamp(low, high))
