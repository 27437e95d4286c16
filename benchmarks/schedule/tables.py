"""Tables of a measurement, as cells of text: for the command line and for the page alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.schedule.methods import AUTO
from benchmarks.schedule.records import Case, Jobs, Pushes, ScheduleMeasurement, Step
from benchmarks.schedule.targets import best_ddp, name_of, verdicts
from benchmarks.tables import Table
from benchmarks.targets import table as targets_table
from compressa.link.texts import ms_text, size_text


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


def tables(measured: ScheduleMeasurement) -> Iterator[Table]:
    """Yield all of them, some without lines."""
    yield from (_steps(measured, case) for case in measured.cases)
    yield _hook(measured)
    costs = [(row.what, f"{row.chunks:,}", f"{row.chunk_us:.2f}") for row in measured.overhead]
    yield Table(
        "To plan chunks, and to hand them over", ("what is done", "chunks", "us per chunk"), costs
    )
    yield _traced(measured)
    yield from map(_jobs, measured.jobs)
    yield from map(_pushes, measured.pushes)


def _steps(measured: ScheduleMeasurement, case: Case) -> Table:
    rows = measured.of(case)
    ddp = best_ddp(rows)
    lines = [
        (
            row.method,
            ms_text(row.median_s),
            f"{ms_text(row.p20_s)} to {ms_text(row.p80_s)}",
            f"{row.median_s / case.ideal_s:.2f}",
            "-" if ddp is None else f"{ddp.median_s / row.median_s:.2f}",
            "-" if row.simulated_s is None else ms_text(row.simulated_s),
            _error(row),
        )
        for row in rows
    ]
    ours = ("of the ideal", "faster than DDP", "simulated, ms", "error")
    return Table(describe(case), ("method", "step, ms", "p20 to p80", *ours), lines)


def _error(step: Step) -> str:
    return "-" if step.simulated_s is None else f"{step.simulated_s / step.median_s - 1:+.0%}"


def _hook(measured: ScheduleMeasurement) -> Table:
    caption = (
        "Units through the engine below the hook, one after the other (apart) and pipelined; the "
        "gain is that of encoding, wire and decoding together over the pipelined time, and its "
        "bound that over the longest of them"
    )
    stages = ("encode, ms", "wire, ms", "decode, ms", "apart, ms", "pipelined, ms")
    titles = ("hook, units", "link", *stages, "gain", "bound")
    lines = [
        (
            f"{row.compressor}, {row.units}",
            row.link,
            *map(ms_text, (row.encode_s, row.wire_s, row.decode_s, row.apart_s, row.pipelined_s)),
            f"{row.gain:.2f}",
            f"{row.bound:.2f}",
        )
        for row in measured.pipelined
    ]
    return Table(caption, titles, lines)


def _traced(measured: ScheduleMeasurement) -> Table:
    caption = f"Steps of `{AUTO}` with a trace, as multiples of those without beside them"
    titles = ("step without, ms", "with", "quartiles", "processor time")
    lines = [
        (
            ms_text(row.step_s),
            f"{row.ratio:.3f}",
            f"{row.ratio_low:.3f} to {row.ratio_high:.3f}",
            f"{row.cpu_ratio:.3f}",
        )
        for row in measured.traced
    ]
    return Table(caption, titles, lines)


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
    return Table(caption, ("jobs", "mean", "median", "worst", "peak over mean in 10 ms"), lines)


def _of_each(steps: Iterable[float]) -> str:
    return ", ".join(f"{step:.2f}" for step in steps)


def _pushes(row: Pushes) -> Table:
    caption = (
        f"Four workers push {size_text(row.size_bytes)} each to one parameter server, and pull as "
        f"much, on links of {row.link}; segments are those of TCP, the backlog that at the "
        "server's port"
    )
    titles = ("workers push", "round, ms", "segments sent again", "most backlog, bytes")
    lines = [
        (way, ms_text(round_s), f"{again:,}", f"{most:,}", _burstiness(burstiness))
        for way, round_s, again, most, burstiness in zip(
            ("at once", "in slots"),
            row.round_s,
            row.retransmitted,
            row.peak_bytes,
            row.burstiness,
            strict=True,
        )
    ]
    return Table(caption, (*titles, "peak over mean in 10 ms"), lines)


def _burstiness(peak_over_mean: float | None) -> str:
    return "-" if peak_over_mean is None else f"{peak_over_mean:.2f}"
