"""What a run leaves on disk: ``cells.jsonl``, one line per cell, written when the cell ends.

These are measurements only. Everything that compares one cell with another (difference from
float32, speed-ups, bounds, time to target) is worked out from them in :mod:`lab.derive` and is
never typed or stored by hand. Plain names, with units; every line stands for itself and carries
machine, versions and date, so a partial file is as readable as a whole one.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lab.cells import CurvePoint

CELLS_FILE = "cells.jsonl"


class Provenance(BaseModel):
    """Where and when a number was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    versions: dict[str, str]
    date: str = Field(description="UTC, ISO 8601")

    @classmethod
    def now(cls) -> Provenance:
        """This machine, these versions, this moment."""
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(machine=_machine(), versions=_versions(), date=stamp)


@cache
def _machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    processor = models[0] if models else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


@cache
def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("compressa", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}


class _CellRecord(Provenance):
    """What every line says about its cell."""

    task: str
    compressor: str
    seed: int
    hosts: int
    testbed_kind: str = Field(description="netns (shaped hosts) or processes (rate limit)")
    link: str | None = Field(description="None: not shaped")


class TrainRecord(_CellRecord):
    """Quality of one (task, compressor, seed); on a link only for an end-to-end run."""

    kind: Literal["train"] = "train"
    steps: int
    dense_warmup_steps: int = Field(description="of the compressor; sent in a denser way")
    parameters_elems: int
    quality_name: str
    quality_unit: str
    larger_is_better: bool
    tolerance: float
    tolerance_relative: bool
    metrics: dict[str, float | None]
    units: dict[str, str]
    curve: list[CurvePoint]
    elapsed_s: float = Field(description="training only, evaluation left out")
    replicas_identical: bool
    parameters_sha256: str

    @property
    def final(self) -> float | None:
        """The quality at the end; None when the run has diverged."""
        return self.metrics[self.quality_name]


class TimeRecord(_CellRecord):
    """Parts and bytes of one step of one (task, link, compressor); means over the ranks."""

    kind: Literal["time"] = "time"
    timed_steps: int
    step_s: float
    step_mean_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    codec_s: float | None
    bytes_dense: int = Field(description="the gradient in float32")
    bytes_accounted: float | None = Field(description="per step, busiest rank")
    bytes_interface: float | None = Field(description="per step, busiest host, by its counter")
    link_bits_per_s: float | None
    bucket_cap_mb: float
    bucket_caps_tried_step_s: dict[str, float] = {}
    replicas_identical: bool


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
