"""from/tensorflow.md: a cluster specification starts workers and servers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _documents import DOCS, block_with
from _page_ranks import free_port, run_page
from _ranks import Group

PAGE = DOCS / "from" / "tensorflow.md"
TASKS = [("worker", 0), ("worker", 1), ("ps", 0)]


def environments(told: str) -> list[dict[str, dict[str, str]]]:
    """Return what each process is told: its task, or its rank by the launcher."""
    cluster = json.loads(block_with(PAGE, "json", "cluster").code)["cluster"]
    cluster["worker"][0] = f"127.0.0.1:{free_port()}"
    if told == "all":
        tasks = [{"type": kind, "index": index} for kind, index in TASKS]
        lines = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
        return [{"environment": {"TF_CONFIG": line}} for line in lines]
    common = {"TF_CONFIG": json.dumps({"cluster": cluster}), "OMPI_COMM_WORLD_SIZE": "3"}
    return [{"environment": common | {"OMPI_COMM_WORLD_RANK": str(rank)}} for rank in range(3)]


@pytest.mark.ranks
@pytest.mark.parametrize("told", ["all", "by the launcher"])
def test_a_cluster_specification_starts_roles(
    told: str, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    script = block_with(PAGE, "python", "role.strategy")
    how = {"folder": str(tmp_path), "code": [[script.location, script.code]], "deadline_s": 150}
    ranks = fresh(len(TASKS))
    *workers, server = ranks.run(run_page, per_rank=environments(told), **how)
    for index, said in enumerate(workers):
        assert re.fullmatch(rf"worker {index}: the loss is \d\.\d+\n", said)
    assert server == ""
