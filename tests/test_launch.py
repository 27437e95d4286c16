"""Process groups of ranks that mpiexec or srun started."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _ranks import Pools
from _ranks_mpi import missing, mpi_group

from compressa.errors import ConfigError
from compressa.launch import init_from_mpi


def met(environment: Mapping[str, str] | None = None) -> list[Any]:
    """Join by what a launcher has set; return the role, the rank in the group, and a sum."""
    with mock.patch.dict(os.environ, environment or {}):
        role = init_from_mpi(timeout=timedelta(seconds=20))
    total = torch.tensor([float(role.rank)])
    dist.all_reduce(total)
    found = [role.rank, role.size, role.local_rank, dist.get_rank(), total.item()]
    dist.destroy_process_group()
    return found


@pytest.mark.ranks
@pytest.mark.skipif(bool(missing()), reason=missing() or "all is here")
def test_ranks_of_mpiexec_meet_by_mpi_and_where_they_are_told(pools: Pools) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    with mpi_group(pools, 2, meet=False) as group:
        for told in ({}, {"MASTER_ADDR": "localhost"}, rendezvous):
            found = group.run(met, environment=told)
            assert sorted(found) == [[0, 2, 0, 0, 1.0], [1, 2, 1, 1, 1.0]]
        assert group.leave_all(20.0) == 0


@pytest.mark.ranks
def test_ranks_of_srun_meet_on_the_first_host_of_its_list(pools: Pools) -> None:
    job = {"SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "localhost,other[1-3]"}
    job |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}
    ranks = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"} for rank in range(2)]
    group = pools.strangers(2)
    try:
        found = group.run(met, per_rank=[{"environment": job | own} for own in ranks])
    finally:
        group.end()
    assert found == [[0, 2, 0, 0, 1.0], [1, 2, 0, 1, 1.0]]


def test_without_mpi4py_the_address_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressa.launch.find_spec", lambda name: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="MASTER_ADDR and MASTER_PORT must say"):
        init_from_mpi()
    monkeypatch.setenv("MASTER_ADDR", "head")
    with pytest.raises(ConfigError, match=r"^MASTER_PORT must say"):
        init_from_mpi()
