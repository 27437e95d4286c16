"""Threads of ours that call CUDA: on the model's GPU, and without harm to what others capture.

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
    torch.cuda.current_stream(device).query()  # gives the thread the GPU's context
    mode = ctypes.c_int(_RELAXED)
    code = _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if code:
        raise RuntimeError(f"the driver can not keep captures apart (code {code}); update it")


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
