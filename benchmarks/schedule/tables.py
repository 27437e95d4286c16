"""What a measurement shows: a table for each part, and what was reached of what is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from benchmarks import paired
from benchmarks.schedule.plan import AUTO, DDP, OURS, RATIOS
from benchmarks.schedule.records import Case, Jobs, Pushes, ScheduleMeasurement, Step
from compressa.link.texts import ms_text, size_text
from harness.runner import Shown
from harness.tables import WORDS, Table, Target, Verdict, table_of, verdicts_table

AT_RATIO = 1.0
LEAST_BOUND = 1.3
OF_IDEAL = Target("step, of the ideal", 1.10, asked="<= {:.2f}")
FASTER = Target("faster than DDP", 1.25, least=True, asked=">= {:.2f}")
SIMULATED = Target("simulated step", 0.10, shown="{:.0%}")
PIPELINED = Target("pipelined units, of the bound", 0.9, least=True, asked=">= {:.2f}")
CHUNK = Target("scheduling a chunk", 20.0, shown="{:.1f} us", asked="{:.0f} us")
TRACED = Target("step with a trace", 1.01, shown="{:.3f}", asked="<= {:.3f}")
STAGGERED = Target("staggered, of alone", 1.10, asked="<= {:.2f}")
FEWER = Target("fewer sent again, in slots", 5.0, least=True, asked=">= {:.2f}")
SMALLER = Target("smaller backlog, in slots", 5.0, least=True, asked=">= {:.2f}")
SLOWDOWN = Target("round, in slots", 1.02, asked="<= {:.2f}")

_BURSTINESS = "peak over mean in 10 ms"
_NOT_JUDGED = (
    f"Not judged is what could show nothing: units whose bound is below {LEAST_BOUND:.2f}, a trace "
    "where pairs of steps differ by more than is asked, turns of jobs that do not disturb each "
    "other."
)


def shown(measured: ScheduleMeasurement) -> Shown:
    """Yield a table for each case and part, then what was reached of what is asked."""
    yield from (table for table in _tables(measured) if table.lines)
    found = verdicts(measured)
    words = Counter(WORDS[verdict.met] for verdict in found)
    yield f"Targets: {', '.join(f'{words[word]} {word}' for word in WORDS.values())}."
    yield verdicts_table(found, "case")
    if words[WORDS[None]]:
        yield _NOT_JUDGED


def describe(case: Case) -> str:
    """Say what a case is like."""
    return (
        f"{name_of(case)}, {case.link}, batches of {case.batch:,}: F {ms_text(case.forward_s)} ms, "
        f"B {ms_text(case.backward_s)} ms, C {ms_text(case.communication_s)} ms, that is "
        f"{case.reached_ratio:.2f} (F + B); ideal {ms_text(case.ideal_s)} ms; "
        f"{case.rounds} rounds"
    )


def name_of(case: Case) -> str:
    """Name a case."""
    return f"{case.compressor}, C = {case.ratio:g} (F + B)"


def best_ddp(steps: Sequence[Step]) -> Step | None:
    """Return DDP at its best; None where it was not measured."""
    found = [step for step in steps if step.method in {method.name for method in DDP}]
    return min(found, key=lambda step: step.median_s, default=None)


def _tables(measured: ScheduleMeasurement) -> Iterator[Table]:
    yield from (_steps(measured, case) for case in measured.cases)
    yield table_of(
        "Units through the engine below the hook, one after the other (apart) and pipelined; the "
        "gain is that of encoding, wire and decoding together over the pipelined time, and its "
        "bound that over the longest of them",
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
    yield table_of(
        "To plan chunks, and to hand them over",
        measured.overhead,
        {
            "what is done": lambda row: row.what,
            "chunks": lambda row: f"{row.chunks:,}",
            "us per chunk": lambda row: f"{row.chunk_us:.2f}",
        },
    )
    yield table_of(
        f"Steps of `{AUTO}` with a trace, as multiples of those without beside them",
        measured.traced,
        paired.columns("without", "with"),
    )
    yield from map(_jobs, measured.jobs)
    yield from map(_pushes, measured.pushes)


def _steps(measured: ScheduleMeasurement, case: Case) -> Table:
    rows = measured.of(case)
    ddp = best_ddp(rows)

    def faster(row: Step) -> str:
        return "-" if ddp is None else f"{ddp.median_s / row.median_s:.2f}"

    return table_of(
        describe(case),
        rows,
        {
            "method": lambda row: row.method,
            "step, ms": lambda row: ms_text(row.median_s),
            "p20 to p80": lambda row: f"{ms_text(row.p20_s)} to {ms_text(row.p80_s)}",
            "of the ideal": lambda row: f"{row.median_s / case.ideal_s:.2f}",
            "faster than DDP": faster,
            "simulated, ms": lambda r: "-" if r.simulated_s is None else ms_text(r.simulated_s),
            "error": lambda row: "-" if row.error is None else f"{row.error:+.0%}",
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


def verdicts(measured: ScheduleMeasurement) -> list[Verdict]:
    """Judge all of it; what was not measured is not judged."""
    cases = [case for case in measured.cases if case.ratio in RATIOS]
    found = [verdict for case in cases for verdict in _of_steps(case, measured.of(case))]
    return [*found, *_of_hook(measured), *_of_costs(measured), *_of_turns(measured)]


def _of_steps(case: Case, steps: Sequence[Step]) -> Iterator[Verdict]:
    """What a user gets who asks for it: that of `auto`."""
    where, ours = (name_of(case),), next((step for step in steps if step.method == AUTO), None)
    if ours is None:
        return
    yield OF_IDEAL.judged(where, ours.median_s / case.ideal_s, AUTO)
    ddp = best_ddp(steps)
    if ddp is not None and case.ratio == AT_RATIO:
        yield FASTER.judged(where, ddp.median_s / ours.median_s, f"{AUTO}, beside {ddp.method}")
    known = {method.name for method in OURS}
    errors = [(abs(s.error), s.method) for s in steps if s.error is not None and s.method in known]
    if errors:
        yield SIMULATED.judged(where, *max(errors))


def _of_hook(measured: ScheduleMeasurement) -> Iterator[Verdict]:
    for row in measured.pipelined:
        at = f"{row.gain:.2f} of {row.bound:.2f} times"
        where = (f"hook, {row.compressor}, {row.link}",)
        verdict = PIPELINED.judged(where, row.gain / row.bound, at)
        yield verdict if row.bound >= LEAST_BOUND else verdict._replace(met=None)


def _of_costs(measured: ScheduleMeasurement) -> Iterator[Verdict]:
    for row in measured.overhead:
        yield CHUNK.judged((f"{row.what}, {row.chunks:,} chunks",), row.chunk_us)
    for traced in measured.traced:
        at = f"quartiles {traced.ratio_low:.3f} and {traced.ratio_high:.3f}"
        # Where pairs of steps differ by more than is asked, a small median proves nothing.
        telling = traced.ratio_high <= TRACED.bound
        yield _judged_if(telling, TRACED.judged(("overlap",), traced.ratio, at))


def _of_turns(measured: ScheduleMeasurement) -> Iterator[Verdict]:
    """Of jobs that share a link, and of workers that share a server."""
    for jobs in measured.jobs:
        where = (f"two jobs, {jobs.link}, {jobs.port}",)
        before = max(jobs.unstaggered)
        verdict = STAGGERED.judged(where, max(jobs.staggered), f"not staggered {before:.2f}")
        # Where jobs do not disturb each other anyway, there was nothing to stagger.
        yield _judged_if(before > STAGGERED.bound, verdict)
    for row in measured.pushes:
        where = (f"four workers, one server, {row.link}",)
        sent = "{:,} and {:,} segments".format(*row.retransmitted)
        yield FEWER.judged(where, row.fewer_retransmitted, sent)
        peaks = "{:,} and {:,} bytes".format(*row.peak_bytes)
        yield SMALLER.judged(where, row.smaller_peak, peaks)
        yield SLOWDOWN.judged(where, row.slowdown)


def _judged_if(telling: bool, verdict: Verdict) -> Verdict:
    """What could not show that a target is met can still show that it is missed."""
    return verdict if telling or not verdict.met else verdict._replace(met=None)
