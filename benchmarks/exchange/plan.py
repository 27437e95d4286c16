"""Plan: which rows are wanted, in an order in which hosts and ranks are started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from benchmarks import runner
from benchmarks.exchange.method import Method
from benchmarks.exchange.parts import PARTS, Part
from benchmarks.runner import refuse_unmatched


class Cell(NamedTuple):
    """One row that is wanted.

    Attributes:
        part: Name of the part.
        method: What is measured.
        size_bytes: Of what.
        rounds: How often; 0 for as often as the budget allows.
    """

    part: str
    method: Method
    size_bytes: int
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Settings(runner.Settings):
    """What is to be measured; what is left out is as the parts have it.

    Attributes:
        hosts: Numbers of hosts.
        links: Speeds of their links, as `LinkSpec` writes them.
        sizes_bytes: Of what is summed, or of what each rank gives.
        longest_s: Longest operation, by its formula; the more bytes a method needs than the best,
            the shorter is its own.
    """

    known: ClassVar[Sequence[str]] = tuple(PARTS)

    parts: Sequence[str] = known
    budget_s: float = 0.5
    hosts: Sequence[int] = ()
    links: Sequence[str] = ()
    sizes_bytes: Sequence[int] = ()
    longest_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        super().__post_init__()
        wanted = [method.name for name in self.parts for method in PARTS[name].methods]
        refuse_unmatched("--what", self.pattern, wanted)

    def chosen(self) -> Mapping[str, Part]:
        """Return the parts with methods that match, changed as these settings say."""
        found: dict[str, Part] = {}
        for name in self.parts:
            part = PARTS[name]
            found[name] = replace(
                part,
                methods=[method for method in part.methods if self.matches(method.name)],
                hosts=self.hosts or part.hosts,
                links=self.links or part.links,
                sizes_bytes=self.sizes_bytes or part.sizes_bytes,
            )
        return {name: part for name, part in found.items() if part.methods}

    def all_hosts(self) -> list[int]:
        """Return the numbers of hosts, in ascending order."""
        return sorted({hosts for part in self.chosen().values() for hosts in part.hosts})

    def links_of(self, hosts: int) -> list[str]:
        """Return the links that so many hosts are measured on."""
        return list(dict.fromkeys(link for part in self._on(hosts) for link in part.links))

    def most_bytes(self, hosts: int) -> int:
        """Return the largest size on so many hosts."""
        return max(size for part in self._on(hosts) for size in part.sizes_bytes)

    def _on(self, hosts: int) -> list[Part]:
        return [part for part in self.chosen().values() if hosts in part.hosts]

    def cells(self, hosts: int, link: str, wanted: Callable[[Method], bool]) -> Iterator[Cell]:
        """Yield the rows of one place, all methods of a size one after the other.

        So a noisy time disturbs all methods alike.
        """
        for name, part in self.chosen().items():
            for size_bytes in part.sizes_bytes:
                if hosts in part.hosts and link in part.links:
                    for method in filter(wanted, part.methods):
                        yield Cell(name, method, size_bytes, part.rounds)
