"""Live progress of a run in the terminal, one bar for the cells and one for the steps."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class LiveProgress:
    """Draws what a :class:`~lab.driver.Driver` tells it; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._title = ""
        self._started_s = 0.0

    def __enter__(self) -> LiveProgress:
        """Starts drawing."""
        self._bars.start()
        self._cells = self._bars.add_task("cells", total=None)
        self._steps = self._bars.add_task("starting", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops drawing; what has been printed stays."""
        self._bars.stop()

    def begin(self, total: int, note: str) -> None:
        """The run starts, with ``total`` jobs; ``note`` says where it runs."""
        self._console.print(note, highlight=False)
        self._bars.update(self._cells, total=total)

    def job(self, title: str, steps: int) -> None:
        """A job of so many steps starts."""
        self._title, self._started_s = title, time.monotonic()
        self._bars.reset(self._steps, total=steps, description=title)

    def step(self, step: int) -> None:
        """The job is at this step."""
        self._bars.update(self._steps, completed=step)

    def done(self, failure: str | None) -> None:
        """The job has ended: one line that stays."""
        took_s = time.monotonic() - self._started_s
        end = f"{took_s:.1f} s" if failure is None else f"[red]failed:[/red] {escape(failure)}"
        self._console.print(f"{self._title}: {end}", highlight=False)
        self._bars.advance(self._cells)
