"""CUDA and threads: ours that call it, without harm to what others capture, and its that call us.

And a thread's current stream, by fewer calls than torch makes of it.

While a thread captures a CUDA graph in torch's usual way, CUDA refuses many calls on all other
threads, such as to look at an event, and each of them breaks the capture; but not on threads that
have said that they have nothing to do with captures.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

_C: Any = torch._C
# What torch.cuda calls; there is none of it where torch was made for CPUs.
_NAMES = "getCurrentStream", "setStream", "getDevice"
_KNOWN = all(hasattr(_C, f"_cuda_{name}") for name in _NAMES)


def work_on(device: torch.device) -> None:
    """Make a GPU the current one of this thread, and its calls harmless to captures of others.

    Args:
        device: The GPU.

    Raises:
        RuntimeError: The driver does not know how.
    """
    torch.cuda.set_device(device)
    mode = ctypes.c_int(_RELAXED)
    code = _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if code:
        raise RuntimeError(f"the driver can not keep captures apart (code {code}); update it")
    torch.cuda.current_stream(device).query()  # gives the thread the GPU's context


class _On(AbstractContextManager[None]):
    """A context in which a stream of the current GPU is the thread's current one."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream
        self._before = _C._cuda_getCurrentStream(stream.device_index)
        _set(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *_: object) -> None:
        _set(*self._before)


def on(stream: torch.cuda.Stream) -> AbstractContextManager[object]:
    """Return a context in which a stream is the thread's current one.

    As `torch.cuda.stream`, which asks each time what devices there are: that was a third of all
    calls that a unit made.
    """
    if _KNOWN and _C._cuda_getDevice() == stream.device_index:
        return _On(stream)
    return torch.cuda.stream(stream)


def _set(number: int, device_index: int, device_type: int) -> None:
    _C._cuda_setStream(stream_id=number, device_index=device_index, device_type=device_type)


def call_at(stream: torch.cuda.Stream, function: int, argument: int) -> None:
    """Have a stream call a function of C when it has done what it was given until now.

    CUDA calls it on a thread of its own, and not at all once the GPU has failed.

    Args:
        stream: Of this thread's GPU.
        function: Address of what takes one address, and calls nothing of CUDA's.
        argument: The address.

    Raises:
        RuntimeError: The driver refuses.
    """
    where = map(ctypes.c_void_p, (stream.cuda_stream, function, argument))
    code = _driver().cuLaunchHostFunc(*where)
    if code:
        raise RuntimeError(f"the driver calls no function of the host (code {code})")


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
