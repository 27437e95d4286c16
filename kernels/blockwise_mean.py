"""The mean of one rank's own values and of what the others sent, quantised by `blockwise` again.

The owner of a shard does this in every step of a compressed reduction. Here each block goes
through all of it while it lies in the first-level cache; done one after the other, as the function
specifies it, each part would pass over memory.

For arrays on a CPU only: a GPU takes all scopes at once at each of these stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._arrays import F32, I64, U8, check_array, check_feedback, check_loss_scale
from ._backends import backend
from .blockwise import Form, check_payload, dequantize_blockwise, quantize_blockwise
from .feedback import absorb_residual
from .multi_tensor import BlockwiseParts, BlockwiseVectors, check_payloads
from .onebit import SignForm, sign_dequantize, sign_quantize
from .philox import Noise, check_noise


class Packed(NamedTuple):
    """A payload.

    Attributes:
        codes: uint8[form.code_bytes(n)].
        scales: float32[ceil(n / block)].
        offsets: As many with the statistic "range"; else None.
    """

    codes: U8
    scales: F32
    offsets: F32 | None


class Owned(NamedTuple):
    """What is kept of an own share.

    Attributes:
        residual: float32[n]; added to the values, and then what the mean lost.
        kept: float32[n], overwritten; see `absorb_residual`.
        loss_scale: Loss scale that the values carry, and neither of the two does.
        mean_loss_scale: What the mean carries and its error, as it is kept, does not.
    """

    residual: F32
    kept: F32
    loss_scale: float
    mean_loss_scale: float


def average_blockwise(
    x: F32,
    sent: Sequence[Packed],
    mean: Packed,
    *,
    form: Form,
    weight: float,
    noise: Noise | None = None,
    owned: Owned | None = None,
) -> None:
    """Average, quantise the mean, and write what it decodes to where the own values were.

    Example:
        >>> import numpy as np
        >>> x, form = np.float32([127, 2]), Form(bits=8, block=8)
        >>> sent = Packed(np.array([1, 2], np.int8).view(np.uint8), np.float32([1]), None)
        >>> mean = Packed(np.empty(2, np.uint8), np.empty(1, np.float32), None)
        >>> average_blockwise(x, [sent], mean, form=form, weight=0.5)
        >>> mean.codes.tolist(), mean.scales.tolist(), x.tolist()
        ([127, 4], [0.5039370059967041], [64.0, 2.0157480239868164])

    Args:
        x: float32[n]: the own values; overwritten.
        sent: What others sent, in the order in which it is added.
        mean: Overwritten.
        form: What all codes look like.
        weight: Factor on the own values and on those that were sent.
        noise: The random numbers of stochastic rounding; None to round to nearest.
        owned: What the own share keeps from step to step; None for no feedback.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``noise`` or a scale is wrong.
    """
    check_array("x", x, np.float32, writable=True)
    for packed in sent:
        check_payload(x.size, *packed, form, writable=False)
    check_payload(x.size, *mean, form, writable=True)
    check_noise(noise, x.size)
    if owned is not None:
        check_feedback(owned.residual, x.size, owned.loss_scale)
        check_array("kept", owned.kept, np.float32, x.shape, writable=True)
        check_loss_scale(owned.mean_loss_scale)
    arrays = [array for packed in (mean, *sent) for array in packed]
    if kernel := backend("blockwise_mean", x, *arrays, *(owned[:2] if owned else ())):
        kernel.average_blockwise(x, sent, mean, form=form, weight=weight, noise=noise, owned=owned)
        return
    if owned is not None:
        absorb_residual(x, owned.residual, owned.kept, owned.loss_scale)
        owned.residual[:] = 0
    x *= np.float32(weight)
    for codes, scales, offsets in sent:
        dequantize_blockwise(codes, scales, x, form=form, offsets=offsets, weight=weight, add=True)
    quantize_blockwise(
        x,
        mean.codes,
        mean.scales,
        form=form,
        offsets=mean.offsets,
        noise=noise,
        residual=None if owned is None else owned.residual,
        loss_scale=1.0 if owned is None else owned.mean_loss_scale,
    )
    if owned is not None:
        np.copyto(owned.residual, owned.kept, where=~np.isfinite(x))
    dequantize_blockwise(mean.codes, mean.scales, x, form=form, offsets=mean.offsets)


class BlockwiseMeans:
    """Vectors whose means are made in one call, checked once; a step then only names what was sent.

    Args:
        vectors: Own float32 values, which are overwritten; where their means are quantised to; and
            their residuals.
        parts: The same values, and where in what is sent their arrays begin.
        kept: As `Owned.kept`, of each vector that has a residual.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, the forms differ, or some vectors only have a
            residual.

    Attributes:
        vectors: As given.
        parts: As given.
        kept: As given.
        kernel: The backend; None if made within `reference`.
        prepared: What that has worked out for later calls; its own affair.
    """

    __slots__ = ("form", "kept", "kernel", "parts", "prepared", "vectors")

    def __init__(
        self, vectors: BlockwiseVectors, parts: BlockwiseParts, kept: Sequence[F32 | None]
    ) -> None:
        if parts.form != vectors.form:
            raise ValueError(f"means of {vectors.form} are made of such, not of {parts.form}")
        for vector, undo in zip(vectors.vectors, kept, strict=True):
            check_array("x", vector.x, np.float32, writable=True)
            if len({array is None for array in (undo, vector.residual, *kept)}) > 1:
                raise ValueError("what is kept goes with a residual, of all vectors or of none")
            if undo is not None:
                check_array("kept", undo, np.float32, vector.x.shape, writable=True)
        self.vectors, self.parts, self.kept = vectors, parts, tuple(kept)
        self.form = vectors.form
        self.kernel = backend("blockwise_mean", *(v.x for v in vectors.vectors), *kept)
        self.prepared: Any = None

    def move(self, addresses: I64) -> None:
        """Have the own values lie elsewhere from now on; see `BlockwiseVectors.move`."""
        if self.prepared is not None:
            self.prepared.move(addresses)
            return
        self.vectors.move(addresses)
        self.parts.move(addresses)


def average_vectors(
    means: BlockwiseMeans,
    sent: Sequence[U8],
    *,
    weight: float,
    noise: Noise | None = None,
    loss_scale: float = 1.0,
    mean_loss_scale: float = 1.0,
) -> None:
    """Average every vector of a list as `average_blockwise` does; scaled signs by the same stages.

    Args:
        means: The vectors.
        sent: Payloads, in the order in which they are added; uint8[payload_bytes] each, at an
            address that is a multiple of 4.
        weight: Factor on the own values and on those that were sent.
        noise: As `multi_tensor_quantize` takes it.
        loss_scale: See `Owned`.
        mean_loss_scale: See `Owned`.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A payload's shape or layout is wrong, or a scale.
    """
    check_payloads(means.parts, sent)
    check_loss_scale(loss_scale)
    check_loss_scale(mean_loss_scale)
    if means.kernel:
        means.kernel.average_vectors(
            means,
            sent,
            weight=weight,
            noise=noise,
            loss_scale=loss_scale,
            mean_loss_scale=mean_loss_scale,
        )
        return
    form = means.form
    for vector, part, undo in zip(
        means.vectors.vectors, means.parts.parts, means.kept, strict=True
    ):
        x, codes, scales, offsets, left, *_ = vector
        theirs, mean = [Packed(*part.arrays(p, form)) for p in sent], Packed(codes, scales, offsets)
        owned = None
        if left is not None and undo is not None:
            owned = Owned(left, undo, loss_scale, mean_loss_scale)
        if isinstance(form, SignForm):
            _average_signs(x, theirs, mean, form.block, weight, owned)
        else:
            own = vector.noise(noise)
            average_blockwise(x, theirs, mean, form=form, weight=weight, noise=own, owned=owned)


def _average_signs(
    x: F32, sent: Sequence[Packed], mean: Packed, block: int, weight: float, owned: Owned | None
) -> None:
    if owned is not None:
        absorb_residual(x, owned.residual, owned.kept, owned.loss_scale)
        owned.residual[:] = 0
    x *= np.float32(weight)
    for bits, scales, _ in sent:
        sign_dequantize(bits, scales, x, block=block, weight=weight, add=True)
    left, loss_scale = (None, 1.0) if owned is None else (owned.residual, owned.mean_loss_scale)
    sign_quantize(x, mean.codes, mean.scales, block=block, residual=left, loss_scale=loss_scale)
    if owned is not None:
        np.copyto(owned.residual, owned.kept, where=~np.isfinite(x))
    sign_dequantize(mean.codes, mean.scales, x, block=block)
