"""The doctor names what is amiss and what to do, and tells faults from what could be better."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import run
from compressa.kernels import compiled

from compressa.cli import _install_checks as install
from compressa.cli import _machine_checks as machine
from compressa.cli import _network_checks as network
from compressa.cli._finding import Finding
from compressa.engine.start import cores
from compressa.errors import TransportError
from compressa.transports import rendezvous

CHECKS = [
    "compressa",
    "torch",
    "packages",
    "optional packages",
    "GPU",
    "transports",
    "kernels",
    "processor",
    "cores",
    "clock",
    "testbed",
    "interfaces",
    "ranks listen on",
    "host name",
]


def test_every_check_is_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == CHECKS
    assert all(each["found"] for each in found)
    assert all(each["advice"] for each in found if each["state"] != "ok")
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in CHECKS)


def test_a_fault_ends_with_status_1_and_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert run("doctor", "--json") == 1
    (fault,) = (f for f in json.loads(capsys.readouterr().out) if f["state"] == "fault")
    assert fault["name"] == "ranks listen on"
    assert 'GLOO_SOCKET_IFNAME is "nosuch0"' in fault["found"]
    assert "unset GLOO_SOCKET_IFNAME" in fault["advice"]


def test_without_torch_the_packages_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    assert run("doctor", "--json") == 1
    found = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert list(found) == CHECKS[:4]
    assert found["torch"]["state"] == "fault"
    assert "--index-url https://download.pytorch.org/whl/cpu" in found["torch"]["advice"]


def test_a_missing_package_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_version", lambda name: None if name == "numba" else "1")
    found = install._needed()
    assert (found.state, found.found) == ("fault", "numba not installed")


def gpu(
    monkeypatch: pytest.MonkeyPatch, driver: Path, cuda: str | None, devices: int = 0
) -> Finding:
    monkeypatch.setattr(install, "_DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    return install._gpu()


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """What NVIDIA's driver says of itself."""
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n")
    return file


def test_a_build_for_cuda_without_a_gpu_is_weighed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, size in (("torch", 1_600_000_000), ("nvidia", 4_000_000_000)):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "lib.so").open("wb") as file:
            file.truncate(size)  # takes no room on most file systems
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    found = gpu(monkeypatch, tmp_path / "absent", "13.0")
    assert found.state == "note"
    assert "takes 5.6 GB" in found.found
    assert "https://download.pytorch.org/whl/cpu" in found.advice


@pytest.mark.parametrize(
    ("cuda", "says", "advises"),
    [
        (None, "driver 580.65.06, but torch is built for the CPU", "build for CUDA"),
        ("13.0", "driver 580.65.06, but torch sees no GPU", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_noted(
    cuda: str | None, says: str, advises: str, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gpu(monkeypatch, driver, cuda)
    assert (found.state, found.found) == ("note", says)
    assert advises in found.advice


def test_a_gpu_needs_cupy_for_its_cuda(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cupy" else real(name)
    )
    found = gpu(monkeypatch, driver, "12.8", devices=2)
    assert found.state == "note"
    assert "GPU 0, GPU 1; driver 580.65.06" in found.found
    assert "compressa[cuda12]" in found.advice


def test_kernels_are_compiled_or_will_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    (tmp_path / "0-of-another-version.compiled").touch()
    found = install._kernels()
    assert found.state == "note"
    assert "python -m compressa.kernels.compile" in found.advice
    compiled.compile_once("a kernel", lambda: None)
    assert install._kernels() == Finding("kernels", f"compiled: 1 sets in {tmp_path}")
    monkeypatch.setattr(compiled, "_folder", lambda: None)
    assert "NUMBA_CACHE_DIR" in install._kernels().advice


@pytest.mark.parametrize(
    ("ranks", "threads", "advice"),
    [
        (4, "2", ""),
        (4, "3", "export OMP_NUM_THREADS=2"),
        (4, None, "export OMP_NUM_THREADS=2"),
        (1, None, ""),
        (9, "1", "start 8 at most"),
    ],
)
def test_threads_of_all_ranks_fit_the_cores(
    ranks: int, threads: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "own_host", lambda: cores.Host("m", frozenset(range(8)), 8))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert machine._cores(ranks).advice == advice
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert machine._cores(None).advice == advice


def test_a_slow_clock_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CLOCK", tmp_path / "clock")
    assert machine._clock().state == "ok"  # not known
    (tmp_path / "clock").write_text("hpet\n")
    assert machine._clock().found.startswith("hpet")
    assert machine._clock().state == "note"


def test_the_testbed_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        machine, "_tried", lambda command: SimpleNamespace(returncode=1, stderr="no\nnot permitted")
    )
    found = machine._testbed()
    assert found.found.endswith("not permitted")
    assert "user namespaces" in found.advice
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._testbed().found == "needs ip, tc, unshare"


def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_WAIT_S", 0.1)
    done = machine._tried(["sleep", "30"])
    assert (done.returncode, done.stderr) == (1, "no answer in 0.1 s")


@pytest.mark.netns
def test_the_testbed_is_there_for_root() -> None:
    assert machine._testbed() == Finding("testbed", "shaped network namespaces, by root")


LO = network.Interface("lo", "127.0.0.1", 65536, None)
ETH = network.Interface("eth0", "10.0.0.7", 1500, 10_000)


def listening(monkeypatch: pytest.MonkeyPatch, address: str) -> Finding:
    monkeypatch.setattr(rendezvous, "local_address", lambda: address)
    return network.chosen([LO, ETH])


def test_an_address_that_others_reach_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    found = listening(monkeypatch, "10.0.0.7")
    assert (found.state, found.found) == ("ok", "10.0.0.7 of eth0, by GLOO_SOCKET_IFNAME")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_an_address_of_this_machine_only_is_noted(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found = listening(monkeypatch, address)
    assert found.state == "note"
    assert "export GLOO_SOCKET_IFNAME=eth0" in found.advice


def test_interfaces_are_listed_and_small_packets_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lo 127.0.0.1 (MTU " in network._listed(network.interfaces()).found
    assert str(ETH) == "eth0 10.0.0.7 (MTU 1500, 10000 Mbit/s)"
    tunnel = network.Interface("wg0", "10.1.0.7", 1420, None)
    assert network._listed([LO, ETH]).state == "ok"
    found = network._listed([LO, ETH, tunnel])
    assert (found.state, "small MTU on wg0" in found.found) == ("note", True)


def test_a_host_name_without_an_address_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = network._host_name()
    assert found.state == "note"
    assert "/etc/hosts" in found.advice


def test_an_interface_has_an_address_or_says_so() -> None:
    assert rendezvous.interface_address("lo") == "127.0.0.1"
    with pytest.raises(TransportError, match="name one of"):
        rendezvous.interface_address("nosuch0")
