"""Result rows: quality and timing cells joined, with every comparison worked out here.

One row per (task, link, compressor, seed). Time to target = steps x step time: the steps come from
the unshaped quality run, the step time from the link. The target is float32's final quality with
the task's tolerance. A compressor that begins with a warm-up pays DDP float32's price for those
steps: what a dense warm-up costs, or more.

With F and B the times of forward and backward pass and C the time that a step's bytes take, a dense
step takes F + B + C_dense and no compressed one can take less than max(F + B, C_compressed), so

    bound = (F + B + C_dense) / max(F + B, C_compressed).

C_compressed is the busiest host's interface bytes at the link's rate: perfect overlap at line rate.
C_dense is the larger of the same for the baseline and of what the baseline's step took beyond
computing, so that a baseline which overlaps badly can not make a speed-up exceed its bound. The
optimizer step, the same on both sides, is left out of it. F and B are what they cost while every
rank computes (:mod:`lab.timing`); F has fetching the batch in it, which no compressor saves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from harness.records import Provenance, Strict
from lab.records import DDP_FLOAT32, TORCH_FP16, Record, TimeRecord, TrainRecord, read

RESULTS_FILE = "results.jsonl"

Price = Callable[[TimeRecord], float | None]
"""What each step of a timed cell costs; None if that is not known."""

SECONDS: Price = attrgetter("step_s")
SENT_BYTES: Price = attrgetter("sent_bytes")


class Row(Strict):
    """One line of ``results.jsonl``; None where a partial result does not say yet."""

    task: str
    link: str | None
    hosts: int
    compressor: str
    seed: int
    testbed_kind: str
    steps: int | None = None
    final_accuracy: float | None = None
    final_loss: float | None = None
    quality_unit: str | None = None
    difference_from_float32: float | None = None
    diverged: bool = False
    step_s: float | None = None
    compute_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    codec_s: float | None = None
    exposed_comm_s: float | None = None
    target: float | None = None
    steps_to_target: int | None = None
    time_to_target_s: float | None = None
    training_time_s: float | None = None
    bytes_accounted: float | None = None
    bytes_interface: float | None = None
    ratio: float | None = None
    ratio_to_16_bit: float | None = None
    speedup_over_ddp_float32: float | None = None
    speedup_over_torch_fp16: float | None = None
    bound_over_ddp_float32: float | None = None
    bound_over_torch_fp16: float | None = None
    share_of_bound_over_ddp_float32: float | None = None
    share_of_bound_over_torch_fp16: float | None = None
    replicas_identical: bool
    machine: str
    versions: dict[str, str]
    date: str

    @property
    def loses(self) -> bool:
        """Slower than a dense baseline of the same task and link."""
        speedups = (self.speedup_over_ddp_float32, self.speedup_over_torch_fp16)
        return any(speedup is not None and speedup < 1.0 for speedup in speedups)


class Confirmation(NamedTuple):
    """An end-to-end run against what was predicted from parts, which are None where one is missing.

    It trains on the shaped link and measures quality and time together; steps x step time, from an
    unshaped quality run and a timing cell, must agree with it.
    """

    task: str
    link: str
    compressor: str
    steps: int
    predicted_training_time_s: float | None
    measured_training_time_s: float
    predicted_time_to_target_s: float | None
    measured_time_to_target_s: float | None
    same_bits_as_unshaped: bool | None

    def __str__(self) -> str:
        text = (
            f"End to end: {self.task}, {self.compressor}, {self.link}: "
            f"{self.steps} steps took {self.measured_training_time_s:.1f} s"
        )
        predicted_s = self.predicted_training_time_s
        return text if predicted_s is None else f"{text}, predicted {predicted_s:.1f} s"


class Results:
    """The cells of a results folder, looked up by what they measured; the last one wins."""

    def __init__(self, records: list[Record]) -> None:
        trains = [r for r in records if isinstance(r, TrainRecord)]
        times = [r for r in records if isinstance(r, TimeRecord)]
        self.trains = {(r.task, r.compressor, r.seed): r for r in trains if r.link is None}
        self.end_to_end = [r for r in trains if r.link is not None]
        self.times = {(r.task, r.link, r.compressor): r for r in times}

    @classmethod
    def load(cls, results_dir: Path) -> Results:
        """The folder's ``cells.jsonl``; may be the partial one of an interrupted run.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If a line of it is no record.
        """
        return cls(read(results_dir))

    def rows(self) -> list[Row]:
        """All rows, in the order in which the cells were run."""
        rows: list[Row] = []
        for (task, _, compressor), time in self.times.items():
            seeds = [s for (t, c, s) in self.trains if (t, c) == (task, compressor)]
            rows += [
                self._row(seed, self.trains.get((task, compressor, seed)), time)
                for seed in seeds or [time.seed]
            ]
        timed = {(task, compressor) for (task, _, compressor) in self.times}
        for (task, compressor, seed), train in self.trains.items():
            if (task, compressor) not in timed:
                rows.append(self._row(seed, train, None))
        return rows

    def _row(self, seed: int, train: TrainRecord | None, time: TimeRecord | None) -> Row:
        cells = [cell for cell in (train, time) if cell is not None]
        latest = max(cells, key=lambda cell: cell.date)
        where = time or latest
        return Row(
            task=where.task,
            link=where.link,
            hosts=latest.hosts,
            compressor=where.compressor,
            seed=seed,
            testbed_kind=where.testbed_kind,
            replicas_identical=all(cell.replicas_identical for cell in cells),
            **(self._quality_columns(train, time) if train else {}),
            **(self._time_columns(time) if time else {}),
            **{name: getattr(latest, name) for name in Provenance.model_fields},
        )

    def _quality_columns(self, train: TrainRecord, time: TimeRecord | None) -> dict[str, Any]:
        float32 = self.trains.get((train.task, DDP_FLOAT32, train.seed))
        needed = train.steps_to(self._target(train))
        return {
            "steps": train.steps,
            f"final_{train.quality_name}": train.final,
            "quality_unit": train.quality_unit,
            "difference_from_float32": _difference(train, float32),
            "diverged": train.final is None,
            "target": self._target(train),
            "steps_to_target": needed,
            "time_to_target_s": self.cost(train, time, needed, SECONDS),
            "training_time_s": self.cost(train, time, train.steps, SECONDS),
        }

    def _target(self, train: TrainRecord) -> float | None:
        """The quality that counts as reached, from float32's own run of the same seed."""
        float32 = self.trains.get((train.task, DDP_FLOAT32, train.seed))
        if float32 is None or float32.final is None:
            return None
        return float32.target(float32.final)

    def _time_columns(self, time: TimeRecord) -> dict[str, Any]:
        float32, fp16 = (self._dense(time, baseline) for baseline in (DDP_FLOAT32, TORCH_FP16))
        same = ("step_s", "forward_s", "backward_s", "codec_s", "bytes_accounted")
        return {
            **{name: getattr(time, name) for name in (*same, "bytes_interface")},
            "compute_s": time.compute_s,
            "exposed_comm_s": time.exposed_comm_s,
            "ratio": _bytes_ratio(float32, time),
            "ratio_to_16_bit": _bytes_ratio(fp16, time),
            **_speedups("ddp_float32", float32, time),
            **_speedups("torch_fp16", fp16, time),
        }

    def _dense(self, time: TimeRecord, baseline: str) -> TimeRecord | None:
        """The baseline of the same task and link, if the two can be compared.

        On the loopback testbed only compressa's own sends are held to the link's rate; PyTorch's
        run free, so a speed-up over them would compare a slow network with none.
        """
        if time.testbed_kind == "loopback" and time.link_bits_per_s is not None:
            return None
        return self.times.get((time.task, time.link, baseline))

    def cost(
        self, train: TrainRecord, time: TimeRecord | None, steps: int | None, price: Price
    ) -> float | None:
        """What the first ``steps`` steps cost, a dense warm-up included.

        Args:
            train: The run, which knows how long its warm-up is.
            time: The timed cell of the same compressor, on the link in question.
            steps: How many.
            price: ``SECONDS``, or ``SENT_BYTES`` of the busiest host.

        Returns:
            None if any part of it is not known.
        """
        if time is None or steps is None:
            return None
        warm = min(steps, train.dense_warmup_steps)
        dense = self.times.get((time.task, time.link, DDP_FLOAT32))
        each, dense_each = price(time), price(dense) if dense else None
        if each is None or (warm and dense_each is None):
            return None
        return warm * (dense_each or 0.0) + (steps - warm) * each

    def confirmations(self) -> list[Confirmation]:
        """One for every end-to-end run."""
        return [self._confirmation(run) for run in self.end_to_end]

    def _confirmation(self, run: TrainRecord) -> Confirmation:
        time = self.times.get((run.task, run.link, run.compressor))
        unshaped = self.trains.get((run.task, run.compressor, run.seed))
        target = self._target(run)
        needed, reached = unshaped.steps_to(target) if unshaped else None, run.steps_to(target)
        return Confirmation(
            task=run.task,
            link=run.link or "",
            compressor=run.compressor,
            steps=run.steps,
            predicted_training_time_s=self.cost(run, time, run.steps, SECONDS),
            measured_training_time_s=run.elapsed_s,
            predicted_time_to_target_s=self.cost(run, time, needed, SECONDS),
            measured_time_to_target_s=next(
                (point.elapsed_s for point in run.curve if point.step == reached), None
            ),
            same_bits_as_unshaped=(
                None if unshaped is None else unshaped.parameters_sha256 == run.parameters_sha256
            ),
        )


