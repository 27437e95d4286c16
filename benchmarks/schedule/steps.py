"""Steps: those of one compressor's methods, side by side."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.hosts import Processors
from benchmarks.schedule.plan import Method, Settings
from benchmarks.schedule.records import Case, Step
from benchmarks.schedule.training import KEPT_BYTES, WIDTH
from benchmarks.timing import Samples
from compressa.engine.measuring import profile_file
from compressa.errors import ConfigError
from compressa.machine import now
from compressa.simulation import simulated_step_s
from harness.ranks import Ranks

_TRIED_BATCHES = (64, 512)  # what a sample costs is worked out from these
_MOST_BATCH = KEPT_BYTES // (4 * WIDTH)  # page faults in each step would be a part of it
_TRIES, _NEAR = 4, 0.03  # at how large batches take as long as is wanted
_STEPS = 3  # timed together
_ALONE_STEPS = 2


@dataclass
class _Rounds:
    """What was measured in turn.

    Attributes:
        step_s: Of computing alone, by round.
        forward_s: Of that, the forward pass.
        communication_s: Of communication alone.
        taken_s: By method.
        loads: By method.
    """

    step_s: list[float] = field(default_factory=list)
    forward_s: list[float] = field(default_factory=list)
    communication_s: list[float] = field(default_factory=list)
    taken_s: dict[str, list[float]] = field(default_factory=dict)
    loads: dict[str, list[float]] = field(default_factory=dict)


class Steps:
    """The steps of one compressor's methods.

    Args:
        ranks: That train; closed by whoever has started them.
        link: Of the hosts, as text.
        settings: What is to be measured.
        compressor: By name.
    """

    def __init__(self, ranks: Ranks, link: str, settings: Settings, compressor: str) -> None:
        self._ask, self._folder = ranks.ask, ranks.folder
        self._link = link
        self._settings = settings
        self._compressor = compressor
        self._methods = settings.methods(compressor)
        self._figures: str | None = None
        self._sample_s = self._fixed_s = self._communication_s = 0.0

    def prepare(self) -> Iterator[str]:
        """Set methods up, and find out what computing and communication cost."""
        if any(method.policy != "fifo" for method in self._methods):
            yield f"{self._link}: what the link is like"
            self._figures = str(self._folder / "link.json")
            self._ask("fit", path=self._figures)
        yield f"{self._link}: setting up"
        names = [method.name for method in self._methods]
        self._ask("open", compressor=self._compressor, methods=names, link=self._figures)
        self._sample_s, self._fixed_s = self._cost_of_samples()
        self._ask("communicate", steps=1)
        self._communication_s = self._ask("communicate", steps=_ALONE_STEPS)["step_s"]

    def case(self, ratio: float) -> Generator[str, None, tuple[Case, list[Step]]]:
        """Measure a case: a batch so large that C / (F + B) is about as asked for."""
        batch = self._batch_of(self._communication_s / ratio)
        text = f"{self._compressor}, C = {ratio:g} (F + B), batches of {batch}"
        yield f"{text}: warming up"
        self._ask("size", batch=batch)
        for method in self._methods:
            self._ask("warm", method=method.name)
        yield text
        found = self._measured()
        forward_s = median(found.forward_s)
        case = Case(
            compressor=self._compressor,
            ratio=ratio,
            link=self._link,
            batch=batch,
            forward_s=forward_s,
            backward_s=median(found.step_s) - forward_s,
            communication_s=median(found.communication_s),
            rounds=len(found.step_s),
            timestamp=now(),
        )
        return case, [self._row(ratio, method, found) for method in self._methods]

    def _measured(self) -> _Rounds:
        """Measure all in turn, again and again; of DDP, only the fastest goes on."""
        found, methods = _Rounds(), list(self._methods)
        end_s = time.monotonic() + self._settings.budget_s
        while len(found.step_s) < self._settings.least_rounds or time.monotonic() < end_s:
            self._round(methods, found)
            methods = _without_slow(methods, found.taken_s)
        return found

    def _round(self, methods: Sequence[Method], found: _Rounds) -> None:
        alone = self._ask("compute", steps=_ALONE_STEPS)
        found.step_s.append(alone["step_s"])
        found.forward_s.append(alone["forward_s"])
        exchanged = self._ask("communicate", steps=_ALONE_STEPS)
        found.communication_s.append(exchanged["step_s"])
        for method in methods:
            processors = Processors()
            took_s = self._ask("train", method=method.name, steps=_STEPS)["step_s"]
            found.loads.setdefault(method.name, []).append(processors.load())
            found.taken_s.setdefault(method.name, []).append(took_s)

    def _row(self, ratio: float, method: Method, found: _Rounds) -> Step:
        samples = Samples(tuple(found.taken_s[method.name]))
        return Step(
            compressor=self._compressor,
            ratio=ratio,
            method=method.name,
            **samples.spread(),
            simulated_s=self._simulated_s(method),
            load=median(found.loads[method.name]),
            timestamp=now(),
        )

    def _simulated_s(self, method: Method) -> float | None:
        """Predict a step of ours from what its last steps were measured to be like."""
        if method.kind == "ddp" or self._figures is None:
            return None  # without its figures the link is not known
        path = self._folder / "profile.json"
        self._ask("profile", method=method.name, path=str(path))
        return simulated_step_s(profile_file.read(path), overlap=method.kind == "overlap")

    def _batch_of(self, wanted_s: float) -> int:
        """Return how large batches take so long; a sample of many costs more than one of few.

        Raises:
            ConfigError: They are too large.
        """
        batch = max(1, round((wanted_s - self._fixed_s) / self._sample_s))
        for _ in range(_TRIES):
            self._ask("size", batch=min(_MOST_BATCH, batch))
            took_s = self._ask("compute", steps=_ALONE_STEPS)["step_s"]
            if abs(took_s - wanted_s) <= _NEAR * wanted_s:
                break
            batch = max(1, round(min(_MOST_BATCH, batch) * wanted_s / took_s))
        if batch > _MOST_BATCH:
            raise ConfigError(
                f"--link {self._link}: to compute for {wanted_s:.3g} s takes batches of {batch:,}, "
                f"and {_MOST_BATCH:,} are the most; give a faster --link, or a larger --ratio"
            )
        return batch

    def _cost_of_samples(self) -> tuple[float, float]:
        """Return what a sample of a batch costs in a step, and what costs the same for all."""
        times_s: list[float] = []
        for batch in _TRIED_BATCHES:
            self._ask("size", batch=batch)
            times_s.append(self._ask("compute", steps=_ALONE_STEPS)["step_s"])
        few, many = _TRIED_BATCHES
        sample_s = max((times_s[1] - times_s[0]) / (many - few), times_s[1] / many / 10)
        return sample_s, max(0.0, times_s[0] - few * sample_s)


def _without_slow(
    methods: Sequence[Method], taken_s: Mapping[str, Sequence[float]]
) -> list[Method]:
    """Leave DDP's slower buckets out."""
    ddp = [method for method in methods if method.kind == "ddp"]
    fastest = min(ddp, key=lambda method: min(taken_s[method.name]), default=None)
    return [method for method in methods if method.kind != "ddp" or method is fastest]
