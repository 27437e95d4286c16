"""Fences: exchanges of the compiled loop that begin when a GPU says so, not when Python does."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from _lowered import KEY, End, ends

from compressa.collectives.base import Exchange
from compressa.errors import CompressaError
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.lowered import AVAILABLE

if AVAILABLE:
    from compressa.transports.lowered import _fence as f
    from compressa.transports.lowered.fence import Fence, signal_function

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")

PAYLOAD = torch.arange(100, dtype=torch.uint8)


def come_to(fence: Fence) -> None:
    """Do what CUDA does when a stream comes to a fence."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(signal_function())(fence.address)


def sent(payload: torch.Tensor = PAYLOAD) -> Exchange:
    return Exchange({1: payload}, {}, True, {})


@pytest.fixture
def pair() -> Iterator[tuple[End, socket.socket]]:
    """A loop whose only peer is a plain socket."""
    near, far = socket.socketpair()
    end = End(0, {1: [near]})
    yield end, far
    end.close()
    far.close()


def test_nothing_leaves_before_a_fence_and_all_does_at_it(pair: tuple[End, socket.socket]) -> None:
    end, far = pair
    fence, payload = end.loop.fences.new(), torch.zeros_like(PAYLOAD)
    end.loop.exchange(KEY, sent(payload), 0, lambda _: end.done.append(KEY), fence)
    end.loop.wait(-1, 0.05)
    assert not select.select([far], [], [], 0.0)[0]
    assert not fence.reached
    assert end.loop.missing(KEY) == []
    payload.copy_(PAYLOAD)  # a GPU's copy comes before the fence
    come_to(fence)
    end.until(1)
    assert end.done == [KEY]
    assert far.recv(1 << 12)[FRAME_HEADER_BYTES:] == bytes(PAYLOAD.numpy())


def test_a_fence_that_was_reached_holds_nothing_up(pair: tuple[End, socket.socket]) -> None:
    end, far = pair
    fence = end.loop.fences.new()
    come_to(fence)
    end.loop.exchange(KEY, sent(), 0, lambda _: end.done.append(KEY), fence)
    assert select.select([far], [], [], 5.0)[0]
    end.until(1)


def test_exchanges_begin_in_the_order_of_their_fences() -> None:
    with ends(2) as (a, b):
        keys = [Key(2, unit, 0) for unit in range(5)]
        fences = [a.loop.fences.new() for _ in keys]
        for key, fence in zip(keys, fences, strict=True):
            a.loop.exchange(key, sent(), 0, lambda _, key=key: a.done.append(key), fence)
            b.exchange(key, Exchange({}, {0: torch.zeros_like(PAYLOAD)}, True, {}))
        for number in (3, 0, 4, 1, 2):
            come_to(fences[number])
            a.until(len(a.done) + 1)
            b.until(len(b.done) + 1)
        assert a.done == b.done == [keys[number] for number in (3, 0, 4, 1, 2)]


def test_what_has_no_fence_overtakes_what_waits_for_one(pair: tuple[End, socket.socket]) -> None:
    end, _ = pair
    fence, other = end.loop.fences.new(), Key(2, 9, 0)
    end.loop.exchange(KEY, sent(), 0, lambda _: end.done.append(KEY), fence)
    end.loop.exchange(other, sent(), 1, lambda _: end.done.append(other))
    end.until(1)
    assert end.done == [other]
    come_to(fence)
    end.until(2)
    assert end.done == [other, KEY]


def test_no_python_runs_from_a_fence_to_the_wire(pair: tuple[End, socket.socket]) -> None:
    """While one thread holds the interpreter's lock, another is woken, and sends."""
    end, far = pair
    fence = end.loop.fences.new()
    end.loop.exchange(KEY, sent(), 0, lambda _: end.done.append(KEY), fence)
    driving = threading.Thread(target=lambda: end.loop.wait(-1, 20.0))
    library, thread = ctypes.PyDLL(None), ctypes.c_ulong()  # whose calls keep the lock
    library.pthread_create.argtypes = [ctypes.c_void_p] * 4
    waited = np.array([far.fileno() | select.POLLIN << 32], np.int64)
    driving.start()
    time.sleep(0.05)  # it is in compiled code
    library.pthread_create(ctypes.addressof(thread), None, signal_function(), fence.address)
    assert library.poll(waited.ctypes.data_as(ctypes.c_void_p), 1, 5000) == 1
    assert not end.done  # for Python has not run
    ctypes.CDLL(None).pthread_join(thread, None)
    driving.join()
    assert end.done == [KEY]


def test_after_a_failure_nothing_leaves_at_a_fence(pair: tuple[End, socket.socket]) -> None:
    end, far = pair
    fence = end.loop.fences.new()
    end.loop.exchange(KEY, sent(), 0, lambda _: end.done.append(KEY), fence)
    end.loop.fail()
    come_to(fence)
    end.loop.wait(-1, 0.05)
    assert far.recv(1 << 12) == b""
    assert not end.done


def test_a_fence_that_is_reached_after_the_end_writes_to_nobody() -> None:
    near, far = socket.socketpair()
    end = End(0, {1: [near]})
    failures: list[CompressaError] = end.failures
    fence = end.loop.fences.new()
    end.loop.exchange(KEY, sent(), 0, lambda _: end.done.append(KEY), fence)
    number, other = end.loop._wake, os.eventfd(0, os.EFD_NONBLOCK)
    end.close()
    far.close()
    os.dup2(other, number)  # somebody else has the loop's file descriptor now
    try:
        come_to(fence)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
    finally:
        os.close(number)
        os.close(other)
    assert not failures


def test_fences_that_are_over_are_kept_no_longer(pair: tuple[End, socket.socket]) -> None:
    end, _ = pair
    fences = end.loop.fences
    first = fences.new()
    come_to(first)
    assert first.over
    kept = [fences.new() for _ in range(3)]
    assert list(fences._pending) == kept


def test_a_fence_is_dropped_when_who_signals_it_is_done(pair: tuple[End, socket.socket]) -> None:
    end, _ = pair
    fence = end.loop.fences.new()
    fence._words[f.STATE] = f.SIGNALLED  # a thread of CUDA's is about to write
    timer = threading.Timer(0.1, lambda: fence._words.__setitem__(f.STATE, f.DONE))
    timer.start()
    began_s = time.monotonic()
    end.loop.fences.drop()
    assert time.monotonic() - began_s > 0.05
    assert fence.over
    timer.join()
