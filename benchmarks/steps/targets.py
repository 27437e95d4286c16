"""What was reached of what is asked of steps and small messages, worked out from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from benchmarks.steps.messages import ANSWER
from benchmarks.steps.plan import (
    DDP,
    EPFML_POWERSGD,
    FAST,
    NONE,
    SLOW,
    TORCH_POWERSGD,
    UNSHAPED,
    Method,
    Network,
)
from benchmarks.steps.ratios import Ratios, ratio
from benchmarks.steps.records import Case, Step, StepsMeasurement
from harness.tables import Target, Verdict

OF_WORK = Target("step over F + K", 1.25, asked="<= {:.2f}")
OF_BOUND = Target("step over max(F + K, W)", 1.25, asked="<= {:.2f}")
SHARE_OF_BOUND = Target("share of the bound", 0.85, least=True, asked=">= {:.2f}")
OF_TORCH = Target("PowerSGD, of PyTorch's", 0.45, asked="<= {:.2f}")
OF_EPFML = Target("PowerSGD, of epfml/powersgd", 0.65, asked="<= {:.2f}")
NONE_OF_DDP = Target("none over DDP", 1.03, asked="<= {:.2f}")
ALL_OF_DDP = Target("compressed over DDP, unshaped", 1.05, asked="<= {:.2f}")
OVERLAPPED = Target("overlapped over hook", 1.02, asked="<= {:.2f}")
OVERLAPPED_NEAR = Target("overlapped over hook, W near F", 0.85, asked="<= {:.2f}")
CPU = Target("CPU beside the training thread, hook", shown="{:.2f} ms", asked="<= {:.2f} ms")
MESSAGE = Target("message beside a busy thread, over idle", 10.0, shown="{:.1f}", asked="<= {:.1f}")

NEAR = (0.75, 1.33)
"""Of W over F: where the wire and computing take about the same time."""

CPU_MS: Mapping[str, float] = {"int8": 15.0, "onebit": 7.0, "powersgd": 6.0}
"""By compressor: half of what it was."""

_OF_WORK = ("onebit", "topk", "powersgd")
_OF_BOUND = ("int8", "powersgd", "onebit", "topk")


def verdicts(measured: StepsMeasurement) -> list[Verdict]:
    """Judge all of it; what was not measured is not judged."""
    found: list[Verdict] = []
    for case in measured.cases:
        ratios = Ratios(case, measured.of(case))
        for judge in _JUDGES:
            found += judge(ratios)
    return found + list(_of_messages(measured))


def where_of(case: Case) -> tuple[str, str, str]:
    """Say where a case was measured, and of which model."""
    return str(case.hosts), case.link, case.model


def is_near(wire_over_compute: float) -> bool:
    """Whether the wire takes about as long as computing does."""
    least, most = NEAR
    return least <= wire_over_compute <= most


def _is(ratios: Ratios, network: Network, model: str) -> bool:
    case = ratios.case
    return (case.hosts, case.link) == network and case.model == model


def _of_work(ratios: Ratios) -> Iterator[Verdict]:
    """Where the wire is idle for most of the step."""
    if _is(ratios, FAST, "mlp"):
        for compressor in _OF_WORK:
            yield from _of_fastest(OF_WORK, ratios, compressor, ratios.of_work)
        yield from _of_fastest(OF_BOUND, ratios, "int8", ratios.of_bound)


def _of_bound(ratios: Ratios) -> Iterator[Verdict]:
    def share(step: Step) -> float | None:
        over = ratios.of_bound(step)
        return None if over is None else 1 / over

    if _is(ratios, SLOW, "gpt"):
        for compressor in _OF_BOUND:
            yield from _of_fastest(SHARE_OF_BOUND, ratios, compressor, share)


def _of_powersgd(ratios: Ratios) -> Iterator[Verdict]:
    if _is(ratios, SLOW, "mlp"):
        for target, other in ((OF_TORCH, TORCH_POWERSGD), (OF_EPFML, EPFML_POWERSGD)):
            yield from _of_fastest(target, ratios, "powersgd", _over(ratios, other))


def _of_ddp(ratios: Ratios) -> Iterator[Verdict]:
    """Of none everywhere; of all others where bytes cost next to nothing."""
    over = _over(ratios, DDP)
    none = ratios.by_method.get(NONE.name)
    if none is not None:
        yield from _judged(NONE_OF_DDP, ratios, none, over)
    if ratios.case.link == UNSHAPED.link:
        compressors = {step.compressor for step in ratios.steps} - {"", NONE.compressor}
        for compressor in sorted(compressors):
            yield from _of_fastest(ALL_OF_DDP, ratios, compressor, over)


def _of_overlap(ratios: Ratios) -> Iterator[Verdict]:
    for step in ratios.steps:
        if step.client == "overlapped":
            over = _over(ratios, Method.ours(step.compressor, "hook"))
            near = is_near(ratios.wire_over_compute(step))
            target = OVERLAPPED_NEAR if near else OVERLAPPED
            yield from _judged(target, ratios, step, over)


def _of_cpu(ratios: Ratios) -> Iterator[Verdict]:
    for compressor, most_ms in CPU_MS.items():
        step = ratios.by_method.get(Method.ours(compressor, "hook").name)
        if step is not None and _is(ratios, FAST, "mlp"):
            spent_ms = 1e3 * ratios.cpu_s(step)
            yield CPU.judged(where_of(ratios.case), spent_ms, step.method, most_ms)


_JUDGES: tuple[Callable[[Ratios], Iterator[Verdict]], ...] = (
    _of_work,
    _of_bound,
    _of_powersgd,
    _of_ddp,
    _of_overlap,
    _of_cpu,
)


def _over(ratios: Ratios, other: Method) -> Callable[[Step], float | None]:
    return lambda step: ratios.of(step, other.name)


def _of_fastest(
    target: Target, ratios: Ratios, compressor: str, reached: Callable[[Step], float | None]
) -> Iterator[Verdict]:
    """Judge what a user gets who takes the faster of hook and overlap."""
    step = ratios.fastest(compressor)
    if step is not None:
        yield from _judged(target, ratios, step, reached)


def _judged(
    target: Target, ratios: Ratios, step: Step, reached: Callable[[Step], float | None]
) -> Iterator[Verdict]:
    found = reached(step)
    if found is not None:
        yield target.judged(where_of(ratios.case), found, step.method)


def _of_messages(measured: StepsMeasurement) -> Iterator[Verdict]:
    for row in measured.messages:
        if row.what == ANSWER:
            where = str(row.hosts), row.link, "-"
            yield MESSAGE.judged(where, ratio(row.beside_s, row.idle_s), row.what)
