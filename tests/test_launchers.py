"""What launchers set is read, in the order in which it holds, and what is missing is named."""

from __future__ import annotations

import pytest

from compressa.errors import ConfigError
from compressa.launchers import Launched, first_host, launched

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "node[07-09,12]",
    "SLURM_JOB_ID": "1000",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}


def test_each_launcher_says_who_this_is() -> None:
    assert launched(HYDRA) == Launched(1, 2, 1, True, None, None)
    assert launched(OPEN_MPI) == Launched(2, 4, 0, True, None, None)
    assert launched(SLURM) == Launched(5, 8, 1, False, "node07", 16000)


def test_torchrun_counts_first_where_it_may_have_started_this() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    torchrun |= {"MASTER_ADDR": "head", "MASTER_PORT": "29500"}
    for outer in ({}, HYDRA, SLURM):
        told = launched(outer | torchrun, torchrun=True)
        assert told == Launched(3, 4, 1, False, "head", 29500)
    assert launched(HYDRA | torchrun).rank == 1
    with pytest.raises(ConfigError, match=r"none of RANK, .* by torchrun, mpiexec or srun"):
        launched({}, torchrun=True)


def test_a_step_has_its_own_ranks_and_hosts_and_port() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NODELIST": "node12", "SLURM_STEP_ID": "3"}
    assert launched(SLURM | step) == Launched(5, 6, 1, False, "node12", 16003)


def test_mpiexec_within_a_slurm_job_counts_before_the_job() -> None:
    batch = SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert launched(batch | HYDRA) == launched(HYDRA)
    assert launched(batch | OPEN_MPI) == launched(OPEN_MPI)


def test_what_the_user_says_counts_first() -> None:
    for launcher in (HYDRA, OPEN_MPI, SLURM):
        said = launched(launcher | {"MASTER_ADDR": "head", "MASTER_PORT": "29500"})
        assert (said.host, said.port) == ("head", 29500)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("login", "login"),
        ("a1,a2", "a1"),
        ("node[1-3,7]", "node1"),
        ("node[01-10]", "node01"),
        ("node[7]", "node7"),
        ("rack[1-2]n[5,8]-ib,x", "rack1n5-ib"),
        ("gpu-[3,1].site.org", "gpu-3.site.org"),
    ],
)
def test_the_first_host_of_a_list_is_found(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize("nodes", ["", "node[", "node[]", "node[1-3", "a b", "n[1-2;3]"])
def test_a_list_that_is_none_is_refused(nodes: str) -> None:
    with pytest.raises(ConfigError, match="set MASTER_ADDR"):
        first_host(nodes)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "none of OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID is set"),
        ({"PMI_RANK": "0"}, "not PMI_SIZE"),
        ({"SLURM_PROCID": "0"}, "not SLURM_STEP_NUM_TASKS or SLURM_NTASKS"),
        (HYDRA | {"PMI_RANK": "2"}, "PMI_RANK = 2, .* from 0 to 1"),
        (HYDRA | {"PMI_SIZE": "two"}, "PMI_SIZE = two"),
        (HYDRA | {"MASTER_PORT": "70000"}, "MASTER_PORT = 70000"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "-1"}, "LOCAL_RANK = -1"),
        ({k: v for k, v in SLURM.items() if "LIST" not in k}, "none of SLURM_STEP_NODELIST"),
        ({k: v for k, v in SLURM.items() if k != "SLURM_JOB_ID"}, "JOB_ID"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environment: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        launched(environment)
