"""What registration compiles and loads for a GPU: whatever training will launch there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from compressa.kernels import KernelUnavailable
from compressa.kernels.cuda._many import companion
from emulated_streams import DEVICE
from emulated_torch import StreamedEmulated, emulated_torch, on_gpu

from compressa.codecs import Int8
from compressa.codecs.base import Codec
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.config import Config
from compressa.engine import compilation
from compressa.engine.compilation import compile_kernels, compile_on_all_ranks
from compressa.engine.device_stream import CudaDeviceStream
from compressa.errors import BackendUnavailable
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.wrappers import ErrorFeedback

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SIZE = 3
MODEL = [ParameterInfo(0, "weight", (24, 40)), ParameterInfo(1, "vector", (97,))]


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    with mock.patch.object(compilation, "_compiled", set()):
        yield


@contextmanager
def launches() -> Iterator[set[str]]:
    """Note the sources of which a kernel is launched."""
    found: set[str] = set()
    launch = StreamedEmulated.launch

    def noted(self: Any, source: str, *others: Any) -> None:
        found.add(source)
        launch(self, source, *others)

    with mock.patch.object(StreamedEmulated, "launch", noted):
        yield found


def by_default(name: str) -> Compressor:
    compressor = COMPRESSORS[name].compressor()
    wanted = isinstance(compressor, Codec) and compressor.error_feedback
    return ErrorFeedback(codec=compressor) if wanted else compressor


@pytest.mark.parametrize("name", sorted(COMPRESSORS.keys() - {"oktopk", "none"}))
def test_training_launches_nothing_of_a_source_that_registration_has_not(name: str) -> None:
    compressor = by_default(name)
    with emulated_torch():
        with launches() as loaded, CudaDeviceStream(DEVICE).current():
            compile_kernels(MODEL, {p.name: compressor for p in MODEL}, Config(), SIZE, DEVICE)
        world = LoopbackWorld(SIZE, MODEL, compressor, device=DEVICE)
        random = torch.Generator().manual_seed(0)
        given = [
            {p.name: on_gpu(torch.randn(p.shape, generator=random)) for p in MODEL}
            for _ in range(SIZE)
        ]
        with launches() as launched:
            world.step(given, loss_scale=64.0, hold_zeros=True)
            world.rollback()
            world.step(given)
    assert loaded
    assert launched <= loaded | {companion(source) for source in loaded}


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        (
            KernelUnavailable("blockwise.cu can not be compiled; pip install nvidia-cuda-nvrtc"),
            "pip install nvidia-cuda-nvrtc",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "no memory for a trial of all kernels.*make the batch smaller",
        ),
    ],
    ids=["compiler", "memory"],
)
def test_a_kernel_that_can_not_be_loaded_ends_the_registration_with_the_fix(
    reason: Exception, fix: str
) -> None:
    with emulated_torch():
        session: Any = SimpleNamespace(
            device_stream=CudaDeviceStream(DEVICE), size=2, all_gather=lambda *_: []
        )
        with (
            mock.patch.object(StreamedEmulated, "launch", side_effect=reason),
            pytest.raises(BackendUnavailable, match=fix),
        ):
            compile_on_all_ranks(session, MODEL, {p.name: Int8() for p in MODEL}, Config())
