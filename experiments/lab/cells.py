"""What the driver asks of the ranks and what they answer, as JSON.

A *train* cell gives quality: a task is trained under one compressor, and the ranks' parameters
must be the same bits at the end. A *time* cell gives the parts of a step and the bytes of it.
Both are validated on both ends, so a driver and a rank of different versions fail at once.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    """Base of everything that is asked and answered; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Device = Literal["cpu", "cuda"]


class CompressorSpec(Message):
    """A compressor by name, with the compressa configuration that it stands for.

    Attributes:
        name: What tables show.
        config: A configuration as a dict, or the path of a TOML file; None for the baselines,
            which are PyTorch's own and are known by their name.
    """

    name: str
    config: dict[str, Any] | str | None = None


class TrainCell(Message):
    """Train and report quality; ``eval_every`` steps apart the curve gets a point."""

    kind: Literal["train"] = "train"
    task: str
    compressor: CompressorSpec
    seed: int
    steps: int = Field(ge=1)
    eval_every: int = Field(ge=1)
    bucket_cap_mb: float = 25.0
    device: Device = "cpu"


class TimeCell(Message):
    """Time ``steps`` steps after ``warmup_steps``, on whatever link there is."""

    kind: Literal["time"] = "time"
    task: str
    compressor: CompressorSpec
    seed: int
    steps: int = Field(ge=1)
    warmup_steps: int = Field(ge=3)  # DDP rebuilds its buckets at step 1, PowerSGD starts at 2
    bucket_cap_mb: float = 25.0
    device: Device = "cpu"


class CurvePoint(Message):
    """Quality after ``step`` steps, ``elapsed_s`` seconds of training into the run."""

    step: int
    value: float | None  # None when it is not a number: the run has diverged
    elapsed_s: float


class TrainAnswer(Message):
    """One rank's end of a train cell; the curve and the metrics come from rank 0 only."""

    parameters_sha256: str
    parameters_elems: int
    dense_warmup_steps: int
    elapsed_s: float
    curve: list[CurvePoint] = []
    metrics: dict[str, float | None] = {}
    units: dict[str, str] = {}


class TimeAnswer(Message):
    """One rank's end of a time cell; times are medians over the steps, bytes are per step.

    ``codec_s`` and ``bytes_*`` are None where the compressor does not account for them.
    """

    parameters_sha256: str
    step_s: float
    step_mean_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    codec_s: float | None
    bytes_dense: int
    bytes_accounted: float | None
