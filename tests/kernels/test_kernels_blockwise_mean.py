"""The mean in one pass has the bits of one stage after the other, with what is kept of it."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from alike import alike_in_threads
from compressa.kernels import (
    BlockwiseMeans,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
    Form,
    Noise,
    Owned,
    Packed,
    average_blockwise,
    average_vectors,
    block_count,
    reference,
)
from compressa.kernels.multi_tensor import BlockForm
from compressa.kernels.onebit import SignForm
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, gradients, poisoned, residual_for, same_bits
from sum_cases import any_bytes, any_scales, counts

FORMS = [
    Form(bits=bits, block=block, statistic=statistic)
    for bits, block in ((8, 64), (4, 10), (2, 64))
    for statistic in ("max", "range", "l2", "clipped")
]
noises = st.none() | st.builds(
    Noise, st.just(3), st.integers(0, 9), st.just(1), st.just(1), st.integers(0, 999)
)


def ranged(form: BlockForm) -> bool:
    return isinstance(form, Form) and form.statistic == "range"


def room(n: int, form: BlockForm) -> Packed:
    blocks = block_count(n, form.block)
    offsets = poisoned(blocks, np.float32) if ranged(form) else None
    codes = poisoned(form.code_bytes(n), np.uint8)
    return Packed(codes, poisoned(blocks, np.float32), offsets)


def any_payloads(n: int, form: BlockForm, count: int, seed: int) -> list[Packed]:
    random, blocks = np.random.default_rng(seed), block_count(n, form.block)
    return [
        Packed(
            any_bytes(random, form.code_bytes(n)),
            any_scales(random, blocks),
            any_scales(random, blocks) if ranged(form) else None,
        )
        for _ in range(count)
    ]


def averaged(
    x: F32,
    sent: list[Packed],
    form: Form,
    residual: F32 | None,
    loss_scale: float,
    noise: Noise | None = None,
) -> list[Any]:
    """Everything that is written: the values, the payload, the residual and what undoes it."""
    values, mean, weight = x.copy(), room(x.size, form), 1 / (len(sent) + 1)
    owned = None
    if residual is not None:
        kept = poisoned(x.size, np.float32)
        owned = Owned(residual.copy(), kept, loss_scale, loss_scale * weight)
    with np.errstate(all="ignore"):
        average_blockwise(values, sent, mean, form=form, weight=weight, noise=noise, owned=owned)
    written = [values, *mean, *(owned[:2] if owned else ())]
    return [array for array in written if array is not None]


@given(
    gradients(),
    counts,
    st.sampled_from(FORMS),
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
    noises,
    st.integers(0, 99),
)
def test_one_pass_has_the_bits_of_the_stages(
    x: F32,
    count: int,
    form: Form,
    keep: int | None,
    loss_scale: float,
    noise: Noise | None,
    seed: int,
) -> None:
    sent, residual = any_payloads(x.size, form, count, seed), residual_for(x, keep)
    ours = averaged(x, sent, form, residual, loss_scale, noise)
    with reference():
        specified = averaged(x, sent, form, residual, loss_scale, noise)
    assert all(same_bits(a, b) for a, b in zip(ours, specified, strict=True))


def in_bytes(payload: Packed) -> Any:
    """A payload as it travels among others: each begins at a multiple of 8."""
    parts = [a for a in (payload.scales, payload.offsets, payload.codes) if a is not None]
    whole = np.concatenate([array.view(np.uint8) for array in parts])
    return np.concatenate([whole, np.zeros(-whole.size % 8, np.uint8)])


def part_of(out: F32, first: int, form: BlockForm) -> BlockwisePart:
    """Where that which begins at a byte has its arrays."""
    head_bytes = 4 * block_count(out.size, form.block)
    if ranged(form):
        return BlockwisePart(out, first + 2 * head_bytes, first, first + head_bytes)
    return BlockwisePart(out, first + head_bytes, first)


def averaged_together(
    xs: list[F32],
    sent: list[list[Packed]],
    form: BlockForm,
    residuals: list[F32 | None],
    loss_scale: float,
    noise: Noise | None,
) -> list[list[Any]]:
    """What `averaged` returns of each vector, whose random numbers have its number."""
    means = [room(x.size, form) for x in xs]
    left = [None if residual is None else residual.copy() for residual in residuals]
    start = 0 if noise is None else noise.start
    vectors = [
        BlockwiseVector(x.copy(), *mean, residual, i, start)
        for i, (x, mean, residual) in enumerate(zip(xs, means, left, strict=True))
    ]
    kept = [None if e is None else poisoned(e.size, np.float32) for e in residuals]
    payloads = [np.concatenate(list(map(in_bytes, of_rank))) for of_rank in zip(*sent, strict=True)]
    *firsts, size = accumulate((in_bytes(mean).size for mean in means), initial=0)
    pairs, weight = zip(vectors, firsts, strict=True), 1 / (len(payloads) + 1)
    parts = [part_of(vector.x, first, form) for vector, first in pairs]
    batch = BlockwiseMeans(
        BlockwiseVectors(vectors, form=form),
        BlockwiseParts(parts, form=form, payload_bytes=size),
        kept,
    )
    scales = {"loss_scale": loss_scale, "mean_loss_scale": loss_scale * weight}
    with np.errstate(all="ignore"):
        average_vectors(batch, payloads, weight=weight, noise=noise, **scales)
    written = [[*vector[:5], undo] for vector, undo in zip(vectors, kept, strict=True)]
    return [[array for array in arrays if array is not None] for arrays in written]


@pytest.mark.parametrize("specified", [False, True])
@given(
    st.lists(gradients(), min_size=1, max_size=3),
    counts,
    st.sampled_from(FORMS),
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
    noises,
)
def test_vectors_of_a_list_have_the_bits_of_each_alone(
    specified: bool,
    xs: list[F32],
    count: int,
    form: Form,
    keep: int | None,
    loss_scale: float,
    noise: Noise | None,
) -> None:
    sent = [any_payloads(x.size, form, count, seed) for seed, x in enumerate(xs)]
    residuals = [residual_for(x, keep) for x in xs]
    with reference() if specified else nullcontext():
        together = averaged_together(xs, sent, form, residuals, loss_scale, noise)
    for i, (x, theirs, residual) in enumerate(zip(xs, sent, residuals, strict=True)):
        drawn = None if noise is None else noise._replace(parameter=i)
        alone = averaged(x, theirs, form, residual, loss_scale, drawn)
        assert all(same_bits(a, b) for a, b in zip(together[i], alone, strict=True))


@given(
    st.lists(gradients(), min_size=1, max_size=3),
    counts,
    st.sampled_from([8, 64, 1024]),
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
)
def test_means_of_signs_have_the_bits_of_the_stages(
    xs: list[F32], count: int, block: int, keep: int | None, loss_scale: float
) -> None:
    form, residuals = SignForm(block=block), [residual_for(x, keep) for x in xs]
    sent = [any_payloads(x.size, form, count, seed) for seed, x in enumerate(xs)]
    ours = averaged_together(xs, sent, form, residuals, loss_scale, None)
    with reference():
        specified = averaged_together(xs, sent, form, residuals, loss_scale, None)
    for mine, theirs in zip(ours, specified, strict=True):
        assert all(same_bits(a, b) for a, b in zip(mine, theirs, strict=True))


def test_lists_that_do_not_fit_are_refused() -> None:
    form, x = Form(bits=8, block=8), np.ones(8, np.float32)
    vector = BlockwiseVector(x, np.empty(8, np.uint8), np.empty(1, np.float32))
    vectors = BlockwiseVectors([vector], form=form)
    parts = BlockwiseParts([part_of(x, 0, form)], form=form, payload_bytes=12)
    with pytest.raises(ValueError, match="goes with a residual"):
        BlockwiseMeans(vectors, parts, [x.copy()])
    learning = BlockwiseVectors([vector._replace(residual=x.copy())], form=form)
    with pytest.raises(ValueError, match="kept must have shape"):
        BlockwiseMeans(learning, parts, [x[:4].copy()])
    signs = BlockwiseVectors([vector._replace(codes=vector.codes[:1])], form=SignForm(block=8))
    with pytest.raises(ValueError, match="are made of such"):
        BlockwiseMeans(signs, parts, [None])
    mixed = BlockwiseVectors([vector, learning.vectors[0]], form=form)
    with pytest.raises(ValueError, match="of all vectors or of none"):
        BlockwiseMeans(
            mixed, BlockwiseParts([*parts.parts] * 2, form=form, payload_bytes=12), [None, x]
        )
    half = BlockwiseVectors([vector._replace(x=x.astype(np.float16))], form=form)
    with pytest.raises(TypeError, match="x must be float32"):
        BlockwiseMeans(half, parts, [None])
    means = BlockwiseMeans(vectors, parts, [None])
    with pytest.raises(ValueError, match="payload must have shape"):
        average_vectors(means, [np.zeros(11, np.uint8)], weight=0.5)
    with pytest.raises(ValueError, match="scale must lie"):
        average_vectors(means, [np.zeros(12, np.uint8)], weight=0.5, mean_loss_scale=0.0)
    assert (x == 1).all()


@pytest.mark.parametrize("form", [Form(bits=b, block=64, statistic="range") for b in (2, 4, 8)])
def test_threads_give_the_bits_of_the_whole(form: Form) -> None:
    random, n = np.random.default_rng(0), (1 << 20) + 13
    x, residual = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    sent, noise = any_payloads(n, form, 2, 0), Noise(1, 2, 3, 4, 192)
    alike_in_threads(lambda: averaged(x, sent, form, residual, 1.0, noise))


def test_where_the_mean_overflows_what_undoes_the_step_is_kept() -> None:
    form, x = Form(bits=8, block=8), np.ones(24, np.float32)
    residual = np.arange(24, dtype=np.float32)
    sent = room(24, form)
    sent.codes[:], sent.scales[:] = 1, (0.0, np.inf, 0.0)
    x[20] = np.nan
    values, _, scales, left, undo = averaged(x, [sent], form, residual, 1.0)
    assert np.isnan(scales).tolist() == [False, True, True]
    assert np.isnan(values).tolist() == [False] * 8 + [True] * 16
    assert undo.tolist() == [*range(1, 21), 20, *range(22, 25)]  # an own NaN leaves what was there
    assert left[8:16].tolist() == undo[8:16].tolist()
    assert left[16:].tolist() == [0, 0, 0, 0, 20, 0, 0, 0]


def test_what_does_not_fit_is_refused() -> None:
    form, x = Form(bits=8, block=8), np.ones(8, np.float32)
    sent, mean = room(8, form), room(8, form)
    owned = Owned(x.copy(), x.copy(), 1.0, 1.0)
    with pytest.raises(ValueError, match="codes must have shape"):
        average_blockwise(x, [sent._replace(codes=sent.codes[:7])], mean, form=form, weight=1.0)
    with pytest.raises(ValueError, match="scales must have shape"):
        average_blockwise(
            x, [sent], mean._replace(scales=np.zeros(2, np.float32)), form=form, weight=1.0
        )
    with pytest.raises(ValueError, match="offsets"):
        average_blockwise(x, [sent._replace(offsets=sent.scales)], mean, form=form, weight=1.0)
    wrong = (
        ("residual must have shape", owned._replace(residual=x[:4])),
        ("kept must have shape", owned._replace(kept=x[:4])),
        ("scale must lie", owned._replace(loss_scale=0.0)),
        ("scale must lie", owned._replace(mean_loss_scale=0.0)),
    )
    for message, given_owned in wrong:
        with pytest.raises(ValueError, match=message):
            average_blockwise(x, [sent], mean, form=form, weight=1.0, owned=given_owned)
    with pytest.raises(TypeError, match="x must be float32"):
        average_blockwise(x.astype(np.float16), [sent], mean, form=form, weight=1.0)
    assert (x == 1).all()
