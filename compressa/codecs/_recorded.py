"""Codecs whose kernels take one scope: all scopes of a unit by recorded launches, on a GPU.

What the kernels of all scopes launch is worked out once, and holds as long as no array moves; what
is alike in it goes by one launch (`compressa.kernels.cuda.Recording`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from compressa.codecs._multi_tensor import unowned
from compressa.codecs.base import Codec
from compressa.codecs.draw import Draw
from compressa.codecs.fused import Decoder, Encoder, Item, Ways
from compressa.errors import PayloadError
from compressa.kernels import casts, cuda
from compressa.kernels.scratch import scratch

Array = npt.NDArray[Any]
Phases = Sequence[Sequence[Callable[[], object]]]
Finish = Callable[[Sequence[Any], Array], object]
Put = Callable[[Any, Array, float, bool], object]
Total = Callable[[Sequence[Any], Array, float], object]

_MOST_RECORDINGS = 8  # of one decoder: what it decodes lies where that of the last steps did


class RecordedEncoder(Encoder):
    """Encodes scopes; their launches are noted whenever their numbers change.

    Args:
        codec: Says how long payloads are.
        ways: How it encodes one.
        items: The scopes.
        payload: uint8, that of all scopes.
        draws: Whether what is encoded depends on the draw.
    """

    def __init__(
        self, codec: Codec, ways: Ways, items: Sequence[Item], payload: torch.Tensor, *, draws: bool
    ) -> None:
        self._ways, self._draws = ways, draws
        self._scopes = [
            (
                unowned(item.values),
                unowned(payload[item.start : item.start + codec.wire_bytes(item.values.numel())]),
                None if item.residual is None else unowned(item.residual),
                item.parameter,
                item.first,
            )
            for item in items
        ]
        self._noted: tuple[Hashable, cuda.Recording] | None = None

    def encode(self, draw: Draw, loss_scale: float) -> None:
        """Launch what was noted for these numbers."""
        numbers = loss_scale, draw if self._draws else None
        if self._noted is None or self._noted[0] != numbers:
            self._noted = numbers, cuda.Recording([self._calls(draw, loss_scale)])
        self._noted[1].start()

    def _calls(self, draw: Draw, loss_scale: float) -> list[Callable[[], object]]:
        return [
            partial(self._ways.encode, x, payload, residual, own, loss_scale)
            for x, payload, residual, parameter, first in self._scopes
            for own in [replace(draw, parameter=parameter, start=first)]
        ]


class ScopesDecoder(Decoder):
    """Decodes payloads to scopes; what is launched for payloads of some addresses is noted.

    Args:
        name: The codec's.
        items: The scopes.
        put: As in `Ways`.
        total: As in `Ways`.
    """

    def __init__(
        self, name: str, items: Sequence[Item], put: Put, total: Total | None = None
    ) -> None:
        self._name, self._put, self._total = name, put, total
        self._outs = [unowned(item.values) for item in items]
        self._recordings: dict[Hashable, cuda.Recording] = {}
        self._widened = any(out.dtype != np.float32 for out in self._outs)

    def decode(self, payload: torch.Tensor) -> None:
        """Decode; what has 16 bits by way of float32 values."""
        self._start(("decode",), [payload], self._decode, kept=not self._widened)

    def decode_add(self, payload: torch.Tensor, weight: float) -> None:
        """Decode and add."""
        self._start(("add", weight), [payload], partial(self._add, weight))

    def decode_sum(self, payloads: Sequence[torch.Tensor], weight: float) -> None:
        """Add up as the codec does, or one by one."""
        total, what = self._total, ("sum", weight)
        if total is not None:
            self._start(what, payloads, lambda held, out: total(held, out, weight))
        else:
            add_up = partial(self._add_up, weight)
            self._start(what, payloads, add_up, kept=not self._widened)

    def _start(
        self,
        what: tuple[Hashable, ...],
        payloads: Sequence[torch.Tensor],
        finish: Finish,
        *,
        kept: bool = True,
    ) -> None:
        """Launch what was noted for payloads that lie there.

        Args:
            what: Is done with them.
            payloads: As they have come.
            finish: Makes a scope of what all of them hold for it.
            kept: Whether that needs no memory as large as the scopes.
        """
        where = *what, *(payload.data_ptr() for payload in payloads)
        recording = self._recordings.get(where)
        if recording is None:
            recording = cuda.Recording(self._phases(payloads, finish))
            while len(self._recordings) >= _MOST_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
            if kept:
                self._recordings[where] = recording
        if not recording.start():
            raise PayloadError(f"{self._name}: what a payload holds is not what is due")

    def _decode(self, held: Sequence[Any], out: Array) -> None:
        """What a payload holds for a scope -> the scope."""
        with _wide(out) as values:
            self._put(held[0], values, 1.0, False)

    def _add(self, weight: float, held: Sequence[Any], out: Array) -> None:
        self._put(held[0], out, weight, True)

    def _add_up(self, weight: float, held: Sequence[Any], out: Array) -> None:
        with _wide(out) as values:
            cuda.clear(values.view(np.uint8))
            for one in held:
                self._put(one, values, weight, True)

    def _phases(self, payloads: Sequence[torch.Tensor], finish: Finish) -> Phases:
        """Read what all payloads hold for all scopes; then finish scope by scope."""
        readers = self._readers(payloads)
        held: list[list[Any]] = [[None] * len(payloads) for _ in readers]

        def read(i: int, r: int) -> None:
            held[i][r] = readers[i][r]()

        reading = [partial(read, i, r) for r in range(len(payloads)) for i in range(len(held))]
        return reading, [partial(finish, *each) for each in zip(held, self._outs, strict=True)]

    @abstractmethod
    def _readers(self, payloads: Sequence[torch.Tensor]) -> list[list[Callable[[], Any]]]:
        """By scope and payload: what launches kernels, and returns what the payload holds.

        Raises:
            PayloadError: Their lengths are not right.
        """


class RecordedDecoder(ScopesDecoder):
    """Decodes payloads whose parts are where they always are.

    Args:
        codec: Names itself, and says how long payloads are.
        ways: How it decodes one.
        items: The scopes.
    """

    def __init__(self, codec: Codec, ways: Ways, items: Sequence[Item]) -> None:
        super().__init__(codec.name, items, ways.put, ways.total)
        self._read = ways.read
        sizes = [(item.start, codec.wire_bytes(item.values.numel())) for item in items]
        self._parts = [slice(start, start + size) for start, size in sizes]

    def _readers(self, payloads: Sequence[torch.Tensor]) -> list[list[Callable[[], Any]]]:
        held = list(map(unowned, payloads))
        return [
            [partial(self._read, payload[part], out.size, None) for payload in held]
            for part, out in zip(self._parts, self._outs, strict=True)
        ]


@contextmanager
def _wide(out: Array) -> Iterator[Array]:
    """Give float32 values that become those of a scope."""
    if out.dtype == np.float32:
        yield out
        return
    values = scratch("recorded.wide", out.size, np.float32, beside=out)
    yield values
    casts.narrow(values, out)
