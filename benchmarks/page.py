"""`python -m benchmarks.page`: write the figures of two pages from what is committed.

They are docs/performance.md and, for `diloco`, docs/guides/strategies.md.

Everything between `<!-- kernels:begin -->` and `<!-- kernels:end -->` comes from the file that
`python -m benchmarks kernels --json docs/measurements/kernels.json` leaves; targets are those of
`benchmarks.kernels.CASES`. Likewise for `exchange`, `schedule` and `steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.diloco import DiLoCoMeasurement
from benchmarks.diloco import shown as diloco_shown
from benchmarks.exchange.records import ExchangeMeasurement
from benchmarks.exchange.tables import shown as exchange_shown
from benchmarks.kernels import Measurement
from benchmarks.kernels.tables import shown as kernels_shown
from benchmarks.schedule.records import ScheduleMeasurement
from benchmarks.schedule.tables import shown as schedule_shown
from benchmarks.steps.records import StepsMeasurement
from benchmarks.steps.tables import shown as steps_shown
from harness import records
from harness.runner import Shown, as_page
from harness.tables import with_block

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, STRATEGIES = DOCS / "performance.md", DOCS / "guides" / "strategies.md"
MEASUREMENTS = DOCS / "measurements"
NONE_YET = "No measurement is committed yet.\n"

BLOCKS: dict[str, tuple[type[records.Measurement], Callable[[Any], Shown]]] = {
    "kernels": (Measurement, kernels_shown),
    "exchange": (ExchangeMeasurement, exchange_shown),
    "schedule": (ScheduleMeasurement, schedule_shown),
    "steps": (StepsMeasurement, steps_shown),
    "diloco": (DiLoCoMeasurement, diloco_shown),
}
"""By the name of its comments and of the file: what is read, and what is shown of it."""

PAGES = {PAGE: [name for name in BLOCKS if name != "diloco"], STRATEGIES: ["diloco"]}
"""The blocks of each page."""


def block_of(name: str, folder: Path = MEASUREMENTS) -> str:
    """Return what stands between the two comments of a name.

    Args:
        name: Of `BLOCKS`.
        folder: Holds the file, and a plot if there is one; without the file, the block says so.

    Raises:
        ConfigError: The file holds no such measurement.
    """
    file, (kind, shown) = folder / f"{name}.json", BLOCKS[name]
    if not file.exists():
        return NONE_YET
    measured, plot = kind.read(file), file.with_suffix(".png")
    parts = [f"{measured.when_and_where}\n", *as_page(shown(measured))]
    if plot.exists():
        parts.append(f"![Time by number of elements]({folder.name}/{plot.name})\n")
    return "\n".join(parts)


def up_to_date(page: Path, folder: Path = MEASUREMENTS) -> str:
    """Return the text of one of the pages with the figures that a folder holds.

    Raises:
        ConfigError: A file there holds no such measurement.
        ValueError: The page lacks the comments of a block.
    """
    text = page.read_text(encoding="utf-8")
    for name in PAGES[page]:
        text = with_block(text, name, block_of(name, folder))
    return text


def main() -> None:
    """Bring the pages up to date."""
    for page in PAGES:
        page.write_text(up_to_date(page), encoding="utf-8")


if __name__ == "__main__":
    main()
