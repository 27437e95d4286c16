"""Integrity: whether all ranks hold the same tensors, found out beside training.

Each rank takes a checksum of every tensor, on a thread of its own, and tells the others 16 bytes
that stand for all of them. Only where those differ are the checksums themselves exchanged, by name,
so that the tensor and the ranks that hold other bits than most are known.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from compressa.arrays import bits_of
from compressa.engine.control.awaited import Awaited
from compressa.engine.control.control import Control
from compressa.engine.device_stream import DeviceStream, Mark, device_stream_of
from compressa.engine.replicas.checksum import checksum
from compressa.errors import CompressaError

_WHAT = "integrity"
_DIGEST_BYTES = 16

Tensors = Mapping[str, torch.Tensor]
Table = dict[str, int]


@dataclass(frozen=True)
class Difference:
    """A tensor of which not all ranks hold the same bits.

    Attributes:
        name: Which.
        ranks: The minority; all ranks, if there is no majority.
        majority: More than half of all ranks, which hold the same; empty if no bits have so many.
    """

    name: str
    ranks: tuple[int, ...]
    majority: tuple[int, ...]


def differences(tables: Sequence[Mapping[str, int]]) -> list[Difference]:
    """Compare the checksums of all ranks.

    Args:
        tables: By rank, checksums by name. A tensor that a rank lacks counts as a difference.

    Returns:
        One for each tensor of which not all are equal, by name.

    Example:
        >>> differences([{"w": 1}, {"w": 5}, {"w": 1}])
        [Difference(name='w', ranks=(1,), majority=(0, 2))]
    """
    names = dict.fromkeys(name for table in tables for name in table)
    compared = [_compared(name, [table.get(name) for table in tables]) for name in names]
    return [difference for difference in compared if difference.ranks]


def _compared(name: str, held: Sequence[int | None]) -> Difference:
    holders: defaultdict[int | None, list[int]] = defaultdict(list)
    for rank, value in enumerate(held):
        holders[value].append(rank)
    value, most = max(holders.items(), key=lambda item: len(item[1]))
    majority = tuple(most) if 2 * len(most) > len(held) and value is not None else ()
    return Difference(name, tuple(r for r in range(len(held)) if r not in majority), majority)


class Check:
    """One comparison after another.

    A check is some calls of `read`, at most one of `begin`, then `tell`, then `result`; `tell` and
    `result` in the same order on all ranks.

    Args:
        control: Carries what is compared.
        device: Where most tensors are.
        deadline_s: Longest wait for another rank.
    """

    def __init__(self, control: Control, device: torch.device, deadline_s: float) -> None:
        self._control = control
        self._device = device
        self._deadline_s = deadline_s
        self._device_stream: DeviceStream | None = None
        self._table: Table = {}
        self._reading: Future[Table] | None = None
        self._told: Awaited | None = None

    def read(self, tensors: Tensors) -> None:
        """Take checksums now; on a GPU on the current stream, for which this waits.

        Args:
            tensors: By name, of any dtype, shape and device.
        """
        self._table.update(_checksums(tensors))

    def begin(self, tensors: Tensors) -> None:
        """Take checksums beside the caller, on a thread of its own; does not block.

        Args:
            tensors: By name; they must stay as they are until `tell` returns.
        """
        self._device_stream = self._device_stream or device_stream_of(
            self._device
        )  # not the engine's, which is busy now
        mark = self._device_stream.mark(t for t in tensors.values() if t.device == self._device)
        pool = ThreadPoolExecutor(1, thread_name_prefix="compressa-integrity")
        self._reading = pool.submit(_read, self._device_stream, mark, tensors)
        pool.shutdown(wait=False)  # the thread ends when it has read everything

    def tell(self) -> None:
        """Wait until all checksums are taken; tell the others, without waiting for theirs.

        Nothing is told without a `begin`. What the reading thread has raised is raised here.
        """
        if self._reading is None:
            return
        reading, self._reading = self._reading, None
        self._table.update(reading.result())
        peers = [rank for rank in range(self._control.size) if rank != self._control.rank]
        digest, most = _digest(self._table), dict.fromkeys(peers, _DIGEST_BYTES)
        self._told = self._control.exchange(dict.fromkeys(peers, digest), most, _WHAT)

    def result(self) -> list[Difference]:
        """Return what differs, once, when all ranks have told; nothing if no check is under way.

        Raises:
            TransportError: A rank is gone, or has told nothing in time.
        """
        self.tell()
        if self._told is None:
            return []
        told, own, table = self._told, _digest(self._table), self._table
        self.forget()
        answers = told.wait(self._deadline_s)
        if all(buffer.numpy().tobytes() == own for buffer in answers.values()):
            return []
        texts = self._control.all_gather(json.dumps(table).encode(), _WHAT, self._deadline_s)
        return differences([json.loads(text) for text in texts])

    def forget(self) -> None:
        """Have no check under way, on all ranks; waits for the reading thread."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.exception()
        self._told, self._table = None, {}

    def part(self, timeout_s: float) -> None:
        """Before this rank leaves: hear the others out, who could not tell anything afterwards.

        Raises nothing, whatever they say.

        Args:
            timeout_s: Longest wait, in seconds.
        """
        told, self._told = self._told, None
        if told is not None:
            with contextlib.suppress(CompressaError):
                told.wait(timeout_s)


def _read(device_stream: DeviceStream, mark: Mark, tensors: Tensors) -> Table:
    device_stream.adopt()
    device_stream.after([mark])
    return _checksums(tensors)


def _checksums(tensors: Tensors) -> Table:
    return {name: checksum(_bits(tensor)) for name, tensor in tensors.items() if tensor.numel()}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return bits_of(tensor.detach().resolve_conj().resolve_neg())


def _digest(table: Table) -> bytes:
    return hashlib.sha256(json.dumps(table).encode()).digest()[:_DIGEST_BYTES]
