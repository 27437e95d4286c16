"""Result rows: quality and timing cells joined, with every comparison worked out here.

One row per (task, link, compressor, seed). Time to target = steps x step time: the steps come from
the unshaped quality run, the step time from the link. The target is float32's final quality with
the task's tolerance. A compressor that begins with a warm-up pays DDP float32's price for those
steps: what a dense warm-up costs, or more. :mod:`lab.steptime` has the speed-ups and their bounds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from lab.names import DDP_FLOAT32, TORCH_FP16
from lab.quality import Quality
from lab.records import Provenance, Record, TimeRecord, TrainRecord, read
from lab.steptime import compared, compute_s, exposed_comm_s, sent_bytes

RESULTS_FILE = "results.jsonl"


class Row(BaseModel):
    """One line of ``results.jsonl``; None where a partial result does not say yet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        """Slower than a dense baseline in the same place."""
        speedups = (self.speedup_over_ddp_float32, self.speedup_over_torch_fp16)
        return any(speedup is not None and speedup < 1.0 for speedup in speedups)

    @property
    def quality(self) -> float | None:
        """The final value of whichever of accuracy and loss the task is judged by."""
        return self.final_loss if self.final_accuracy is None else self.final_accuracy


def target_of(float32: TrainRecord) -> float | None:
    """The quality that counts as reached, from float32's own run."""
    return None if float32.final is None else _quality(float32).target(float32.final)


def steps_to(record: TrainRecord, target: float) -> int | None:
    """The first evaluated step at or beyond ``target``; None if there is none."""
    quality = _quality(record)
    for point in record.curve:
        if point.value is not None and quality.reached(point.value, target):
            return point.step
    return None


def _quality(record: TrainRecord) -> Quality:
    return Quality(
        name=record.quality_name,
        unit=record.quality_unit,
        larger_is_better=record.larger_is_better,
        tolerance=record.tolerance,
        relative=record.tolerance_relative,
    )


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
        """The folder's ``cells.jsonl``; may be the partial one of an interrupted run."""
        return cls(read(results_dir))

    def rows(self) -> list[Row]:
        """All rows, in the order in which the cells were run."""
        rows: list[Row] = []
        for (task, link, compressor), time in self.times.items():
            seeds = [s for (t, c, s) in self.trains if (t, c) == (task, compressor)]
            for seed in seeds or [time.seed]:
                train = self.trains.get((task, compressor, seed))
                rows.append(self._row(task, link, compressor, seed, train, time))
        timed = {(task, compressor) for (task, _, compressor) in self.times}
        for (task, compressor, seed), train in self.trains.items():
            if (task, compressor) not in timed:
                rows.append(self._row(task, None, compressor, seed, train, None))
        return rows

    def _row(
        self,
        task: str,
        link: str | None,
        compressor: str,
        seed: int,
        train: TrainRecord | None,
        time: TimeRecord | None,
    ) -> Row:
        cells = [cell for cell in (train, time) if cell is not None]
        latest = max(cells, key=lambda cell: cell.date)
        provenance = {name: getattr(latest, name) for name in Provenance.model_fields}
        return Row(
            task=task,
            link=link,
            hosts=latest.hosts,
            compressor=compressor,
            seed=seed,
            testbed_kind=(time or latest).testbed_kind,
            replicas_identical=all(cell.replicas_identical for cell in cells),
            **(self._quality_columns(train) if train else {}),
            **(self._time_columns(time) if time else {}),
            **(self._joint_columns(train, time) if train and time else {}),
            **provenance,
        )

    def _quality_columns(self, train: TrainRecord) -> dict[str, Any]:
        float32 = self.trains.get((train.task, DDP_FLOAT32, train.seed))
        target = target_of(float32) if float32 else None
        return {
            "steps": train.steps,
            f"final_{train.quality_name}": train.final,
            "quality_unit": train.quality_unit,
            "difference_from_float32": _difference(train, float32),
            "diverged": train.final is None,
            "target": target,
            "steps_to_target": None if target is None else steps_to(train, target),
        }

    def _time_columns(self, time: TimeRecord) -> dict[str, Any]:
        float32 = self._dense(time, DDP_FLOAT32)
        fp16 = self._dense(time, TORCH_FP16)
        return {
            "step_s": time.step_s,
            "compute_s": compute_s(time),
            "forward_s": time.forward_s,
            "backward_s": time.backward_s,
            "codec_s": time.codec_s,
            "exposed_comm_s": exposed_comm_s(time),
            "bytes_accounted": time.bytes_accounted,
            "bytes_interface": time.bytes_interface,
            "ratio": _bytes_ratio(float32, time),
            "ratio_to_16_bit": _bytes_ratio(fp16, time),
            **compared("ddp_float32", float32, time),
            **compared("torch_fp16", fp16, time),
        }

    def _dense(self, time: TimeRecord, baseline: str) -> TimeRecord | None:
        """The baseline in the same place, if the two can be compared.

        On the loopback testbed only compressa's own sends are held to the link's rate; PyTorch's
        run free, so a speed-up over them would compare a slow network with none.
        """
        if time.testbed_kind == "loopback" and time.link_bits_per_s is not None:
            return None
        return self.times.get((time.task, time.link, baseline))

    def training_s(self, train: TrainRecord, time: TimeRecord, steps: int) -> float | None:
        """Seconds for the first ``steps`` steps; None if the price of a warm-up is not known."""
        warm = min(steps, train.dense_warmup_steps)
        dense = self.times.get((time.task, time.link, DDP_FLOAT32))
        if not warm:
            return steps * time.step_s
        return None if dense is None else warm * dense.step_s + (steps - warm) * time.step_s

    def training_bytes(self, train: TrainRecord, time: TimeRecord, steps: int) -> float | None:
        """Bytes of the busiest host in the first ``steps`` steps, as :meth:`training_s`."""
        warm = min(steps, train.dense_warmup_steps)
        dense = self.times.get((time.task, time.link, DDP_FLOAT32))
        price, dense_price = sent_bytes(time), sent_bytes(dense) if dense else None
        if price is None or (warm and dense_price is None):
            return None
        return warm * (dense_price or 0.0) + (steps - warm) * price

    def _joint_columns(self, train: TrainRecord, time: TimeRecord) -> dict[str, Any]:
        float32 = self.trains.get((train.task, DDP_FLOAT32, train.seed))
        target = target_of(float32) if float32 else None
        needed = None if target is None else steps_to(train, target)
        return {
            "time_to_target_s": None if needed is None else self.training_s(train, time, needed),
            "training_time_s": self.training_s(train, time, train.steps),
        }


def _difference(train: TrainRecord, float32: TrainRecord | None) -> float | None:
    if float32 is None or float32.final is None or train.final is None:
        return None
    return train.final - float32.final


def _bytes_ratio(dense: TimeRecord | None, time: TimeRecord) -> float | None:
    if dense is None or not dense.bytes_interface or not time.bytes_interface:
        return None
    return dense.bytes_interface / time.bytes_interface


def write_rows(results_dir: Path, rows: list[Row]) -> None:
    """Writes ``results.jsonl`` whole: a reader sees the old one or the new one."""
    partial = results_dir / (RESULTS_FILE + ".partial")
    text = "".join(row.model_dump_json() + "\n" for row in rows)
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, results_dir / RESULTS_FILE)
