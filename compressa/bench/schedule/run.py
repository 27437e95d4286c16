"""ScheduleBench: brings two hosts up, has their ranks measure, and collects it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from compressa.bench.machine import now
from compressa.bench.network.processors import Processors
from compressa.bench.network.ranks import Ranks
from compressa.bench.network.start import start_each
from compressa.bench.schedule.methods import Method, methods_for
from compressa.bench.schedule.model import ELEMS, LAYERS
from compressa.bench.schedule.plan import LINKS, Settings
from compressa.bench.schedule.records import Case, ScheduleMeasurement, Step, header
from compressa.bench.timing import Samples
from compressa.errors import BackendUnavailable
from compressa.testbed import Testbed, open_testbed

_HOSTS = 2
_START_S, _DEADLINE_S = 120.0, 60.0
_TRIED_BATCHES = (64, 512)  # what a sample costs is worked out from these
_MOST_BATCH = 1 << 16
_STEPS = 4  # timed together
_ALONE_STEPS = 3


class ScheduleBench:
    """Measures one case after the other.

    Args:
        settings: What is to be measured.
        progress: Told what is being done.
        kept: Called after each case.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Callable[[str], None] = lambda text: None,
        kept: Callable[[ScheduleBench], None] = lambda bench: None,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._kept = kept
        self._versions: dict[str, str] = {}
        self._cases: list[Case] = []
        self._steps: list[Step] = []

    def measurement(self) -> ScheduleMeasurement:
        """Return all of it so far, as it is written down."""
        return ScheduleMeasurement(
            header=header(self._versions, ELEMS, LAYERS, self._settings.budget_s),
            cases=self._cases,
            steps=self._steps,
        )

    def run(self) -> None:
        """Measure everything.

        Raises:
            BackendUnavailable: There are no network namespaces here; the message says why.
            TransportError: A rank died or failed, or the links do not hold their rate.
        """
        self._progress("two hosts: bringing them up")
        with _opened() as bed:
            if "steps" in self._settings.parts:
                self._measure_steps(bed)

    def _measure_steps(self, bed: Testbed) -> None:
        for compressor in self._settings.compressors:
            bed.set_link(LINKS[compressor])
            bed.self_check()
            with _ranks(bed) as ranks:
                self._versions["torch"] = ranks.version
                measured = _Steps(bed, ranks, self._settings, compressor, self._progress)
                for ratio in self._settings.ratios:
                    case, steps = measured.case(ratio)
                    self._cases.append(case)
                    self._steps += steps
                    self._kept(self)
                measured.close()


