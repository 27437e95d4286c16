"""Reactor: what is posted, due or ready is called in order; no wake-up is lost."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from compressa.transports.reactor import READ, WRITE, Reactor


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


def test_posted_functions_run_in_order_and_on_the_running_thread(reactor: Reactor) -> None:
    seen: list[tuple[int, int]] = []
    for number in range(5):
        reactor.post(lambda n=number: seen.append((n, threading.get_ident())))
    reactor.run_once(5.0)
    assert seen == [(number, threading.get_ident()) for number in range(5)]


def test_what_a_posted_function_posts_runs_in_the_next_turn_without_waiting(
    reactor: Reactor,
) -> None:
    seen: list[str] = []
    reactor.run_once(0.0)  # from now on this thread is the running one, and wakes nobody
    reactor.post(lambda: (seen.append("first"), reactor.post(lambda: seen.append("second"))))
    started_s = time.monotonic()
    reactor.run_once(5.0)
    assert seen == ["first"]
    reactor.run_once(5.0)
    assert seen == ["first", "second"]
    assert time.monotonic() - started_s < 4.0


@pytest.mark.parametrize("waits", [True, False])
def test_a_long_time_away_is_told_wherever_the_thread_was(reactor: Reactor, waits: bool) -> None:
    reactor.run_once(0.0)
    time.sleep(0.5)  # a busy machine
    assert reactor.away_s() == 0.0
    if waits:
        reactor.post(lambda: time.sleep(1.1))
        reactor.run_once(0.0)
    else:
        time.sleep(1.1)
    assert 1.1 <= reactor.away_s() < 2.0
    assert reactor.away_s() == 0.0


def test_no_wake_up_is_lost_among_many_threads(reactor: Reactor) -> None:
    """Each thread posts only when its last function has run, so a lost wake-up stops it."""
    threads, each = 4, 500
    left = threads

    def post_one_by_one() -> None:
        done = threading.Semaphore(0)
        for _ in range(each):
            reactor.post(done.release)
            assert done.acquire(timeout=20.0), "a wake-up was lost"
        reactor.post(finish)

    def finish() -> None:
        nonlocal left
        left -= 1

    workers = [threading.Thread(target=post_one_by_one) for _ in range(threads)]
    for worker in workers:
        worker.start()
    end_s = time.monotonic() + 30.0
    while left and time.monotonic() < end_s:
        reactor.run_once(30.0)
    for worker in workers:
        worker.join()
    assert left == 0
    assert time.monotonic() < end_s, "only the timeout of the wait ended it"


def test_posting_to_a_closed_reactor_is_harmless() -> None:
    reactor = Reactor()
    reactor.close()
    reactor.post(lambda: pytest.fail("called"))
    reactor.post(lambda: pytest.fail("called"))


def test_nothing_stays_open() -> None:
    before = os.listdir("/proc/self/fd")
    Reactor().close()
    assert os.listdir("/proc/self/fd") == before


def test_timers_run_in_the_order_of_their_times_and_not_before(reactor: Reactor) -> None:
    now_s = time.monotonic()
    seen: list[tuple[float, float]] = []
    for delay_s in (0.02, 0.0, 0.01, -1.0, 0.01):
        due_s = now_s + delay_s
        reactor.call_at(due_s, lambda d=due_s: seen.append((d, time.monotonic())))
    while len(seen) < 5:
        reactor.run_once(5.0)
    assert [due for due, _ in seen] == sorted(due for due, _ in seen)
    assert all(at >= due for due, at in seen)
    assert time.monotonic() - now_s < 4.0


def test_timers_are_not_rounded_to_milliseconds(reactor: Reactor) -> None:
    """The least of many tells the clock's grain, however busy the machine is."""
    late_s: list[float] = []
    for _ in range(60):
        due_s = time.monotonic() + 0.0003
        reactor.call_at(due_s, lambda d=due_s: late_s.append(time.monotonic() - d))
        while reactor._timers:
            reactor.run_once(1.0)
    assert min(late_s) < 0.0004


def test_sockets_are_served_while_a_timer_is_pending(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    events: list[int] = []
    reactor.call_at(time.monotonic() + 60.0, lambda: pytest.fail("called"))
    reactor.watch(pair[0], READ, events.append)
    pair[1].send(b"x")
    reactor.run_once(5.0)
    assert events == [READ]


def test_interest_is_changed_and_withdrawn(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    events: list[int] = []
    reactor.watch(pair[0], READ | WRITE, events.append)
    reactor.run_once(5.0)
    reactor.watch(pair[0], READ, events.append)
    reactor.run_once(0.0)
    assert events == [WRITE]
    pair[1].send(b"x")
    reactor.run_once(5.0)
    assert events == [WRITE, READ]
    reactor.watch(pair[0], 0, events.append)
    reactor.watch(pair[0], 0, events.append)  # twice is harmless
    reactor.run_once(0.0)
    assert events == [WRITE, READ]


def test_a_poll_leaves_what_was_posted(reactor: Reactor) -> None:
    seen: list[int] = []
    reactor.post(lambda: seen.append(1))
    reactor.poll(0.0)
    assert seen == []
    reactor.run_once(5.0)
    assert seen == [1]


class _Sleeps:
    """A selector that notes how long each call may sleep, and never sleeps longer than asked."""

    def __init__(self, reactor: Reactor) -> None:
        self.asked_s: list[float] = []
        self._selector = reactor._selector
        reactor._selector = self

    def __getattr__(self, name: str) -> object:
        return getattr(self._selector, name)

    def select(self, timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        self.asked_s.append(timeout_s)
        return self._selector.select(timeout_s)


def test_it_sleeps_at_once_while_nothing_is_due(reactor: Reactor) -> None:
    reactor.stay_awake(60.0, lambda: False)
    sleeps = _Sleeps(reactor)
    reactor.run_once(0.01)
    assert sleeps.asked_s == [0.01]


def test_what_is_due_soon_is_served_without_sleep(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    seen: list[bytes] = []
    reactor.watch(near, READ, lambda events: seen.append(near.recv(8)))
    reactor.stay_awake(60.0, lambda: not seen)
    sleeps = _Sleeps(reactor)
    sender = threading.Timer(0.02, lambda: far.send(b"here"))
    sender.start()
    reactor.run_once(60.0)
    sender.join()
    assert seen == [b"here"]
    assert len(sleeps.asked_s) > 1
    assert set(sleeps.asked_s) == {0.0}


def test_it_sleeps_at_once_while_no_core_is_free(reactor: Reactor) -> None:
    reactor.stay_awake(60.0, lambda: True)
    reactor.core_free = False
    sleeps = _Sleeps(reactor)
    reactor.run_once(0.01)
    assert sleeps.asked_s == [0.01]


def test_after_a_long_wait_it_sleeps_at_once_and_after_a_short_one_it_looks_first(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    reactor.watch(near, READ, lambda events: near.recv(8))
    reactor.stay_awake(0.001, lambda: True)
    reactor.run_once(0.01)
    sleeps = _Sleeps(reactor)
    reactor.run_once(0.01)
    assert sleeps.asked_s == [0.0, 0.01], "the last wait was in vain"
    reactor.stay_awake(60.0, lambda: True)
    far.send(b"at once")
    reactor.run_once(0.01)
    reactor.stay_awake(0.001, lambda: True)
    sleeps.asked_s.clear()
    reactor.run_once(0.01)
    assert sleeps.asked_s.count(0.0) > 1, "the last wait was short"
    assert sleeps.asked_s[-1] == 0.01
