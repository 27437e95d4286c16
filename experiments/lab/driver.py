"""Runs a plan: brings up the testbed, starts the ranks once, and gives them every cell.

The result of a cell is on disk before the next one starts, so a run that is interrupted leaves a
results folder that can be reported. A cell that fails is recorded with its error, the ranks are
started afresh, and the plan goes on. Whatever happens, ranks and testbed are taken down.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from compressa.testbed import Counters, LinkSpec, Testbed, check_links
from harness.ranks import RankError, Ranks
from harness.records import Provenance
from harness.start import started_ranks
from lab import records
from lab.compressors import bucket_caps_mb
from lab.derive import Results, write_rows
from lab.plan import Job, Plan, jobs
from lab.progress import LiveProgress
from lab.records import (
    UNSHAPED,
    FailedRecord,
    TimeAnswer,
    TimeCell,
    TimeRecord,
    TrainCell,
    Trained,
    TrainRecord,
)
from lab.tasks import load_task

OpenTestbed = Callable[[int], AbstractContextManager[Testbed]]
Edge = Callable[[Literal["start", "end"]], None]

GROUP_TIMEOUT_S = 600.0


class Driver:
    """One run of one plan into one results folder.

    Args:
        plan: What is run.
        results_dir: Where ``cells.jsonl`` and ``results.jsonl`` are written; made if need be.
        watcher: Is told how far the run is.

    Attributes:
        failures: What has failed, in words.
    """

    def __init__(self, plan: Plan, results_dir: Path, watcher: LiveProgress) -> None:
        self._plan = plan
        self._results_dir = results_dir
        self._watcher = watcher
        self._link: str | None = None
        self._checked: set[str] = set()
        self._ranks: Ranks | None = None
        self.failures: list[str] = []

    def run(self, open_testbed: OpenTestbed) -> None:
        """Runs all cells; failures of single cells are recorded and counted, not raised.

        Args:
            open_testbed: Opens so many hosts.

        Raises:
            compressa.CompressaError: The testbed cannot be opened, or its links do not hold their
                rate.
        """
        self._results_dir.mkdir(parents=True, exist_ok=True)
        with open_testbed(self._plan.hosts) as bed:
            self._bed = bed
            try:
                self._run_all()
            finally:
                self._stop(grace_s=1.0)

    def _stop(self, grace_s: float) -> None:
        if self._ranks is not None:
            self._ranks.close(grace_s)
        self._ranks = None

    def _run_all(self) -> None:
        todo = jobs(self._plan)
        note = f"{self._plan.hosts} hosts, testbed: {self._bed.kind}"
        self._watcher.begin(len(todo), f"{note}. {self._bed.notice or ''}".rstrip(". ") + ".")
        for job in todo:
            self._watcher.job(job.title, job.cell.steps)
            failure = self._run_job(job)
            self._watcher.done(failure)
            write_rows(self._results_dir, Results.load(self._results_dir).rows())

    def _run_job(self, job: Job) -> str | None:
        try:
            if self._ranks is None:
                served = "lab.cells:Cells"
                self._ranks = started_ranks(self._bed, served, deadline_s=GROUP_TIMEOUT_S)
            self._set_link(job.link)
            record = self._measure(self._ranks, job)
        except RankError as error:
            self._stop(grace_s=0.0)
            failure = FailedRecord(**self._common(job), cell_kind=job.cell.kind, error=str(error))
            records.append(self._results_dir, failure)
            self.failures.append(f"{job.title}: {error}")
            return str(error)
        records.append(self._results_dir, record)
        return None

    def _measure(self, ranks: Ranks, job: Job) -> TrainRecord | TimeRecord:
        if isinstance(job.cell, TrainCell):
            return self._train(ranks, job, job.cell)
        return self._time(ranks, job, job.cell)

    def _set_link(self, link: str | None) -> None:
        wanted = link or UNSHAPED
        if wanted != self._link:
            self._bed.set_link(wanted)
            self._link = wanted
            if wanted not in self._checked:  # a link that is not what it says measures nothing
                check_links(self._bed)
                self._checked.add(wanted)

    def _common(self, job: Job) -> dict[str, Any]:
        return {
            "task": job.cell.task,
            "compressor": job.cell.compressor.name,
            "seed": job.cell.seed,
            "hosts": self._plan.hosts,
            "testbed_kind": self._bed.kind,
            "link": job.link,
            **dict(Provenance.now()),
        }

    def _answers(self, ranks: Ranks, cell: TrainCell | TimeCell, at_edge: Edge) -> list[Any]:
        """Has all ranks run a cell; ``at_edge`` is called when all of them stand at an edge."""
        timeout_s = self._plan.cell_timeout_s
        return answers(ranks, cell, timeout_s, self._watcher.step, at_edge)

    def _train(self, ranks: Ranks, job: Job, cell: TrainCell) -> TrainRecord:
        before = self._bed.counters()
        trained: list[Trained] = self._answers(ranks, cell, lambda edge: None)
        sent = _sent(before, self._bed.counters())
        _check_identical([answer.parameters_sha256 for answer in trained])
        slowest_s = max(answer.elapsed_s for answer in trained)
        return TrainRecord(
            **self._common(job),
            **dict(load_task(cell.task).quality),
            **dict(trained[0]) | {"elapsed_s": slowest_s},
            steps=cell.steps,
            replicas_identical=True,
            sent_bytes=None if sent is None else max(sent),
        )

    def _time(self, ranks: Ranks, job: Job, cell: TimeCell) -> TimeRecord:
        """The cell with the bucket size that suits it best, found with a few steps of each."""
        tried: dict[str, float] = {}
        caps = bucket_caps_mb(cell.compressor.name, self._plan.ddp_bucket_caps_mb)
        best = caps[0]
        if len(caps) > 1:
            short = {"steps": self._plan.bucket_tuning_steps}
            for cap in caps:
                trial = cell.model_copy(update={"bucket_cap_mb": cap, **short})
                timed, _ = self._timed(ranks, trial)
                tried[f"{cap:g}"] = statistics.fmean(answer.step_s for answer in timed)
            best = min(caps, key=lambda cap: tried[f"{cap:g}"])
        cell = cell.model_copy(update={"bucket_cap_mb": best})
        timed, bytes_interface = self._timed(ranks, cell)
        return TimeRecord(
            **self._common(job),
            **_time_fields(timed),
            timed_steps=cell.steps,
            bytes_interface=bytes_interface,
            link_bits_per_s=LinkSpec.parse(job.link or UNSHAPED).rate_bits_per_s,
            bucket_cap_mb=best,
            bucket_caps_tried_step_s=tried,
            replicas_identical=True,
        )

    def _timed(self, ranks: Ranks, cell: TimeCell) -> tuple[list[TimeAnswer], float | None]:
        """Answers of all ranks, and the bytes per step of the busiest host."""
        counted: dict[str, list[Counters] | None] = {}

        def at_edge(edge: Literal["start", "end"]) -> None:
            counted[edge] = self._bed.counters()

        timed: list[TimeAnswer] = self._answers(ranks, cell, at_edge)
        _check_identical([answer.parameters_sha256 for answer in timed])
        sent = _sent(counted["start"], counted["end"])
        return timed, None if sent is None else max(sent) / cell.steps


def _sent(before: list[Counters] | None, after: list[Counters] | None) -> list[int] | None:
    """Bytes that each host has sent meanwhile; None where none are counted."""
    if before is None or after is None:
        return None
    return [late.tx_bytes - early.tx_bytes for early, late in zip(before, after, strict=True)]


def answers(
    ranks: Ranks,
    cell: TrainCell | TimeCell,
    timeout_s: float,
    on_step: Callable[[int], None],
    at_edge: Edge,
) -> list[Any]:
    """Have all ranks run a cell; return their answers, by rank.

    Args:
        ranks: They serve :class:`lab.cells.Cells`.
        cell: What to run.
        timeout_s: How long it may take.
        on_step: Is told the step that rank 0 is at.
        at_edge: Is called when all ranks stand before or behind the timed section, and wait.

    Raises:
        RankError: A rank failed or died, or the cell took longer.
    """
    armed: set[int] = set()

    def noted(rank: int, told: dict[str, Any]) -> None:
        if "step" in told:
            on_step(told["step"])
            return
        armed.add(rank)
        if len(armed) == ranks.count:
            at_edge(told["edge"])
            armed.clear()
            ranks.tell("go")

    ranks.tell(cell.kind, cell=cell)
    return ranks.answers("the cell", timeout_s, noted)


def _check_identical(hashes: list[str]) -> None:
    """Raises RankError naming the ranks whose parameters are not those of rank 0."""
    differing = [rank for rank, digest in enumerate(hashes) if digest != hashes[0]]
    if differing:
        raise RankError(
            f"replicas differ: the parameters of ranks {differing} are not the bits of rank 0's"
        )


def _time_fields(answers: list[TimeAnswer]) -> dict[str, Any]:
    """Means over the ranks; of the accounted bytes, the busiest rank's."""
    means = ("step_s", "step_mean_s", "forward_s", "backward_s", "optimizer_s")
    fields: dict[str, Any] = {
        name: statistics.fmean(getattr(answer, name) for answer in answers) for name in means
    }
    codec = [answer.codec_s for answer in answers if answer.codec_s is not None]
    accounted = [a.bytes_accounted for a in answers if a.bytes_accounted is not None]
    return fields | {
        "codec_s": statistics.fmean(codec) if codec else None,
        "bytes_dense": answers[0].bytes_dense,
        "bytes_accounted": max(accounted) if accounted else None,
    }
