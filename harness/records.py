"""Records: what was measured, as rows that are checked when they are read.

A row stands for itself: it says what was measured and when. Targets are not written down: they
belong to what is measured, and what meets them is worked out from the rows.
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
    model_validator,
)

from compressa import files
from compressa.errors import ConfigError
from compressa.machine import this_machine

Positive = Annotated[FiniteFloat, Field(gt=0)]
NotNegative = Annotated[FiniteFloat, Field(ge=0)]

_MOST_BYTES = 64 << 20


class Strict(BaseModel):
    """What is written down or asked for: it has these fields and no others, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(Strict):
    """What was measured of one thing."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Which of its kind it is: what is measured again stands where the older row did."""
        return ()


class Spread(Row):
    """The median of several times in seconds, and how far they lie apart."""

    median_s: Positive
    p20_s: Positive
    p80_s: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p20_s <= self.median_s <= self.p80_s:
            raise ValueError("p20_s <= median_s <= p80_s does not hold")
        return self


class Provenance(Strict):
    """Where and when a record was measured that stands in no file with a header."""

    machine: str
    versions: dict[str, str]
    date: str = Field(description="UTC, ISO 8601")

    @classmethod
    def now(cls) -> Self:
        """Return this machine, these versions, this moment."""
        facts = this_machine()
        return cls(
            machine=_machine(facts.cpu, facts.cores, facts.system),
            versions=facts.versions,
            date=facts.timestamp.isoformat(),
        )


def _machine(cpu: str, cores: int, rest: str) -> str:
    return f"{cpu}, {cores} cores, {rest}"


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
    def details(self) -> str:
        """What else the machine is known by, each followed by a comma; nothing if left out."""
        return ""

    @property
    def machine(self) -> str:
        """The machine, in words."""
        return _machine(self.cpu, self.cores, f"{self.details}{self.system}")

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
        where = f"{path} is no measurement of `{cls.command}`"
        return files.validated(cls, data, where, "measure it again, to another file")

    def write(self, path: Path) -> None:
        """Write a file whole, or not at all.

        Raises:
            OSError: It cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, f"{self.model_dump_json(indent=1)}\n".encode())

    @property
    def kinds(self) -> dict[str, list[Row]]:
        """The rows of each kind."""
        return {name: rows for name, rows in self if name != "header"}

    @property
    def when_and_where(self) -> str:
        """When, on what and with what, in words; rows may be of several days."""
        head = self.header
        rows = [row for kind in self.kinds.values() for row in kind]
        stamps = [stamp for row in rows if (stamp := dict(row).get("timestamp"))]
        times = stamps or [head.timestamp]
        period = " to ".join(sorted({f"{t:%Y-%m-%d}" for t in (min(times), max(times))}))
        versions = ", ".join(f"{name} {text}" for name, text in sorted(head.versions.items()))
        return f"Measured {period} on {head.machine}; {versions}."

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
            again = {row.identity for row in rows}
            kinds[name] = [row for row in self.kinds[name] if row.identity not in again] + rows
        return type(self)(header=new.model_copy(update={"versions": versions}), **kinds)
