"""The whole configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from compressa.config.base import Listed, Section
from compressa.config.choices import AnyCompressor
from compressa.config.conflicts import conflicts
from compressa.config.match import Rule
from compressa.config.mistakes import refuse
from compressa.config.sections import (
    NONE,
    DenseBelow,
    Engine,
    Exchange,
    Feedback,
    Integrity,
    Momentum,
    Schedule,
    Trace,
    Warmup,
    none,
)
from compressa.plugins import versions


class Config(Section):
    """Everything that can be set, with its defaults.

    Build it with `load_config`, which reports mistakes in words; the constructor raises
    pydantic's `ValidationError`.

    Example:
        >>> Config().exchange.unit_payload_bytes
        131072
    """

    compressor: AnyCompressor = Field(
        default_factory=none,
        description="How gradients are compressed, unless a rule says otherwise.",
        json_schema_extra=NONE,
    )
    rules: Annotated[tuple[Rule, ...], Listed()] = Field(
        default=(), description="Exceptions for some parameters; the first that matches decides."
    )
    feedback: Feedback = Field(default_factory=Feedback)
    momentum: Momentum = Field(default_factory=Momentum)
    warmup: Warmup = Field(default_factory=Warmup)
    dense_below: DenseBelow = Field(default_factory=DenseBelow)
    exchange: Exchange = Field(default_factory=Exchange)
    schedule: Schedule = Field(default_factory=Schedule)
    engine: Engine = Field(default_factory=Engine)
    integrity: Integrity = Field(default_factory=Integrity)
    trace: Trace = Field(default_factory=Trace)

    @model_validator(mode="after")
    def _check(self) -> Config:
        found = conflicts(self)
        if found:
            refuse(found)
        return self

    def canonical(self) -> dict[str, Any]:
        """Return all settings that must agree on every rank, as plain JSON values.

        Defaults are filled in and sizes are numbers, so that two files that mean the same
        give the same values. Where traces are written and a link's file is may differ, and is
        left out: rank 0's file counts.
        """
        return self.model_dump(mode="json", exclude={"trace": True, "exchange": {"link"}})

    def plugin_versions(self) -> dict[str, str]:
        """Return the versions of the other packages whose compressors are named, by package."""
        choices = [self.compressor, self.warmup.compressor, *(r.compressor for r in self.rules)]
        return versions(choice.name for choice in choices)
