"""NCCL among ranks of one process, on emulated streams: it pairs calls by their order alone.

A rank's calls are carried out one after the other on a stream of its own. A message goes when both
ends have come to it; a collective when all have. What NCCL would wait for for ever, or write beyond
its memory for, is noted in `faults` and waited for for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from emulated_streams import UNFINISHED, Stream, current_stream
from emulated_torch import on_cpu


class Work:
    """What a stream of NCCL's own was given, after what the current one was given before."""

    def __init__(self, stream: Stream, *work: Callable[[], object]) -> None:
        stream.wait_event(current_stream().record_event())
        for each in work:
            stream.give(each)
        self._end = stream.record_event()

    def wait(self) -> None:
        current_stream().wait_event(self._end)


class Fabric:
    """What ranks meet on.

    Attributes:
        ranks: Their process groups.
        faults: What real ranks would not have survived.
        corrupt: Called with each message that has landed.
    """

    def __init__(self, size: int) -> None:
        self.faults: list[str] = []
        self.corrupt: Callable[[torch.Tensor], object] = lambda tensor: None
        self.ranks = [OneOf(self, rank, size) for rank in range(size)]
        self._sent: dict[tuple[int, int], deque[_End]] = {}
        self._received: dict[tuple[int, int], deque[_End]] = {}
        self._gathering: dict[int, list[_Part]] = {}

    def post(self, sender: int, receiver: int, sent: _End | None, received: _End | None) -> None:
        """One end of a message has been reached."""
        pair = sender, receiver
        sends, receives = (at.setdefault(pair, deque()) for at in (self._sent, self._received))
        sends += [sent] if sent else []
        receives += [received] if received else []
        while sends and receives:
            source, target = sends.popleft(), receives.popleft()
            if source.tensor.numel() != target.tensor.numel():
                self.faults.append(f"{source.tensor.numel()} bytes into {target.tensor.numel()}")
                return
            self.corrupt(target.tensor.copy_(source.tensor))
            source.over = target.over = True

    def meet(self, number: int, part: _Part, size: int) -> None:
        """A rank has reached its collective of this number."""
        parts = self._gathering.setdefault(number, [])
        parts.append(part)
        if len(parts) < size:
            return
        if len({(each.kind, each.tensor.numel()) for each in parts}) > 1:
            self.faults.append("collectives that differ")
            return
        parts.sort(key=lambda each: each.rank)
        _COLLECTIVES[part.kind](parts)
        for each in parts:
            each.over = True


class _End:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.over = on_cpu(tensor, share=True), False


class _Part(_End):
    def __init__(self, kind: str, rank: int, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.kind, self.rank = kind, rank


def _sum(parts: Sequence[_Part]) -> None:
    total = sum(each.tensor.clone() for each in parts)
    for each in parts:
        each.tensor.copy_(total)


def _gather(parts: Sequence[_Part]) -> None:
    whole = torch.cat([each.tensor.chunk(len(parts))[each.rank] for each in parts])
    for each in parts:
        each.tensor.copy_(whole)


_COLLECTIVES: dict[str, Callable[[Sequence[_Part]], None]] = {"sum": _sum, "gather": _gather}


class OneOf:
    """The process group of one rank, with the methods of torch's that are used.

    Attributes:
        calls: How many were made.
        held: Numbers of calls that hold up all that follow.
        aborts: How often it was aborted.
        ended: Set by an abort.
    """

    def __init__(self, fabric: Fabric, rank: int, size: int) -> None:
        self.fabric = fabric
        self._rank, self._size = rank, size
        self.stream: Any = None
        self.calls, self.collectives, self.aborts = 0, 0, 0
        self.held: set[int] = set()
        self.ended = threading.Event()

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        return self._collective("sum", tensors[0])

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor) -> Work:
        assert output.is_contiguous()
        assert own.data_ptr() == output.chunk(self._size)[self._rank].data_ptr()
        return self._collective("gather", output)

    def alltoall(self, received: list[torch.Tensor], sent: list[torch.Tensor]) -> Work:
        assert len(received) == len(sent) == self._size
        assert all(buffer.is_contiguous() and buffer.is_cuda for buffer in (*received, *sent))
        sends = {peer: _End(buffer) for peer, buffer in enumerate(sent) if buffer.numel()}
        receives = {peer: _End(buffer) for peer, buffer in enumerate(received) if buffer.numel()}

        def reached() -> None:
            for peer, end in sends.items():
                self.fabric.post(self._rank, peer, end, None)
            for peer, end in receives.items():
                self.fabric.post(peer, self._rank, None, end)

        return self.give(reached, [*sends.values(), *receives.values()])

    def _collective(self, kind: str, tensor: torch.Tensor) -> Work:
        part, number = _Part(kind, self._rank, tensor), self.collectives
        self.collectives += 1
        return self.give(lambda: self.fabric.meet(number, part, self._size), [part])

    def give(self, reached: Callable[[], object], ends: Sequence[_End]) -> Work:
        """Have the stream reach a call, and go on when it is over."""
        if self.aborts:
            raise RuntimeError("NCCL communicator was aborted\nmore")
        self.stream = self.stream or Stream(eager=False)
        number, self.calls = self.calls, self.calls + 1
        begun: list[bool] = []

        def carry() -> object:
            if self.aborts:
                return None
            if number in self.held:
                return UNFINISHED
            if not begun:
                begun.append(True)
                reached()
            return None if all(end.over for end in ends) else UNFINISHED

        return Work(self.stream, carry)

    def abort(self) -> None:
        self.aborts += 1
        self.ended.set()

    def hang(self, *arguments: Any) -> None:
        """As a call whose peer is lost."""
        assert self.ended.wait(10.0), "nobody has aborted it"
        raise RuntimeError("NCCL communicator was aborted")
