"""The cells of a plan, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lab.cells import TimeCell, TrainCell
from lab.plan import Plan


@dataclass(frozen=True)
class Job:
    """One cell on one link, with a line that says what it is."""

    cell: TrainCell | TimeCell
    link: str | None
    title: str


def jobs(plan: Plan) -> list[Job]:
    """Every cell in the order of the run: per task, quality first, then the links."""
    return [job for task in plan.tasks for job in _jobs_of(plan, task.name)]


def _jobs_of(plan: Plan, name: str) -> Iterator[Job]:
    task = next(task for task in plan.tasks if task.name == name)
    compressors = plan.compressors_of(task)
    if task.train_steps:
        for seed in plan.seeds_of(task):
            for compressor in compressors:
                title = f"{name}: train, {compressor}, seed {seed}"
                yield Job(plan.train_cell(task, compressor, seed), None, title)
    for link in plan.links:
        for compressor in compressors:
            timing = plan.time_cell(name, compressor, 25.0, plan.time_steps)
            yield Job(timing, link, f"{name}: time, {compressor}, {link}")
    for extra in (extra for extra in plan.end_to_end if extra.task == name):
        cell = plan.train_cell(task, extra.compressor, plan.seeds[0])
        title = f"{name}: end to end, {extra.compressor}, {extra.link}"
        yield Job(cell, extra.link, title)
