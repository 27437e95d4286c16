"""Compile the CPU kernels now: `python -m compressa.kernels.compile [--half]`.

Compiled code is kept on disk beside the sources (or in the user's cache folder where that is
read-only), so this is needed once per machine and version. Without it a registration compiles what
its compressors need. All processor cores compile, each something else. Kernels for gradients in
float16 and bfloat16 are compiled with --half only: it takes three times as long, and few train in
them on a CPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt
from compressa.kernels import (
    adacomp,
    blockwise,
    blockwise_mean,
    casts,
    checksums,
    chunks,
    dct,
    dgc,
    feedback,
    fp8,
    hadamard,
    index_formats,
    integers,
    lowrank,
    multi_tensor,
    multi_tensor_sparse,
    natural,
    natural_dithering,
    onebit,
    onebit_sgd,
    philox,
    select,
    sidco,
    sparse_parts,
    strata,
    topk,
)
from compressa.kernels._arrays import F32, Gradient, block_count

_ELEMS = 1000
_KEPT = 10
_PIECES_ELEMS = 140_000  # selected from in several pieces, more than one thread sorts out

Kinds = Callable[[F32], tuple[Gradient, ...]]


def _single(x: F32) -> tuple[Gradient, ...]:
    """Return the gradient in float32 only."""
    return (x,)


def _all_kinds(x: F32) -> tuple[Gradient, ...]:
    """Return the same gradient in float32, float16 and bfloat16."""
    return x, x.astype(np.float16), (x.view(np.uint32) >> 16).astype(np.uint16)


_ZEROS = np.zeros(_ELEMS, np.float32)
_NOISE = philox.Noise(0, 0, 0, 0)
_FORMS = [blockwise.Form(bits=8, block=256, statistic=s) for s in blockwise.STATISTICS[:2]]


def _payload(form: multi_tensor.BlockForm) -> blockwise_mean.Packed:
    """Room for what a vector is quantised to."""
    blocks = block_count(_ELEMS, form.block)
    ranged = isinstance(form, blockwise.Form) and form.statistic == "range"
    offsets = np.zeros(blocks, np.float32) if ranged else None
    codes = np.zeros(form.code_bytes(_ELEMS), np.uint8)
    return blockwise_mean.Packed(codes, np.zeros(blocks, np.float32), offsets)


def compile_blockwise(kinds: Kinds) -> None:
    """Linear quantisers: to nearest with and without residual, stochastic, max-min; and sums."""
    residual, out = np.zeros((2, _ELEMS), np.float32)
    for form in _FORMS:
        codes, scales, offsets = _payload(form)
        given: dict[str, Any] = {"form": form, "offsets": offsets}
        ways = (None, None), (residual, None), (None, _NOISE)
        for x, (kept, drawn) in product(kinds(_ZEROS), ways):
            blockwise.quantize_blockwise(x, codes, scales, noise=drawn, residual=kept, **given)
        blockwise.dequantize_blockwise(codes, scales, out, **given)
        given["offsets"] = None if offsets is None else [offsets]
        for total in kinds(out):
            blockwise.sum_blockwise([codes], [scales], total, **given)


def compile_blockwise_mean(_: Kinds) -> None:
    """The mean of an owner: with and without what it keeps, to nearest and stochastic."""
    x, residual, kept = np.zeros((3, _ELEMS), np.float32)
    owned = blockwise_mean.Owned(residual, kept, 1.0, 1.0)
    for form in _FORMS:
        packed = _payload(form)
        for memory, drawn in ((None, None), (owned, None), (None, _NOISE)):
            blockwise_mean.average_blockwise(
                x, [packed], packed, form=form, weight=1.0, noise=drawn, owned=memory
            )


_MULTI_TENSOR_FORMS: list[multi_tensor.BlockForm] = [*_FORMS, onebit.SignForm(block=64)]
_MULTI_TENSOR = [(form, _payload(form)) for form in _MULTI_TENSOR_FORMS]


def compile_multi_tensor(kinds: Kinds) -> None:
    """Many vectors by one call: integers and signs, with and without residual, and stochastic."""
    residual = np.zeros(_ELEMS, np.float32)
    for form, payload in _MULTI_TENSOR:
        parts, sent = _parts(form, payload.offsets is not None)
        multi_tensor.multi_tensor_sum(parts, [sent])
        multi_tensor.multi_tensor_dequantize(parts, sent)
        drawn = [] if isinstance(form, onebit.SignForm) else [(None, _NOISE)]
        for left, noise in ((None, None), (residual, None), *drawn):
            for x in kinds(_ZEROS):
                vectors = [multi_tensor.BlockwiseVector(x, *payload, left)]
                batch = multi_tensor.BlockwiseVectors(vectors, form=form)
                multi_tensor.multi_tensor_quantize(batch, noise=noise)


def compile_means(_: Kinds) -> None:
    """Means of many vectors by one call."""
    x, residual, kept = np.zeros((3, _ELEMS), np.float32)
    for form, payload in _MULTI_TENSOR:
        parts, sent = _parts(form, payload.offsets is not None)
        drawn = [] if isinstance(form, onebit.SignForm) else [(None, _NOISE)]
        for left, noise in ((None, None), (residual, None), *drawn):
            vectors = [multi_tensor.BlockwiseVector(x, *payload, left)]
            own = multi_tensor.BlockwiseVectors(vectors, form=form)
            undo = None if left is None else kept
            means = blockwise_mean.BlockwiseMeans(own, parts, [undo])
            blockwise_mean.average_vectors(means, [sent], weight=1.0, noise=noise)


def _parts(
    form: multi_tensor.BlockForm, ranged: bool
) -> tuple[multi_tensor.BlockwiseParts, npt.NDArray[np.uint8]]:
    """A list of one vector, and a payload for it."""
    head_bytes = 4 * block_count(_ELEMS, form.block)
    codes, offsets = (2 * head_bytes, head_bytes) if ranged else (head_bytes, None)
    size = codes + form.code_bytes(_ELEMS)
    parts = [multi_tensor.BlockwisePart(np.zeros(_ELEMS, np.float32), codes, 0, offsets)]
    batch = multi_tensor.BlockwiseParts(parts, form=form, payload_bytes=size)
    return batch, np.zeros(size, np.uint8)


def compile_casts(kinds: Kinds) -> None:
    """Half precision and bfloat16, with and without residual, and sums of them."""
    x, residual = np.zeros((2, _ELEMS), np.float32)
    for dtype in (np.float16, np.uint16):
        narrow = np.zeros(_ELEMS, dtype)
        for kept in (None, residual):
            casts.narrow(x, narrow, residual=kept)
        casts.widen(narrow, x)
        for total in kinds(x):
            casts.sum_casts([narrow], total)


def compile_floats(kinds: Kinds) -> None:
    """Eight-bit floats and natural compression, with and without residual, and sums of them."""
    residual, out = np.zeros((2, _ELEMS), np.float32)
    codes, scales = np.zeros(_ELEMS, np.uint8), np.zeros(-(-_ELEMS // 64), np.float32)
    signs, form = np.zeros((_ELEMS + 7) // 8, np.uint8), fp8.FORMATS["e4m3"]
    for x, kept in product(kinds(_ZEROS), (None, residual)):
        fp8.quantize_fp8(x, codes, scales, form=form, block=64, residual=kept)
        natural.natural_quantize(x, codes, signs, noise=_NOISE, residual=kept)
    fp8.dequantize_fp8(codes, scales, out, form=form, block=64)
    natural.natural_dequantize(codes, signs, out)
    for total in kinds(out):
        fp8.sum_fp8([codes], [scales], total, form=form, block=64)
        natural.sum_natural([codes], [signs], total)


def compile_dithering(kinds: Kinds) -> None:
    """Natural dithering, with and without residual."""
    residual, out = np.zeros((2, _ELEMS), np.float32)
    form = natural_dithering.Dithering(levels=7, block=512)
    codes, norms = np.zeros(form.code_bytes(_ELEMS), np.uint8), np.zeros(2, np.float32)
    for x, kept in product(kinds(_ZEROS), (None, residual)):
        natural_dithering.dither(x, codes, norms, form=form, noise=_NOISE, residual=kept)
    natural_dithering.undither(codes, norms, out, form=form)


def compile_onebit(kinds: Kinds) -> None:
    """Scaled sign, with and without residual, and sums of them."""
    residual, out = np.zeros((2, _ELEMS), np.float32)
    bits = np.zeros(onebit.sign_bytes(_ELEMS, 64), np.uint8)
    scales = np.zeros(-(-_ELEMS // 64), np.float32)
    for x, kept in product(kinds(_ZEROS), (None, residual)):
        onebit.sign_quantize(x, bits, scales, block=64, residual=kept)
    for add in (False, True):
        onebit.sign_dequantize(bits, scales, out, block=64, add=add)
    for total in kinds(out):
        onebit.sum_signs([bits], [scales], total, block=64)


def compile_onebit_sgd(kinds: Kinds) -> None:
    """Signs with two means, with and without residual."""
    residual, out = np.zeros((2, _ELEMS), np.float32)
    bits = np.zeros(onebit_sgd.group_sign_bytes(_ELEMS, 64), np.uint8)
    means = np.zeros(2 * -(-_ELEMS // 64), np.float32)
    for x, kept in product(kinds(_ZEROS), (None, residual)):
        onebit_sgd.two_means_quantize(x, bits, means, group=64, residual=kept)
    onebit_sgd.two_means_dequantize(bits, means, out, group=64)


def compile_dct(kinds: Kinds) -> None:
    """Cosine coefficients, with and without residual."""
    residual, out = np.zeros((2, _ELEMS), np.float32)
    form = dct.ChunkForm(chunk=64, kept=_KEPT)
    value_elems, position_bytes = form.sizes(_ELEMS)
    positions = np.zeros(position_bytes, np.uint8)
    for values in kinds(np.zeros(value_elems, np.float32)):
        for x in kinds(_ZEROS):
            for kept in (None, residual):
                dct.keep_coefficients(x, values, positions, form=form, residual=kept)
        dct.add_coefficients(values, positions, out, form=form)


def compile_selections(kinds: Kinds) -> None:
    """Every way to choose elements: short vectors and long ones, whose samples are right or not."""
    for elems in (_ELEMS, _PIECES_ELEMS):
        normal = np.random.default_rng(0).standard_normal(elems).astype(np.float32)
        indices, values = np.empty(elems, np.uint32), np.empty(elems, np.float32)
        for x in (*kinds(normal), *kinds(np.ones(elems, np.float32))):
            for kept in (None, np.zeros(elems, np.float32)):
                for k in (_KEPT, elems // 2 + _KEPT):
                    topk.select_top_k(x, k, indices[:k], values[:k], residual=kept)
                room = indices[:_KEPT], values[:_KEPT]
                select.select_above(x, 1.0, *room, relative_to="rms", residual=kept)
                sidco.select_sidco(x, _KEPT, 3, *room, residual=kept)
                adacomp.select_adacomp(x, 50, *room, residual=kept)
                most = dgc.most_selected(_KEPT)
                dgc.select_dgc(x, _KEPT, _KEPT, indices[:most], values[:most], residual=kept)
                strata.stratified_indices(room[0], elems, np.zeros(_KEPT, np.uint32))
                select.select_at(x, *room, residual=kept)


def compile_sparse(_: Kinds) -> None:
    """Scatter, index packing and random indices."""
    residual, values = np.zeros(_ELEMS, np.float32), np.ones(_KEPT, np.float32)
    indices, words = np.zeros((2, _KEPT), np.uint32)
    philox.random_words(words, seed=0, stream=0, step=0, parameter=0)
    strata.stratified_indices(indices, _ELEMS, words)
    strata.stratified_indices(np.zeros(_KEPT, np.int64), _ELEMS, words)
    strata.multiply_by_strata(values, _ELEMS)
    topk.scatter_add(indices, values, residual)
    topk.return_unsent(residual, indices, values, values)
    for form in index_formats.INDEX_FORMATS:
        packed = np.zeros(index_formats.index_bytes(form, _KEPT, _ELEMS), np.uint8)
        index_formats.pack_indices(indices, _ELEMS, form, packed)
        index_formats.unpack_indices(packed, _ELEMS, form, words)


def compile_multi_tensor_sparse(kinds: Kinds) -> None:
    """Many sparse vectors by one call, with and without residual; counted, too."""
    form, dtype = "bits", np.float32
    size = sparse_parts.part_bytes(_ELEMS, _KEPT, form, np.dtype(dtype))
    payload, residual = np.zeros(size, np.uint8), np.zeros(_ELEMS, dtype)
    for x, kept in product(kinds(_ZEROS), (None, residual)):
        vectors = [multi_tensor_sparse.SparseVector(x, _KEPT, form, payload, kept)]
        batch = multi_tensor_sparse.SparseVectors(vectors, value_dtype=dtype)
        multi_tensor_sparse.multi_tensor_top_k(batch)
    fixed = [sparse_parts.SparsePart(_ELEMS, _KEPT, form, 0, residual)]
    counted = [sparse_parts.CountedPart(_ELEMS, _KEPT, form, residual)]
    none = np.array([4, 0, 0, 0], np.uint32).view(np.uint8)
    scatter = multi_tensor_sparse.multi_tensor_scatter
    scatter(sparse_parts.SparseParts(fixed, value_dtype=dtype, payload_bytes=size), [payload])
    scatter(sparse_parts.CountedParts(counted, value_dtype=dtype, first=0), [none])


def compile_low_rank(_: Kinds) -> None:
    """PowerSGD's arithmetic."""
    p, q = np.ones((2, 8), np.float32), np.ones((2, 4), np.float32)
    m, residual = np.zeros((8, 4), np.float32), np.zeros((8, 4), np.float32)
    for kept in (residual, None):
        lowrank.left_factor(m, q, p, residual=kept)
        lowrank.right_factor(m, p, q, residual=kept)
    lowrank.orthonormalize(p)
    lowrank.low_rank_product(p, q, m)
    lowrank.split_low_rank(m, p, q, residual)
    verdicts = np.zeros(2, np.uint32)
    lowrank.judge_rows(q, verdicts)
    lowrank.keep_directions(q, q.copy(), verdicts, _NOISE)


