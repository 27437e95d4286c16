"""StepsBench: brings hosts up, and has the rank on each train with one method after the other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.hosts import Processors, line_rate, opened_hosts
from benchmarks.kernels.device import CPU
from benchmarks.schedule.training import KEPT
from benchmarks.steps.messages import OPERATIONS, SIZE_BYTES
from benchmarks.steps.models import MODELS
from benchmarks.steps.plan import FAST, UNSHAPED, Method, Network, Settings
from benchmarks.steps.records import Case, Cpu, Header, Message, Step, StepsMeasurement
from benchmarks.steps.training import STREAM_ELEMS
from benchmarks.timing import Samples
from compressa.machine import now
from compressa.testbed import NetnsTestbed, check_links
from harness.rank import OWN_CORE
from harness.ranks import Ranks
from harness.start import started_ranks

RANK_CORES = 2
"""All ranks of a case together have so many, whatever the machine has."""

_LEAST_STEPS, _MOST_STEPS = 4, 20  # of a turn: ranks find their order in the first
_CHOSEN_STEP = {"hook": 68, "overlapped": 96}  # by then a way was chosen, if one clearly leads
_MORE_STEPS, _MOST_STRETCHES = 30, 6  # until one was chosen in any case
_LEAST_WARM, _WARM_TURNS = 2, 2.5  # steps, and turns: a method finds its way before it is timed


@dataclass
class _Turns:
    """What a method's turns have told.

    Attributes:
        steps: That are timed in one.
        told: By name, the figures of each turn: seconds, and what else there is of a step.
    """

    steps: int
    told: dict[str, list[float]] = field(default_factory=dict)

    def add(self, told: dict[str, float]) -> None:
        """Note another turn."""
        for name, figure in told.items():
            self.told.setdefault(name, []).append(figure)

    def middle(self, name: str) -> float:
        """Return the median of a figure."""
        return median(self.told[name])

    def middle_if_told(self, name: str) -> float | None:
        """Return the median of a figure; None if it was not told."""
        return self.middle(name) if name in self.told else None


class StepsBench:
    """Measures one case after the other.

    Args:
        settings: What is to be measured.

    Attributes:
        found: What was measured so far.
    """

    def __init__(self, settings: Settings) -> None:
        header = Header.here(rank_cores=len(_cores()), budget_s=settings.budget_s)
        self.found = StepsMeasurement(header=header)
        self._settings = settings

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, after each case.

        Raises:
            BackendUnavailable: There are no network namespaces here; the message says why.
            TransportError: A rank died or failed, replicas differ, or the links do not hold their
                rate.
        """
        if "messages" in self._settings.parts:
            yield "small messages: bringing two hosts up"
            yield from self._measure_messages(Network(FAST.hosts, UNSHAPED.link))
        for network in self._settings.networks if "steps" in self._settings.parts else ():
            yield f"{network.hosts} hosts, {network.link}: bringing them up"
            with opened_hosts(*network) as bed:
                check_links(bed)
                for model in self._settings.models:
                    yield from self._measure_steps(bed, model)

    def _measure_messages(self, network: Network) -> Iterator[str]:
        found: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in OPERATIONS}
        with opened_hosts(*network) as bed, self._started(bed, "messages:Messages") as ranks:
            for number in range(self._settings.rounds):
                yield f"small messages: round {number + 1} of {self._settings.rounds}"
                for what, several in found.items():
                    for beside, seconds in enumerate(several):
                        told = ranks.ask("timed", what=what, beside=bool(beside))
                        seconds.append(told["seconds"])
            ranks.ask("close")
        for what, (idle_s, beside_s) in found.items():
            row = Message(
                hosts=network.hosts,
                link=network.link,
                what=what,
                size_bytes=SIZE_BYTES,
                idle_s=tuple(idle_s),
                beside_s=tuple(beside_s),
                timestamp=now(),
            )
            self.found.messages.append(row)

    def _measure_steps(self, bed: NetnsTestbed, model: str) -> Iterator[str]:
        name = f"{len(bed.hosts)} hosts, {bed.link}, {model}"
        yield f"{name}: line rate"
        line_bytes_per_s = line_rate(bed)
        own = [OWN_CORE] if len(bed.hosts) <= len(_cores()) else []
        with self._started(bed, "training:Training", *own) as ranks:
            told = ranks.ask("begin", model=model)
            turns = yield from self._set_up(name, ranks)
            streams_s = yield from self._take_turns(name, bed, ranks, turns)
            steps = [_step(bed, ranks, model, method, taken) for method, taken in turns.items()]
            ranks.ask("close")
        case = Case(
            hosts=len(bed.hosts),
            link=str(bed.link),
            model=model,
            parameters=told["parameters"],
            samples=MODELS[model].samples,
            rounds=self._settings.rounds,
            line_bytes_per_s=line_bytes_per_s,
            bus_bytes_per_s=CPU.yardstick_bytes * STREAM_ELEMS / median(streams_s),
            timestamp=now(),
        )
        self.found.cases.append(case)
        self.found.steps.extend(steps)

    def _set_up(self, name: str, ranks: Ranks) -> Generator[str, None, dict[Method, _Turns]]:
        """Set all methods up; return how long their turns are."""
        turns: dict[Method, _Turns] = {}
        budget_s = self._settings.budget_s
        for method in self._settings.methods:
            yield f"{name}: setting {method.name} up"
            ranks.ask("open", method=method)
            steps = turn_steps(budget_s, _warm_step_s(ranks, method, budget_s))
            turns[method] = _Turns(steps)
        return turns

    def _take_turns(
        self, name: str, bed: NetnsTestbed, ranks: Ranks, turns: Mapping[Method, _Turns]
    ) -> Generator[str, None, list[float]]:
        """Measure all methods, several times round; return what the yardstick of memory took."""
        streams_s: list[float] = []
        for number in range(self._settings.rounds):
            streams_s.append(ranks.ask("stream")["stream_s"])
            for method, taken in turns.items():
                yield f"{name}: round {number + 1} of {self._settings.rounds}, {method.name}"
                taken.add(_turn(bed, ranks, method, taken.steps))
        return streams_s

    def _started(self, bed: NetnsTestbed, served: str, *options: str) -> Ranks:
        """Start ranks on their cores."""
        with _on_cores():
            ranks = started_ranks(bed, f"benchmarks.steps.{served}", *options, env=KEPT)
        self.found.header.versions["torch"] = ranks.version
        return ranks


