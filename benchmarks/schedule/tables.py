"""Tables of a measurement, as cells of text: for the command line and for the page alike."""

from __future__ import annotations

from benchmarks.schedule.records import Case, ScheduleMeasurement
from benchmarks.schedule.targets import best_ddp, name_of, verdicts
from compressa.link.texts import ms_text

Cells = tuple[str, ...]

TARGET_TITLES = ("target", "case", "reached", "asked", "at", "")
TARGET_NUMBERS = {"reached", "asked"}
STEP_TITLES = ("method", "step, ms", "of the ideal", "faster than DDP", "simulated, ms", "load")
STEP_NUMBERS = set(STEP_TITLES[1:])
HOOK_TITLES = (
    "hook, units",
    "link",
    "encode, ms",
    "wire, ms",
    "decode, ms",
    "apart, ms",
    "pipelined, ms",
    "gain",
    "bound",
)
HOOK_NUMBERS = set(HOOK_TITLES[2:])


def describe(case: Case) -> str:
    """Say what a case is like."""
    return (
        f"{name_of(case)}, {case.link}, batches of {case.batch:,}: F {ms_text(case.forward_s)} ms, "
        f"B {ms_text(case.backward_s)} ms, C {ms_text(case.communication_s)} ms, that is "
        f"{case.reached_ratio:.2f} (F + B); ideal {ms_text(case.ideal_s)} ms; "
        f"{case.rounds} rounds"
    )


def steps(measurement: ScheduleMeasurement, case: Case) -> list[Cells]:
    """Return the cells below `STEP_TITLES`."""
    rows = measurement.of(case)
    ddp = best_ddp(rows)
    return [
        (
            row.method,
            ms_text(row.median_s),
            f"{row.median_s / case.ideal_s:.2f}",
            "-" if ddp is None else f"{ddp.median_s / row.median_s:.2f}",
            "-" if row.simulated_s is None else ms_text(row.simulated_s),
            f"{row.load:.2f}",
        )
        for row in rows
    ]


def hook(measurement: ScheduleMeasurement) -> list[Cells]:
    """Return the cells below `HOOK_TITLES`."""
    return [
        (
            f"{row.compressor}, {row.units}",
            row.link,
            *map(ms_text, (row.encode_s, row.wire_s, row.decode_s, row.apart_s, row.pipelined_s)),
            f"{row.gain:.2f}",
            f"{row.bound:.2f}",
        )
        for row in measurement.pipelined
    ]


def targets(measurement: ScheduleMeasurement) -> list[Cells]:
    """Return the cells below `TARGET_TITLES`."""
    words = {True: "met", False: "missed", None: "not judged"}
    return [
        (v.target, v.case, v.reached, v.asked, v.at, words[v.met]) for v in verdicts(measurement)
    ]
