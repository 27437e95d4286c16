"""Compile every CPU kernel now: `python -m compressa.kernels.compile`.

Compiled code is kept on disk beside the sources (or in the user's cache folder where that is
read-only), so this is needed once per machine and version. Without it the first step that uses
a kernel compiles it.
"""

from __future__ import annotations

import time

import numpy as np
from compressa.kernels import (
    bitpack,
    blockwise,
    casts,
    feedback,
    integers,
    lowrank,
    onebit,
    philox,
    strata,
    topk,
)

_ELEMS = 1000
_KEPT = 10


def compile_blockwise() -> None:
    """Linear quantisers: to nearest with and without residual, stochastic, max-min."""
    x, residual, out = (np.zeros(_ELEMS, np.float32) for _ in range(3))
    noise = philox.Noise(0, 0, 0, 0)
    for statistic in ("max", "range"):
        form = blockwise.Form(bits=8, block=256, statistic=statistic)
        codes, blocks = np.zeros(form.code_bytes(_ELEMS), np.uint8), -(-_ELEMS // form.block)
        scales, offsets = np.zeros(blocks, np.float32), np.zeros(blocks, np.float32)
        payload = {"form": form, "offsets": offsets if statistic == "range" else None}
        for kept, drawn in ((None, None), (residual, None), (None, noise)):
            blockwise.quantize_blockwise(x, codes, scales, noise=drawn, residual=kept, **payload)
        blockwise.dequantize_blockwise(codes, scales, out, **payload)


def compile_casts() -> None:
    """Half precision and bfloat16."""
    x = np.zeros(_ELEMS, np.float32)
    for dtype in (np.float16, np.uint16):
        narrow = np.zeros(_ELEMS, dtype)
        casts.narrow(x, narrow)
        casts.widen(narrow, x)


def compile_onebit() -> None:
    """Scaled sign, with and without residual."""
    x, residual, out = (np.zeros(_ELEMS, np.float32) for _ in range(3))
    bits = np.zeros(onebit.sign_bytes(_ELEMS, 64), np.uint8)
    scales = np.zeros(-(-_ELEMS // 64), np.float32)
    for kept in (None, residual):
        onebit.sign_quantize(x, bits, scales, block=64, residual=kept)
    for add in (False, True):
        onebit.sign_dequantize(bits, scales, out, block=64, add=add)


def compile_sparse() -> None:
    """Selection, scatter, index packing and random indices."""
    x, residual = np.arange(_ELEMS, dtype=np.float32), np.zeros(_ELEMS, np.float32)
    indices, words = np.zeros(_KEPT, np.uint32), np.zeros(_KEPT, np.uint32)
    values = np.zeros(_KEPT, np.float32)
    for kept in (None, residual):
        topk.select_top_k(x, _KEPT, indices, values, residual=kept)
    topk.scatter_add(indices, values, residual)
    width = bitpack.index_width(_ELEMS)
    packed = np.zeros(bitpack.packed_bytes(_KEPT, width), np.uint8)
    bitpack.pack_bits(indices, width, packed)
    bitpack.unpack_bits(packed, width, words)
    bitmap = np.zeros((_ELEMS + 7) // 8, np.uint8)
    bitpack.pack_bitmap(indices, _ELEMS, bitmap)
    bitpack.unpack_bitmap(bitmap, _ELEMS, words)
    philox.random_words(words, seed=0, stream=0, step=0, parameter=0)
    strata.stratified_indices(np.zeros(_KEPT, np.int64), _ELEMS, words)


def compile_low_rank() -> None:
    """PowerSGD's arithmetic."""
    p, q = np.ones((2, 8), np.float32), np.ones((2, 4), np.float32)
    m, residual = np.zeros((8, 4), np.float32), np.zeros((8, 4), np.float32)
    lowrank.orthonormalize(p)
    lowrank.low_rank_product(p, q, m)
    lowrank.split_low_rank(m, p, q, residual)
    lowrank.keep_directions(q, q.copy())


def compile_feedback() -> None:
    """What is done to values that are not encoded."""
    x, residual, kept = (np.zeros(_ELEMS, np.float32) for _ in range(3))
    feedback.absorb_residual(x, residual, kept)
    feedback.all_finite(x)


def compile_integers() -> None:
    """Integers of a shared unit."""
    x, noise = np.zeros(_ELEMS, np.float32), philox.Noise(0, 0, 0, 0)
    for dtype in integers.DTYPES:
        q = np.zeros(_ELEMS, dtype)
        integers.round_to_integers(x, 1.0, 1, q, noise)
        integers.scale_integers(q, 1.0, x)


def main() -> None:
    """Compile all, and say how long it took."""
    started_s = time.perf_counter()
    for work in (
        compile_blockwise,
        compile_casts,
        compile_onebit,
        compile_sparse,
        compile_low_rank,
        compile_feedback,
        compile_integers,
    ):
        work()
    print(f"compressa: CPU kernels are compiled ({time.perf_counter() - started_s:.1f} s)")


if __name__ == "__main__":
    main()
