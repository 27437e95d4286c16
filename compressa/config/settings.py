"""All that can be set, section by section; `Config` checks how it goes together."""

from __future__ import annotations

from typing import Annotated

from annotated_types import MinLen
from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from compressa.config.base import Listed, Section
from compressa.config.choices import AnyCompressor
from compressa.config.fsdp import FSDP
from compressa.config.mistakes import Mistake, refuse, show
from compressa.config.pipeline import Pipeline
from compressa.config.sections import (
    NONE,
    DenseBelow,
    Engine,
    Exchange,
    Feedback,
    FeedbackKind,
    Integrity,
    Momentum,
    Schedule,
    Trace,
    Warmup,
    none,
)
from compressa.config.strategies import AnyStrategy
from compressa.config.values import Count
from compressa.parameters import Role

_MOST_EXTENT = 1 << 53


def _dimension(value: object) -> int | str:
    if value == "*":
        return "*"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_EXTENT:
        return value
    raise ValueError(
        f'must be a number of elements, at most {_MOST_EXTENT}, or "*" for any, not {show(value)}'
    )


Dimension = Annotated[
    int | str,
    PlainValidator(_dimension),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": _MOST_EXTENT}, {"const": "*"}]}
    ),
]
_OneOrMore = Listed(or_one=True)


class Match(Section):
    """Which parameters a rule is for; all conditions that are given must hold."""

    name: Annotated[tuple[str, ...], MinLen(1), _OneOrMore] | None = Field(
        default=None, description='Patterns of the parameter\'s name such as "blocks.*.bias".'
    )
    role: (
        Annotated[tuple[Annotated[Role, Field(strict=False)], ...], MinLen(1), _OneOrMore] | None
    ) = Field(default=None, description="What the parameter does in its model.")
    shape: Annotated[tuple[Dimension, ...], Listed()] | None = Field(
        default=None, description='Elements of each dimension, "*" for any, such as ["*", 256].'
    )
    ndim: Count | None = Field(default=None, description="Number of dimensions.")
    min_elems: Count | None = Field(default=None, description="Fewest elements.")
    max_elems: Count | None = Field(default=None, description="Most elements.")

    @model_validator(mode="after")
    def _check(self) -> Match:
        if all(condition is None for _, condition in self):
            keys = ", ".join(type(self).model_fields)
            raise ValueError(f"is empty, and would match every parameter; give one of {keys}")
        least, most = self.min_elems, self.max_elems
        if least is not None and most is not None and least > most:
            text = f"is {least}, more than max_elems = {most}; nothing can match"
            refuse([Mistake(("min_elems",), text)])
        return self


class Rule(Section):
    """How the parameters that match are compressed; the first rule that matches decides."""

    match: Match = Field(description="Which parameters.")
    compressor: AnyCompressor = Field(description="How they are compressed.")
    feedback: FeedbackKind | None = Field(
        default=None, description="As feedback.kind, for these parameters only."
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
    strategy: AnyStrategy | None = Field(
        default=None,
        description="When ranks meet, and what becomes of it, for compressa.attach; left out: "
        "in each step, by the hook.",
    )
    fsdp: FSDP = Field(default_factory=FSDP)
    pipeline: Pipeline = Field(default_factory=Pipeline)
    exchange: Exchange = Field(default_factory=Exchange)
    schedule: Schedule = Field(default_factory=Schedule)
    engine: Engine = Field(default_factory=Engine)
    integrity: Integrity = Field(default_factory=Integrity)
    trace: Trace = Field(default_factory=Trace)
