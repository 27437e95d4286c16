"""One schedule of faults on its ranks, from the first call to the end of their processes."""

from __future__ import annotations

import select
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _stress_ranks as ranks
from _ranks import Group, Job, Outcome, Process, settings
from _stress_invariants import Answers, InvariantError, Invariants, Seen, check
from _stress_schedules import Schedule

_HANGS_S = 40.0
_ENDS_S = 15.0
_LOOK_S = 0.02


class Trial:
    """One schedule on its ranks.

    Args:
        schedule: What happens.
        group: The ranks, fresh.
        folder: Empty; holds a file for each fault that has happened, and checkpoints.
        deadline_s: The exchanges' deadline.
        must: What is to hold.
    """

    def __init__(
        self, schedule: Schedule, group: Group, folder: Path, deadline_s: float, must: Invariants
    ) -> None:
        self._schedule, self._group, self._folder = schedule, group, folder
        self._deadline_s, self._must = deadline_s, must
        self._alive = list(range(schedule.size))
        self._owing: dict[int, Job] = {}  # which call each that was lost has not answered

    def run(self) -> None:
        """Train to the end, through all that happens, and close."""
        if self._begin() and self._train():
            self._must.finished(self._call(ranks.finish))
            self._call(ranks.save_and_load)
        self._close()

    def leave(self) -> None:
        """Have those that live end, in order."""
        living = [p for p in self._group.processes if p.exit_code is None]
        for process in living:
            process.leave()
        for process in living:
            code = process.wait(_ENDS_S)
            check(code == 0 or process.rank in self._must.cut_off, "left", process.stderr)

    def _begin(self) -> bool:
        """Register; return whether all could."""
        faults = [asdict(fault) for fault in self._schedule.faults]
        answers = self._call(
            ranks.begin, config=self._config(), faults=faults, folder=str(self._folder)
        )
        return self._good(answers, alike=False)

    def _train(self) -> bool:
        """Train to the last step, with whoever is left; return whether it was reached."""
        while True:
            answers = self._call(ranks.train)
            self._must.trained(answers)
            if self._good(answers, alike=True):
                return True
            if not self._schedule.recovers:
                return False
            self._reform()

    def _reform(self) -> None:
        """Have survivors go on, also without those that are lost meanwhile."""
        for _ in range(self._schedule.size):
            answers = self._call(ranks.reform, ranks=self._alive)
            if self._good(answers, alike=False):
                return
        raise InvariantError("calls", f"no end of handle.reform: {answers}")

    def _good(self, answers: Answers, *, alike: bool) -> bool:
        """Return whether no survivor has raised anything; if one has, it must be right."""
        good = not any(seen["type"] for seen in answers.values())
        if not good:
            self._must.failed(answers, alike=alike)
        return good

    def _close(self) -> None:
        """Close all handles, and those of lost ranks that live when they are back."""
        self._hear_the_lost()
        for rank, seen in self._call(ranks.close).items():
            self._must.closed(rank, seen)
        self._must.ended(self._owing.keys() | self._alive)
        self._hear_the_lost()

    def _hear_the_lost(self) -> None:
        """Wait for the answers of those that were lost and live, and have them close."""
        while self._owing:
            rank, function = self._owing.popitem()
            process = self._group.processes[rank]
            if rank in self._must.killed:
                process.wait(_ENDS_S)
                continue
            seen = _value(self._group.collect([process], _HANGS_S)[0])
            if function is ranks.close:
                self._must.closed(rank, seen)
                continue
            if seen["type"]:
                self._must.blamed(rank, seen)
            process.call(ranks.close, {})
            self._owing[rank] = ranks.close

    def _call(self, function: Job, **arguments: Any) -> Answers:
        """Call a function on all that are not lost; return the answers of those that still are."""
        processes = {rank: self._group.processes[rank] for rank in self._alive}
        for process in processes.values():
            process.call(function, arguments)
        answers = self._collect(processes)
        self._alive = sorted(answers)
        self._owing |= dict.fromkeys(processes.keys() - answers.keys(), function)
        return {rank: _value(outcome) for rank, outcome in answers.items()}

    def _collect(self, processes: dict[int, Process]) -> dict[int, Outcome]:
        """Return answers, when all have come but those of ranks that were lost meanwhile."""
        answers: dict[int, Outcome] = {}
        end_s = time.monotonic() + _HANGS_S
        while waiting := processes.keys() - answers.keys() - self._must.lost:
            links = {processes[rank].link: rank for rank in waiting}
            for link in select.select(list(links), [], [], _LOOK_S)[0]:
                answers[links[link]] = processes[links[link]].outcome()
            if time.monotonic() > end_s:
                raise InvariantError("time", "\n".join(processes[r].stacks() for r in waiting))
        return {rank: answer for rank, answer in answers.items() if rank not in self._must.lost}

    def _config(self) -> dict[str, Any]:
        exchange = {
            "transport": self._schedule.transport,
            "deadline_s": self._deadline_s,
            "heartbeat_s": 0.3,
            "silence_s": 0.75 * self._deadline_s,
        }
        recover = self._schedule.transport != "mpi"
        return settings(self._schedule.compressor, exchange=exchange, engine={"recover": recover})


def _value(outcome: Outcome) -> Seen:
    check(outcome.ok, "verdict", outcome.explain())
    value: Seen = outcome.value
    return value
