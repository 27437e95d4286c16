from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels.threads import KernelThreads, over_slices

LARGE = 3_000_001


def covered(size: int, multiple: int) -> tuple[np.ndarray, list[tuple[int, int]], set[int]]:
    counts, slices, threads = np.zeros(size, np.int64), [], set()

    def work(low: int, high: int) -> None:
        counts[low:high] += 1
        slices.append((low, high))
        threads.add(threading.get_ident())

    over_slices(size, multiple, work)
    return counts, slices, threads


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE])
def test_without_threads_the_caller_does_all_at_once(size: int) -> None:
    _, slices, threads = covered(size, 256)
    assert slices == [(0, size)]
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("multiple", [1, 256, 65536])
def test_threads_cover_every_element_once(multiple: int) -> None:
    with ThreadPoolExecutor(2) as pool, KernelThreads(pool, 3).enlisted():
        counts, slices, _ = covered(LARGE, multiple)
    assert (counts == 1).all()
    assert len(slices) > 3
    assert all(low % multiple == 0 for low, _ in slices)


def test_small_arrays_are_not_handed_out() -> None:
    with ThreadPoolExecutor(2) as pool, KernelThreads(pool, 3).enlisted():
        assert covered(10_000, 1)[1] == [(0, 10_000)]


def test_no_more_threads_work_than_were_asked_for() -> None:
    at_work, most, lock = 0, 0, threading.Lock()

    def work(low: int, high: int) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        threading.Event().wait(0.002)
        with lock:
            at_work -= 1

    with ThreadPoolExecutor(8) as pool, KernelThreads(pool, 2).enlisted():
        over_slices(10_000_000, 1, work)
    assert most == 2


def test_threads_that_are_busy_are_not_waited_for() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(release.wait)
        with KernelThreads(pool, 2).enlisted():
            counts, _, threads = covered(LARGE, 1)
        release.set()
    assert (counts == 1).all()
    assert threads == {threading.get_ident()}


def test_an_error_of_any_slice_reaches_the_caller() -> None:
    def work(low: int, high: int) -> None:
        if low:
            raise ZeroDivisionError

    with (
        ThreadPoolExecutor(2) as pool,
        KernelThreads(pool, 2).enlisted(),
        pytest.raises(ZeroDivisionError),
    ):
        over_slices(LARGE, 1, work)


def test_enlisting_ends_with_its_block_and_is_the_threads_own() -> None:
    with ThreadPoolExecutor(2) as pool:
        few = KernelThreads(pool, 2)
        with few.enlisted():
            others = pool.submit(covered, LARGE, 1).result()
        assert others[1] == [(0, LARGE)]
        assert covered(LARGE, 1)[1] == [(0, LARGE)]
