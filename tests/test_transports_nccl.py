"""NcclTransport where NCCL is emulated: lengths, deadlines and ends; see also test_hook_cuda."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from emulated_torch import DEVICE, Event, emulated_torch, on_cpu, on_gpu

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.errors import PayloadError, Timeout, TransportError
from compressa.transports.base import Key
from compressa.transports.nccl import NcclTransport

KEY = Key(3, 1, 0)


class Work:
    def wait(self) -> None:
        pass


class OneRank:
    """A group of one that sends to itself, after changing what `corrupt` says."""

    def __init__(self) -> None:
        self.aborted = False
        self.corrupt: Any = lambda tensor: None

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted\nmore")
        return Work()

    def batch(self, operations: list[tuple[Any, torch.Tensor, int, Any]]) -> list[Work]:
        receives = [op[1] for op in operations if op[0] is dist.irecv]
        sends = [op[1] for op in operations if op[0] is dist.isend]
        for source, target in zip(sends, receives, strict=True):
            assert source.numel() == target.numel(), "NCCL would wait for ever"
            target.copy_(source)
            self.corrupt(target)
        return [Work()]

    def abort(self) -> None:
        self.aborted = True


class AtOnce:
    """In place of a watcher's thread."""

    def __init__(self, post: Any, device: torch.device) -> None:
        pass

    def when(self, event: Event, callback: Any) -> None:
        event.synchronize()
        callback()

    def close(self, timeout_s: float) -> None:
        pass


@pytest.fixture
def group() -> Iterator[OneRank]:
    names: dict[str, Any] = {
        "get_process_group_ranks": lambda group: [0],
        "P2POp": lambda *operation: operation,
        "batch_isend_irecv": lambda operations: operations[0][3].batch(operations),
    }
    with (
        emulated_torch(),
        mock.patch("compressa.transports.nccl.Watcher", AtOnce),
        mock.patch.multiple(dist, **names),
    ):
        yield OneRank()


def transport_of(group: Any) -> NcclTransport:
    transport = NcclTransport(group, 1, torch.cuda.current_stream())
    transport.attach(mock.Mock())
    return transport


def to_itself(transport: NcclTransport, data: torch.Tensor, most: int, *, exact: bool) -> Any:
    results: list[Any] = []
    room = torch.zeros(most, dtype=torch.uint8, device=DEVICE)
    exchange = Exchange({0: on_gpu(data)}, {0: room}, exact, {0: most})
    transport.exchange(KEY, exchange, 0, results.append)
    torch.cuda.current_stream().synchronize()
    (result,) = results
    return result


@pytest.mark.parametrize("size", [0, 1, 39, 40])
def test_messages_of_unknown_length_are_padded_and_cut(group: OneRank, size: int) -> None:
    data = torch.arange(size, dtype=torch.uint8)
    received = to_itself(transport_of(group), data, 40, exact=False)
    assert torch.equal(on_cpu(received[0]), data)


@pytest.mark.parametrize("length", [-1, 41, 2**62])
def test_a_length_that_does_not_fit_is_refused(group: OneRank, length: int) -> None:
    group.corrupt = lambda room: room[:8].view(torch.int64).fill_(length)
    error = to_itself(transport_of(group), torch.ones(3, dtype=torch.uint8), 40, exact=False)
    assert isinstance(error, PayloadError)
    assert f"sent {length} bytes, of at most 40" in str(error)


def test_what_does_not_end_is_found_and_aborted(group: OneRank) -> None:
    transport = transport_of(group)
    with mock.patch.object(Event, "query", return_value=False):
        assert to_itself(transport, torch.ones(4, dtype=torch.uint8), 4, exact=True)
        assert transport.overdue(60.0) is None
        error = transport.overdue(0.0)
        assert isinstance(error, Timeout)
        assert "stage 0 of unit 1, step 3" in str(error)
        transport.fail(error)
    assert group.aborted
    assert transport.overdue(0.0) is None
    refused = to_itself(transport, torch.ones(4, dtype=torch.uint8), 4, exact=True)
    assert isinstance(refused, TransportError)


def test_an_abort_that_fails_or_hangs_holds_nobody_up(group: OneRank) -> None:
    def abort() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    transport = transport_of(group)
    with mock.patch.object(group, "abort", abort):
        transport.fail(TransportError("a rank is gone"))
    hanging, transport = threading.Event(), transport_of(group)
    with (
        mock.patch.object(group, "abort", hanging.wait),
        mock.patch("compressa.transports.nccl._ABORT_S", 0.1),
    ):
        transport.fail(TransportError("a rank is gone"))
    hanging.set()


def test_what_has_ended_is_not_overdue(group: OneRank) -> None:
    transport = transport_of(group)
    assert to_itself(transport, torch.ones(4, dtype=torch.uint8), 4, exact=True)
    assert transport.overdue(0.0) is None
    transport.close(1.0)
    assert not group.aborted


def test_an_error_of_nccl_is_one_of_the_transport(group: OneRank) -> None:
    transport, results = transport_of(group), list[Any]()
    group.aborted = True
    transport.all_reduce(BackendAllReduce(on_gpu(torch.ones(3))), results.append)
    (error,) = results
    assert str(error) == "NCCL failed: NCCL communicator was aborted"
