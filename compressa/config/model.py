"""The whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from compressa.config.base import Listed, Section
from compressa.config.choices import AnyCompressor
from compressa.config.conflicts import conflicts
from compressa.config.match import Rule
from compressa.config.mistakes import refuse
from compressa.config.sections import (
    FIFO,
    NONE,
    SMALL_UNIT_BYTES,
    DenseBelow,
    Engine,
    Exchange,
    Feedback,
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
        >>> Config().exchange.unit_bytes
        4194304
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
    trace: Trace = Field(default_factory=Trace)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_units(cls, raw: Any) -> Any:
        """Where what is urgent overtakes, units are small unless their sizes are given."""
        if not isinstance(raw, Mapping):
            return raw
        schedule, exchange = raw.get("schedule"), raw.get("exchange", {})
        if not isinstance(schedule, Mapping) or not isinstance(exchange, Mapping):
            return raw
        if schedule.get("policy", FIFO) == FIFO:
            return raw
        small = dict.fromkeys(("unit_bytes", "unit_dense_bytes"), SMALL_UNIT_BYTES)
        return {**raw, "exchange": {**small, **exchange}}

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
