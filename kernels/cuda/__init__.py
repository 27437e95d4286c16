"""The kernels for NVIDIA GPUs, in CUDA C++.

They run on the stream, and take their memory from the pool, of CuPy, or of whatever library is
named with `serve`.
"""

from ._gpu import Host, serve

__all__ = ["Host", "serve"]
