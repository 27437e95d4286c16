"""Threads: payloads and vectors have the same bits on any number of threads.

The vectors are large enough that kernels cut them into slices and hand these out.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from compressa.codecs.base import Codec
from compressa.compressor import Compressor
from compressa.engine.units.lockstep import Lockstep
from compressa.kernels.threads import KernelThreads
from compressa.parameters import ParameterInfo
from compressa.testing.codec_checks import DRAW
from compressa.testing.inputs import generator
from compressa.testing.memory import require, same_bits

_SHAPE = (1024, 769)  # three slices, the last of them odd
_ELEMS = _SHAPE[0] * _SHAPE[1]
_THREADS = (2, 3)


def check_codec_threads(codec: Codec) -> None:
    """One thread and several encode to the same payload, and decode to the same vector.

    Raises:
        AssertionError: They do not; the message says what differs, and on how many threads.
    """
    x = torch.randn(_ELEMS, generator=generator(1))
    alone = _all_ways(codec, x)
    for threads in _THREADS:
        with kernel_threads(threads):
            shared = _all_ways(codec, x)
        for what, bits in alone.items():
            sentence = f"{codec.name}: {what} gives other bits on {threads} threads than on one"
            require(same_bits(bits, shared[what]), sentence)


def check_threads(compressor: Compressor) -> None:
    """One thread and several come to the same mean, two steps long.

    Raises:
        AssertionError: They do not.
    """
    alone = _two_steps(compressor)
    for threads in _THREADS:
        with kernel_threads(threads):
            shared = _two_steps(compressor)
        sentence = f"{compressor.name}: means have other bits on {threads} threads than on one"
        require(same_bits(alone, shared), sentence)


@contextmanager
def kernel_threads(threads: int) -> Iterator[None]:
    """Have the current thread share its large calls with others, `threads` in all."""
    with ThreadPoolExecutor(threads) as pool, KernelThreads(pool, threads).enlisted():
        yield


def _all_ways(codec: Codec, x: torch.Tensor) -> dict[str, torch.Tensor]:
    residual, out = 0.3 * x.flip(0), torch.empty_like(x)
    payloads = [torch.zeros(codec.wire_bytes(x.numel()), dtype=torch.uint8) for _ in range(2)]
    plain = payloads[0][: codec.encode(x, payloads[0], DRAW)]
    corrected = payloads[1][: codec.encode_feedback(x, residual, payloads[1], DRAW)]
    codec.decode(plain, out, DRAW)
    added = out.clone()
    codec.decode_add(corrected, added, 1.0 / 3.0, DRAW)
    bits = {"encode": plain, "encode_feedback": corrected, "the residual": residual}
    return bits | {"decode": out, "decode_add": added}


def _two_steps(compressor: Compressor) -> torch.Tensor:
    parameter = ParameterInfo(0, "w", _SHAPE)
    ranks = Lockstep(2, [parameter], compressor)
    for step in range(2):
        seeds = (2 * step, 2 * step + 1)
        own = [{"w": torch.randn(_SHAPE, generator=generator(seed))} for seed in seeds]
        means = ranks.step(own)
    return means[0]["w"]
