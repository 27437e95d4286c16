"""Staged: messages in pieces between an emulated GPU and a transport of the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_streams import DEVICE, Event, Stream
from emulated_torch import emulated_torch, on_cpu, on_gpu

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError, TransportError
from compressa.transports.alone import Alone
from compressa.transports.base import Done, Key, Received
from compressa.transports.loopback import Loopback
from compressa.transports.lowered import AVAILABLE
from compressa.transports.reactor import Reactor
from compressa.transports.staged import Staged
from compressa.transports.watcher import Watcher

if AVAILABLE:
    from compressa.transports.lowered.fence import Fence, Fences

KEY = Key(3, 1, 0)


@pytest.fixture(autouse=True, params=[None, 1])
def emulated(request: pytest.FixtureRequest) -> Iterator[None]:
    with emulated_torch(request.param):
        yield


def staged(inner: Any, piece_bytes: int = 100) -> Staged:
    def when(event: torch.cuda.Event, callback: Callable[[], None] | None) -> None:
        event.synchronize()
        if callback is not None:
            callback()

    return Staged(inner, torch.cuda.current_stream(), when, piece_bytes)


def content(seed: int, size: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=random)


def room(size: int) -> torch.Tensor:
    return torch.full((size,), 0xA7, dtype=torch.uint8, device=DEVICE)


def arrived(result: Received | CompressaError) -> dict[int, torch.Tensor]:
    """What was received, as a consumer on the current stream finds it."""
    assert not isinstance(result, CompressaError), result
    copies = {peer: buffer.clone() for peer, buffer in result.items()}
    torch.cuda.current_stream().synchronize()
    return {peer: on_cpu(copy) for peer, copy in copies.items()}


@pytest.mark.parametrize("sizes", [(0, 1), (99, 100), (101, 7), (1000, 350)])
def test_messages_of_any_length_arrive_whole(sizes: tuple[int, int]) -> None:
    world, results = Loopback(2), {}
    for rank, transport in enumerate(world.transports):
        peer = 1 - rank
        outgoing = {peer: on_gpu(content(rank, sizes[rank]))}
        exchange = Exchange(outgoing, {peer: room(sizes[peer])}, True, {peer: sizes[rank]})
        staged(transport).exchange(KEY, exchange, 0, lambda r, rank=rank: results.update({rank: r}))
    world.clock.run()
    for rank in range(2):
        assert torch.equal(arrived(results[rank])[1 - rank], content(1 - rank, sizes[1 - rank]))


def test_a_message_of_unknown_length_fills_the_front_of_its_buffer() -> None:
    world, results = Loopback(2), {}
    for rank, transport in enumerate(world.transports):
        peer, size = 1 - rank, (300, 20)[rank]
        exchange = Exchange(
            {peer: on_gpu(content(rank, size))}, {peer: room(400)}, False, {peer: 400}
        )
        staged(transport).exchange(KEY, exchange, 0, lambda r, rank=rank: results.update({rank: r}))
    world.clock.run()
    assert torch.equal(arrived(results[0])[1], content(1, 20))
    assert torch.equal(arrived(results[1])[0], content(0, 300))


class Sums(Alone):
    """Triples what it sums, as if three ranks had the same; or fails in one piece."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.lengths: list[int] = []
        self._fails_at = fails_at

    def ordered(self, operation: Operation) -> bool:
        return isinstance(operation, BackendAllReduce)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        self.lengths.append(operation.tensor.numel())
        if len(self.lengths) - 1 == self._fails_at:
            done(TransportError("the network is gone"))
            return
        operation.tensor.mul_(3)
        done({})


@pytest.mark.parametrize("elems", [1, 25, 26, 640])
def test_sums_go_in_pieces_and_come_back_in_place(elems: int) -> None:
    inner, results = Sums(), []
    x = torch.randn(elems, generator=torch.Generator().manual_seed(0))
    tensor = on_gpu(x).mul_(2.0)
    staged(inner).all_reduce(BackendAllReduce(tensor), results.append)
    (result,) = results
    assert result == {}
    assert torch.equal(arrived({0: tensor})[0], x * 2 * 3)
    assert inner.lengths == [min(25, elems - low) for low in range(0, elems, 25)]


def test_a_piece_that_fails_is_reported_once() -> None:
    results: list[Any] = []
    transport = staged(Sums(fails_at=1))
    transport.all_reduce(BackendAllReduce(on_gpu(torch.ones(200))), results.append)
    (error,) = results
    assert isinstance(error, TransportError)


@pytest.mark.parametrize("kind", ["exchange", "sum"])
def test_an_operation_has_begun_when_its_first_piece_has_left_the_gpu(kind: str) -> None:
    left: list[Callable[[], None]] = []
    stream = torch.cuda.current_stream()
    inner, results = Sums(), []
    transport = Staged(inner, stream, lambda event, call: left.append(call), 100)
    buffer = on_gpu(torch.ones(60))
    operation: Operation = BackendAllReduce(buffer)
    if kind == "sum":
        transport.all_reduce(operation, results.append)
    else:
        operation = Exchange({}, {1: buffer.view(torch.uint8)}, True, {})
        inner.exchange = lambda *arguments: None
        transport.exchange(KEY, operation, 0, results.append)
    assert len(left) == 3
    assert not transport.begun(operation)
    left[0]()
    assert transport.begun(operation)
    left[1]()
    assert transport.begun(operation)


