"""What the driver asks of the ranks, what they answer, and what a run leaves on disk.

A *train* cell gives quality: a task is trained under one compressor, and the ranks' parameters
must be the same bits at the end. A *time* cell gives the parts of a step and the bytes of it.

``cells.jsonl`` has one line per cell, written when the cell ends: measurements only. Everything
that compares one cell with another (difference from float32, speed-ups, bounds, time to target) is
worked out from them in :mod:`lab.derive` and is never typed or stored by hand. Plain names, with
units; every line stands for itself and carries machine, versions and date, so a partial file is as
readable as a whole one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from harness.records import Provenance, Strict

DDP_FLOAT32 = "ddp-float32"
TORCH_FP16 = "torch-fp16"
TORCH_POWERSGD = "torch-powersgd"
BASELINES = (DDP_FLOAT32, TORCH_FP16, TORCH_POWERSGD)

UNSHAPED = "unshaped"
CELLS_FILE = "cells.jsonl"

Device = Literal["cpu", "cuda"]


class FirstSteps(Strict):
    """What trains the model at first.

    Attributes:
        steps: How many.
        config: Their compressa configuration.
        optimizer: What trains in them, as in `CompressorSpec`; None for what trains after them.
    """

    steps: Annotated[int, Field(ge=1)]
    config: dict[str, Any]
    optimizer: dict[str, Any] | None = None


class CompressorSpec(Strict):
    """A compressor by name, with the compressa configuration that it stands for.

    Attributes:
        name: What tables show.
        config: A configuration as a dict, or the path of a TOML file; None for the baselines,
            which are PyTorch's own and are known by their name.
        optimizer: What trains in place of the task's: "name", of a class in ``compressa.optim`` or
            ``torch.optim``, and its arguments; None for the task's.
        slowest: How many times as long the last rank takes to compute as the others.
        first: What comes before ``config`` in a train cell; or None.
    """

    name: str
    config: dict[str, Any] | str | None = None
    optimizer: dict[str, Any] | None = None
    slowest: Annotated[float, Field(ge=1)] = 1.0
    first: FirstSteps | None = None


class _Cell(Strict):
    """What is run, on every rank."""

    task: str
    compressor: CompressorSpec
    seed: int
    steps: int = Field(ge=1)
    bucket_cap_mb: float = 25.0
    device: Device = "cpu"


class TrainCell(_Cell):
    """Train and report quality; ``eval_every`` steps apart the curve gets a point."""

    kind: Literal["train"] = "train"
    eval_every: int = Field(ge=1)


class TimeCell(_Cell):
    """Time ``steps`` steps after ``warmup_steps``, on whatever link there is."""

    kind: Literal["time"] = "time"
    warmup_steps: int = Field(ge=3)  # DDP rebuilds its buckets at step 1, PowerSGD starts at 2


class CurvePoint(Strict):
    """Quality after ``step`` steps, ``elapsed_s`` seconds of training into the run."""

    step: int
    value: float | None  # None when it is not a number: the run has diverged
    elapsed_s: float


class Trained(Strict):
    """What a train cell gives; of one rank's answer, curve and metrics are rank 0's only."""

    parameters_sha256: str
    parameters_elems: int
    dense_warmup_steps: int = Field(description="of the compressor; sent in a denser way")
    elapsed_s: float = Field(description="training only, evaluation left out")
    curve: list[CurvePoint] = Field(default_factory=list)
    metrics: dict[str, float | None] = Field(default_factory=dict)
    units: dict[str, str] = Field(default_factory=dict)


class Timed(Strict):
    """What a time cell gives: seconds of a step and of its parts, and the step's bytes.

    A rank answers with its median over the steps as ``step_s`` and means else; a record has means
    over the ranks and the busiest rank's bytes. ``codec_s`` and ``bytes_accounted`` are None where
    the compressor does not account for them.
    """

    step_s: float
    step_mean_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    codec_s: float | None
    bytes_dense: int = Field(description="the gradient in float32")
    bytes_accounted: float | None = Field(description="per step, busiest rank")


class TimeAnswer(Timed):
    """One rank's end of a time cell."""

    parameters_sha256: str


