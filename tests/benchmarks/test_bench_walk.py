"""The walk of a gradient is counted, and stays short."""

from __future__ import annotations

import threading

import pytest
from _ranks import Group

from benchmarks.walk import Recorder, walked

FEW, MANY = 1 << 12, 1 << 16  # elements: encoded by the thread that sends, and by another one
MOST_CALLS = {FEW: 300, MANY: 400}
MOST_FILES, MOST_CHANGES = 35, 8


def walk_of(elems: int) -> tuple[int, int, int, int]:
    """Return calls, those of the library, files and changes of thread."""
    walk = walked(elems)
    return len(walk.calls), walk.own, walk.own_files, walk.changes


def called() -> None:
    """Something to be counted."""


def call_there_and_here() -> None:
    """Call on another thread, then on this one."""
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    called()


def test_calls_of_other_threads_count_and_those_outside_of_the_library_here_do_not() -> None:
    recorder = Recorder()
    with recorder.installed():
        walk = recorder.walk(call_there_and_here)
    names = [code.co_name for _, code in walk.calls]
    assert names.count("called") == 1
    assert (walk.own, walk.own_files, walk.changes) == (0, 0, 0)


@pytest.mark.ranks
@pytest.mark.alone  # a thread that waits for a core looks what it may do meanwhile
@pytest.mark.parametrize("elems", [FEW, MANY])
def test_a_gradient_walks_through_few_calls_files_and_threads(two: Group, elems: int) -> None:
    for calls, own, files, changes in two.run(walk_of, elems=elems):
        assert own < calls <= MOST_CALLS[elems]
        assert files <= MOST_FILES
        assert 2 <= changes <= MOST_CHANGES
