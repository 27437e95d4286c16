"""Plan: what is compared, as a rank can set it up, and which cases are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from compressa.errors import ConfigError
from harness import runner
from harness.runner import refuse_strangers

Kind = Literal["ddp", "hook", "overlap"]

PROFILE_STEPS = 3

_WHOLE_BYTES = 1 << 26  # more than any payload: what is cut into such chunks is not cut
_HOOK_BUCKET_MB = 1.0  # gradients reach a hook bucket by bucket

# Small, as these links are slow; where what is urgent overtakes, sizes are left to the policy.
_UNITS = {"unit_bytes": 256 << 10, "unit_dense_bytes": 256 << 10, "unit_payload_bytes": 64 << 10}


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
        name: As tables show it.
        kind: DDP by itself, our communication hook, or `OverlappedDataParallel`.
        bucket_cap_mb: Of DDP.
        policy: Of our schedule.
        exchange: Of our configuration, besides what the case says.
        compressors: That it can have; all if empty.
    """

    name: str
    kind: Kind
    bucket_cap_mb: float = _HOOK_BUCKET_MB
    policy: str = "fifo"
    exchange: Mapping[str, Any] = field(default_factory=dict)
    compressors: Sequence[str] = ()

    @property
    def warm_steps(self) -> int:
        """Until it is as it will be: if it plans, until a plan by measured times is in force."""
        return PROFILE_STEPS + 5 if self.policy != "fifo" else 2

    def config(self, compressor: str, link: str | None) -> dict[str, Any]:
        """Return our configuration for it.

        Args:
            compressor: By name.
            link: The file with the link's figures, if it was measured.
        """
        measured = {} if link is None else {"link": link}
        units = _UNITS if self.policy == "fifo" else {}
        return {
            "compressor": {"name": compressor},
            "exchange": {"transport": "tcp", **measured, **units, **self.exchange},
            "schedule": {"policy": self.policy, "profile_steps": PROFILE_STEPS},
        }


DDP: Sequence[Method] = tuple(
    Method(f"DDP, buckets of {cap} MB", "ddp", cap, compressors=("none", "bf16"))
    for cap in (1, 4, 25)
)
AUTO = "overlap, auto"
OURS: Sequence[Method] = (
    Method("hook, fifo", "hook"),
    Method("overlap, fifo", "overlap"),
    Method(
        "overlap, priority, whole payloads",
        "overlap",
        policy="priority",
        exchange={"chunk_bytes": _WHOLE_BYTES, "credit_bytes": _WHOLE_BYTES},
    ),
    Method("overlap, priority", "overlap", policy="priority"),
    Method(AUTO, "overlap", policy="auto"),
)
METHODS: Mapping[str, Method] = {method.name: method for method in (*DDP, *OURS)}

EXCHANGED = "overlap, fifo"
"""Whose exchange is measured alone, without any computing."""

PARTS = (
    "steps",  # of training, beside DDP's and the ideal, for each compressor and each C / (F + B)
    "hook",  # units through the comm hook alone, pipelined and one after the other
    "overhead",  # what planning and handing over cost for each chunk
    "trace",  # what it costs to record a trace
    "jobs",  # two jobs on one link, in turns and not
    "server",  # four workers and one parameter server, in time slots and not
)

LINKS: Mapping[str, float] = {"none": 12e6, "bf16": 6e6, "int8": 3e6}
"""By compressor, the speed of the links on which steps are measured, in bit/s."""

RATIOS = (0.5, 1.0, 2.0)
"""Of C to F + B."""


@dataclass(frozen=True, kw_only=True)
class Settings(runner.Settings):
    """What is to be measured; the method whose exchange is measured alone always is.

    Attributes:
        compressors: Of the part "steps".
        ratios: Of C to F + B, there.
        link: Speed of the hosts' links, as `LinkSpec` writes it; None: by compressor.
        least_rounds: So often each method is measured at least.
    """

    known: ClassVar[Sequence[str]] = PARTS

    parts: Sequence[str] = known
    budget_s: float = 40.0
    compressors: Sequence[str] = tuple(LINKS)
    ratios: Sequence[float] = RATIOS
    link: str | None = None
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
            and (self.matches(method.name) or method.name == EXCHANGED)
        ]

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        super().__post_init__()
        refuse_strangers("--compressor", self.compressors, LINKS)
        if any(not 0 < ratio <= 16 for ratio in self.ratios):
            raise ConfigError("--ratio: give C / (F + B), more than 0 and at most 16")
