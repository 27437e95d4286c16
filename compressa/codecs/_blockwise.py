"""What all linear quantisers share: one unit per block, packed integers, one kernel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from compressa.arrays import as_array
from compressa.codecs._blockwise_list import decoder_of, encoder_of, goes_at_once
from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.codecs.fused import Averaging, Decoder, Encoder, Fused, Item, Kept
from compressa.errors import ConfigError
from compressa.kernels import blockwise
from compressa.kernels.blockwise_mean import Owned, Packed, average_blockwise
from compressa.kernels.philox import Noise


@dataclass(frozen=True, kw_only=True)
class Blockwise(Codec):
    """Units first (float32, one per block), offsets if there are any, then the packed codes.

    Subclasses give the form of the codes and say how they round; everything else follows.
    """

    block: int

    def __post_init__(self) -> None:
        try:
            self.form  # noqa: B018 - it checks itself
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    @cached_property
    def form(self) -> blockwise.Form:
        """What the codes look like."""
        return self._make_form()

    @abstractmethod
    def _make_form(self) -> blockwise.Form:
        """Build the form from the hyper-parameters; raises ValueError if there is none."""

    @property
    def stochastic(self) -> bool:
        """Whether codes are rounded at random, and so unbiased."""
        return False

    @property
    def granularity(self) -> Granularity:
        """A block shares one unit."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements that share a unit."""
        return self.block

    @property
    def error_feedback(self) -> bool:
        """On for contractions, and for them only."""
        return isinstance(self.bias(1 << 20), Contraction)

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per block (eight with offsets), and the packed codes."""
        return sum(self.sections(elems))

    def sections(self, elems: int) -> tuple[int, ...]:
        """Units, offsets if there are any, codes."""
        heads = 2 if self.form.statistic == "range" else 1
        units = 4 * math.ceil(elems / self.block)
        return (*[units] * heads, self.form.code_bytes(elems))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Quantise."""
        return self._quantize(x, None, payload, draw, 1.0)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, multiply and accumulate in one pass."""
        self._dequantize(payload, out, weight, add=True)

    @cached_property
    def fused(self) -> Fused:
        """All of it."""
        return Fused(
            encode_feedback=self._quantize,
            decode=self._decode,
            decode_sum=self._decode_sum,
            average=self._average,
            encoder=self._encoder,
            decoder=self._decoder,
        )

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Unpack and multiply by the units."""
        self._dequantize(payload, out, 1.0, add=False)

    def _decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        """Unpack and add up all payloads in one pass."""
        elems = out.numel()
        parts = [self._checked_parts(payload, elems) for payload, _ in payloads]
        blockwise.sum_blockwise(
            [part.codes for part in parts],
            [part.scales for part in parts],
            as_array(out),
            form=self.form,
            offsets=[part.offsets for part in parts if part.offsets is not None] or None,
            weight=weight,
        )

    def _average(self, share: Averaging) -> int:
        """Block by block."""
        elems = share.values.numel()
        average_blockwise(
            as_array(share.values),
            [self._parts(as_array(payload), elems) for payload in share.sent],
            self._parts(as_array(share.payload), elems),
            form=self.form,
            weight=share.weight,
            noise=self._noise(share.draw),
            owned=None if share.kept is None else _owned(share.kept),
        )
        return share.payload.numel()

    def _encoder(self, items: Sequence[Item], payload: torch.Tensor) -> Encoder | None:
        """In one call, on a GPU by one launch."""
        if not goes_at_once(items):
            return None
        return encoder_of(self, items, payload, self.form, self._noise)

    def _decoder(self, items: Sequence[Item], payload_bytes: int) -> Decoder | None:
        """In one call, on a GPU by one launch."""
        if not goes_at_once(items):
            return None
        return decoder_of(self, items, payload_bytes, self.form)

    def _quantize(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        draw: Draw,
        scale: float,
    ) -> int:
        parts = self._parts(as_array(payload), x.numel())
        blockwise.quantize_blockwise(
            as_array(x),
            parts.codes,
            parts.scales,
            form=self.form,
            offsets=parts.offsets,
            noise=self._noise(draw),
            residual=None if residual is None else as_array(residual),
            loss_scale=scale,
        )
        return payload.numel()

    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        parts = self._checked_parts(payload, out.numel())
        blockwise.dequantize_blockwise(
            parts.codes,
            parts.scales,
            as_array(out),
            form=self.form,
            offsets=parts.offsets,
            weight=weight,
            add=add,
        )

    def _noise(self, draw: Draw) -> Noise | None:
        return draw.private_noise(self.wire_id) if self.stochastic else None

    def _checked_parts(self, payload: torch.Tensor, elems: int) -> Packed:
        self.check(payload, elems)
        return self._parts(as_array(payload), elems)

    def _parts(self, raw: npt.NDArray[np.uint8], elems: int) -> Packed:
        head_bytes = sum(self.sections(elems)[:-1])
        head, codes = raw[:head_bytes].view(np.float32), raw[head_bytes:]
        if self.form.statistic != "range":
            return Packed(codes, head, None)
        return Packed(codes, head[: head.size // 2], head[head.size // 2 :])

    def _in_block(self, elems: int) -> int:
        """Elements of the largest block."""
        return min(self.block, max(elems, 1))


def _owned(kept: Kept) -> Owned:
    return Owned(as_array(kept.residual), as_array(kept.undo), kept.scale, kept.mean_scale)
