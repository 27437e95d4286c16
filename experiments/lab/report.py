"""Everything that is made from a results folder: table, Markdown, plots, one HTML report.

Works on the partial folder of an interrupted run: what is not there yet is left out.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lab.derive import Results, write_rows
from lab.records import FailedRecord, read
from lab.table import markdown_table, rich_table

HTML_FILE = "report.html"
MARKDOWN_FILE = "table.md"


def render(results_dir: Path, console: Console) -> None:
    """Prints the table and writes ``results.jsonl``, ``table.md``, plots and ``report.html``.

    Args:
        results_dir: A folder with a ``cells.jsonl``; everything is written beside it.
        console: Where the table goes.

    Raises:
        FileNotFoundError: If the folder has no ``cells.jsonl``.
        ValueError: If a line of it is no record.
    """
    from lab.plots import save_html, save_plots  # matplotlib and plotly are needed here only

    records = read(results_dir)
    results = Results(records)
    failures = [record for record in records if isinstance(record, FailedRecord)]
    rows = results.rows()
    write_rows(results_dir, rows)
    (results_dir / MARKDOWN_FILE).write_text(markdown_table(rows), encoding="utf-8")
    save_plots(results, results_dir)
    save_html(results, failures, results_dir / HTML_FILE)
    console.print(rich_table(rows, console.width))
    for confirmation in results.confirmations():
        console.print(str(confirmation))
    for failure in failures:
        where = f"{failure.task}, {failure.compressor}, {failure.link or 'not shaped'}"
        console.print(f"[red]failed[/red] {where}: ", escape(failure.error.splitlines()[0]), sep="")
    console.print(f"Report: {results_dir / HTML_FILE}", highlight=False)
