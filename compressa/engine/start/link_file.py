"""LinkFile: what `compressa link` has found out about a network, for `exchange.link`.

Algorithms add up in different orders, so the figures decide about bits. One rank reads the file,
and all ranks take its figures; checkpoints keep them, and a run that is resumed goes on with those
of its checkpoint, whatever has become of the file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from compressa import files
from compressa.collectives.choice import CANDIDATES, Costs, points
from compressa.collectives.cost import Link
from compressa.config import Config
from compressa.errors import ConfigError, StateError
from compressa.transports.table import TRANSPORTS

COMMAND = "compressa link"
MOST_SPREAD = 0.1
"""Figures of which rounds differ by more were disturbed: they should be measured again."""

_MOST_BYTES = 64 << 20
_LONGEST_S = 1e6
Positive = Annotated[FiniteFloat, Field(ge=1e-30, le=_LONGEST_S)]
_NotNegative = Annotated[FiniteFloat, Field(ge=0, le=_LONGEST_S)]
_Count = Annotated[int, Field(ge=1, le=1 << 20)]
_Fraction = Annotated[FiniteFloat, Field(ge=0, le=1e6)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Measured(_Strict):
    """How long one way of summing took: the median of several times, each of the slowest rank.

    Times are in seconds.
    """

    algorithm: str
    size_bytes: Annotated[int, Field(ge=1, le=1 << 53)]
    median_s: Positive

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.algorithm not in CANDIDATES:
            raise ValueError(f"no algorithm is called {self.algorithm!r}")
        return self


class Figures(_Strict):
    """What was measured, in seconds, and seconds per byte.

    `message_s`, `byte_s` and `reduce_s` are the a, b and g of the cost model, with all ranks at
    work at the same time; `pair_message_s` and `pair_byte_s` are a and b between two ranks while
    the others are silent. `byte_spread` is how far b lay apart from round to round, as a fraction
    of b. Older files have not all of these.
    """

    ranks: Annotated[int, Field(ge=2, le=1 << 16)]
    message_s: _NotNegative
    byte_s: Positive
    reduce_s: Positive
    pair_message_s: _NotNegative | None = None
    pair_byte_s: Positive
    byte_spread: _Fraction | None = None
    measured: Annotated[tuple[Measured, ...], Field(max_length=1 << 16)]

    @model_validator(mode="after")
    def _once(self) -> Self:
        keys = sorted((row.algorithm, row.size_bytes) for row in self.measured)
        twice = [one for one, other in itertools.pairwise(keys) if one == other]
        if twice:
            raise ValueError(f"{twice[0][0]} of {twice[0][1]} bytes is there twice")
        return self

    @property
    def disturbed(self) -> bool:
        """Whether rounds disagree so much that it should be measured again."""
        return (self.byte_spread or 0.0) > MOST_SPREAD

    @property
    def link(self) -> Link:
        """The link of the cost model: a, b and g, and a and b of a pair."""
        pair = self.pair_message_s, self.pair_byte_s
        return Link(self.message_s, self.byte_s, self.reduce_s, *pair)

    @property
    def costs(self) -> Costs:
        """What sums take by the link's formula, and by what was measured of each algorithm."""
        times = ((row.algorithm, row.size_bytes, row.median_s) for row in self.measured)
        return Costs(self.link, points(self.link, self.ranks, times))

    def costs_at(self, pace_bits_per_s: float | None) -> Costs:
        """Return what sums take if each rank sends no faster than so; None for no limit."""
        costs = self.costs
        if pace_bits_per_s is None:
            return costs
        pace_s = 8 / pace_bits_per_s
        byte_s, pair_byte_s = (max(s, pace_s) for s in (self.byte_s, self.pair_byte_s))
        link = replace(costs.link, byte_s=byte_s, pair_byte_s=pair_byte_s)
        return replace(costs, link=link)


