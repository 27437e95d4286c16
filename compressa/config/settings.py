"""All that can be set, section by section; `Config` checks how it goes together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compressa.config.base import Listed, Section
from compressa.config.choices import AnyCompressor
from compressa.config.match import Rule
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


class Settings(Section):
    """Each section is valid by itself."""

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
