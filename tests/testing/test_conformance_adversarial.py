"""Declared bounds hold on vectors that are searched for to break them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from compressor_cases import CODECS
from hypothesis import given, settings, target
from hypothesis import strategies as st
from kernel_cases import F32, FINITE, gradients

from compressa.codecs import Codec
from compressa.testing.bias_checks import check_error, errors, is_random
from compressa.testing.codec_checks import check_decode_add, check_feedback

# Casts have their bounds for normal numbers that they can hold, and squares must not overflow.
_MAGNITUDES = (1e-3, 1.0, 1e4)
_TINY = tuple(value for value in FINITE if abs(value) < 1e38)  # sums do not overflow
_NORMAL = tuple(value for value in _TINY if value == 0 or abs(value) > 1e-32)
# Unscaled, residuals are to be normal numbers: below, they cannot hold what a payload can.
_SCALED = ((1.0, _TINY), (0.125, _NORMAL), (65536.0, _NORMAL))
_DRAWS = 100


@st.composite
def spread(draw: st.DrawFn) -> F32:
    """A few elements per decade: long tails, plateaus and cliffs."""
    n = draw(st.integers(1, 300))
    decades = draw(st.lists(st.floats(-4, 4), min_size=1, max_size=6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = 10.0 ** random.choice(decades, n)
    x: F32 = (random.choice((-1.0, 1.0), n) * sizes).astype(np.float32)
    return x


@st.composite
def scaled_gradients(draw: st.DrawFn) -> tuple[float, F32]:
    """A loss scale, and a gradient that carries it."""
    loss_scale, specials = draw(st.sampled_from(_SCALED))
    magnitudes = (1e-38, 1.0) if loss_scale == 1.0 else (1e-6, 1.0, 1e6)
    return loss_scale, draw(gradients(specials=specials, magnitudes=magnitudes))


VECTORS = st.one_of(spread(), gradients(specials=(), magnitudes=_MAGNITUDES))


@pytest.mark.parametrize("codec", CODECS)
def test_the_error_bound_holds_on_adversarial_vectors(codec: Codec) -> None:
    random = is_random(codec)

    @settings(max_examples=12 if random else 80, deadline=None, derandomize=True, database=None)
    @given(x=VECTORS)
    def holds(x: F32) -> None:
        vector = torch.from_numpy(x.copy())
        if not vector.any():
            return
        drawn = errors(codec, vector, _DRAWS if random else 1)
        check_error(codec, vector, "adversarial", drawn)
        share = drawn.square().sum(dim=1).mean() / vector.double().square().sum()
        target(math.log10(max(float(share), 1e-12)))

    holds()


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_payload_lacks_is_in_the_residual(codec: Codec) -> None:
    @settings(max_examples=30, deadline=None, derandomize=True, database=None)
    @given(scaled=scaled_gradients(), seed=st.integers(0, 2**16))
    def holds(scaled: tuple[float, F32], seed: int) -> None:
        loss_scale, x = scaled
        vector = torch.from_numpy(x.copy())
        generator = torch.Generator().manual_seed(seed)
        size = float(vector.abs().clamp(max=1e30).max()) if vector.numel() else 0.0
        residual = torch.randn(vector.numel(), generator=generator) * size / loss_scale
        check_feedback(codec, vector, residual, loss_scale)
        check_decode_add(codec, vector)

    holds()
