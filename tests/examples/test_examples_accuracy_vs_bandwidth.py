"""The notebook, run cell by cell: what it prints and draws is checked."""

from __future__ import annotations

import re
import warnings

import pytest
from _run_example import EXAMPLES

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of what it stands on
    import nbformat
    from nbclient import NotebookClient

FILE = EXAMPLES / "accuracy_vs_bandwidth.ipynb"
LINE = re.compile(r"^(\S.*?) +([\d.]+) MB +([\d.]+) times fewer +([\d.]+)%$", re.M)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_a_tenth_of_the_bytes_costs_hardly_any_accuracy() -> None:
    notebook = nbformat.read(FILE, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    *_, drawn, _, printed = notebook.cells
    assert any("image/png" in output.get("data", {}) for output in drawn.outputs)
    found = LINE.findall(printed.outputs[0].text)
    rows = {name: [float(figure) for figure in figures] for name, *figures in found}
    assert list(rows) == ["none", "int8", "int4", "onebit", "topk 5 %", "powersgd"]
    _, _, dense = rows["none"]
    assert dense > 93
    for name, (sent_mb, fewer, accuracy) in rows.items():
        assert sent_mb * fewer == pytest.approx(rows["none"][0], rel=0.05)
        assert accuracy > dense - 4, name
    assert 3 < rows["int8"][1] < 4
    assert rows["onebit"][1] > 10
