"""NcclTransport where NCCL is emulated: lengths, deadlines and ends; see also test_hook_cuda."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from _until import until
from emulated_nccl import Fabric, OneOf
from emulated_streams import DEVICE, UNFINISHED, Event, current_stream
from emulated_torch import CudaTensor, emulated_torch, on_cpu, on_gpu

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.errors import PayloadError, Timeout, TransportError
from compressa.transports import nccl
from compressa.transports.base import Key
from compressa.transports.nccl import NcclTransport

KEY = Key(3, 1, 0)
ONES = torch.ones(4, dtype=torch.uint8)


class Immediate:
    """In place of a watcher's thread."""

    def __init__(self, post: Any, device: torch.device) -> None:
        pass

    def when(self, event: Event, callback: Any) -> None:
        event.synchronize()
        callback()

    def close(self, timeout_s: float) -> None:
        pass


@pytest.fixture
def group() -> Iterator[OneOf]:
    with emulated_torch(), mock.patch("compressa.transports.nccl.Watcher", Immediate):
        yield Fabric(1).ranks[0]


class Owner:
    """Who has a transport, and is told what becomes of it."""

    def __init__(self) -> None:
        self.errors: list[Any] = []
        self.parted: list[float] = []

    def transport(self, group: Any, deadline_s: float = 60.0) -> NcclTransport:
        stream = torch.cuda.current_stream()
        transport = NcclTransport(
            group, 1, stream, deadline_s, self.errors.append, self.parted.append
        )
        transport.attach(mock.Mock())
        return transport

    def error(self) -> Any:
        """The one that it is told within a moment."""
        until(lambda: self.errors)
        (error,) = self.errors
        return error


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    before = threading.enumerate()
    yield
    assert not [t for t in threading.enumerate() if t not in before]


@pytest.fixture
def transport(group: OneOf, owner: Owner) -> Iterator[NcclTransport]:
    made = owner.transport(group)
    yield made
    made.close(1.0)


def to_itself(transport: NcclTransport, data: torch.Tensor, most: int, *, exact: bool) -> Any:
    results: list[Any] = []
    room = torch.zeros(most, dtype=torch.uint8, device=DEVICE)
    exchange = Exchange({0: on_gpu(data)}, {0: room}, exact, {0: most})
    transport.exchange(KEY, exchange, 0, results.append)
    (result,) = results
    if isinstance(result, dict):
        transport.land(exchange)
    torch.cuda.current_stream().synchronize()
    return result


@pytest.mark.parametrize("size", [0, 1, 39, 40])
def test_messages_of_unknown_length_are_padded_and_cut(transport: NcclTransport, size: int) -> None:
    data = torch.arange(size, dtype=torch.uint8)
    received = to_itself(transport, data, 40, exact=False)
    assert torch.equal(on_cpu(received[0]), data)


def sent_ahead(transport: NcclTransport, values: torch.Tensor) -> torch.Tensor:
    """Send what another stream has made, whose memory that stream uses again; return what comes."""
    room = torch.zeros(40, dtype=torch.uint8, device=DEVICE)
    with torch.cuda.stream(torch.cuda.Stream()):
        values = on_gpu(values)
        exchange = Exchange({0: values + values}, {0: room}, False, {0: 40})
        transport.exchange(KEY, exchange, 0, lambda received: None)
        exchange.outgoing.clear()
        transport.land(exchange)
        torch.empty(8, device=DEVICE)  # of the memory that was let go
        torch.cuda.current_stream().synchronize()
    torch.cuda.current_stream().synchronize()
    return on_cpu(room)


def test_what_another_stream_has_made_is_sent_when_it_is_made_and_kept_until_then(
    transport: NcclTransport,
) -> None:
    values = torch.arange(40, dtype=torch.uint8)
    assert torch.equal(sent_ahead(transport, values), 2 * values)
    assert torch.equal(sent_ahead(transport, values[:39])[:39], 2 * values[:39])
    with mock.patch.object(CudaTensor, "record_stream"):
        assert not torch.equal(sent_ahead(transport, values), 2 * values)


@pytest.mark.parametrize("length", [-1, 41, 2**62])
def test_a_length_that_does_not_fit_is_refused(
    group: OneOf, transport: NcclTransport, length: int
) -> None:
    group.fabric.corrupt = lambda told: told.view(torch.int64).fill_(length)
    error = to_itself(transport, torch.ones(3, dtype=torch.uint8), 40, exact=False)
    assert isinstance(error, PayloadError)
    assert f"sent {length} bytes, of at most 40" in str(error)


def test_what_does_not_end_on_the_gpu_is_found_and_aborted(group: OneOf, owner: Owner) -> None:
    transport = owner.transport(group, deadline_s=0.1)
    group.held = {group.calls}
    assert to_itself(transport, ONES, 4, exact=True)
    error = owner.error()
    assert isinstance(error, Timeout)
    assert "stage 0 of unit 1, step 3" in str(error)
    assert group.ended.wait(5.0)
    assert isinstance(to_itself(transport, ONES, 4, exact=True), TransportError)
    transport.fail(error)
    transport.close(1.0)
    assert group.aborts == 1
    assert not owner.parted, "nobody has to wait for what is aborted"


@pytest.mark.parametrize("ends", [True, False])
def test_the_deadline_counts_from_when_the_gpu_could_have_begun(
    group: OneOf, owner: Owner, ends: bool
) -> None:
    transport, computing = owner.transport(group, deadline_s=0.1), [True]
    current_stream().give(lambda: UNFINISHED if computing else None)
    group.held = set() if ends else {group.calls}
    transport.exchange(KEY, Exchange({0: on_gpu(ONES)}, {0: on_gpu(ONES)}), 0, lambda result: None)
    time.sleep(0.8)  # three ticks of the watchdog
    assert not owner.errors, "it was not its turn"
    computing.clear()
    if ends:
        time.sleep(0.8)
        assert not owner.errors
    else:
        assert isinstance(owner.error(), Timeout)
    transport.close(1.0)


