"""Runs a benchmark: what all of them do alike at the command line, and how results are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import typer
from rich.console import Console

from compressa.errors import ConfigError
from harness.records import Measurement
from harness.tables import Table, laid_out, markdown

M_co = TypeVar("M_co", bound=Measurement, covariant=True)
M = TypeVar("M", bound=Measurement)

Shown = Iterable[Table | str]
"""Tables and sentences, in the order in which they are shown; a table may have no lines."""

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all rows to this file.")
]
Update = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write to this file; rows of it that are not measured again stay."
    ),
]
What = Annotated[str, typer.Option(help="Only methods whose names match this pattern.")]


class Bench(Protocol[M_co]):
    """Measures one row after the other."""

    @property
    def found(self) -> M_co:
        """What was measured so far."""

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, each time that there is a row more."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be measured of a benchmark that has parts.

    Attributes:
        known: The names of all parts.
        parts: Of those that are wanted.
        pattern: That names of methods match.
        budget_s: Seconds for what is measured at a time.

    Raises:
        ConfigError: There is no such part.
    """

    known: ClassVar[Sequence[str]]

    parts: Sequence[str]
    pattern: str = "*"
    budget_s: float

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        refuse_strangers("--part", self.parts, self.known)

    def matches(self, method: str) -> bool:
        """Whether a method of this name is wanted."""
        return fnmatchcase(method, self.pattern)


def parts_option(parts: Iterable[str]) -> Any:
    """Return the option that chooses among the parts of a benchmark."""
    return typer.Option(
        help=f"What to measure, several times: {', '.join(parts)}; all if left out."
    )


def given(**options: Sequence[Any] | None) -> dict[str, Any]:
    """Leave out what was left out, and what was given twice."""
    return {name: list(dict.fromkeys(several)) for name, several in options.items() if several}


def refuse_strangers(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that there is not.

    Args:
        option: Where it was given, for the message.
        given: Names.
        known: Those that there are.

    Raises:
        ConfigError: There is one.
    """
    there = list(known)
    strangers = [name for name in given if name not in there]
    if strangers:
        raise ConfigError(f"{option}: there is no {strangers[0]!r}; there are: {', '.join(there)}")


def refuse_unmatched(option: str, pattern: str, names: Iterable[str]) -> None:
    """Refuse a pattern that no name matches.

    Args:
        option: Where it was given, for the message.
        pattern: As `fnmatch` has it.
        names: Those that there are.

    Raises:
        ConfigError: It is such a one.
    """
    known = list(dict.fromkeys(names))
    if not any(fnmatchcase(name, pattern) for name in known):
        there = ", ".join(known)
        raise ConfigError(f"{option}: no name matches {pattern!r}; there are: {there}")


def carry_out(
    bench: Bench[M],
    shown: Callable[[M], Shown],
    json_file: Path | None = None,
    update: Path | None = None,
) -> None:
    """Measure all and show it; what the file had before is shown too.

    Args:
        bench: What is measured.
        shown: What is shown of it.
        json_file: See `measure`.
        update: See `measure`.

    Raises:
        ConfigError: See `measure`.
    """
    measured, console = measure(bench, json_file, update), Console()
    for part in shown(measured):
        text = part.caption if isinstance(part, Table) else part
        if text:
            console.print(f"\n{text}", highlight=False, markup=False)
        if isinstance(part, Table) and part.lines:
            console.print(laid_out(part))


def measure(bench: Bench[M], json_file: Path | None = None, update: Path | None = None) -> M:
    """Measure all, and keep the file up to date, so that a run that is ended leaves a part.

    Args:
        bench: What is measured.
        json_file: Where it is written anew, if anywhere.
        update: A file whose rows stay where nothing newer is measured; written likewise.

    Returns:
        What the file has.

    Raises:
        ConfigError: Both files are given; or the older one can not be brought up to date here.
    """
    if json_file is not None and update is not None:
        raise ConfigError("--json writes a new file and --update an older one: give one of them")
    file, known = json_file or update, None
    if update is not None and update.exists():
        known = type(bench.found).read(update)

    def kept() -> M:
        newer = bench.found
        found = newer if known is None else known.updated(newer)
        if file is not None and any(newer.kinds.values()):
            found.write(file)
        return found

    kept()  # a file of another machine is refused before anything is measured
    with Console(stderr=True).status("measuring") as status:
        for what in bench.run():
            kept()
            status.update(what)
    return kept()


def as_page(shown: Shown) -> list[str]:
    """Return the paragraphs of what is shown, in Markdown; tables without lines are left out."""
    paragraphs = []
    for part in shown:
        if isinstance(part, str):
            paragraphs.append(part.replace("*", "\\*") + "\n")
        elif part.lines:
            caption = f"{part.caption}.\n\n" if part.caption else ""
            paragraphs.append(caption + markdown(part))
    return paragraphs