class Quality(Strict):
    """What is measured on the validation split, and when it is as good as float32.

    Attributes:
        quality_name: Plain name, "accuracy" or "loss".
        quality_unit: Unit of the value, e.g. "fraction" or "nats per character".
        larger_is_better: True for an accuracy, False for a loss.
        tolerance: How far from the final value of float32 still counts as reaching the target.
        tolerance_relative: Whether that is a share of float32's value or an absolute distance.
    """

    quality_name: str
    quality_unit: str
    larger_is_better: bool
    tolerance: float
    tolerance_relative: bool

    def target(self, final_float32: float) -> float:
        """The value that has to be reached, given where float32 ends."""
        slack = self.tolerance * (abs(final_float32) if self.tolerance_relative else 1.0)
        return final_float32 - slack if self.larger_is_better else final_float32 + slack

    def reached(self, value: float, target: float) -> bool:
        """Whether ``value`` is at least as good as ``target`` (NaN never is)."""
        return value >= target if self.larger_is_better else value <= target


class _CellRecord(Provenance):
    """What every line says about its cell."""

    task: str
    compressor: str
    seed: int
    hosts: int
    testbed_kind: str = Field(description="netns (shaped hosts) or processes (rate limit)")
    link: str | None = Field(description="None: not shaped")


class TrainRecord(_CellRecord, Quality, Trained):
    """Quality of one (task, compressor, seed); on a link only for an end-to-end run."""

    kind: Literal["train"] = "train"
    steps: int
    replicas_identical: bool
    sent_bytes: int | None = Field(None, description="busiest host, by its counter, in all")

    @property
    def final(self) -> float | None:
        """The quality at the end; None when the run has diverged."""
        return self.metrics[self.quality_name]

    def steps_to(self, target: float | None) -> int | None:
        """The first evaluated step at or beyond ``target``; None if there is none of either."""
        if target is None:
            return None
        values = ((point.step, point.value) for point in self.curve)
        found = (step for step, v in values if v is not None and self.reached(v, target))
        return next(found, None)


class TimeRecord(_CellRecord, Timed):
    """Parts and bytes of one step of one (task, link, compressor)."""

    kind: Literal["time"] = "time"
    timed_steps: int
    bytes_interface: float | None = Field(description="per step, busiest host, by its counter")
    link_bits_per_s: float | None
    bucket_cap_mb: float
    bucket_caps_tried_step_s: dict[str, float] = Field(default_factory=dict)
    replicas_identical: bool

    @property
    def compute_s(self) -> float:
        """Forward, backward and optimizer step."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def exposed_comm_s(self) -> float:
        """What a step took beyond computing and coding; never below zero."""
        return max(0.0, self.step_s - self.compute_s - (self.codec_s or 0.0))

    @property
    def sent_bytes(self) -> float | None:
        """Bytes per step: by the interface where it can tell, else as accounted."""
        return self.bytes_accounted if self.bytes_interface is None else self.bytes_interface

    @property
    def wire_s(self) -> float:
        """Seconds that the busiest host's bytes take at the link's rate; 0 when not shaped."""
        if self.bytes_interface is None or self.link_bits_per_s is None:
            return 0.0
        return self.bytes_interface * 8.0 / self.link_bits_per_s


class FailedRecord(_CellRecord):
    """A cell that did not give a result, and why."""

    kind: Literal["failed"] = "failed"
    cell_kind: Literal["train", "time"]
    error: str


Record = TrainRecord | TimeRecord | FailedRecord
_RECORDS: TypeAdapter[Record] = TypeAdapter(
    Annotated[TrainRecord | TimeRecord | FailedRecord, Field(discriminator="kind")]
)


def append(results_dir: Path, record: Record) -> None:
    """Adds one line and puts it on disk at once."""
    with (results_dir / CELLS_FILE).open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(results_dir: Path) -> list[Record]:
    """All records of a results folder.

    A last line that is cut off (the run was killed while it was written) is left out.

    Raises:
        FileNotFoundError: If the folder has no ``cells.jsonl``.
        ValueError: If any other line is no record; the message names the line.
    """
    return list(_parse(results_dir / CELLS_FILE))


def _parse(path: Path) -> Iterator[Record]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield _RECORDS.validate_json(line)
        except ValidationError as error:
            if number == len(lines) and not text.endswith("\n"):
                return
            raise ValueError(f"{path}, line {number} is no record: {error}") from error


def set_aside(results_dir: Path) -> Path | None:
    """Give cells that an earlier run has left another name: they may have taken hours.

    Returns:
        Where they are now; None if there are none.
    """
    cells = results_dir / CELLS_FILE
    if not cells.exists():
        return None
    written = datetime.fromtimestamp(cells.stat().st_mtime, UTC)
    kept = cells.with_stem(f"{cells.stem}-{written:%Y%m%dT%H%M%S%f}")
    return cells.rename(kept)
