"""Uses: the places of a configuration that name a compressor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from compressa.compressor import Compressor
from compressa.config.mistakes import Path
from compressa.config.settings import Settings


class Use(NamedTuple):
    """One place that names a compressor.

    Attributes:
        path: The place.
        compressor: What it names.
        feedback: `feedback.kind`, as it is for this one.
        feedback_path: Where that is set.
    """

    path: Path
    compressor: Compressor
    feedback: str
    feedback_path: Path

    @property
    def name(self) -> str:
        """The compressor's."""
        return self.compressor.name


def uses_of(config: Settings) -> Iterator[Use]:
    """Yield each place in turn."""
    kind, path = config.feedback.kind, ("feedback", "kind")
    yield Use(("compressor",), config.compressor.build(), kind, path)
    for index, rule in enumerate(config.rules):
        place: Path = ("rules", index)
        own = rule.feedback is not None
        yield Use(
            (*place, "compressor"),
            rule.compressor.build(),
            rule.feedback or kind,
            (*place, "feedback") if own else path,
        )
    if config.warmup.steps and not config.warmup.densities:
        yield Use(("warmup", "compressor"), config.warmup.compressor.build(), kind, path)
