"""What codecs share whose payload is some arrays, and whose work is done by one kernel each way.

Most send a scale for each block and then a code for each element. The kernels take arrays; what is
between these and tensors, payloads and lengths is here, once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from compressa.arrays import as_array
from compressa.codecs._multi_tensor import averager_of, decoder_of, encoder_of, fits_one_call
from compressa.codecs._recorded import RecordedDecoder, RecordedEncoder
from compressa.codecs.base import Codec, Draw, Granularity
from compressa.codecs.fused import Averager, Decoder, Encoder, Fused, Item, Ways
from compressa.kernels.multi_tensor import BlockForm
from compressa.kernels.onebit import SignForm
from compressa.kernels.philox import Noise
from compressa.kernels.threads import SHARED_ELEMS

Array = npt.NDArray[Any]
Parts = Sequence[Array]
"""The arrays of a payload: the last has uint8, those before it the codec's `head_dtype`."""


@dataclass(frozen=True, kw_only=True)
class KernelCodec(Codec):
    """Arrays one after the other, each of a size that follows from the number of elements.

    Subclasses give these sizes and call kernels.
    """

    @abstractmethod
    def arrays(self, elems: int) -> tuple[int, ...]:
        """Return the bytes of a payload's arrays, in order, for a vector of `elems` elements."""

    @abstractmethod
    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Write the arrays of `x` + loss_scale * residual, which keeps what that loses.

        Args:
            x: float32[n]; of 16 bits too if the codec `takes_half`.
            parts: Overwritten.
            draw: Counter of the random bits.
            residual: float32[n], unscaled, updated in place; or None.
            loss_scale: What `x` was multiplied by.
        """

    @abstractmethod
    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Write `weight` times the decoded vector to `out`, or add it.

        Args:
            parts: The arrays of a payload, of the lengths that `arrays` says.
            out: float32[n]; overwritten, or added to.
            weight: Factor on the decoded vector.
            add: Whether to add it.

        Raises:
            PayloadError: Arrays of these lengths can not be decoded. `out` is untouched then.
        """

    dequantize_sum: ClassVar[Callable[[Any, Sequence[Parts], Array, float], None] | None] = None
    """A method (parts, out, weight) that writes the sum of payloads, also to 16 bits; None if there
    is no such kernel. `parts` has, for each array, those of all payloads."""

    @property
    def block_form(self) -> BlockForm | None:
        """By which a kernel takes all scopes of a unit; None if there is no such kernel."""
        return None

    @property
    def recorded(self) -> bool:
        """Whether there is another form of its kernels, which takes several scopes."""
        return False

    @property
    def head_dtype(self) -> npt.DTypeLike:
        """Dtype of all arrays but the last: of scales, mostly."""
        return np.float32

    @property
    def granularity(self) -> Granularity:
        """A block shares its scale."""
        return Granularity.BLOCK

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    @property
    def stochastic(self) -> bool:
        """Whether codes are rounded at random, and so unbiased."""
        return False

    def noise(self, draw: Draw) -> Noise | None:
        """Return the random numbers of an encode; None for a codec that draws none."""
        return None

    def wire_bytes(self, elems: int) -> int:
        """All arrays."""
        return sum(self.arrays(elems))

    def sections(self, elems: int) -> tuple[int, ...]:
        """All arrays, where a vector can be cut."""
        cut = self.granularity in (Granularity.ELEMENT, Granularity.BLOCK)
        return self.arrays(elems) if cut else ()

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Quantise."""
        self.quantize(as_array(x), self.split(payload, x.numel()), draw, None, 1.0)
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, multiply and add in one pass."""
        self.dequantize(self._checked(payload, out.numel()), as_array(out), weight, add=True)

    @cached_property
    def fused(self) -> Fused:
        """What there are kernels for."""
        takes_several = self.recorded or self.block_form is not None
        return Fused(
            encode_feedback=self._encode_feedback,
            decode=self._decode,
            decode_sum=None if self.dequantize_sum is None else self._decode_sum,
            encoder=self._encoder if takes_several else None,
            decoder=self._decoder if takes_several else None,
            averager=None if self.block_form is None else self._averager,
            ways=self._ways() if self.recorded else None,
            multi_tensor_only_on_gpus=self.recorded,
        )

    def split(self, payload: torch.Tensor, elems: int) -> Parts:
        """Return a payload's arrays, each where it is.

        Args:
            payload: uint8, of `wire_bytes(elems)` bytes; nothing is checked.
            elems: Elements that it decodes to.
        """
        return self._arrays_in(as_array(payload), elems)

    def _arrays_in(self, raw: Array, elems: int) -> Parts:
        parts, start = [], 0
        for size in self.arrays(elems)[:-1]:
            stop = start + size
            parts.append(raw[start:stop].view(self.head_dtype))
            start = stop
        parts.append(raw[start:] if start else raw)
        return parts

    def _checked(self, payload: torch.Tensor, elems: int) -> Parts:
        self.check_length(payload, elems)
        return self.split(payload, elems)

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        parts = self.split(payload, x.numel())
        self.quantize(as_array(x), parts, draw, as_array(residual), loss_scale)
        return payload.numel()

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        self.dequantize(self._checked(payload, out.numel()), as_array(out), 1.0, add=False)

    def _decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        each = [self._checked(payload, out.numel()) for payload, _ in payloads]
        self._total(each, as_array(out), weight)

    def _ways(self) -> Ways:
        """On arrays."""
        total = None if self.dequantize_sum is None else self._total
        return Ways(encode=self._write, read=self._read, put=self._put, total=total)

    def _write(
        self, x: Array, payload: Array, residual: Array | None, draw: Draw, loss_scale: float
    ) -> None:
        self.quantize(x, self._arrays_in(payload, x.size), draw, residual, loss_scale)

    def _read(self, payload: Array, elems: int, draw: Draw | None) -> Parts:
        return self._arrays_in(payload, elems)

    def _put(self, parts: Parts, out: Array, weight: float, add: bool) -> None:
        self.dequantize(parts, out, weight, add=add)

    def _total(self, each: Sequence[Parts], out: Array, weight: float) -> None:
        assert self.dequantize_sum is not None
        parts = [[own[i] for own in each] for i in range(len(self.arrays(0)))]
        self.dequantize_sum(parts, out, weight)

    def _encoder(self, items: Sequence[Item], payload: torch.Tensor) -> Encoder | None:
        if (ways := self.fused.ways) is not None:
            if not (self.takes_half or all(x.values.dtype is torch.float32 for x in items)):
                return None  # what is widened lies elsewhere in each step
            return RecordedEncoder(self, ways, items, payload, draws=self.stochastic)
        form = self.block_form
        if form is None or not fits_one_call(items):
            return None
        return encoder_of(self, items, payload, form, self.noise if self.stochastic else None)

    def _averager(self, items: Sequence[Item], payload: torch.Tensor) -> Averager | None:
        form, elems = self.block_form, max(x.values.numel() for x in items)
        if form is None or payload.is_cuda or not fits_one_call(items):
            return None
        if isinstance(form, SignForm) and elems >= SHARED_ELEMS:
            return None  # stage by stage, each of which threads share
        return averager_of(self, items, payload, form, self.noise if self.stochastic else None)

    def _decoder(self, items: Sequence[Item], payload_bytes: int) -> Decoder | None:
        if (ways := self.fused.ways) is not None:
            return RecordedDecoder(self, ways, items)
        form = self.block_form
        if form is None or not fits_one_call(items):
            return None
        return decoder_of(self, items, payload_bytes, form)
