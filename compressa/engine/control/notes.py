"""Notes: short messages that any rank may send to any other at any time, and that nobody awaits.

A note is JSON of bounded length, with a kind. It is one frame, so notes between two ranks arrive
whole and in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from compressa.engine.control.channel import Channel
from compressa.errors import PeerLost
from compressa.transports.base import Key

_NOTE_BYTES = 60 << 10  # less than a chunk of the control channel
_KEY = Key(0xFFFFFFFF, 0, 0)

Take = Callable[[int, Mapping[str, Any]], None]


class Notes:
    """Notes over the control channel.

    Args:
        channel: Carries them; not started yet.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._takers: dict[str, Take] = {}

    def take(self, takers: Mapping[str, Take]) -> None:
        """Take notes from now on; once.

        A note that makes no sense is reported as the loss of the rank that sent it.

        Args:
            takers: By kind, what is called with each sender and note, on the thread that receives;
                it must block nowhere. ValueError says that the note makes no sense.
        """
        self._takers = dict(takers)
        for peer in self._channel.peers:
            self._listen(peer, torch.zeros(_NOTE_BYTES, dtype=torch.uint8))

    def send(self, peer: int, kind: str, note: Mapping[str, Any]) -> None:
        """Send a note to a rank, unless it has left; from any thread, and without waiting.

        Args:
            peer: Rank.
            kind: Which of its takers is called.
            note: As JSON; at most 60 KiB.
        """
        data = bytearray(json.dumps({"kind": kind, **note}).encode())
        self._channel.tell(peer, _KEY, torch.frombuffer(data, dtype=torch.uint8))

    def send_all(self, kind: str, note: Mapping[str, Any]) -> None:
        """Send a note to all other ranks that have not left; as `send`."""
        for peer in self._channel.peers:
            self.send(peer, kind, note)

    def _listen(self, peer: int, buffer: torch.Tensor) -> None:
        def arrived(filled: torch.Tensor) -> None:
            text = filled.numpy().tobytes()
            self._listen(peer, buffer)  # before the next one can come
            self._take(peer, text)

        self._channel.listen(peer, _KEY, buffer, arrived)

    def _take(self, peer: int, text: bytes) -> None:
        try:
            note = json.loads(text)
            take = self._takers[note["kind"]]
            take(peer, note)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"rank {peer} sent a note that cannot be read: {error!r}"
            self._channel.report(PeerLost(peer, reason))


def as_tensor(data: bytes) -> torch.Tensor:
    """Return a copy of bytes as a 1-D tensor of uint8 on the CPU."""
    return torch.from_numpy(np.array(bytearray(data), np.uint8))


def as_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a 1-D tensor of uint8 on the CPU."""
    return tensor.numpy().tobytes()