def test_a_call_that_does_not_return_is_found_and_ended(group: OneOf, owner: Owner) -> None:
    transport = owner.transport(group, deadline_s=0.1)
    with mock.patch.object(group, "alltoall", group.hang):
        refused = to_itself(transport, ONES, 4, exact=True)
    assert isinstance(refused, TransportError)
    assert isinstance(owner.error(), Timeout)
    transport.close(1.0)


def test_ranks_that_do_not_meet_are_told_so_in_time(group: OneOf, owner: Owner) -> None:
    with (
        mock.patch.object(group, "allreduce", group.hang),
        pytest.raises(Timeout, match=r"waited 0\.1 s for NCCL in the first calls, which connect"),
    ):
        owner.transport(group, deadline_s=0.1)
    assert group.aborts == 1


def test_an_error_of_the_gpu_ends_the_transport(group: OneOf, owner: Owner) -> None:
    def query(event: Event) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    transport = owner.transport(group)
    with mock.patch.object(Event, "query", query):
        assert to_itself(transport, ONES, 4, exact=True)
        error = owner.error()
    assert str(error) == (
        "work on the GPU failed: CUDA error: an illegal memory access was encountered"
    )
    assert group.ended.wait(5.0)
    transport.close(1.0)


@pytest.mark.parametrize("hangs", [False, True])
def test_an_abort_that_fails_or_hangs_holds_nobody_up(
    group: OneOf, owner: Owner, hangs: bool
) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    transport, over = owner.transport(group), threading.Event()
    with (
        mock.patch.object(group, "abort", over.wait if hangs else fails),
        mock.patch("compressa.transports.nccl._ABORT_S", 0.1),
    ):
        transport.fail(TransportError("a rank is gone"))
        if hangs:
            with pytest.raises(TransportError, match="NCCL has not let go"):
                transport.close(1.0)
    over.set()
    transport.close(1.0)


def test_a_transport_is_closed_when_all_ranks_have_done_their_part(
    group: OneOf, owner: Owner
) -> None:
    def part(seconds: float) -> None:
        assert not group.aborts
        assert 0.0 <= seconds <= 1.0
        owner.parted.append(seconds)

    transport = NcclTransport(
        group, 1, torch.cuda.current_stream(), 60.0, owner.errors.append, part
    )
    transport.attach(mock.Mock())
    assert to_itself(transport, ONES, 4, exact=True)
    transport.close(1.0)
    assert len(owner.parted) == group.aborts == 1
    assert not owner.errors


@pytest.mark.parametrize(
    ("queues", "shared"), [(None, False), ("1", False), ("8", False), ("1", True)]
)
def test_one_queue_for_all_streams_is_warned_of_once(
    group: OneOf, queues: str | None, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if queues is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    nccl._warn_of_one_queue.cache_clear()
    setup: Any = mock.Mock(group=group, stream=current_stream(), deadline_s=60.0, shared=shared)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            nccl.open_nccl(setup).fail(TransportError("over"))
            group.aborts = 0
    assert len(told) == (queues == "1" and not shared)  # one group has one order
    assert all("CUDA_DEVICE_MAX_CONNECTIONS is 1" in str(each.message) for each in told)


def test_an_error_of_nccl_is_one_of_the_transport(group: OneOf, transport: NcclTransport) -> None:
    results: list[Any] = []
    group.aborts = 1
    transport.all_reduce(BackendAllReduce(on_gpu(torch.ones(3))), results.append)
    (error,) = results
    assert str(error) == "NCCL failed: NCCL communicator was aborted"


def test_a_stream_waits_for_what_lands_and_its_memory_is_kept_until_then(
    group: OneOf, transport: NcclTransport
) -> None:
    group.held = {group.calls}
    results: list[Any] = []
    data, room = on_gpu(ONES), torch.zeros(4, dtype=torch.uint8, device=DEVICE)
    exchange = Exchange({0: data}, {0: room})
    transport.exchange(KEY, exchange, 0, results.append)
    stays = [weakref.ref(exchange), weakref.ref(data)]
    assert current_stream().record_event().query(), "what is next on the stream goes on"
    del data
    assert all(ref() is not None for ref in stays)
    transport.land(exchange)
    del exchange
    assert not any(ref() is not None for ref in stays)
    assert not current_stream().record_event().query()
    group.held = set()
    assert current_stream().record_event().query()
    assert torch.equal(on_cpu(results[0][0]), ONES)


def test_what_is_made_for_an_operation_is_kept_until_it_lands(
    group: OneOf, transport: NcclTransport
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    carry = group.alltoall

    def noted(received: list[torch.Tensor], sent: list[torch.Tensor]) -> Any:
        made.extend(weakref.ref(buffer) for buffer in (*sent, *received))
        return carry(received, sent)

    results: list[Any] = []
    data, room = on_gpu(ONES), torch.zeros(40, dtype=torch.uint8, device=DEVICE)
    exchange = Exchange({0: data}, {0: room}, False, {0: 40})
    with mock.patch.object(group, "alltoall", noted):
        transport.exchange(KEY, exchange, 0, results.append)
    assert len(made) == 4, "the length, and the message with its padding"
    assert all(ref() is not None for ref in made)
    transport.land(exchange)
    assert [ref() is None for ref in made] == [True, True, True, False], "all but the room is ours"
