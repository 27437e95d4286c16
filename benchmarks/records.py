"""What a benchmark leaves behind: one JSON file of a header and rows, checked when it is read.

A row stands for itself: it says what was measured and when, and the header on which machine.
Targets are not written down: they belong to the cases, and what meets them is worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

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
NotNegative = Annotated[FiniteFloat, Field(ge=0)]

_MOST_BYTES = 64 << 20


class Strict(BaseModel):
    """What is written down: nothing else may stand there, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(Strict):
    """What was measured of one thing."""

    @property
    def place(self) -> tuple[object, ...]:
        """Where among rows of its kind it stands: what is measured there again takes its place."""
        return ()


class Spread(Row):
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
    """Where and when; each benchmark says what its format is called, and adds how.

    Rows of two files can be compared if the fields of `alike` agree.
    """

    alike: ClassVar[Sequence[str]] = ("cpu", "cores", "system")

    format: str
    format_version: Literal[1] = 1
    cpu: str
    cores: PositiveInt
    memory_bytes: PositiveInt
    system: str
    versions: dict[str, str]
    timestamp: AwareDatetime

    @property
    def machine(self) -> str:
        """The machine, in words."""
        return f"{self.cpu}, {self.cores} cores, {self.system}"

    @classmethod
    def here(cls, versions: dict[str, str] | None = None, **how: Any) -> Self:
        """Return the header of what is measured here and now.

        Args:
            versions: Of what is measured, beside our own.
            how: Fields of a benchmark's own.
        """
        facts = vars(this_machine())
        return cls(**facts | {"versions": facts["versions"] | (versions or {})}, **how)


class Measurement(Strict):
    """A whole file: a header, and rows of one kind or several, by the names of the fields.

    `command` is what writes such files.
    """

    command: ClassVar[str]

    header: Header

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            ConfigError: It cannot be read, or is no such measurement; the message names the place.
        """
        try:
            data = files.read(path, _MOST_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {files.reason(error)}") from error
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ConfigError(
                f"{path} is no measurement of `{cls.command}`: {place}: {first['msg']}"
            ) from error

    def write(self, path: Path) -> None:
        """Write a file whole, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, f"{self.model_dump_json(indent=1)}\n".encode())

    @property
    def kinds(self) -> dict[str, list[Row]]:
        """The rows of each kind."""
        return {name: rows for name, rows in self if name != "header"}

    @property
    def when_and_where(self) -> str:
        """When, on what and with what, in words; rows may be of several days."""
        rows = [row for kind in self.kinds.values() for row in kind]
        stamps = [stamp for row in rows if (stamp := dict(row).get("timestamp"))]
        times = stamps or [self.header.timestamp]
        period = " to ".join(sorted({f"{t:%Y-%m-%d}" for t in (min(times), max(times))}))
        versions = ", ".join(
            f"{name} {text}" for name, text in sorted(self.header.versions.items())
        )
        return f"Measured {period} on {self.header.machine}; {versions}."

    def updated(self, newer: Self) -> Self:
        """Return this measurement with what a newer one has measured again, or in addition.

        Raises:
            ConfigError: Their rows can not be compared.
        """
        old, new = self.header, newer.header
        for what in new.alike:
            if getattr(old, what) != getattr(new, what):
                raise ConfigError(
                    f"the file's {what} is {getattr(old, what)}, and here it is "
                    f"{getattr(new, what)}: rows would not be comparable; write another file"
                )
        versions = old.versions | new.versions
        kinds: dict[str, Any] = {}
        for name, rows in newer.kinds.items():
            again = {row.place for row in rows}
            kinds[name] = [row for row in self.kinds[name] if row.place not in again] + rows
        return type(self)(header=new.model_copy(update={"versions": versions}), **kinds)
