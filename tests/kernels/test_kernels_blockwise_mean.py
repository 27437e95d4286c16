"""The mean in one pass has the bits of one stage after the other, with what is kept of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import alike_in_threads
from compressa.kernels import Form, Noise, Owned, Packed, average_blockwise, block_count, reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, gradients, poisoned, residual_for, same_bits
from sum_cases import any_bytes, any_units, counts

FORMS = [
    Form(bits=bits, block=block, statistic=statistic)
    for bits, block in ((8, 64), (4, 10), (2, 64))
    for statistic in ("max", "range", "l2", "clipped")
]
noises = st.none() | st.builds(
    Noise, st.just(3), st.integers(0, 9), st.just(1), st.just(1), st.integers(0, 999)
)


def room(n: int, form: Form) -> Packed:
    blocks = block_count(n, form.block)
    offsets = poisoned(blocks, np.float32) if form.statistic == "range" else None
    codes = poisoned(form.code_bytes(n), np.uint8)
    return Packed(codes, poisoned(blocks, np.float32), offsets)


def any_payloads(n: int, form: Form, count: int, seed: int) -> list[Packed]:
    random, blocks = np.random.default_rng(seed), block_count(n, form.block)
    return [
        Packed(
            any_bytes(random, form.code_bytes(n)),
            any_units(random, blocks),
            any_units(random, blocks) if form.statistic == "range" else None,
        )
        for _ in range(count)
    ]


def averaged(
    x: F32,
    sent: list[Packed],
    form: Form,
    residual: F32 | None,
    scale: float,
    noise: Noise | None = None,
) -> list[Any]:
    """Everything that is written: the values, the payload, the residual and what undoes it."""
    values, mean, weight = x.copy(), room(x.size, form), 1 / (len(sent) + 1)
    owned = None
    if residual is not None:
        kept = poisoned(x.size, np.float32)
        owned = Owned(residual.copy(), kept, scale, scale * weight)
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
    scale: float,
    noise: Noise | None,
    seed: int,
) -> None:
    sent, residual = any_payloads(x.size, form, count, seed), residual_for(x, keep)
    ours = averaged(x, sent, form, residual, scale, noise)
    with reference():
        specified = averaged(x, sent, form, residual, scale, noise)
    assert all(same_bits(a, b) for a, b in zip(ours, specified, strict=True))


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
