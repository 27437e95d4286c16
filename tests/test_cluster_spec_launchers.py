"""One cluster specification starts the roles by torchrun, by mpiexec and by Ray Train alike."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _roles
import pytest
from _page_ranks import free_port
from _ranks import Pools, same
from _ranks_mpi import MPIEXEC, missing
from _roles import SIZE, STEPS, WRONG, played

SCRIPT = str(Path(_roles.__file__))
WARM = "_ranks.Zygote.python"
TORCHRUN = [WARM, "-m", "torch.distributed.run", "--standalone"]
WAYS = {
    "torchrun": [*TORCHRUN, "--nproc-per-node", str(SIZE), SCRIPT],
    "mpiexec": [str(MPIEXEC), "-n", str(SIZE), WARM, SCRIPT],
    "ray": [sys.executable, SCRIPT],
}


@pytest.fixture(scope="module")
def reference(pools: Pools) -> list[Any]:
    """What processes find whose group was made without any of the launchers."""
    return pools.get(SIZE).run(played, port=1)


def started(way: str, folder: str, warm: str) -> list[Any]:
    """Start all roles; return what each found."""
    words = [warm if word == WARM else word for word in WAYS[way]]
    words += [folder, *(["ray"] if way == "ray" else [])]
    own = {"PYTHON_EXEC": warm}  # what torchrun starts
    own |= {"ROLES_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    own |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    own |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        words,
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            printed, _ = run.communicate(timeout=200.0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, printed
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(SIZE)]


@pytest.mark.ranks
@pytest.mark.timeout(300)  # Ray starts ten processes before its workers
@pytest.mark.parametrize("way", WAYS)
def test_each_launcher_starts_the_roles(way: str, reference: list[Any], pools: Pools) -> None:
    if way == "mpiexec" and missing():
        pytest.skip(missing())
    if way == "ray" and find_spec("ray") is None:
        pytest.skip("no ray here")
    # A short name, since it is part of those of Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        found = started(way, folder, pools.zygote.python)

    roles = [[rank, SIZE, 1, rank] for rank in range(SIZE)]
    assert [one["role"] for one in found] == roles

    for one in found:
        assert one["refused"].keys() == WRONG.keys()
        for kind in ("too few tasks", "too many tasks"):
            assert "start as many processes, one for each task" in one["refused"][kind]
        assert "kinds are chief, worker, ps and evaluator" in one["refused"]["a kind"]
        assert "has nobody who trains" in one["refused"]["nobody trains"]
        assert "give one of them as type and index" in one["refused"]["an index"]

    workers, server = found[:-1], found[-1]
    for name, training in (("served", workers), ("alone", found)):
        assert [one[name] for one in training] == [one[name] for one in reference[: len(training)]]
        same([one[name]["bits"] for one in training])
        assert all(last < 0.05 * first for first, last in (one[name]["losses"] for one in training))

    assert server["served"] is server["apart"] is None  # it kept the values
    same([one["apart"]["bits"] for one in workers])
    for one in workers:
        # Each push of each worker, once. What they learn depends on how late values are.
        assert one["apart"]["sent"] == [STEPS, STEPS + 10, 0.0]
