"""Memory of an emulated GPU: pools of streams, as torch has them, that give it out again at once.

What its owner lets go belongs to the pool of the stream that was current when it was allocated. The
next owner, who allocates when that stream is current, may write to it in that stream's order; here
one always does. `record_stream` keeps memory back until the host sees that another stream has come
to where its owner let it go. So memory that one stream still uses, when another has written to it,
holds nonsense.

What streams were given holds memory by `alias`, which is no owner.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import Any

import torch
from emulated_streams import Emulation, Event, Stream, current_stream

_POISON = 0xA7


class _Block:
    """Memory that was allocated once.

    Attributes:
        memory: All of it, which nobody else knows.
        stream: Whose pool it is of.
        users: Other streams that torch was told of.
    """

    def __init__(self, size_bytes: int) -> None:
        self.memory = torch.full((size_bytes,), _POISON, dtype=torch.uint8)
        self.stream = current_stream()
        self.users: set[Stream] = set()

    def let_go(self) -> list[Event]:
        return [stream.record_event() for stream in self.users - {self.stream}]


_owned: dict[int, _Block] = {}
_kept: list[_Block] = []  # kernels know addresses only
_left: deque[_Block] = deque()
_returning: list[tuple[_Block, list[Event]]] = []


def allocated(like: torch.Tensor) -> torch.Tensor:
    """Return poisoned memory of the current stream's pool, as another tensor lies in its own."""
    _hand_on()
    size_bytes = like.untyped_storage().nbytes()
    if not size_bytes:
        return like
    block = _Block(size_bytes)
    owner = block.memory.numpy()
    _owned[block.memory.data_ptr()] = block
    _kept.append(block)
    weakref.finalize(owner, _let_go, block)
    return _as(like, torch.from_numpy(owner))


def alias(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory for whoever does not own it."""
    block = _block_of(x)
    return x if block is None else _as(x, block.memory)


def used_by(x: torch.Tensor, stream: Stream) -> None:
    """What torch's `record_stream` does."""
    block = _block_of(x)
    if block is not None:
        block.users.add(stream)


def take_back() -> None:
    """Note what was let go, and what streams that use it have been given until now."""
    with Emulation.lock:
        while _left:
            block = _left.popleft()
            _returning.append((block, block.let_go()))


def _hand_on() -> None:
    """Have what the current stream's pool has, and nobody uses, written to by its next owner."""
    with Emulation.lock:
        take_back()
        for item in list(_returning):
            block, events = item
            if block.stream is current_stream() and all(event.passed for event in events):
                _returning.remove(item)
                block.stream.give(partial(block.memory.fill_, _POISON))


def forget() -> None:
    """End the emulation."""
    for kept in (_owned, _kept, _left, _returning):
        kept.clear()


def _let_go(block: _Block) -> None:
    if _owned.pop(block.memory.data_ptr(), None) is block:
        _left.append(block)


def _block_of(x: torch.Tensor) -> _Block | None:
    return _owned.get(x.untyped_storage().data_ptr())


def _as(like: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return a tensor in some memory."""
    view: Any = memory.untyped_storage(), like.storage_offset(), like.size(), like.stride()
    return torch.empty(0, dtype=like.dtype).set_(*view)
