"""Ranks that a driver asks for things: answers of all of them, or an error with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import wire
from harness.ranks import RankError, Ranks, Started

RANK = f"""
import runpy, sys, time
number = int(sys.argv[2])
wire = runpy.run_path({wire.__file__!r})["Wire"](sys.argv[1], number)
class Served:
    def do(self, size):
        return {{answer}}
    def wait(self):
        wire.note(at=number)
        wire.wait()
        return {{{{"late": number}}}}
wire.serve("7", Served())
"""


def python_ranks(folder: Path, code: str) -> Callable[[Path], list[Started]]:
    """Two ranks that run some code, given the driver's socket and their number."""

    def start(path: Path) -> list[Started]:
        started = []
        for number in range(2):
            log = folder / f"{number}.log"
            words = [sys.executable, "-c", code, str(path), str(number)]
            with log.open("wb") as stream:
                process = subprocess.Popen(words, stdout=stream, stderr=stream)
            started.append(Started(f"rank {number}", process, log))
        return started

    return start


def ranks_that(folder: Path, answer: str) -> Ranks:
    """Two ranks that answer so; `number` and `size` are known there."""
    return Ranks(2, python_ranks(folder, RANK.format(answer=answer)), 20.0, 10.0)


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    answer = "{'samples_s': [1.0 + number, 4.0 - number], 'operations': size}"
    with ranks_that(tmp_path, answer) as ranks:
        assert ranks.version == "7"
        assert ranks.ask("do", size=5) == {"samples_s": [2.0, 4.0], "operations": 5}


def test_ranks_wait_in_the_midst_until_the_driver_has_heard_all(tmp_path: Path) -> None:
    heard: list[int] = []

    def noted(rank: int, told: dict[str, Any]) -> None:
        assert told == {"at": rank}
        heard.append(rank)
        if len(heard) == ranks.count:
            ranks.tell("go")

    with ranks_that(tmp_path, "None") as ranks:
        ranks.tell("wait")
        assert ranks.answers("it", 10.0, noted) == [{"late": 0}, {"late": 1}]
        assert sorted(heard) == [0, 1]
        assert ranks.ask("do", size=5) == {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("print('last words') or sys.exit(3)", r"rank 1 ended with status 3\n  last words"),
        ("1 / 0", r"ZeroDivisionError"),
        ("time.sleep(60)", r"ranks 1 did not finish do within 1 s"),
    ],
)
def test_a_rank_that_fails_ends_the_wait(answer: str, said: str, tmp_path: Path) -> None:
    with (
        pytest.raises(RankError, match=said),
        ranks_that(tmp_path, f"({answer}) if number else {{'samples_s': [1.0]}}") as ranks,
    ):
        ranks.ask("do", 1.0 if "sleep" in answer else 10.0, size=5)


def test_ranks_that_do_not_come_are_ended(tmp_path: Path) -> None:
    start = python_ranks(tmp_path, "import time; time.sleep(60)")
    kept: list[Started] = []

    def starting(path: Path) -> list[Started]:
        kept.extend(start(path))
        return kept

    with pytest.raises(RankError, match="ranks 0, 1 did not start within 1 s"):
        Ranks(2, starting, 0.5)
    assert all(started.process.returncode is not None for started in kept)