def _difference(train: TrainRecord, float32: TrainRecord | None) -> float | None:
    if float32 is None or float32.final is None or train.final is None:
        return None
    return train.final - float32.final


def _bytes_ratio(dense: TimeRecord | None, time: TimeRecord) -> float | None:
    if dense is None or not dense.bytes_interface or not time.bytes_interface:
        return None
    return dense.bytes_interface / time.bytes_interface


def _speedups(name: str, dense: TimeRecord | None, time: TimeRecord) -> dict[str, float]:
    """The columns about one baseline: speed-up, bound and share of it; none without it."""
    if dense is None:
        return {}
    gained = dense.step_s / time.step_s
    dense_s = dense.forward_s + dense.backward_s + max(dense.wire_s, dense.exposed_comm_s)
    most = dense_s / max(time.forward_s + time.backward_s, time.wire_s)
    return {
        f"speedup_over_{name}": gained,
        f"bound_over_{name}": most,
        f"share_of_bound_over_{name}": gained / most,
    }


def write_rows(results_dir: Path, rows: list[Row]) -> None:
    """Writes ``results.jsonl`` whole: a reader sees the old one or the new one."""
    partial = results_dir / (RESULTS_FILE + ".partial")
    text = "".join(row.model_dump_json() + "\n" for row in rows)
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, results_dir / RESULTS_FILE)