class Fenced(Sums):
    """Has exchanges begin at fences, of which it keeps all."""

    def __init__(self) -> None:
        super().__init__()
        self.fences = Fences(-1)
        self.begun_at: list[tuple[Fence, Exchange]] = []

    def fence(self) -> Fence | None:
        return self.fences.new()

    def exchange_at(
        self, fence: Fence, key: Key, exchange: Exchange, priority: int, done: Done
    ) -> None:
        self.begun_at.append((fence, exchange))


@pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")
def test_each_piece_has_a_fence_behind_its_copy() -> None:
    inner, watched = Fenced(), []
    stream = torch.cuda.current_stream()
    transport = Staged(inner, stream, lambda event, call: watched.append((event, call)), 100)
    message = content(1, 250)
    exchange = Exchange({1: on_gpu(message)}, {1: room(250)}, True, {})
    transport.exchange(KEY, exchange, 0, lambda result: None)
    assert [piece.outgoing[1].numel() for _, piece in inner.begun_at] == [100, 100, 50]
    ((event, call),) = watched  # once, for the GPU's own errors
    assert call is None
    event.synchronize()
    for (fence, piece), part in zip(inner.begun_at, torch.split(message, 100), strict=True):
        assert fence.reached
        assert torch.equal(piece.outgoing[1], part)
        assert transport.begun(exchange)


@pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")
def test_an_exchange_has_begun_when_the_gpu_comes_to_its_first_fence() -> None:
    inner, before = Fenced(), torch.cuda.Stream(eager=False)
    transport = Staged(inner, torch.cuda.current_stream(), lambda event, call: None, 100)
    torch.cuda.current_stream().wait_event(before.record_event())
    exchange = Exchange({1: on_gpu(content(1, 250))}, {}, True, {})
    transport.exchange(KEY, exchange, 0, lambda result: None)
    assert transport.begun(exchange) == inner.begun_at[0][0].reached
    transport._out.synchronize()
    assert transport.begun(exchange)


def test_a_gpu_that_fails_is_told_though_nobody_is_to_be_called(reactor: Reactor) -> None:
    watcher = Watcher(reactor.post, DEVICE)
    failed = Event()
    with mock.patch.object(failed, "synchronize", side_effect=RuntimeError("an illegal access")):
        watcher.when(Event(), None)
        watcher.when(failed, None)
        watcher.close(5.0)
    with pytest.raises(RuntimeError, match="an illegal access"):
        reactor.run_once(5.0)


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


class OnThreads(Sums):
    """Calls back on threads of its own, as Gloo does; not before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.threads: list[threading.Thread] = []

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        self._later(lambda: super(OnThreads, self).all_reduce(operation, done))

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        for buffer in exchange.incoming.values():
            buffer.fill_(3)
        self._later(lambda: done(dict(exchange.incoming)))

    def _later(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=lambda: self.may.wait() and call())
        self.threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.may.set()
        for thread in self.threads:
            thread.join()


def test_only_the_driving_thread_touches_the_gpu(reactor: Reactor) -> None:
    inner, results, users = OnThreads(), [], set()
    transport = staged(inner)
    transport.attach(reactor)

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            users.add(threading.current_thread())
            return call(*arguments, **options)

        return noted

    tensor, received = on_gpu(torch.ones(200)), room(250)
    with (
        mock.patch.object(torch.cuda, "stream", noting(torch.cuda.stream)),
        mock.patch.object(Event, "record", noting(Event.record)),
        mock.patch.object(Stream, "give", noting(Stream.give)),
    ):
        transport.all_reduce(BackendAllReduce(tensor), results.append)
        transport.exchange(KEY, Exchange({}, {1: received}, True, {}), 0, results.append)
        inner.end()
        end_s = time.monotonic() + 5.0
        while len(results) < 2 and time.monotonic() < end_s:
            reactor.run_once(0.05)
    assert len(results) == 2
    assert users == {threading.current_thread()}
    assert (arrived({0: tensor})[0] == 3).all()
    assert (arrived({0: received})[0] == 3).all()


def test_what_arrives_before_a_failure_is_not_written_after_it(reactor: Reactor) -> None:
    inner, results = OnThreads(), []
    transport = staged(inner)
    transport.attach(reactor)
    tensor, error = on_gpu(torch.ones(20)), TransportError("a rank is lost")
    transport.all_reduce(BackendAllReduce(tensor), results.append)
    inner.end()
    transport.fail(error)
    reactor.run_once(0.0)
    assert results == [error]
    assert (arrived({0: tensor})[0] == 1).all()
