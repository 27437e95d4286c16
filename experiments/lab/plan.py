"""What is to be run, in order: one validated object, from a TOML file, from options, or from both.

A plan lists tasks, compressors, links and seeds; the cells are their product. A compressor's name
is a baseline, a table under ``[configs.NAME]`` in the plan (which may have an ``optimizer``, too,
say how many times as long the ``slowest`` rank computes, and what trains the ``first`` steps), the
stem of a file in ``experiments/configs``, or the path of a TOML file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from compressa.errors import ConfigError
from compressa.testbed import LinkSpec
from harness.records import Strict
from lab.records import BASELINES, CompressorSpec, Device, TimeCell, TrainCell

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
PLANS = Path(__file__).resolve().parents[1] / "plans"


def _plain_link(text: str) -> str:
    try:
        return str(LinkSpec.parse(text))
    except ConfigError as error:
        raise ValueError(str(error)) from error  # pydantic collects these


class TaskPlan(Strict):
    """A task and how long it is trained; ``train_steps = 0`` means timing only."""

    name: str
    train_steps: int = Field(200, ge=0)
    evaluations: int = Field(10, ge=1, description="points on the quality curve")
    compressors: list[str] | None = Field(None, description="only these, instead of all")
    seeds: list[int] | None = Field(None, min_length=1, description="these, instead of the plan's")


Link = Annotated[str, AfterValidator(_plain_link)]


class EndToEnd(Strict):
    """One cell trained on the shaped link, quality and time measured together."""

    task: str
    compressor: str
    link: Link


class Plan(Strict):
    """A whole experiment."""

    tasks: list[TaskPlan] = Field(min_length=1)
    compressors: list[str] = Field(min_length=1)
    links: list[Link] = Field(default_factory=list)
    seeds: list[int] = Field([0], min_length=1)
    hosts: int = Field(4, ge=1)
    time_steps: int = Field(10, ge=1)
    warmup_steps: int = Field(4, ge=3)
    ddp_bucket_caps_mb: list[float] = Field([25.0], min_length=1)
    bucket_tuning_steps: int = Field(3, ge=1)
    end_to_end: list[EndToEnd] = Field(default_factory=list)
    configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    device: Device = Field("cpu", description="cuda: the GPUs in turn, or one that all ranks share")
    cell_timeout_s: float = Field(600.0, gt=0)

    @model_validator(mode="after")
    def _names_exist(self) -> Plan:
        tasks = {task.name for task in self.tasks}
        for cell in self.end_to_end:
            if cell.task not in tasks:
                raise ValueError(f"end_to_end names the task {cell.task!r}, which is not planned")
        named = [*self.compressors, *(cell.compressor for cell in self.end_to_end)]
        for task in self.tasks:
            named += task.compressors or []
        for name in named:
            self.spec(name)
        return self

    @classmethod
    def load(cls, path: Path, **overrides: Any) -> Plan:
        """The plan in a TOML file, with ``overrides`` put over it.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is no TOML, or no plan.
        """
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls.model_validate(values | overrides)

    def spec(self, name: str) -> CompressorSpec:
        """The compressor of that name, with its configuration.

        Raises:
            ValueError: If nothing has that name; the message lists what has one.
        """
        if name in BASELINES:
            return CompressorSpec(name=name)
        if name in self.configs:
            config = dict(self.configs[name])
            own = ("optimizer", "slowest", "first")
            besides = {key: config.pop(key) for key in own if key in config}
            return CompressorSpec(name=name, config=config, **besides)
        for path in (CONFIGS / f"{name}.toml", Path(name)):
            if path.suffix == ".toml" and path.is_file():
                return CompressorSpec(name=path.stem, config=str(path.resolve()))
        known = [*BASELINES, *self.configs, *(p.stem for p in sorted(CONFIGS.glob("*.toml")))]
        raise ValueError(f"no compressor is called {name!r}; there are: {', '.join(known)}")


@dataclass(frozen=True)
class Job:
    """One cell on one link, with a line that says what it is."""

    cell: TrainCell | TimeCell
    link: str | None
    title: str


def jobs(plan: Plan) -> list[Job]:
    """Every cell in the order of the run: per task, quality first, then the links."""
    return [job for task in plan.tasks for job in _jobs_of(plan, task)]


def _jobs_of(plan: Plan, task: TaskPlan) -> Iterator[Job]:
    name, compressors = task.name, task.compressors or plan.compressors
    if task.train_steps:
        for seed in task.seeds or plan.seeds:
            for compressor in compressors:
                title = f"{name}: train, {compressor}, seed {seed}"
                yield Job(_train_cell(plan, task, compressor, seed), None, title)
    for link in plan.links:
        for compressor in compressors:
            cell = TimeCell(
                task=name,
                compressor=plan.spec(compressor),
                seed=plan.seeds[0],  # times do not depend on it
                steps=plan.time_steps,
                warmup_steps=plan.warmup_steps,
                device=plan.device,
            )
            yield Job(cell, link, f"{name}: time, {compressor}, {link}")
    for extra in (extra for extra in plan.end_to_end if extra.task == name):
        title = f"{name}: end to end, {extra.compressor}, {extra.link}"
        yield Job(_train_cell(plan, task, extra.compressor, plan.seeds[0]), extra.link, title)


def _train_cell(plan: Plan, task: TaskPlan, compressor: str, seed: int) -> TrainCell:
    return TrainCell(
        task=task.name,
        compressor=plan.spec(compressor),
        seed=seed,
        steps=task.train_steps,
        eval_every=max(1, task.train_steps // task.evaluations),
        device=plan.device,
    )
