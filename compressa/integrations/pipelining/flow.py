"""Tensors of one kind that cross an edge of a pipeline one way, as one of its stages sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from compressa.codecs import Codec, Draw
from compressa.codecs.none import NoCompression
from compressa.integrations.pipelining.differences import Differences

Ops = list[dist.P2POp]
Samples = Sequence[int] | None


@dataclass
class Traffic:
    """What a stage has sent.

    Attributes:
        dense_bytes: Of the tensors.
        sent_bytes: That crossed the edge for them.
    """

    dense_bytes: int = 0
    sent_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times fewer bytes; 1 if nothing was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0


@dataclass(frozen=True)
class _Numbered:
    """Which tensor it is: of which microbatch, the how manieth, and of which samples.

    Both stages number them alike, so that what a codec draws at random is the same at both.
    """

    chunk: int
    index: int
    draw: Draw
    samples: Samples


class Flow:
    """Sends or receives them, compressed.

    Args:
        codec: Makes them smaller.
        seed: Of random bits.
        sender: The stage that sends.
        gradients: Whether they are gradients; those have random bits of their own.
        differences: Whether they are sent as differences from the last ones of the same samples.
    """

    def __init__(
        self, codec: Codec, seed: int, sender: int, *, gradients: bool, differences: bool = False
    ) -> None:
        self.traffic = Traffic()
        self._codec, self._seed, self._sender = codec, seed, sender
        self._gradients = gradients
        self._differences = Differences(codec) if differences else None
        self._passes: Counter[int] = Counter()  # by microbatch
        self._rooms: dict[tuple[int, int], torch.Tensor] = {}
        self._arriving: dict[int, list[tuple[_Numbered, torch.Tensor, torch.Tensor]]] = {}

    @torch.no_grad()
    def sent(self, chunk: int, ops: Ops, samples: Samples = None) -> Ops:
        """Return what is sent in place of a microbatch's tensors.

        Args:
            chunk: The microbatch.
            ops: What is sent otherwise.
            samples: Of the tensors' rows, where differences are sent; None for no differences.

        Raises:
            StateError: They are not as many as rows.
        """
        changed = []
        for which, op in zip(self._numbered(chunk, len(ops), samples), ops, strict=True):
            message = op.tensor
            if self._compresses(op.tensor):
                message = self._room(which, op.tensor)
                self._encode(which, op.tensor.reshape(-1).float(), message)
            self.traffic.dense_bytes += op.tensor.nbytes
            self.traffic.sent_bytes += message.nbytes
            changed.append(_carrying(message, op))
        return changed

    def posted(self, chunk: int, ops: Ops, samples: Samples = None) -> Ops:
        """Return what is received in place of a microbatch's tensors; as `sent`."""
        changed = []
        arriving = self._arriving[chunk] = []
        for which, op in zip(self._numbered(chunk, len(ops), samples), ops, strict=True):
            message = op.tensor
            if self._compresses(op.tensor):
                message = self._room(which, op.tensor)
                arriving.append((which, message, op.tensor))
            changed.append(_carrying(message, op))
        return changed

    @torch.no_grad()
    def arrived(self, chunk: int) -> None:
        """Decode what has come for a microbatch, if anything was posted.

        Raises:
            PayloadError: It is no payload of the codec.
        """
        for which, message, tensor in self._arriving.pop(chunk, ()):
            out = torch.empty(tensor.numel(), dtype=torch.float32, device=tensor.device)
            self._decode(which, message, out)
            tensor.copy_(out.view(tensor.shape))

    def _numbered(self, chunk: int, tensors: int, samples: Samples) -> list[_Numbered]:
        step = self._passes[chunk]
        self._passes[chunk] += 1
        return [
            _Numbered(chunk, index, self._draw(step, chunk * tensors + index), samples)
            for index in range(tensors)
        ]

    def _draw(self, step: int, number: int) -> Draw:
        return Draw(self._seed, step, number, 0, self._sender, owner=self._gradients)

    def _compresses(self, tensor: torch.Tensor) -> bool:
        dense = isinstance(self._codec, NoCompression)
        return not dense and tensor.is_floating_point() and tensor.numel() > 0

    def _room(self, which: _Numbered, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for a message, kept for the next step: all sends of this one end in it."""
        size = self._codec.wire_bytes(tensor.numel())
        if self._differences is not None and which.samples is not None:
            size = self._differences.wire_bytes(which.index, which.samples, tensor)
        room = self._rooms.get((which.chunk, which.index))
        if room is None or room.numel() != size:
            room = torch.empty(size, dtype=torch.uint8, device=tensor.device)
            self._rooms[which.chunk, which.index] = room
        return room

    def _encode(self, which: _Numbered, x: torch.Tensor, message: torch.Tensor) -> None:
        if self._differences is not None and which.samples is not None:
            self._differences.encode(which.index, which.samples, x, message, which.draw)
        else:
            self._codec.encode(x, message, which.draw)

    def _decode(self, which: _Numbered, message: torch.Tensor, out: torch.Tensor) -> None:
        if self._differences is not None and which.samples is not None:
            self._differences.decode(which.index, which.samples, message, out, which.draw)
        else:
            self._codec.decode(message, out, which.draw)


def _carrying(message: torch.Tensor, op: dist.P2POp) -> dist.P2POp:
    """Return the same operation on another tensor."""
    if message is op.tensor:
        return op
    return dist.P2POp(op.op, message, op.peer, op.group, op.tag)
