"""CUDA and threads: ours that call it, without harm to what others capture, and its that call us.

While a thread captures a CUDA graph in torch's usual way, CUDA refuses many calls on all other
threads, such as to look at an event, and each of them breaks the capture; but not on threads that
have said that they have nothing to do with captures.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


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
