"""What codecs share that send as many values as a rule finds.

How long a scope's bytes are, and so where the next one's begin, depends on how many values it has.
On a GPU the host waits for that, but once for all scopes of a unit: to encode when all have been
chosen, and to decode for what all payloads say. On a CPU one call checks or adds up all scopes.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from compressa.arrays import as_array
from compressa.codecs._multi_tensor import unowned
from compressa.codecs._multi_tensor_sparse import (
    SparseDecoder,
    checker_of,
    counted_parts,
    outs_of,
)
from compressa.codecs._recorded import Array, Finish, ScopesDecoder
from compressa.codecs._sparse import F32, U8, U32, Gradient, IndexFormat, SparseForm, ValueDtype
from compressa.codecs.base import Bounded, Codec, Draw, Granularity
from compressa.codecs.fused import Checker, Decoder, Encoder, Fused, Item
from compressa.codecs.payload import HEADER_BYTES, LENGTH_BYTES, aligned
from compressa.errors import PayloadError
from compressa.kernels import cuda, topk
from compressa.kernels.prefix import write_prefix
from compressa.kernels.scratch import scratch
from compressa.kernels.sparse_parts import COUNT_BYTES

_FRONT = struct.Struct("<III")  # the length, which takes eight bytes, and the count


@dataclass(frozen=True, kw_only=True)
class BoundedSparse(Codec):
    """Values and indices of as many elements as a rule finds, up to a limit.

    Subclasses say how many elements they send at most, and choose them.
    """

    value_dtype: ValueDtype = "float32"
    indices: IndexFormat = "auto"

    def __post_init__(self) -> None:
        self.form  # noqa: B018 - it checks itself

    @cached_property
    def form(self) -> SparseForm:
        """How values and indices are laid out."""
        return SparseForm(self.name, self.value_dtype, self.indices)

    @abstractmethod
    def most(self, elems: int) -> int:
        """Return how many of `elems` elements are sent at most."""

    @abstractmethod
    def select(
        self, x: Gradient, indices: U32, values: F32, residual: F32 | None, loss_scale: float
    ) -> int:
        """Choose some of x + loss_scale * residual, and leave the others in the residual.

        What is on a GPU is waited for: how many are chosen decides the layout.

        Args:
            x: The gradient, of at least one element; as kernels take it, so perhaps of 16 bits.
            indices: Receives increasing indices; has room for `most` of them.
            values: Receives the values.
            residual: Receives what is not chosen, unscaled; or None.
            loss_scale: The loss scale.

        Returns:
            How many were chosen. A NaN must be among them if anything is not finite.
        """

    @property
    def size(self) -> Bounded:
        """The data decide how many are sent."""
        return Bounded()

    @property
    def splits_feedback(self) -> bool:
        """Whether the rule looks at gradient, residual and loss scale apart."""
        return False

    @property
    def takes_half(self) -> bool:
        """The kernels widen."""
        return True

    @property
    def granularity(self) -> Granularity:
        """The rule looks at the whole parameter."""
        return Granularity.PARAMETER

    def wire_bytes(self, elems: int) -> int:
        """The count, and as many values and indices as there can be."""
        return COUNT_BYTES + self.form.bytes(self.most(elems), elems)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Choose and pack."""
        return self._encode(x, None, payload, draw, 1.0)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, check every index, and scatter."""
        body, count = self._counted(payload, out.numel())
        indices, values = self.form.read(body, out.numel(), count)
        topk.scatter_add(indices, values, as_array(out), weight=weight, check=False)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """See `Codec.check_content`: the count, the length that follows from it, every index."""
        body, count = self._counted(payload, elems)
        self.form.check(body, elems, count)

    @cached_property
    def fused(self) -> Fused:
        """Add the residual, choose, and leave in the residual what was not sent."""
        return Fused(
            encode_feedback=self._encode,
            splits_feedback=self.splits_feedback,
            encoder=self._encoder,
            decoder=self._decoder,
            checker=self._checker,
        )

    def _encoder(self, items: Sequence[Item], payload: torch.Tensor) -> Encoder | None:
        return CountedEncoder(self, items, payload) if payload.is_cuda else None

    def _decoder(self, items: Sequence[Item], payload_bytes: int) -> Decoder | None:
        if items[0].values.is_cuda:
            return CountedDecoder(self, items)
        elems = [item.values.numel() for item in items]
        most = list(map(self.most, elems))
        outs = outs_of(items, most)
        if outs is None:
            return None
        return SparseDecoder(counted_parts(self.form, elems, most, outs), self.name)

    def _checker(self, scopes: Sequence[tuple[int, int]], payload_bytes: int) -> Checker:
        elems = [elems for elems, _ in scopes]
        most = list(map(self.most, elems))
        return checker_of(counted_parts(self.form, elems, most, [None] * len(most)), self.name)

    def _encode(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        elems, kept = x.numel(), None if residual is None else as_array(residual)
        whole = as_array(payload)
        most, count, body = self.most(elems), 0, whole[COUNT_BYTES:]
        indices = scratch("sparse.indices", most, np.uint32, beside=whole)
        values = self.form.values(body, most)
        if elems:
            count = self.select(as_array(x), indices, values, kept, loss_scale)
        length = self.form.bytes(count, elems)
        self.pack(body[:length], elems, indices[:count], values[:count], kept, loss_scale)
        _count_of(payload).fill_(count)
        return COUNT_BYTES + length

    def pack(
        self,
        body: U8,
        elems: int,
        indices: U32,
        values: F32,
        residual: F32 | None,
        loss_scale: float,
        *,
        placed: bool = True,
    ) -> None:
        """Write what `select` has chosen, and leave in the residual what a cast loses of it.

        Args:
            body: What follows on the count.
            elems: Number of elements chosen from.
            indices: Their indices.
            values: The values.
            residual: As in `select`.
            loss_scale: As in `select`.
            placed: See `SparseForm.write`.
        """
        sent = self.form.write(body, elems, indices, values, placed=placed)
        if residual is not None and not self.form.lossless:
            topk.return_unsent(residual, indices, values, sent, loss_scale=loss_scale)

    def _counted(self, payload: torch.Tensor, elems: int) -> tuple[U8, int]:
        """Return what follows on the count, and the count."""
        if payload.numel() < COUNT_BYTES:
            raise PayloadError(
                f"{self.name}: a payload of {payload.numel()} bytes arrived, shorter than its count"
            )
        # The layout follows from the count, so a GPU is waited for.
        count = int(_count_of(payload).item()) & 0xFFFFFFFF
        if count > self.most(elems):
            raise PayloadError(
                f"{self.name}: a payload says it has {count} values, of {elems} elements "
                f"{self.most(elems)} can be sent"
            )
        return as_array(payload)[COUNT_BYTES:], count


def _count_of(payload: torch.Tensor) -> torch.Tensor:
    """The front of a payload as a number; fewer than 2**31 values fit in one."""
    return payload[:COUNT_BYTES].view(torch.int32)


class _Chosen(NamedTuple):
    """A scope, and room for what is chosen of it; the first number of the state is how many."""

    x: Array
    residual: Array | None
    indices: Array
    values: Array
    state: Array


class CountedEncoder(Encoder):
    """Encodes scopes; what chooses is noted whenever the loss scale changes.

    Args:
        codec: Chooses and packs.
        items: The scopes.
        payload: uint8, that of all scopes.
    """

    def __init__(self, codec: BoundedSparse, items: Sequence[Item], payload: torch.Tensor) -> None:
        self._codec, self._payload = codec, unowned(payload)
        most = [codec.most(item.values.numel()) for item in items]
        where, words = payload.device, (len(items), cuda.STATE_WORDS)
        indices = torch.empty(sum(most), dtype=torch.int32, device=where).split(most)
        values = torch.empty(sum(most), dtype=torch.float32, device=where).split(most)
        self._states = torch.zeros(words, dtype=torch.int64, device=where)
        self._scopes = [
            _Chosen(
                unowned(item.values),
                None if item.residual is None else unowned(item.residual),
                as_array(indices[i]).view(np.uint32),
                as_array(values[i]),
                as_array(self._states[i]).view(np.uint64),
            )
            for i, item in enumerate(items)
        ]
        self._noted: tuple[float, cuda.Recording] | None = None

    def encode(self, draw: Draw, loss_scale: float) -> int:
        """Choose; wait for all counts; and pack."""
        if self._noted is None or self._noted[0] != loss_scale:
            choose = [partial(self._choose, scope, loss_scale) for scope in self._scopes]
            self._noted = loss_scale, cuda.Recording([choose])
        self._noted[1].start()
        offset, packing = HEADER_BYTES, []
        for scope, count in zip(self._scopes, self._states[:, 0].tolist(), strict=True):
            length = COUNT_BYTES + self._codec.form.bytes(count, scope.x.size)
            room = self._payload[offset : offset + LENGTH_BYTES + length]
            packing.append(partial(self._pack, scope, count, room, loss_scale))
            offset += LENGTH_BYTES + aligned(length)
        cuda.Recording([packing]).start()
        return offset - HEADER_BYTES

    def _choose(self, scope: _Chosen, loss_scale: float) -> None:
        x, residual, indices, values, state = scope
        if x.size:
            with cuda.count_left_in(state):
                self._codec.select(x, indices, values, residual, loss_scale)

    def _pack(self, scope: _Chosen, count: int, room: Array, loss_scale: float) -> None:
        write_prefix(room, _FRONT.pack(room.size - LENGTH_BYTES, 0, count))
        x, residual, indices, values, _ = scope
        body, chosen = room[_FRONT.size :], (indices[:count], values[:count])
        self._codec.pack(body, x.size, *chosen, residual, loss_scale, placed=False)


class CountedDecoder(ScopesDecoder):
    """Decodes payloads to scopes; what is launched depends on how many values there are.

    Args:
        codec: Says how long payloads are, and reads them.
        items: The scopes.
    """

    def __init__(self, codec: BoundedSparse, items: Sequence[Item]) -> None:
        super().__init__(codec.name, items, codec.form.put)
        self._codec = codec

    def _start(
        self,
        what: tuple[Hashable, ...],
        payloads: Sequence[torch.Tensor],
        finish: Finish,
        *,
        kept: bool = True,
    ) -> None:
        super()._start(what, payloads, finish, kept=False)

    def _readers(self, payloads: Sequence[torch.Tensor]) -> list[list[Callable[[], Any]]]:
        size = len(payloads), 2 * len(self._outs)
        told = torch.empty(size, dtype=torch.int64, device=payloads[0].device)
        arrays = list(map(unowned, payloads))
        listing = [
            partial(cuda.list_parts, array, HEADER_BYTES, as_array(own))
            for array, own in zip(arrays, told, strict=True)
        ]
        cuda.Recording([listing]).start()
        each = map(self._readers_of, arrays, told.tolist())
        return list(map(list, zip(*each, strict=True)))

    def _readers_of(self, payload: Array, told: Sequence[int]) -> list[Callable[[], Any]]:
        """What reads the scopes of a payload that has told lengths and counts.

        Raises:
            PayloadError: They are not those of a payload of this length.
        """
        pairs = zip(told[::2], told[1::2], strict=True)
        form, offset, readers = self._codec.form, HEADER_BYTES, list[Callable[[], Any]]()
        for (length, count), out in zip(pairs, self._outs, strict=True):
            few = count <= self._codec.most(out.size)
            if not few or length != COUNT_BYTES + form.bytes(count, out.size):
                raise PayloadError(
                    f"{self._codec.name}: a scope of {out.size} elements has {count} values in "
                    f"{length} bytes"
                )
            start = offset + LENGTH_BYTES + COUNT_BYTES
            body = payload[start : offset + LENGTH_BYTES + length]
            readers.append(partial(form.read, body, out.size, count))
            offset += LENGTH_BYTES + aligned(length)
        if offset != payload.size:
            raise PayloadError(f"a payload's scopes end at byte {offset} of {payload.size}")
        return readers
