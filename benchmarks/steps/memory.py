"""What the kernels of a step must move over the memory bus: K, when nothing is in a cache.

Bytes count as docs/benchmarks/kernels.md counts those of one kernel: what is read counts
once, what is updated in place and what is only written twice. With n elements, P ranks and w bytes
of payload:

- *encode* reads the gradient and updates the residual, 12 n, and writes the payload, 2 w; where a
  case of `python -m benchmarks kernels` has more passes, as many. Without a residual it is 4 n.
- *all-gather* then reads the payloads of all ranks, P w, and writes the mean, 8 n.
- *scatter-reduce* reads those of the own shard, w (P - 1) / P, writes the payload of its mean,
  2 w / P, reads the payloads of all means, w, and writes them, 8 n.
- *all-reduce* adds what comes to what is there, 12 w (P - 1) / P, and writes it, 8 n.
- *PowerSGD* of a matrix: the sum of gradient and residual and the first product, 12 n; the second
  product, 4 n; the new residual, 8 n, and the mean, 8 n. Factors hardly count.
- *none* adds what comes to what is there, 12 n (P - 1) / P.

The optimizer's update is part of computing, and what sockets copy is the kernel's.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from benchmarks.kernels import CASES
from compressa.aggregators.powersgd import PowerSGD
from compressa.aggregators.single import choose_exchange
from compressa.codecs import NoCompression
from compressa.codecs.base import Codec
from compressa.compressor import Compressor

_FLOAT_BYTES = 4
_PASSES = {case.compressor: case.bus_bytes_per_elem for case in CASES if case.bus_bytes_per_elem}
_WITH_RESIDUAL, _WITHOUT = 12.0, 4.0
_MEAN = 8.0
_SUM = 3  # of what is added: what comes is read, what is there is updated
_LOW_RANK = 32.0

Shape = tuple[int, ...]


def kernel_bytes(compressor: Compressor, shapes: Iterable[Shape], ranks: int) -> float | None:
    """Return what the kernels of one rank must move in a step; None if nobody has stated it.

    Args:
        compressor: With its default feedback.
        shapes: Of all parameters, whose gradients are float32.
        ranks: How many they are.

    Example:
        >>> kernel_bytes(NoCompression(), [(1000,)], 4)
        9000.0
    """
    parts = [_of_parameter(compressor, shape, ranks) for shape in shapes]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _of_parameter(compressor: Compressor, shape: Shape, ranks: int) -> float | None:
    n = prod(shape)
    payload = compressor.payload_bytes(shape)
    if isinstance(compressor, NoCompression):
        return _summed(payload, ranks)
    if isinstance(compressor, PowerSGD):
        travels_dense = payload >= _FLOAT_BYTES * n
        return _summed(payload, ranks) if travels_dense else _LOW_RANK * n
    if not isinstance(compressor, Codec):
        return None
    exchange = choose_exchange(compressor, ranks)
    return _encoded(compressor, n, payload) + _decoded(exchange, payload, ranks) + _MEAN * n


def _encoded(codec: Codec, elems: int, payload: int) -> float:
    passes = _PASSES.get(codec.name, _WITH_RESIDUAL) if codec.error_feedback else _WITHOUT
    return passes * elems + 2 * payload


def _decoded(exchange: str, payload: int, ranks: int) -> float:
    if exchange == "all_gather":
        return ranks * payload
    if exchange == "all_reduce":
        return _summed(payload, ranks)
    return (ranks - 1) / ranks * payload + 2 * payload / ranks + payload


def _summed(size_bytes: int, ranks: int) -> float:
    return _SUM * size_bytes * (ranks - 1) / ranks