class _Steps:
    """The steps of one compressor's methods, side by side.

    Args:
        bed: The hosts.
        ranks: On them.
        settings: What is to be measured.
        compressor: By name.
        progress: Told what is being done.
    """

    def __init__(
        self,
        bed: Testbed,
        ranks: Ranks,
        settings: Settings,
        compressor: str,
        progress: Callable[[str], None],
    ) -> None:
        self._bed = bed
        self._ranks = ranks
        self._settings = settings
        self._compressor = compressor
        self._progress = progress
        self._methods = methods_for(compressor)
        self._ask("open", compressor=compressor, methods=[m.name for m in self._methods])
        self._sample_s, self._fixed_s = self._cost_of_samples()
        self._ask("communicate", steps=1)
        self._communication_s = self._ask("communicate", steps=_ALONE_STEPS)["step_s"]

    def case(self, ratio: float) -> tuple[Case, list[Step]]:
        """Measure a case: a batch so large that C / (F + B) is about as asked for."""
        wanted_s = self._communication_s / ratio - self._fixed_s
        batch = max(1, min(_MOST_BATCH, round(wanted_s / self._sample_s)))
        place = f"{self._compressor}, C = {ratio:g} (F + B), batches of {batch}"
        self._progress(f"{place}: warming up")
        self._ask("size", batch=batch)
        for method in self._methods:
            self._ask("warm", method=method.name)
        self._progress(place)
        alone, exchanged, taken, loads = self._rounds()
        computed_s, forward_s = zip(*alone, strict=True)
        forward = median(forward_s)
        case = Case(
            compressor=self._compressor,
            ratio=ratio,
            link=str(self._bed.link),
            batch=batch,
            forward_s=forward,
            backward_s=median(computed_s) - forward,
            communication_s=median(exchanged),
            rounds=len(alone),
            timestamp=now(),
        )
        return case, [
            self._row(ratio, method, taken[method.name], loads[method.name])
            for method in self._methods
        ]

    def close(self) -> None:
        """End what was set up."""
        self._ask("close")

    def _rounds(
        self,
    ) -> tuple[
        list[tuple[float, float]], list[float], dict[str, list[float]], dict[str, list[float]]
    ]:
        """Measure all in turn, again and again; of DDP, only the fastest goes on."""
        alone: list[tuple[float, float]] = []
        exchanged: list[float] = []
        taken: dict[str, list[float]] = {method.name: [] for method in self._methods}
        loads: dict[str, list[float]] = {method.name: [] for method in self._methods}
        processors, methods = Processors(), list(self._methods)
        end_s = time.monotonic() + self._settings.budget_s
        while len(alone) < self._settings.least_rounds or time.monotonic() < end_s:
            told = self._ask("compute", steps=_ALONE_STEPS)
            alone.append((told["step_s"], told["forward_s"]))
            exchanged.append(self._ask("communicate", steps=_ALONE_STEPS)["step_s"])
            for method in methods:
                processors.start()
                taken[method.name].append(self._train(method))
                loads[method.name].append(processors.load())
            methods = _without_slow(methods, taken)
        return alone, exchanged, taken, loads

    def _train(self, method: Method) -> float:
        return self._ask("train", method=method.name, steps=_STEPS)["step_s"]

    def _row(
        self, ratio: float, method: Method, seconds: Sequence[float], loads: Sequence[float]
    ) -> Step:
        samples = Samples(tuple(seconds))
        return Step(
            compressor=self._compressor,
            ratio=ratio,
            method=method.name,
            median_s=samples.median,
            p20_s=samples.p20,
            p80_s=samples.p80,
            load=median(loads),
            timestamp=now(),
        )

    def _cost_of_samples(self) -> tuple[float, float]:
        """Return what a sample of a batch costs in a step, and what costs the same for all."""
        times_s: list[float] = []
        for batch in _TRIED_BATCHES:
            self._ask("size", batch=batch)
            times_s.append(self._ask("compute", steps=_ALONE_STEPS)["step_s"])
        few, many = _TRIED_BATCHES
        sample_s = max((times_s[1] - times_s[0]) / (many - few), times_s[1] / many / 10)
        return sample_s, max(0.0, times_s[0] - few * sample_s)

    def _ask(self, what: str, **given: Any) -> dict[str, float]:
        """Have both ranks do something; return what the slower of them tells, by number."""
        replies = self._ranks.request([what, given], f"{what} {given}", _DEADLINE_S)
        told = [reply.told for reply in replies]
        return {name: max(float(each[name]) for each in told) for name in told[0]}


def _without_slow(methods: Sequence[Method], taken: Mapping[str, Sequence[float]]) -> list[Method]:
    """Leave DDP's slower buckets out."""
    ddp = [method for method in methods if method.kind == "ddp"]
    fastest = min(ddp, key=lambda method: min(taken[method.name]), default=None)
    return [method for method in methods if method.kind != "ddp" or method is fastest]


def _opened() -> Testbed:
    try:
        return open_testbed(_HOSTS, next(iter(LINKS.values())), kind="netns", self_check=False)
    except BackendUnavailable as refusal:
        raise BackendUnavailable(
            f"compressa bench schedule measures between network namespaces only. {refusal}"
        ) from refusal


@contextmanager
def _ranks(bed: Testbed) -> Iterator[Ranks]:
    """A rank on each host."""
    words = [sys.executable, "-m", "compressa.bench.schedule.rank"]
    with tempfile.TemporaryDirectory(prefix="compressa-") as folder:
        place = Path(folder)

        def start(path: Path) -> Any:
            return start_each(bed, place, [*words, str(path), str(_DEADLINE_S)])

        with Ranks(_HOSTS, place, start, _START_S) as ranks:
            yield ranks
