"""The kernels for NVIDIA GPUs, in CUDA C++.

They run on the stream, and take their memory from the pool, of CuPy, or of whatever library is
named with `serve`.
"""

from weakref import WeakSet

import numpy as np

from .._backends import KernelUnavailable
from ._clear import clear
from ._device import CTA, Device, device, found_by
from ._gpu import Host, current, serve
from ._later import answers_come_later, answers_later, ask, count_left_in
from ._parts import list_parts
from ._recording import Recording, graphs
from ._select import STATE_WORDS

__all__ = [
    "STATE_WORDS",
    "Host",
    "Recording",
    "answers_come_later",
    "answers_later",
    "check_available",
    "clear",
    "count_left_in",
    "graphs",
    "list_parts",
    "serve",
]


found_by(current)
_SMALL, _ONE = np.float32(1e-45), np.float32(1)  # too small to be normal
_well: WeakSet[Device] = WeakSet()


def check_available() -> None:
    """See that kernels can be compiled for the current GPU, and keep the smallest numbers there.

    The first time for a GPU this waits for it.

    Raises:
        KernelUnavailable: They can not, or do not; the message names the fix.
    """
    gpu = device()
    if gpu in _well:
        return
    if ask("feedback", "find_flushed", 1, CTA, _SMALL, _ONE):
        raise KernelUnavailable(
            "kernels on this GPU make zeros of float32 numbers below 1.2e-38, so their results "
            "would differ from those of other ranks: they were compiled with -ftz=true, which "
            "--use_fast_math contains; empty the folder of compiled kernels (COMPRESSA_CACHE_DIR, "
            "or else ~/.cache/compressa), and let nothing add that option when they are compiled "
            "again"
        )
    _well.add(gpu)