def compile_feedback(_: Kinds) -> None:
    """What is done to values that are not encoded."""
    feedback.absorb_residual(*np.zeros((3, _ELEMS), np.float32))
    for dtype in (np.float16, np.uint16, np.float32, np.float64):
        feedback.all_finite(np.zeros(_ELEMS, dtype))


def compile_integers(_: Kinds) -> None:
    """Integers of a shared scale."""
    x = _ZEROS.copy()
    for dtype in integers.DTYPES:
        q = np.zeros(_ELEMS, dtype)
        integers.round_to_integers(x, 1.0, 1, q, _NOISE)
        integers.scale_integers(q, 1.0, x)


def compile_checksum(_: Kinds) -> None:
    """What tells whether bytes have changed; in memory that may be written and in other."""
    data = np.zeros(_ELEMS, np.uint8)
    for data.flags.writeable in (True, False):
        checksums.checksum(data)


def compile_chunks(_: Kinds) -> None:
    """Chunks of a residual."""
    x, residual = np.zeros((2, _ELEMS), np.float32)
    norms, chosen = np.zeros(-(-_ELEMS // 256)), np.zeros(1, np.uint32)
    values = np.zeros(256, np.float32)
    chunks.absorb_chunks(x, residual, norms, chunk=256)
    chunks.take_largest_chunks(norms.astype(np.float32), residual, chosen, values, chunk=256)
    chunks.add_chunks(values, chosen, residual, chunk=256)


def compile_rotations(_: Kinds) -> None:
    """Hadamard rotations, and codes with sums of 8 and 16 bits."""
    book = hadamard.Codebook(table=tuple(range(16)), clip=2.5, chunk=256)
    size = book.rotated_elems(_ELEMS)
    p, norms, signs = np.zeros(_ELEMS, np.float32), np.zeros(4, np.float32), np.zeros(size // 32)
    bits, codes = signs.astype(np.uint32), np.zeros(size // 2, np.uint8)
    hadamard.rotate_quantize(p, norms, bits, codes, book=book, noise=_NOISE)
    for dtype in (np.uint8, np.uint16):
        sums = np.zeros(size, dtype)
        hadamard.sum_codes(codes, _ELEMS, sums, book=book)
        hadamard.rotate_back(sums, norms, bits, p, book=book, count=1)


WORKS = (
    compile_selections,  # takes longest
    compile_blockwise,
    compile_casts,
    compile_floats,
    compile_dithering,
    compile_onebit,
    compile_onebit_sgd,
    compile_dct,
    compile_blockwise_mean,
    compile_multi_tensor,
    compile_means,
    compile_sparse,
    compile_multi_tensor_sparse,
    compile_low_rank,
    compile_feedback,
    compile_integers,
    compile_checksum,
    compile_chunks,
    compile_rotations,
)
"""All there is to compile; `compile_one` takes their names."""


def compile_one(name: str, half: bool = False) -> None:
    """Compile one of `WORKS`, so that several processes can share them.

    Args:
        name: Its name.
        half: Also for gradients in float16 and bfloat16.

    Raises:
        KeyError: There is none of this name.
    """
    works = {work.__name__: work for work in WORKS}
    works[name](_all_kinds if half else _single)


def load_all() -> None:
    """Compile or load all kernels for gradients in float32 in this process."""
    for work in WORKS:
        compile_one(work.__name__)


def main(half: bool = False) -> None:
    """Compile all, by as many processes as there are cores, and say how long it took.

    Args:
        half: Also for gradients in float16 and bfloat16.
    """
    started_s = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        list(pool.map(partial(compile_one, half=half), [work.__name__ for work in WORKS]))
    print(f"compressa: CPU kernels are compiled ({time.perf_counter() - started_s:.1f} s)")


if __name__ == "__main__":
    main("--half" in sys.argv[1:])
