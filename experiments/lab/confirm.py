"""End-to-end runs against what was predicted from parts.

Time to target is worked out as steps x step time, from an unshaped quality run and a timing cell.
An end-to-end run trains on the shaped link and measures quality and time together; the two must
agree, and this is where a reader sees whether they do.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from lab.derive import Results, steps_to, target_of
from lab.names import DDP_FLOAT32
from lab.records import TimeRecord, TrainRecord


class Confirmation(BaseModel):
    """Predicted and measured, for one cell; None where the prediction's parts are missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    link: str
    compressor: str
    seed: int
    steps: int
    predicted_training_time_s: float | None
    measured_training_time_s: float
    predicted_time_to_target_s: float | None
    measured_time_to_target_s: float | None
    same_bits_as_unshaped: bool | None


def confirmations(results: Results) -> list[Confirmation]:
    """One for every end-to-end run of a results folder."""
    return [_confirm(results, run) for run in results.end_to_end]


def _confirm(results: Results, run: TrainRecord) -> Confirmation:
    time = results.times.get((run.task, run.link, run.compressor))
    unshaped = results.trains.get((run.task, run.compressor, run.seed))
    needed = _steps_to_target(results, unshaped)
    return Confirmation(
        task=run.task,
        link=run.link or "",
        compressor=run.compressor,
        seed=run.seed,
        steps=run.steps,
        predicted_training_time_s=_predicted_s(results, run, time, run.steps),
        measured_training_time_s=run.elapsed_s,
        predicted_time_to_target_s=_predicted_s(results, run, time, needed),
        measured_time_to_target_s=_measured_s(run, _steps_to_target(results, run)),
        same_bits_as_unshaped=(
            None if unshaped is None else unshaped.parameters_sha256 == run.parameters_sha256
        ),
    )


def _predicted_s(
    results: Results, run: TrainRecord, time: TimeRecord | None, steps: int | None
) -> float | None:
    return None if time is None or steps is None else results.training_s(run, time, steps)


def _steps_to_target(results: Results, run: TrainRecord | None) -> int | None:
    if run is None:
        return None
    float32 = results.trains.get((run.task, DDP_FLOAT32, run.seed))
    target = None if float32 is None else target_of(float32)
    return None if target is None else steps_to(run, target)


def _measured_s(run: TrainRecord, step: int | None) -> float | None:
    return next((point.elapsed_s for point in run.curve if point.step == step), None)
