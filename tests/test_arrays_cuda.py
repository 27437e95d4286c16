"""Tensors of a GPU as kernels take them; torch's part is played by what has its names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compressa.kernels.cuda import _gpu
from compressa.kernels.device_array import DeviceArray

from compressa import arrays
from compressa.errors import BackendUnavailable


@pytest.fixture(autouse=True)
def _no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu, "_hosts", [])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    arrays._serve_torch.cache_clear()


def gpu_tensor(dtype: torch.dtype) -> Any:
    return SimpleNamespace(
        is_cuda=True, data_ptr=lambda: 640, numel=lambda: 5, dtype=dtype, get_device=lambda: 0
    )


@pytest.mark.parametrize(
    ("dtype", "due"),
    [
        (torch.float32, "f4"),
        (torch.float16, "f2"),
        (torch.bfloat16, "u2"),
        (torch.uint8, "u1"),
        (torch.int32, "i4"),
    ],
)
def test_a_gpus_tensor_becomes_an_address_and_is_kept_alive(dtype: torch.dtype, due: str) -> None:
    tensor = gpu_tensor(dtype)
    array: Any = arrays.as_array(tensor)
    assert isinstance(array, DeviceArray)
    assert (array.pointer, array.size, array.dtype) == (640, 5, np.dtype(due))
    assert array.owner is tensor


def test_a_tensor_of_another_gpu_is_refused_and_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.raises(BackendUnavailable, match=r"on GPU 0 .* GPU 1 is current; .*set_device"):
        arrays.as_array(gpu_tensor(torch.float32))


def test_kernels_use_torchs_stream_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays.as_array(gpu_tensor(torch.float32))
    (host,) = _gpu._hosts
    monkeypatch.setattr(arrays, "_raw_stream", lambda gpu: 70 + gpu)
    assert host.stream() == 70
    monkeypatch.setattr(arrays, "_raw_stream", None)  # as in a torch without CUDA
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    assert host.stream() == 77
    plain, asked = torch.empty, []

    def empty(size: int, *, dtype: torch.dtype, device: str) -> torch.Tensor:
        asked.append(device)
        return plain(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty)
    memory = host.empty(12)
    assert asked == ["cuda"]
    assert isinstance(memory.owner, torch.Tensor)
    assert (memory.pointer, memory.size) == (memory.owner.data_ptr(), 12)


def test_a_cpus_tensor_is_numpys() -> None:
    assert isinstance(arrays.as_array(torch.ones(3, dtype=torch.bfloat16)), np.ndarray)
    assert not _gpu._hosts
