"""What a benchmark leaves behind: one JSON file of a header and rows, checked when it is read.

A row stands for itself: it says what was measured and when, and the header on which machine.
Targets are not written down: they belong to the cases, and what meets them is worked out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from compressa import files
from compressa.errors import ConfigError
from compressa.machine import this_machine

Positive = Annotated[FiniteFloat, Field(gt=0)]
Share = Annotated[FiniteFloat, Field(ge=0)]

Model = TypeVar("Model", bound=BaseModel)

_MOST_BYTES = 64 << 20


class Strict(BaseModel):
    """What is written down: nothing else may stand there, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(Strict):
    """The median of several times, and how far they lie apart."""

    median_s: Positive
    p20_s: Positive
    p80_s: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p20_s <= self.median_s <= self.p80_s:
            raise ValueError("p20_s <= median_s <= p80_s does not hold")
        return self


class Header(Strict):
    """Where and when; each benchmark says what its format is called, and adds how."""

    format: str
    format_version: Literal[1] = 1
    cpu: str
    cores: PositiveInt
    memory_bytes: PositiveInt
    system: str
    versions: dict[str, str]
    timestamp: AwareDatetime

    @classmethod
    def here(cls, versions: dict[str, str] | None = None, **how: Any) -> Self:
        """Return the header of what is measured here and now.

        Args:
            versions: Of what is measured, beside our own.
            how: Fields of a benchmark's own.
        """
        facts = vars(this_machine())
        return cls(**facts | {"versions": facts["versions"] | (versions or {})}, **how)


def write(path: Path, measurement: BaseModel) -> None:
    """Write a file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, f"{measurement.model_dump_json(indent=1)}\n".encode())


def read_as(kind: type[Model], path: Path, command: str) -> Model:
    """Read and check a file of one kind.

    Args:
        kind: What it should hold.
        path: The file.
        command: What writes such files.

    Raises:
        ConfigError: It cannot be read, or is of another kind; the message names the place.
    """
    try:
        data = files.read(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {files.reason(error)}") from error
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(
            f"{path} is no measurement of `{command}`: {place}: {first['msg']}"
        ) from error
