"""Methods: what is compared, as a rank can set it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from compressa.bench.schedule.model import ELEMS

Kind = Literal["ddp", "hook", "overlap"]

WHOLE_BYTES = 1 << 26
"""More than any payload: what is cut into such chunks is not cut."""

HOOK_BUCKET_MB = 1.0
"""Of the model that our hook is on: gradients reach a hook bucket by bucket."""


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
    bucket_cap_mb: float = HOOK_BUCKET_MB
    policy: str = "fifo"
    exchange: Mapping[str, Any] = field(default_factory=dict)
    compressors: Sequence[str] = ()

    def config(self, compressor: str) -> dict[str, Any]:
        """Return our configuration for it."""
        return {
            "compressor": {"name": compressor},
            "exchange": {"transport": "tcp", **_SUMS.get(compressor, {}), **self.exchange},
            "schedule": {"policy": self.policy, "profile_steps": PROFILE_STEPS},
        }


_SUMS: Mapping[str, Mapping[str, Any]] = {
    "none": {"algorithm": "halving_doubling", "unit_dense_bytes": 1 << 20}
}
"""Own sums, in pieces: the backend's can be neither cut nor overtaken."""

PROFILE_STEPS = 3
WARM_STEPS = PROFILE_STEPS + 5
"""Until a plan that goes by measured times is in force, and one step of it is over."""

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
        exchange={"chunk_bytes": WHOLE_BYTES, "credit_bytes": WHOLE_BYTES},
    ),
    Method("overlap, priority", "overlap", policy="priority"),
    Method(AUTO, "overlap", policy="auto"),
)
METHODS: Mapping[str, Method] = {method.name: method for method in (*DDP, *OURS)}

EXCHANGED = "overlap, fifo"
"""Whose exchange is measured alone, without any computing."""


def methods_for(compressor: str) -> list[Method]:
    """Return the methods that can have a compressor."""
    return [m for m in METHODS.values() if compressor in (m.compressors or (compressor,))]


DENSE_BYTES = 4 * ELEMS
