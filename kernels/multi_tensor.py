"""Multi-tensor: many vectors quantised in one call, as `blockwise` and `onebit` do with one.

A GPU takes a few microseconds to begin a kernel, as long as a megabyte takes it. So the small
vectors of a model are quantised together, and so are their sums. Each gives the bits that a call of
its own gives.

The lists know where arrays lie, and say so in one parameter of a kernel. That is worked out once
and holds as long as no array moves; where values lie elsewhere, a CPU is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._arrays import (
    F32,
    I64,
    U8,
    Gradient,
    array_at,
    block_count,
    check_array,
    check_feedback,
    check_gradient,
    check_loss_scale,
    check_sum,
)
from ._backends import backend
from ._numpy import put
from .blockwise import Form, dequantize_blockwise, quantize_blockwise, sum_blockwise
from .onebit import SignForm, sign_dequantize, sign_quantize, sum_signs
from .philox import Noise, check_noise

BlockForm = Form | SignForm
"""Of integers, as `blockwise` makes them, or of signs, as `onebit` does."""

MOST_ELEMS = 1 << 30
"""Of one vector: what is longer has no use for company."""


class BlockwiseVector(NamedTuple):
    """One vector of a list; the arrays are those of `quantize_blockwise`, or of `sign_quantize`.

    Attributes:
        x: The gradient: float32[n]; or float16, or bfloat16 as uint16.
        codes: uint8, of the form's bytes for n elements, overwritten; the bits of signs.
        scales: float32[ceil(n / block)], overwritten.
        offsets: As scales; with the statistic "range" only.
        residual: float32[n], updated in place; None for no feedback.
        parameter: Number of the parameter, for the vector's random numbers; see `Noise`.
        start: Number of its first element, likewise.
    """

    x: Gradient
    codes: U8
    scales: F32
    offsets: F32 | None = None
    residual: F32 | None = None
    parameter: int = 0
    start: int = 0

    def noise(self, shared: Noise | None) -> Noise | None:
        """Return where the vector's random numbers begin; None if nothing rounds at random.

        Args:
            shared: Has the seed, stream and step of the whole list.
        """
        if shared is None:
            return None
        return shared._replace(parameter=self.parameter, start=self.start)


class BlockwiseVectors:
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
        vectors: As given, until they move.
        form: As given.
        kernel: The backend of the device that holds them; None if made within `reference`.
        prepared: What that has worked out for later calls; its own affair.
    """

    __slots__ = ("form", "kernel", "prepared", "vectors")

    def __init__(self, vectors: Sequence[BlockwiseVector], *, form: BlockForm) -> None:
        for vector in vectors:
            _check(vector, form)
        if len({vector.x.dtype for vector in vectors}) > 1:
            raise TypeError("all vectors of a list must have one dtype")
        self.vectors = tuple(vectors)
        self.form = form
        arrays = (array for vector in vectors for array in vector[:5])
        self.kernel = backend("multi_tensor", *arrays)
        self.prepared: Any = None

    def move(self, addresses: I64) -> None:
        """Have each vector's values lie elsewhere from now on: as many, of the same dtype.

        Args:
            addresses: Of a CPU, by vector; the memory is the caller's to keep.
        """
        if self.prepared is not None:
            self.prepared.move(addresses)
            return
        pairs = zip(self.vectors, addresses.tolist(), strict=True)
        self.vectors = tuple(vector._replace(x=array_at(at, vector.x)) for vector, at in pairs)


class BlockwisePart(NamedTuple):
    """One vector that payloads decode to, and where in each of them its arrays begin.

    Attributes:
        out: float32, float16, or uint16 for bfloat16; overwritten, or added to.
        codes: Byte of the payload at which its codes begin.
        scales: The same of its scales; a multiple of 4.
        offsets: The same of its offsets; with the statistic "range" only.
    """

    out: Gradient
    codes: int
    scales: int
    offsets: int | None = None

    def arrays(self, payload: U8, form: BlockForm) -> tuple[U8, F32, F32 | None]:
        """Return the vector's codes, scales and offsets, in the memory of a payload.

        Args:
            payload: uint8, the whole.
            form: What the codes look like.

        Returns:
            uint8, packed as the form says; float32, one for each block; and the same of offsets,
            or None without them.
        """
        n = self.out.size
        codes = payload[self.codes : self.codes + form.code_bytes(n)]
        heads_bytes = 4 * block_count(n, form.block)
        scales = payload[self.scales : self.scales + heads_bytes].view(np.float32)
        if self.offsets is None:
            return codes, scales, None
        return codes, scales, payload[self.offsets : self.offsets + heads_bytes].view(np.float32)


