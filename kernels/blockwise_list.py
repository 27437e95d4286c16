"""Block-wise quantisation of many vectors in one call: what `blockwise` does, for a list.

A GPU takes a few microseconds to begin a kernel, as long as a megabyte takes it. So the small
vectors of a model are quantised together. Each gives the bits that a call of its own gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._arrays import F32, U8, Gradient, check_feedback, check_gradient, check_scale
from ._backends import backend
from .blockwise import Form, check_payload
from .philox import Noise, check_noise

MOST_ELEMS = 1 << 30
"""Of one vector: what is longer has no use for company."""


class BlockwiseVector(NamedTuple):
    """One vector of a list; the arrays are those of `quantize_blockwise`.

    Attributes:
        x: The gradient.
        codes: Overwritten.
        scales: Overwritten.
        offsets: Overwritten; with the statistic "range" only.
        residual: Updated in place; None for no feedback.
        parameter: Of the vector's random numbers; see `Noise`.
        start: The same.
    """

    x: Gradient
    codes: U8
    scales: F32
    offsets: F32 | None = None
    residual: F32 | None = None
    parameter: int = 0
    start: int = 0

    def noise(self, shared: Noise | None) -> Noise | None:
        """Return the vector's random numbers, of the step whose others are given."""
        if shared is None:
            return None
        return shared._replace(parameter=self.parameter, start=self.start)


class BlockwiseList:
    """Vectors that are quantised together, checked once; a step then only names the list.

    Args:
        vectors: Of one dtype, at most `MOST_ELEMS` long. Nothing that is written overlaps.
        form: What the codes look like.

    Raises:
        TypeError: A dtype is wrong, or differs.
        ValueError: A shape or a layout is wrong, or `start`; a vector is too long, or lies on
            another device than the first.
        KernelUnavailable: There is no kernel for the device.

    Attributes:
        vectors: As given.
        form: As given.
        kernel: The backend of the device that holds them.
        prepared: What that has worked out for later calls; its own affair.
    """

    __slots__ = ("form", "kernel", "prepared", "vectors")

    def __init__(self, vectors: Sequence[BlockwiseVector], *, form: Form) -> None:
        for vector in vectors:
            _check(vector, form)
        if len({vector.x.dtype for vector in vectors}) > 1:
            raise TypeError("all vectors of a list must have one dtype")
        self.vectors = tuple(vectors)
        self.form = form
        arrays = (array for vector in vectors for array in vector[:5])
        self.kernel = backend("blockwise_list", *arrays)
        self.prepared: Any = None


def quantize_blockwise_list(
    batch: BlockwiseList, *, noise: Noise | None = None, scale: float = 1.0
) -> None:
    """Quantise every vector of a list as `quantize_blockwise` does.

    Example:
        >>> import numpy as np
        >>> vectors = [
        ...     BlockwiseVector(x, np.empty(2, np.uint8), np.empty(1, np.float32))
        ...     for x in (np.float32([127, -3]), np.float32([0, 254]))
        ... ]
        >>> quantize_blockwise_list(BlockwiseList(vectors, form=Form(bits=8, block=8)))
        >>> [vector.codes.view(np.int8).tolist() for vector in vectors]
        [[127, -3], [0, 127]]
        >>> [vector.scales.tolist() for vector in vectors]
        [[1.0], [2.0]]

    Args:
        batch: The vectors.
        noise: The random numbers of stochastic rounding: seed, stream and step, for parameter and
            start are each vector's own. None to round to nearest.
        scale: Loss scale that the gradients carry and the residuals do not.

    Raises:
        ValueError: ``scale`` is wrong.
    """
    check_scale(scale)
    batch.kernel.quantize_blockwise_list(batch, noise=noise, scale=scale)


def _check(vector: BlockwiseVector, form: Form) -> None:
    n = vector.x.size
    check_gradient(vector.x)
    if n > MOST_ELEMS:
        raise ValueError(f"a vector of a list has at most {MOST_ELEMS} elements, not {n}")
    check_payload(n, vector.codes, vector.scales, vector.offsets, form, writable=True)
    check_feedback(vector.residual, n, 1.0)
    check_noise(Noise(0, 0, 0, vector.parameter, vector.start), n)