def _warm_step_s(ranks: Ranks, method: Method, budget_s: float) -> float:
    """Train until a method is as it will be; return what a step takes then.

    Ways to do steps are chosen in a stretch: a step after a pause has nothing to wait for, and
    many of these would have them chosen anew.
    """
    if method.client in _CHOSEN_STEP and method.compressor != "none":
        steps = _CHOSEN_STEP[method.client]
        for _ in range(_MOST_STRETCHES):
            step_s: float = ranks.ask("train", method=method, steps=steps)["step_s"]
            if not ranks.ask("look", method=method)["measuring"]:
                break
            steps = _MORE_STEPS
        return step_s
    steps_s: list[float] = []
    end_s = time.monotonic() + _WARM_TURNS * budget_s
    while len(steps_s) < _LEAST_WARM or time.monotonic() < end_s:
        steps_s.append(ranks.ask("train", method=method, steps=1)["step_s"])
    return steps_s[-1]


def turn_steps(budget_s: float, step_s: float) -> int:
    """Return how many steps are timed in a turn.

    Example:
        >>> turn_steps(0.4, 0.03), turn_steps(0.4, 2.0), turn_steps(0.4, 1e-3)
        (14, 4, 20)
    """
    return max(_LEAST_STEPS, min(_MOST_STEPS, math.ceil(budget_s / step_s)))


def _turn(bed: NetnsTestbed, ranks: Ranks, method: Method, steps: int) -> dict[str, float]:
    """Have all ranks train; return the figures of a step."""
    before, processors = bed.counters(), Processors()
    told = ranks.ask("train", method=method, steps=steps)
    load = processors.load()
    carried = [
        max(now_.tx_bytes - then.tx_bytes, now_.rx_bytes - then.rx_bytes)
        for now_, then in zip(bed.counters(), before, strict=True)
    ]
    return {**told, "counted_bytes": max(carried) / (steps + 1), "load": load}


def _step(bed: NetnsTestbed, ranks: Ranks, model: str, method: Method, turns: _Turns) -> Step:
    """Return the row of a method, if its training went well."""
    ranks.ask("check", method=method)
    known: dict[str, Any] = ranks.ask("kernel_bytes", method=method) if method.compressor else {}
    rounds_s = tuple(turns.told["step_s"])
    return Step(
        hosts=len(bed.hosts),
        link=str(bed.link),
        model=model,
        method=method.name,
        client=method.client,
        compressor=method.compressor,
        **Samples(rounds_s).spread(),
        rounds_s=rounds_s,
        sent_bytes=turns.middle_if_told("sent_bytes"),
        messages=turns.middle_if_told("messages"),
        counted_bytes=turns.middle("counted_bytes"),
        kernel_bytes=known.get("kernel_bytes"),
        cpu=Cpu(**{name: turns.middle(name) for name in Cpu.model_fields}),
        load=turns.middle("load"),
        timestamp=now(),
    )


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))[:RANK_CORES]


@contextmanager
def _on_cores() -> Iterator[None]:
    """Have what is started meanwhile run on the ranks' cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _cores())
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