class LinkFile(Figures):
    """The whole file: figures, and where, when and how they were measured."""

    format: Literal["compressa.link"] = "compressa.link"
    format_version: Literal[1] = 1
    hosts: _Count = Field(description="of which the network namespaces differ")
    transport: str
    connections: _Count
    cpu: str
    cores: _Count
    system: str
    versions: dict[str, str]
    timestamp: AwareDatetime

    def check_fits(self, transport: str, where: str) -> None:
        """Check that it was measured over a transport.

        Args:
            transport: The one that these ranks use.
            where: What messages call the file.

        Raises:
            ConfigError: It was measured over another; the message says how to measure this one.
        """
        if transport == self.transport:
            return
        use = f"measure it with `{COMMAND} --transport {transport}`"
        if TRANSPORTS[transport].device:
            use = f"{transport} can not be measured yet: leave exchange.link out"
        raise ConfigError(
            f"{where}: transport: was measured over {self.transport!r}, and these ranks use "
            f"{transport!r}; {use}"
        )


def parse(text: str | bytes, where: str) -> LinkFile:
    """Read and check figures.

    Args:
        text: JSON.
        where: What messages call it.

    Raises:
        ConfigError: They are none; the message names the place, and what would be right.
    """
    fix = f"give a file that `{COMMAND} --out FILE` has written"
    return files.validated(LinkFile, text, where, fix)


def read(path: str | Path, where: str = "") -> LinkFile:
    """Read and check a file.

    Args:
        path: Where it is.
        where: What messages say before the path.

    Raises:
        ConfigError: It cannot be read, or is no such file; the message names the place.
    """
    try:
        text = files.read(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{where}{path}: cannot be read: {files.reason(error)}; write it with "
            f"`{COMMAND} --out FILE`"
        ) from error
    return parse(text, f"{where}{path}")


def write(path: Path, figures: LinkFile) -> None:
    """Write a file whole, or not at all; folders that are missing are made.

    Args:
        path: Where; a file that is there is replaced.
        figures: What it is to hold.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, f"{figures.model_dump_json(indent=1)}\n".encode())


@dataclass(frozen=True)
class AgreedLink:
    """What all ranks know of the link that rank 0's configuration names, if it names one.

    Attributes:
        figures: They, if they are known.
        missing: Where the file should be, if it is not there.
    """

    figures: LinkFile | None = None
    missing: str | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any] | None) -> AgreedLink:
        """Return what rank 0 has told.

        Args:
            message: What `offer` returned there; None where no file is named.

        Raises:
            pydantic.ValidationError: It is none.
        """
        if message is None:
            return cls()
        if "missing" in message:
            return cls(missing=str(message["missing"]))
        return cls(LinkFile.model_validate(message["figures"]))

    @classmethod
    def saved(cls, record: Mapping[str, Any] | None, where: Path) -> AgreedLink:
        """Return what a checkpoint holds; see `record`.

        Args:
            record: As JSON; None where there were no figures.
            where: The checkpoint, for messages.

        Raises:
            StateError: It holds something else.
        """
        if record is None:
            return cls()
        try:
            return cls(LinkFile.model_validate(record))
        except ValidationError as error:
            raise StateError(f"{where}: the link's figures are damaged: {error}") from error

    def record(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps, as JSON; None if there are no figures."""
        return None if self.figures is None else self.figures.model_dump(mode="json")

    def costs(self, pace_bits_per_s: float | None) -> Costs | None:
        """Return what sums take if each rank sends no faster than so; None without figures."""
        return None if self.figures is None else self.figures.costs_at(pace_bits_per_s)

    def check(self) -> None:
        """Check that no figures are due that nobody has.

        Raises:
            ConfigError: A file was named that is not there, and no checkpoint has the figures.
        """
        if self.missing is not None:
            raise ConfigError(
                f"exchange.link: {self.missing}: there is no such file on rank 0; write it with "
                f"`{COMMAND} --out {self.missing}`, or load a checkpoint, which has the figures"
            )


def offer(config: Config, transport: str) -> dict[str, Any] | None:
    """Return what rank 0 tells the others of the link that its configuration names.

    A file that is not there is no error yet: a checkpoint that is loaded next may have its figures.

    Args:
        config: `exchange.link` names the file.
        transport: The one that these ranks use.

    Returns:
        For `AgreedLink.of`, as JSON; None if no file is named.

    Raises:
        ConfigError: The file is wrong, or of another transport.
    """
    path = config.exchange.link
    if path is None:
        return None
    if not os.path.exists(path):
        return {"missing": path}
    figures = read(path, "exchange.link: ")
    figures.check_fits(transport, f"exchange.link: {path}")
    return {"figures": figures.model_dump(mode="json")}
