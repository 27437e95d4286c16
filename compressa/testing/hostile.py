"""Hostile payloads: each decodes within bounds or raises `PayloadError`, and does nothing else.

A payload that is refused leaves `out` as it was; `check`, `decode` and `decode_add` agree on what
is refused; nothing is written outside `out`, nor into the payload; no other error is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from compressa.aggregators.base import State, StepContext, World, whole_scopes
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs.base import Codec
from compressa.errors import PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.allocation import allocates_at_most
from compressa.testing.codec_checks import DRAW, encoded
from compressa.testing.inputs import vectors
from compressa.testing.memory import Guarded, require
from compressa.testing.mutations import Bytes, Mutator

_SIZES = (1, 7, 97, 256, 1009)
_FILL = 0x42  # float32 48.56: finite, so that sums with it are too
_ROOM_BYTES = 64
_SHOWN = 200  # hexadecimal digits of a payload in a sentence
_ALLOWED_BYTES = 1 << 16  # for what does not grow: views, messages, a kernel's own tables


class Memory(Protocol):
    """Memory that notices what is written around it."""

    tensor: torch.Tensor

    @property
    def intact(self) -> bool:
        """Whether nothing was written outside the tensor."""


Allocate = Callable[[int, torch.dtype, int], Memory]


@dataclass
class Tally:
    """What became of the mutations."""

    decoded: int = 0
    refused: int = 0

    def count(self, accepted: bool) -> None:
        """Book one."""
        self.decoded += accepted
        self.refused += not accepted

    @property
    def total(self) -> int:
        """All of them."""
        return self.decoded + self.refused


class Arena:
    """Memory for one payload, whose last byte is the memory's last but for alignment.

    Args:
        most_bytes: Longest payload.
        allocate: Makes the memory.
    """

    def __init__(self, most_bytes: int, allocate: Allocate) -> None:
        self.memory = allocate(-(-most_bytes // 8) * 8, torch.uint8, _FILL)
        self._array: Bytes = self.memory.tensor.numpy()

    def put(self, payload: Bytes) -> torch.Tensor:
        """Copy a payload, uint8[n], to the end of the memory; return the tensor of that."""
        start = (self._array.size - payload.size) // 8 * 8
        stop = start + payload.size
        self._array[start:stop] = payload
        return self.memory.tensor[start:stop]


class CodecFuzz:
    """Hostile payloads of one codec.

    Args:
        codec: What decodes them.
        seed: Of the mutations.
        allocate: Makes the memory that is decoded from and into.
    """

    def __init__(self, codec: Codec, seed: int, allocate: Allocate = Guarded) -> None:
        self.name = codec.name
        self.tally = Tally()
        self._codec = codec
        self._mutator = Mutator(seed)
        self._samples = [(0, encoded(codec, torch.empty(0)).numpy())] + [
            (elems, encoded(codec, x).numpy())
            for elems in _SIZES
            for x in vectors(elems, seed=elems).values()
        ]
        longest = max(payload.size for _, payload in self._samples)
        self._room: Bytes = np.zeros(2 * longest + _ROOM_BYTES, np.uint8)
        self._arena = Arena(self._room.size, allocate)
        sizes = {elems for elems, _ in self._samples}
        self._outs = {elems: allocate(elems, torch.float32, _FILL) for elems in sizes}
        self._untouched = {elems: bytes([_FILL]) * (4 * elems) for elems in sizes}
        self._measured = False

    def run(self, count: int) -> None:
        """Judge `count` mutations."""
        for _ in range(count):
            self.tally.count(self._judge(*self._next()))

    def run_measured(self, count: int) -> None:
        """Judge `count` mutations, and how much memory their decoding allocates."""
        self._measured = True
        self.run(count)
        self._measured = False

    def _next(self) -> tuple[Bytes, int]:
        below = self._mutator.below
        elems, payload = self._samples[below(len(self._samples))]
        size, other = self._samples[below(len(self._samples))]
        length = self._mutator.mutate(payload, other, self._room)
        if self._measured:  # counts make room
            length = self._mutator.set_word(self._room, length)
        return self._room[:length], elems if below(8) else size

    def _judge(self, mutant: Bytes, elems: int) -> bool:
        """Return whether a payload is taken for one of `elems` elements."""
        payload, codec = self._arena.put(mutant), self._codec
        out, after = self._outs[elems], 1.0 / 3.0
        ways: tuple[tuple[str, Callable[[], None]], ...] = (
            ("check", lambda: codec.check(payload, elems)),
            ("decode", lambda: codec.decode(payload, out.tensor, DRAW)),
            ("decode_add", lambda: codec.decode_add(payload, out.tensor, after, DRAW)),
        )
        accepted = [self._accepts(what, way, out, payload, elems) for what, way in ways]
        if len(set(accepted)) > 1:
            took = [what for (what, _), taken in zip(ways, accepted, strict=True) if taken]
            refused = [what for (what, _), taken in zip(ways, accepted, strict=True) if not taken]
            story = f"{' and '.join(took)} took what {' and '.join(refused)} refused"
            raise AssertionError(self._sentence(story, payload, elems))
        same = bool((payload.numpy() == mutant).all())
        require(same, f"{self.name}: decoding wrote to a payload")
        return accepted[0]

    def _accepts(
        self, what: str, way: Callable[[], None], out: Memory, payload: torch.Tensor, elems: int
    ) -> bool:
        out.tensor.view(torch.uint8).fill_(_FILL)
        try:
            if self._measured:
                most = _ALLOWED_BYTES + 8 * (4 * elems + self._codec.wire_bytes(elems))
                with allocates_at_most(most, self.name, f"{what} of a hostile payload"):
                    way()
            else:
                way()
        except PayloadError:
            untouched = out.tensor.numpy().tobytes() == self._untouched[elems]
            if not untouched:
                story = "a payload was refused after `out` was written"
                raise AssertionError(self._sentence(story, payload, elems)) from None
            return False
        except AssertionError:
            raise
        except Exception as error:
            story = f"{what} raised {type(error).__name__} ({error}) instead of PayloadError"
            raise AssertionError(self._sentence(story, payload, elems)) from error
        if not (out.intact and self._arena.memory.intact):
            story = f"{what} made it write outside `out`"
            raise AssertionError(self._sentence(story, payload, elems))
        return True

    def _sentence(self, story: str, payload: torch.Tensor, elems: int) -> str:
        text = payload.numpy().tobytes().hex()
        if len(text) > _SHOWN:
            text = f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 2 :]}"
        return f"{self.name}: {story}, for {elems} elements and {payload.numel()} bytes: {text}"


class UnitFuzz:
    """Hostile payloads of one unit: a header, and scopes of different sizes.

    What `check` lets through has to decode: some of it may have been written already when a
    later scope is found to be wrong.

    Args:
        codec: What decodes the scopes.
        seed: Of the mutations.
    """

    _LENGTHS = (97, 1, 256)

    def __init__(self, codec: Codec, seed: int) -> None:
        self.name = codec.name
        self.tally = Tally()
        self._mutator = Mutator(seed)
        segments = (
            Segment(ParameterInfo(i, f"p{i}", (elems,)), 0, elems)
            for i, elems in enumerate(self._LENGTHS)
        )
        layout = Layout(3, tuple(segments))
        world = World(0, 2, 11, "auto", State())
        self._scopes = ScopePayload(codec, 3, whole_scopes(layout), world, feedback=None)
        self._samples = [self._valid(seed) for seed in range(4)]
        self._room: Bytes = np.zeros(2 * self._scopes.wire_bytes + _ROOM_BYTES, np.uint8)
        self._arena = Arena(self._room.size, Guarded)
        self._outs = [Guarded(elems, torch.float32, _FILL) for elems in self._LENGTHS]

    def run(self, count: int) -> None:
        """Judge `count` mutations."""
        context, scopes, below = StepContext(5), self._scopes, self._mutator.below
        for _ in range(count):
            valid, other = (self._samples[below(len(self._samples))] for _ in range(2))
            length = self._mutator.mutate(valid, other, self._room)
            payload = self._arena.put(self._room[:length])
            try:
                scopes.check(payload, context, 1)
            except PayloadError:
                self.tally.count(False)
                continue
            self.tally.count(True)
            self._decode(payload, context)

    def _decode(self, payload: torch.Tensor, context: StepContext) -> None:
        outs = [out.tensor for out in self._outs]
        for out in outs:
            out.view(torch.uint8).fill_(_FILL)
        try:
            self._scopes.decode_add(payload, outs, 0.5, context, 1)
            self._scopes.decode(payload, outs, context, 1)
        except PayloadError as error:
            story = f"a unit was refused ({error}) after its check had passed"
            raise AssertionError(f"{self.name}: {story}") from error
        intact = all(out.intact for out in self._outs)
        require(intact, f"{self.name}: a hostile unit made it write outside its gradients")

    def _valid(self, seed: int) -> Bytes:
        gradients = [vectors(elems, seed)["gaussian"] for elems in self._LENGTHS]
        payload = self._scopes.encode(gradients, StepContext(5), self._scopes.buffer())
        return payload.numpy().copy()
