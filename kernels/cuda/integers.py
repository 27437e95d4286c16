"""Integers of a shared scale on a GPU; see :mod:`compressa.kernels.integers`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..integers import Integers
from ..philox import Noise
from ._arguments import i64, random
from ._device import launch
from ._work import batches_for, threads_for_rows


def round_to_integers(x: F32, factor: float, most: int, out: Integers, noise: Noise) -> None:
    launch(
        "integers",
        f"round_to_{8 * out.dtype.itemsize}",
        *threads_for_rows(out.size),
        x,
        np.float64(factor),
        np.float64(most),
        out,
        i64(out.size),
        *random(noise),
    )


def scale_integers(q: Integers, scale: float, out: F32) -> None:
    name, batches = f"scale_{8 * q.dtype.itemsize}", batches_for(out.size)
    launch("integers", name, *batches, q, np.float64(scale), out, i64(out.size))
