"""Linear quantisers on a GPU: all scopes of a unit by one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy.typing as npt
import torch

from compressa.arrays import as_array
from compressa.codecs.base import Decoder, Draw, Encoder
from compressa.kernels.blockwise_list import (
    BlockwiseList,
    BlockwiseParts,
    dequantize_blockwise_list,
    quantize_blockwise_list,
    sum_blockwise_list,
)
from compressa.kernels.device_array import DeviceArray
from compressa.kernels.philox import Noise


class BlockwiseEncoder(Encoder):
    """Quantises a list of vectors.

    Args:
        batch: The vectors, with their parts of the payload.
        noise: Makes the random numbers of a step.
    """

    def __init__(self, batch: BlockwiseList, noise: Callable[[Draw], Noise | None]) -> None:
        self._batch = batch
        self._noise = noise

    def encode(self, draw: Draw, scale: float) -> None:
        """Quantise."""
        quantize_blockwise_list(self._batch, noise=self._noise(draw), scale=scale)


class BlockwiseDecoder(Decoder):
    """Unpacks payloads to a list of vectors, and adds them up.

    Args:
        batch: The vectors, and where in a payload they are.
    """

    def __init__(self, batch: BlockwiseParts) -> None:
        self._batch = batch

    def decode(self, payload: torch.Tensor) -> None:
        """Unpack and multiply by the units."""
        dequantize_blockwise_list(self._batch, as_array(payload))

    def decode_add(self, payload: torch.Tensor, weight: float) -> None:
        """Unpack, multiply and accumulate in one pass."""
        dequantize_blockwise_list(self._batch, as_array(payload), weight=weight, add=True)

    def decode_sum(self, payloads: Sequence[torch.Tensor], weight: float) -> None:
        """Unpack and add up all payloads in one pass."""
        sum_blockwise_list(self._batch, [as_array(p) for p in payloads], weight=weight)


def unowned(x: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's memory on a GPU, in an array that does not keep it allocated.

    What stays from step to step may not: gradients that are let go between steps, and made anew
    elsewhere, would take their memory twice.
    """
    array: Any = as_array(x)
    return cast("npt.NDArray[Any]", DeviceArray(array.pointer, array.size, array.dtype, None))