class BlockwiseParts:
    """Vectors that payloads of one layout decode to, checked once.

    Args:
        parts: Of one dtype, at most `MOST_ELEMS` long; they do not overlap.
        form: What the codes look like.
        payload_bytes: Bytes of a payload.

    Raises:
        TypeError: A dtype is wrong, or differs.
        ValueError: A layout is wrong, a vector is too long or lies on another device than the
            first, or a payload has no room for what a part says is there.
        KernelUnavailable: There is no kernel for the device.

    Attributes:
        parts: As given, until they move.
        form: As given.
        payload_bytes: As given.
        kernel: The backend of the device that holds them; None if made within `reference`.
        prepared: What that has worked out for later calls; its own affair.
    """

    __slots__ = ("form", "kernel", "parts", "payload_bytes", "prepared")

    def __init__(
        self, parts: Sequence[BlockwisePart], *, form: BlockForm, payload_bytes: int
    ) -> None:
        for part in parts:
            _check_part(part, form, payload_bytes)
        if len({part.out.dtype for part in parts}) > 1:
            raise TypeError("all vectors of a list must have one dtype")
        self.parts = tuple(parts)
        self.form = form
        self.payload_bytes = payload_bytes
        self.kernel = backend("multi_tensor", *(part.out for part in parts))
        self.prepared: Any = None

    def move(self, addresses: I64) -> None:
        """Decode to elsewhere from now on; see `BlockwiseVectors.move`."""
        if self.prepared is not None:
            self.prepared.move(addresses)
            return
        pairs = zip(self.parts, addresses.tolist(), strict=True)
        self.parts = tuple(part._replace(out=array_at(at, part.out)) for part, at in pairs)


def multi_tensor_quantize(
    batch: BlockwiseVectors, *, noise: Noise | None = None, loss_scale: float = 1.0
) -> None:
    """Quantise every vector of a list as `quantize_blockwise` or `sign_quantize` does.

    Example:
        >>> import numpy as np
        >>> vectors = [
        ...     BlockwiseVector(x, np.empty(2, np.uint8), np.empty(1, np.float32))
        ...     for x in (np.float32([127, -3]), np.float32([0, 254]))
        ... ]
        >>> multi_tensor_quantize(BlockwiseVectors(vectors, form=Form(bits=8, block=8)))
        >>> [vector.codes.view(np.int8).tolist() for vector in vectors]
        [[127, -3], [0, 127]]
        >>> [vector.scales.tolist() for vector in vectors]
        [[1.0], [2.0]]

    Args:
        batch: The vectors.
        noise: The random numbers of stochastic rounding: seed, stream and step, for parameter and
            start are each vector's own. None to round to nearest, and for signs.
        loss_scale: Loss scale that the gradients carry and the residuals do not.

    Raises:
        ValueError: ``loss_scale`` is wrong, or there is noise for signs.
    """
    check_loss_scale(loss_scale)
    if noise is not None and isinstance(batch.form, SignForm):
        raise ValueError("signs are not drawn at random: noise must be None")
    if batch.kernel:
        batch.kernel.multi_tensor_quantize(batch, noise=noise, loss_scale=loss_scale)
        return
    form = batch.form
    for vector in batch.vectors:
        arrays, left = vector[:3], vector.residual
        if isinstance(form, SignForm):
            sign_quantize(*arrays, block=form.block, residual=left, loss_scale=loss_scale)
        else:
            own = vector.noise(noise)
            quantize_blockwise(
                *arrays,
                form=form,
                offsets=vector.offsets,
                noise=own,
                residual=left,
                loss_scale=loss_scale,
            )


def multi_tensor_sum(batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0) -> None:
    """Write the weighted sum of several payloads to every vector, as a single call does.

    Example:
        >>> import numpy as np
        >>> payload = np.concatenate([np.float32([0.5, 4]).view(np.uint8), np.uint8([2, 4, 3])])
        >>> outs = np.empty(2, np.float32), np.empty(1, np.float32)
        >>> parts = [BlockwisePart(outs[0], 8, 0), BlockwisePart(outs[1], 10, 4)]
        >>> batch = BlockwiseParts(parts, form=Form(bits=8, block=8), payload_bytes=11)
        >>> multi_tensor_sum(batch, [payload, payload], weight=0.5)
        >>> [out.tolist() for out in outs]
        [[1.0, 2.0], [12.0]]

    Args:
        batch: The vectors.
        payloads: uint8[payload_bytes] each, at an address that is a multiple of 4.
        weight: Factor on every decoded value.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A payload's shape, layout or device is wrong.
    """
    check_payloads(batch, payloads)
    if batch.kernel:
        batch.kernel.multi_tensor_sum(batch, payloads, weight=weight)
        return
    form = batch.form
    for part in batch.parts:
        arrays = [part.arrays(payload, form) for payload in payloads]
        codes, scales = [some for some, _, _ in arrays], [some for _, some, _ in arrays]
        offsets = [some for _, _, some in arrays if some is not None] or None
        if isinstance(form, SignForm):
            sum_signs(codes, scales, part.out, block=form.block, weight=weight)
        else:
            sum_blockwise(codes, scales, part.out, form=form, offsets=offsets, weight=weight)


