"""The kernels for NVIDIA GPUs, in CUDA C++.

They run on the stream, and take their memory from the pool, of CuPy, or of whatever library is
named with `serve`.
"""

from ._gpu import Host, serve
from ._later import answers_come_later, answers_later
from ._work import new_answer

__all__ = ["Host", "answers_come_later", "answers_later", "check_available", "serve"]


def check_available() -> None:
    """See that kernels can be compiled for the current GPU, and started there.

    Raises:
        KernelUnavailable: They can not; the message names the fix.
    """
    new_answer("feedback")
