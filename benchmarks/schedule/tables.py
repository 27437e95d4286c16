"""Tables of a measurement, as cells of text: for the command line and for the page alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.schedule.plan import AUTO
from benchmarks.schedule.records import Case, Jobs, Pushes, ScheduleMeasurement
from benchmarks.schedule.targets import best_ddp, name_of, verdicts
from benchmarks.targets import table as targets_table
from compressa.link.texts import ms_text, size_text
from harness.tables import Table, table_of

_BURSTINESS = "peak over mean in 10 ms"


def describe(case: Case) -> str:
    """Say what a case is like."""
    return (
        f"{name_of(case)}, {case.link}, batches of {case.batch:,}: F {ms_text(case.forward_s)} ms, "
        f"B {ms_text(case.backward_s)} ms, C {ms_text(case.communication_s)} ms, that is "
        f"{case.reached_ratio:.2f} (F + B); ideal {ms_text(case.ideal_s)} ms; "
        f"{case.rounds} rounds"
    )


def targets(measurement: ScheduleMeasurement) -> Table:
    """Show what was reached of what is asked."""
    return targets_table(verdicts(measurement), "case")


def tables(measured: ScheduleMeasurement) -> list[Table]:
    """Return those of what was measured."""
    return [table for table in _all(measured) if table.lines]


def _all(measured: ScheduleMeasurement) -> Iterator[Table]:
    yield from (_steps(measured, case) for case in measured.cases)
    yield _hook(measured)
    yield table_of(
        "To plan chunks, and to hand them over",
        measured.overhead,
        {
            "what is done": lambda row: row.what,
            "chunks": lambda row: f"{row.chunks:,}",
            "us per chunk": lambda row: f"{row.chunk_us:.2f}",
        },
    )
    yield _traced(measured)
    yield from map(_jobs, measured.jobs)
    yield from map(_pushes, measured.pushes)


def _steps(measured: ScheduleMeasurement, case: Case) -> Table:
    rows = measured.of(case)
    ddp = best_ddp(rows)

    def faster(median_s: float) -> str:
        return "-" if ddp is None else f"{ddp.median_s / median_s:.2f}"

    return table_of(
        describe(case),
        rows,
        {
            "method": lambda row: row.method,
            "step, ms": lambda row: ms_text(row.median_s),
            "p20 to p80": lambda row: f"{ms_text(row.p20_s)} to {ms_text(row.p80_s)}",
            "of the ideal": lambda row: f"{row.median_s / case.ideal_s:.2f}",
            "faster than DDP": lambda row: faster(row.median_s),
            "simulated, ms": lambda r: "-" if r.simulated_s is None else ms_text(r.simulated_s),
            "error": lambda row: "-" if row.error is None else f"{row.error:+.0%}",
        },
    )


def _hook(measured: ScheduleMeasurement) -> Table:
    caption = (
        "Units through the engine below the hook, one after the other (apart) and pipelined; the "
        "gain is that of encoding, wire and decoding together over the pipelined time, and its "
        "bound that over the longest of them"
    )
    return table_of(
        caption,
        measured.pipelined,
        {
            "hook, units": lambda row: f"{row.compressor}, {row.units}",
            "link": lambda row: row.link,
            "encode, ms": lambda row: ms_text(row.encode_s),
            "wire, ms": lambda row: ms_text(row.wire_s),
            "decode, ms": lambda row: ms_text(row.decode_s),
            "apart, ms": lambda row: ms_text(row.apart_s),
            "pipelined, ms": lambda row: ms_text(row.pipelined_s),
            "gain": lambda row: f"{row.gain:.2f}",
            "bound": lambda row: f"{row.bound:.2f}",
        },
    )


def _traced(measured: ScheduleMeasurement) -> Table:
    return table_of(
        f"Steps of `{AUTO}` with a trace, as multiples of those without beside them",
        measured.traced,
        {
            "step without, ms": lambda row: ms_text(row.step_s),
            "with": lambda row: f"{row.ratio:.3f}",
            "quartiles": lambda row: f"{row.ratio_low:.3f} to {row.ratio_high:.3f}",
            "processor time": lambda row: f"{row.cpu_ratio:.3f}",
        },
    )


def _jobs(jobs: Jobs) -> Table:
    shares = {"fifo": "all packets in one queue", "fair": "even shares of it for connections"}
    caption = (
        f"Two jobs on one link of {jobs.link}, {shares[jobs.port]} ({jobs.port}), "
        f"{size_text(jobs.size_bytes)} of gradients a step; alone, a job communicates for "
        f"{jobs.communication:.0%} of its time, and computing is a timed wait, up to "
        f"{jobs.jitter:.0%} longer or shorter. Steps as multiples of each job's "
        f"mean step alone, which is {ms_text(jobs.alone_s)} ms for the first"
    )
    ways = ("not staggered", "staggered")
    steps = zip((jobs.unstaggered, jobs.staggered), jobs.medians, jobs.worsts, strict=True)
    alone, *together = map(_burstiness, jobs.burstiness)
    lines = [("alone", "1.00", "-", "-", alone)] + [
        (way, *map(_of_each, several), burstiness)
        for way, several, burstiness in zip(ways, steps, together, strict=True)
    ]
    return Table(caption, ("jobs", "mean", "median", "worst", _BURSTINESS), lines)


def _of_each(steps: Iterable[float]) -> str:
    return ", ".join(f"{step:.2f}" for step in steps)


def _pushes(row: Pushes) -> Table:
    caption = (
        f"Four workers push {size_text(row.size_bytes)} each to one parameter server, and pull as "
        f"much, on links of {row.link}; segments are those of TCP, the backlog that at the "
        "server's port"
    )
    ways = ("at once", "in slots")
    return table_of(
        caption,
        range(len(ways)),
        {
            "workers push": lambda way: ways[way],
            "round, ms": lambda way: ms_text(row.round_s[way]),
            "segments sent again": lambda way: f"{row.retransmitted[way]:,}",
            "most backlog, bytes": lambda way: f"{row.peak_bytes[way]:,}",
            _BURSTINESS: lambda way: _burstiness(row.burstiness[way]),
        },
    )


def _burstiness(peak_over_mean: float | None) -> str:
    return "-" if peak_over_mean is None else f"{peak_over_mean:.2f}"
