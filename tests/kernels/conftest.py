"""The backends that kernels are tested on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compressa.kernels.cuda import _gpu, _select
from fake_cupy import FakeCuPy, forget

HERE = Path(__file__).parent
ON_A_GPU = {"every_backend", "emulated_cuda"}


@pytest.fixture(scope="module")
def every_backend(request: pytest.FixtureRequest) -> None:
    """Have CUDA kernels run here, as `emulated_cuda` does; without g++ the CPU's run alone."""
    if request.config.getoption("--gpu") or shutil.which("g++"):
        request.getfixturevalue("emulated_cuda")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCuPy]:
    """Put a CuPy that only takes notes in the place of CuPy."""
    fake = FakeCuPy()
    monkeypatch.setenv("COMPRESSA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(_gpu, "_hosts", [])
    forget()
    yield fake
    forget()


@pytest.fixture
def sampled_early(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have CUDA select by a sample where it does not pay yet; return from which size on."""
    monkeypatch.setattr(_select, "LEAST_SAMPLED", 2 * _select.SAMPLE)
    return 2 * _select.SAMPLE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--gpu`, leave out what does not run on it."""
    if config.getoption("--gpu"):
        others = [item for item in items if HERE in item.path.parents and not runs_there(item)]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


def runs_there(item: pytest.Item) -> bool:
    """Whether a test runs kernels on a GPU if there is one."""
    return bool(ON_A_GPU & set(getattr(item, "fixturenames", ())))
