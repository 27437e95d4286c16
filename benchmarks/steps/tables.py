"""What a measurement shows: a table for each case, small messages, and what was reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median

from benchmarks.steps.plan import DDP, TORCH_POWERSGD, Method
from benchmarks.steps.ratios import Ratios, ratio
from benchmarks.steps.records import Case, Message, Step, StepsMeasurement
from benchmarks.steps.targets import verdicts
from compressa.link.texts import ms_text, size_text
from harness.runner import Shown
from harness.tables import WORDS, Table, table_of, verdicts_table

_NONE = "-"


def shown(measured: StepsMeasurement) -> Shown:
    """Yield a table for each case and one of messages, then what was reached of what is asked."""
    for case in measured.cases:
        yield _steps(Ratios(case, measured.of(case)))
    if measured.messages:
        yield _messages(measured.messages)
    found = verdicts(measured)
    words = Counter(WORDS[verdict.met] for verdict in found)
    yield f"Targets: {', '.join(f'{words[word]} {word}' for word in WORDS.values())}."
    yield verdicts_table(found, "hosts", "link", "model")


def describe(case: Case, ratios: Ratios) -> str:
    """Say what a case is like."""
    return (
        f"{case.model}, {case.parameters:,} parameters, batches of {case.samples}; {case.hosts} "
        f"hosts, {case.link}: line rate {case.line_bytes_per_s / 1e6:.1f} MB/s, memory "
        f"{case.bus_bytes_per_s / 1e9:.1f} GB/s for each rank while all use it; "
        f"F {ms_text(ratios.alone.median_s)} ms; {case.rounds} rounds"
    )


def _steps(ratios: Ratios) -> Table:
    def of_hook(step: Step) -> float | None:
        hook = Method.ours(step.compressor, "hook").name
        return ratios.of(step, hook) if step.client == "overlapped" else None

    return table_of(
        describe(ratios.case, ratios),
        ratios.steps,
        {
            "method": lambda step: step.method,
            "step, ms": lambda step: ms_text(step.median_s),
            "p20 to p80": lambda step: f"{ms_text(step.p20_s)} to {ms_text(step.p80_s)}",
            "W, ms": lambda step: ms_text(ratios.wire_s(step)) if step.link_bytes else _NONE,
            "K, ms": _optional(ratios.kernels_s, ms_text),
            "of F + K": _optional(ratios.of_work),
            "of max(F + K, W)": _optional(ratios.of_bound),
            "of DDP": _optional(lambda step: ratios.of(step, DDP.name)),
            "of PyTorch's PowerSGD": _optional(lambda step: ratios.of(step, TORCH_POWERSGD.name)),
            "of hook": _optional(of_hook),
            "kB on the link": lambda step: f"{step.link_bytes / 1e3:,.1f}",
            "messages": _optional(lambda step: step.messages, "{:.1f}".format),
            "CPU, ms: training": lambda step: ms_text(step.cpu.main_s),
            "communication": lambda step: ms_text(step.cpu.communication_s),
            "workers": lambda step: ms_text(step.cpu.workers_s),
            "others": lambda step: ms_text(step.cpu.other_s),
        },
    )


def _optional(
    found: Callable[[Step], float | None], text: Callable[[float], str] = "{:.2f}".format
) -> Callable[[Step], str]:
    """Return what writes a figure, where there is one."""

    def cell(step: Step) -> str:
        value = found(step)
        return _NONE if value is None else text(value)

    return cell


def _messages(rows: list[Message]) -> Table:
    return table_of(
        "Small messages, idle and beside a thread on each rank that runs Python and never blocks; "
        "the slowest rank counts",
        rows,
        {
            "what": lambda row: f"{row.what}, {size_text(row.size_bytes)}",
            "hosts": lambda row: str(row.hosts),
            "link": lambda row: row.link,
            "idle, us": lambda row: f"{1e6 * median(row.idle_s):.1f}",
            "beside, us": lambda row: f"{1e6 * median(row.beside_s):,.0f}",
            "over idle": lambda row: f"{ratio(row.beside_s, row.idle_s):.1f}",
        },
    )
