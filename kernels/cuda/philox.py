"""Philox4x32-7 on a GPU; see :mod:`compressa.kernels.philox`."""

from __future__ import annotations

import numpy as np

from .._arrays import U32
from ..philox import Noise
from ._arguments import random
from ._device import launch
from ._work import threads_for, threads_for_rows


def random_words(
    out: U32, *, seed: int, stream: int, step: int, parameter: int, start: int = 0
) -> None:
    key = random(Noise(seed, stream, step, parameter, start))
    launch("philox", "random_words", *threads_for(out.size, 4), out, np.int64(out.size), *key)


def random_fractions(out: U32, noise: Noise) -> None:
    threads = threads_for_rows(out.size)
    launch("philox", "random_fractions", *threads, out, np.int64(out.size), *random(noise))
