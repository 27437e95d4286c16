"""Fixtures that several test files share: real ranks, started once for the whole session."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch
from _ranks import Group, Pools, Zygote
from compressa.kernels.cuda._device import running_on
from emulated_cuda import SHARED, Emulated
from hypothesis import settings
from mirrored_cuda import Mirrored

# Tests of one folder may use what those of another define; so may ranks, which get this path.
sys.path += sorted({str(file.parent) for file in Path(__file__).parent.rglob("test_*.py")})

# A shared machine can stop for longer than any deadline per example.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Workers take one core each; emulated kernels are compiled once for all processes and runs."""
    sys.path.append(str(config.rootpath))  # last: an installed package goes before its sources
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)  # its threads spin, and would take the cores of other workers
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # so would those of processes that tests start
    if SHARED not in os.environ:
        os.environ[SHARED] = _kept_or_temporary(config)
        config.add_cleanup(lambda: os.environ.pop(SHARED, None))


def _kept_or_temporary(config: pytest.Config) -> str:
    """Name a folder for emulated kernels: in pytest's cache, or of this run if it has none."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        return str(config.cache.mkdir("cuda"))
    folder = tempfile.mkdtemp(prefix="compressa-cuda-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def pytest_collection_finish() -> None:
    """What is there now stays to the end, so the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Long-lived groups of ranks, by world size."""
    made = Pools(Zygote())
    yield made
    made.close()


@pytest.fixture
def two(pools: Pools) -> Group:
    """Two ranks, shared with other tests."""
    return pools.get(2)


@pytest.fixture
def four(pools: Pools) -> Group:
    """Four ranks, shared with other tests."""
    return pools.get(4)


@pytest.fixture
def fresh(pools: Pools) -> Iterator[Callable[[int], Group]]:
    """Make groups of ranks for one test alone; they are ended after it."""
    made: list[Group] = []

    def make(size: int) -> Group:
        made.append(pools.fresh(size))
        return made[-1]

    yield make
    for group in made:
        group.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--gpu`: the kernels for CUDA run where they belong."""
    parser.addoption("--gpu", action="store_true", help="run CUDA kernels on the GPU")


@pytest.fixture(scope="module")
def emulated_cuda(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have CUDA kernels take arrays of the CPU: emulated, or with `--gpu` on copies on the GPU."""
    on_gpu = request.config.getoption("--gpu")
    if not on_gpu and shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    with ExitStack() as stack:
        if on_gpu and hasattr(request.module, "Emulated"):  # those with a seed of their own, too
            stack.enter_context(mock.patch.object(request.module, "Emulated", Mirrored))
        stack.enter_context(running_on(Mirrored() if on_gpu else Emulated()))
        yield
