"""Plan: which cases are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchmarks.runner import refuse_strangers
from benchmarks.schedule.methods import EXCHANGED, METHODS, Method
from compressa.errors import ConfigError

PARTS: Mapping[str, str] = {
    "steps": "training steps beside DDP's and the ideal, for each compressor and each C / (F + B)",
    "hook": "units through the comm hook alone, pipelined and one after the other",
    "overhead": "what planning and handing over cost for each chunk",
    "trace": "what it costs to record a trace",
    "jobs": "two jobs on one link, in turns and not",
    "server": "four workers and one parameter server, in time slots and not",
}
"""By name, what each shows."""

LINKS: Mapping[str, float] = {"none": 12e6, "bf16": 6e6, "int8": 3e6}
"""By compressor, the speed of the links on which steps are measured, in bit/s."""

RATIOS = (0.5, 1.0, 2.0)
"""Of C to F + B."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be measured.

    Attributes:
        parts: Their names.
        compressors: Of the part "steps".
        ratios: Of C to F + B, there.
        link: Speed of the hosts' links, as `LinkSpec` writes it; None: by compressor.
        pattern: That names of methods match; the one whose exchange is measured alone always does.
        budget_s: Seconds for each of its cases, once it is set up.
        least_rounds: So often each method is measured at least.
    """

    parts: Sequence[str] = tuple(PARTS)
    compressors: Sequence[str] = tuple(LINKS)
    ratios: Sequence[float] = RATIOS
    link: str | None = None
    pattern: str = "*"
    budget_s: float = 40.0
    least_rounds: int = 3

    def ratios_on(self, compressor: str) -> Mapping[str, Sequence[float]]:
        """Return, by speed of the links, which cases of a compressor's steps are measured there.

        Where C is only a part of F + B links are as much faster, so that batches are no larger.
        """
        cases: dict[str, list[float]] = {}
        for ratio in self.ratios:
            rate = LINKS[compressor] / min(1.0, ratio)
            cases.setdefault(self.link or f"{rate / 1e6:g}mbit", []).append(ratio)
        return cases

    def methods(self, compressor: str) -> list[Method]:
        """Return what is measured with a compressor."""
        return [
            method
            for method in METHODS.values()
            if compressor in (method.compressors or (compressor,))
            and (fnmatchcase(method.name, self.pattern) or method.name == EXCHANGED)
        ]

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        refuse_strangers("--part", self.parts, PARTS)
        refuse_strangers("--compressor", self.compressors, LINKS)
        if any(not 0 < ratio <= 16 for ratio in self.ratios):
            raise ConfigError("--ratio: give C / (F + B), more than 0 and at most 16")
