"""Methods: what is compared, as a rank can set it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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


_UNITS = {"unit_bytes": 256 << 10, "unit_dense_bytes": 256 << 10, "unit_payload_bytes": 64 << 10}
"""Small, as these links are slow; where what is urgent overtakes, sizes are left to the policy."""

PROFILE_STEPS = 3

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
