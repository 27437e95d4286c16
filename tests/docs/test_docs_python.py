"""The Python of every page runs, on two ranks, as a reader would run it who reads from the top."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _documents import DOCS, Block, blocks, name, pages
from _page_ranks import as_by_torchrun, run_page
from _ranks import Group

QUICKSTART = DOCS / "quickstart.md"
START, END, OWN_MODEL = "init_process_group", "stats = handle.stats()", "DataParallel(net"


def of_file(page: Path, title: str) -> Block:
    (found,) = (block for block in blocks(page) if block.title == title)
    return found


def prelude(page: Path) -> list[list[str]]:
    """Return what a page goes on from that does not begin a script of its own.

    That is Quickstart's script, up to where it makes its model if the page makes one.
    """
    own = "".join(block.code for block in blocks(page) if block.runs)
    if "import " in own and START in own:
        return []
    script = of_file(QUICKSTART, "train.py")
    end = "model = " if OWN_MODEL in own else END
    head, found, _ = script.code.partition(end)
    assert found, f"{script.location}: it has no {end!r}"
    return [[script.location, head]]


def write_files(page: Path, folder: Path) -> None:
    """Write what the page calls files, and the configuration of Quickstart if it has none."""
    titled = [of_file(QUICKSTART, "compressa.toml"), *blocks(page)]
    for block in titled:
        if block.title not in ("", "output"):
            (folder / block.title).write_text(block.code, encoding="utf-8")


def shape(output: str) -> str:
    """Return an output without what is behind decimal points: it differs between machines."""
    return re.sub(r"-?(\d+)\.\d+", r"\1.x", output)


RUN = [page for page in pages() if any(block.runs for block in blocks(page))]


@pytest.mark.ranks
@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in RUN])
def test_the_python_of_a_page_runs(
    page: Path, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    write_files(page, tmp_path)
    code = prelude(page) + [[block.location, block.code] for block in blocks(page) if block.runs]
    ranks = as_by_torchrun(2)
    how = {"folder": str(tmp_path), "code": code, "deadline_s": 150}
    said, _ = fresh(2).run(run_page, per_rank=ranks, **how)
    shown = "".join(block.code for block in blocks(page) if block.title == "output")
    assert not shown or shape(said) == shape(shown)