def multi_tensor_dequantize(
    batch: BlockwiseParts, payload: U8, *, weight: float = 1.0, add: bool = False
) -> None:
    """Decode a payload into every vector, or add it, as a single call does.

    Where a vector has 16 bits, what is decoded is rounded to them in the end.

    Args:
        batch: The vectors.
        payload: See `multi_tensor_sum`.
        weight: Factor on every decoded value.
        add: Whether to add to what the vectors hold; these are float32 then.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: The payload's shape, layout or device is wrong.
    """
    check_payloads(batch, [payload])
    if add and any(part.out.dtype != np.float32 for part in batch.parts[:1]):
        raise TypeError(f"what is added to must be float32, not {batch.parts[0].out.dtype}")
    if batch.kernel:
        batch.kernel.multi_tensor_dequantize(batch, payload, weight=weight, add=add)
        return
    for part in batch.parts:
        whole = part.out.dtype == np.float32
        out = part.out if whole else np.empty(part.out.size, np.float32)
        _dequantize(part.arrays(payload, batch.form), out, batch.form, weight, add)
        if not whole:
            put(out, part.out)


def _dequantize(
    arrays: tuple[U8, F32, F32 | None], out: F32, form: BlockForm, weight: float, add: bool
) -> None:
    codes, scales, offsets = arrays
    if isinstance(form, SignForm):
        sign_dequantize(codes, scales, out, block=form.block, weight=weight, add=add)
    else:
        dequantize_blockwise(codes, scales, out, form=form, offsets=offsets, weight=weight, add=add)


def _check_length(n: int) -> None:
    if n > MOST_ELEMS:
        raise ValueError(f"a vector of a list has at most {MOST_ELEMS} elements, not {n}")


def _check_offsets(offsets: object | None, form: BlockForm) -> None:
    ranged = isinstance(form, Form) and form.statistic == "range"
    if (offsets is not None) != ranged:
        raise ValueError('offsets go with the statistic "range", and with no other')


def _check_part(part: BlockwisePart, form: BlockForm, payload_bytes: int) -> None:
    n = part.out.size
    check_sum(part.out)
    _check_length(n)
    _check_offsets(part.offsets, form)
    heads = [part.scales] if part.offsets is None else [part.scales, part.offsets]
    if any(first % 4 for first in heads):
        raise ValueError(f"scales and offsets begin at multiples of 4 bytes, not at {heads}")
    ends = [first + 4 * block_count(n, form.block) for first in heads]
    ends.append(part.codes + form.code_bytes(n))
    if min(part.codes, *heads) < 0 or max(ends) > payload_bytes:
        raise ValueError(f"{part[1:]} of {n} elements do not lie in {payload_bytes} bytes")


def check_payloads(batch: BlockwiseParts, payloads: Sequence[U8]) -> None:
    """Refuse what is no payload of a list; see `multi_tensor_sum`."""
    size = batch.payload_bytes
    for payload in payloads:
        check_array("payload", payload, np.uint8, (size,))
        check_array("payload", payload[: size - size % 4].view(np.float32), np.float32)
        if batch.parts and type(payload) is not type(batch.parts[0].out):
            backend("multi_tensor", batch.parts[0].out, payload)  # which refuses it


def _check(vector: BlockwiseVector, form: BlockForm) -> None:
    n = vector.x.size
    check_gradient(vector.x)
    _check_length(n)
    check_array("codes", vector.codes, np.uint8, (form.code_bytes(n),), writable=True)
    _check_offsets(vector.offsets, form)
    for name, head in (("scales", vector.scales), ("offsets", vector.offsets)):
        if head is not None:
            check_array(name, head, np.float32, (block_count(n, form.block),), writable=True)
    check_feedback(vector.residual, n, 1.0)
    check_noise(Noise(0, 0, 0, vector.parameter, vector.start), n)
