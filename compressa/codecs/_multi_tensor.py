"""Codecs with a scale per block: all scopes of a unit in one call, on a GPU by one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from compressa.arrays import as_array
from compressa.codecs.base import Codec, Draw
from compressa.codecs.fused import Averager, Decoder, Encoder, Item, Movable
from compressa.kernels import array_at
from compressa.kernels.blockwise_mean import BlockwiseMeans, average_vectors
from compressa.kernels.device_array import DeviceArray
from compressa.kernels.multi_tensor import (
    MOST_ELEMS,
    BlockForm,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
    multi_tensor_dequantize,
    multi_tensor_quantize,
    multi_tensor_sum,
)
from compressa.kernels.multi_tensor_sparse import SparseVectors
from compressa.kernels.philox import Noise
from compressa.kernels.sparse_parts import Parts

B = TypeVar("B", BlockwiseVectors, BlockwiseParts, BlockwiseMeans, SparseVectors, Parts)


class Listed(Movable, Generic[B]):
    """Takes a list of vectors, which knows where they lie.

    Args:
        batch: The list.
    """

    def __init__(self, batch: B) -> None:
        self._batch: B = batch

    def move(self, addresses: npt.NDArray[np.int64]) -> None:
        """Tell the list."""
        self._batch.move(addresses)


class BlockwiseEncoder(Listed[BlockwiseVectors], Encoder):
    """Quantises a list of vectors.

    Args:
        batch: The vectors, with their parts of the payload.
        noise: Makes the random numbers of a step; None where none are drawn.
    """

    def __init__(
        self, batch: BlockwiseVectors, noise: Callable[[Draw], Noise | None] | None
    ) -> None:
        super().__init__(batch)
        self._noise = noise

    def encode(self, draw: Draw, loss_scale: float) -> None:
        """Quantise."""
        noise = None if self._noise is None else self._noise(draw)
        multi_tensor_quantize(self._batch, noise=noise, loss_scale=loss_scale)


class BlockwiseDecoder(Listed[BlockwiseParts], Decoder):
    """Unpacks payloads to a list of vectors, and adds them up.

    Args:
        batch: The vectors, and where in a payload they are.
    """

    def decode(self, payload: torch.Tensor) -> None:
        """Unpack and multiply by the scales."""
        multi_tensor_dequantize(self._batch, as_array(payload))

    def decode_add(self, payload: torch.Tensor, weight: float) -> None:
        """Unpack, multiply and accumulate in one pass."""
        multi_tensor_dequantize(self._batch, as_array(payload), weight=weight, add=True)

    def decode_sum(self, payloads: Sequence[torch.Tensor], weight: float) -> None:
        """Unpack and add up all payloads in one pass."""
        multi_tensor_sum(self._batch, list(map(as_array, payloads)), weight=weight)


class BlockwiseAverager(Listed[BlockwiseMeans], Averager):
    """Averages a list of vectors.

    Args:
        means: The vectors.
        noise: Makes the random numbers of a step; None where none are drawn.
    """

    def __init__(self, means: BlockwiseMeans, noise: Callable[[Draw], Noise | None] | None) -> None:
        super().__init__(means)
        self._noise = noise

    def average(
        self,
        sent: Sequence[torch.Tensor],
        draw: Draw,
        weight: float,
        loss_scale: float,
        mean_loss_scale: float,
    ) -> None:
        """Take each block through all of it while it lies in the cache."""
        average_vectors(
            self._batch,
            list(map(as_array, sent)),
            weight=weight,
            noise=None if self._noise is None else self._noise(draw),
            loss_scale=loss_scale,
            mean_loss_scale=mean_loss_scale,
        )


def fits_one_call(items: Sequence[Item]) -> bool:
    """Whether scopes can be taken by one call."""
    fit = all(_fits(x.values) for x in items)
    return fit and len({x.values.dtype for x in items}) == 1


def _fits(values: torch.Tensor) -> bool:
    """On a CPU, 16 bits are made of float32 piece by piece, each in the cache."""
    return values.numel() <= MOST_ELEMS and (values.is_cuda or values.dtype is torch.float32)


def encoder_of(
    codec: Codec,
    items: Sequence[Item],
    payload: torch.Tensor,
    form: BlockForm,
    noise: Callable[[Draw], Noise | None] | None,
) -> BlockwiseEncoder:
    """Return what encodes scopes whose payloads are scales, offsets if there are any, and codes.

    Args:
        codec: Says where a payload's arrays begin.
        items: The scopes; for which `fits_one_call`.
        payload: uint8, that of all scopes.
        form: What the codes look like.
        noise: Makes the random numbers of a step.
    """
    return BlockwiseEncoder(_vectors(codec, items, payload, form), noise)


def decoder_of(
    codec: Codec, items: Sequence[Item], payload_bytes: int, form: BlockForm
) -> BlockwiseDecoder:
    """Return what decodes payloads of `payload_bytes` bytes to such scopes; see `encoder_of`."""
    return BlockwiseDecoder(_parts(codec, items, payload_bytes, form))


def averager_of(
    codec: Codec,
    items: Sequence[Item],
    payload: torch.Tensor,
    form: BlockForm,
    noise: Callable[[Draw], Noise | None] | None,
) -> BlockwiseAverager:
    """Return what makes the means of scopes on a CPU, and encodes them; see `encoder_of`."""
    kept = [None if item.undo is None else unowned(item.undo) for item in items]
    vectors = _vectors(codec, items, payload, form)
    return BlockwiseAverager(
        BlockwiseMeans(vectors, _parts(codec, items, payload.numel(), form), kept), noise
    )


def _vectors(
    codec: Codec, items: Sequence[Item], payload: torch.Tensor, form: BlockForm
) -> BlockwiseVectors:
    vectors = []
    for item in items:
        ends = list(accumulate(codec.sections(item.values.numel()), initial=0))
        own = unowned(payload[item.start : item.start + ends[-1]])
        *heads, codes = [own[low:high] for low, high in pairwise(ends)]
        scales, *offsets = [head.view(np.float32) for head in heads]
        vector = BlockwiseVector(
            x=unowned(item.values),
            codes=codes,
            scales=scales,
            offsets=offsets[0] if offsets else None,
            residual=None if item.residual is None else unowned(item.residual),
            parameter=item.parameter,
            start=item.first,
        )
        vectors.append(vector)
    return BlockwiseVectors(vectors, form=form)


def _parts(
    codec: Codec, items: Sequence[Item], payload_bytes: int, form: BlockForm
) -> BlockwiseParts:
    parts = []
    for item in items:
        heads = codec.sections(item.values.numel())[:-1]
        scales, *offsets, codes = accumulate(heads, initial=item.start)
        parts.append(BlockwisePart(unowned(item.values), codes, scales, *offsets))
    return BlockwiseParts(parts, form=form, payload_bytes=payload_bytes)


def unowned(x: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's memory in an array that does not keep it allocated.

    What stays from step to step may not: gradients that are let go between steps, and made anew
    elsewhere, would take their memory twice.
    """
    array: Any = as_array(x)
    if x.is_cuda:
        return cast("npt.NDArray[Any]", DeviceArray(array.pointer, array.size, array.dtype, None))
    return array_at(x.data_ptr(), array)
