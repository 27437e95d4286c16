"""Where the engine works: what is refused says what helps, and nothing moves to the CPU unsaid."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from compressa.kernels import KernelUnavailable
from emulated_streams import DEVICE
from emulated_torch import CudaTensor, emulated_torch, on_cpu, on_gpu
from engines import engine_over
from torch import nn

from compressa.codecs import Int8
from compressa.codecs.fused import Fused
from compressa.config import Config, load_config, parameter_infos
from compressa.engine.device_stream import CudaDeviceStream, DeviceStream, device_stream_of
from compressa.engine.engine import Engine
from compressa.engine.start.startup import choose_transport
from compressa.errors import BackendUnavailable, ConfigError, StateError
from compressa.hooks.opening import _device
from compressa.wrappers import ErrorFeedback


@pytest.fixture
def gpu() -> Iterator[None]:
    with emulated_torch():
        yield


INT8 = Int8()


def engine_on(device_stream: DeviceStream, compressor: Any = INT8) -> Engine:
    net = nn.Linear(64, 64, bias=False)
    return engine_over(parameter_infos(net), {"weight": compressor}, device_stream=device_stream)


def tensors_on(*devices: str) -> Any:
    """Tensors as far as their devices go."""
    return [SimpleNamespace(device=torch.device(d)) for d in devices]


def test_the_lane_is_that_of_the_gradients() -> None:
    config = load_config({"compressor": "int8"})
    assert _device(config, nn.Linear(2, 2).parameters()) == torch.device("cpu")
    assert _device(config, tensors_on("cuda:1", "cuda:1")) == torch.device("cuda:1")
    assert type(device_stream_of(torch.device("cpu"))) is DeviceStream


def test_a_model_on_several_devices_is_refused() -> None:
    config = load_config({"compressor": "int8"})
    with pytest.raises(BackendUnavailable, match=r"several devices: cpu, cuda:0; .*move the whole"):
        _device(config, tensors_on("cpu", "cuda:0"))


def test_a_model_elsewhere_than_the_configuration_says_is_refused() -> None:
    config = load_config({"compressor": "int8", "engine": {"device": "cpu"}})
    with pytest.raises(BackendUnavailable, match=r'device = "cpu", but the model is on cuda:0'):
        _device(config, tensors_on("cuda:0"))


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match=r"type 'xpu'.*CPUs and NVIDIA GPUs only"):
        device_stream_of(torch.device("xpu"))


def test_a_gpu_that_kernels_can_not_use_is_refused_with_the_fix(gpu: None) -> None:
    reason = KernelUnavailable("no kernel without CuPy; pip install compressa[cuda12]")
    with (
        mock.patch("compressa.kernels.cuda.check_available", side_effect=reason),
        pytest.raises(BackendUnavailable, match=r"pip install compressa\[cuda12\]"),
    ):
        device_stream_of(DEVICE)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_too_little_memory_for_residuals_says_what_helps(gpu: None, error: Exception) -> None:
    with (
        mock.patch("compressa.aggregators.narrow.zeros", side_effect=error),
        pytest.raises(BackendUnavailable, match=r'residuals and payloads .*dtype = "bfloat16"'),
    ):
        engine_on(CudaDeviceStream(DEVICE), ErrorFeedback(codec=Int8()))


def test_too_little_memory_in_a_step_ends_it_with_an_error(gpu: None) -> None:
    encode = mock.Mock(side_effect=MemoryError("no 5 bytes left"))
    with mock.patch.multiple(Int8, encode=encode, fused=Fused()):
        engine = engine_on(CudaDeviceStream(DEVICE))
        ticket = engine.submit({"weight": on_gpu(torch.ones(64, 64))}, step=0)
        with pytest.raises(BackendUnavailable, match=r"the unit .*\(no 5 bytes left\)"):
            ticket.result(10.0)
    engine.close()


@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_a_gradient_on_another_device_is_refused(gpu: None, there: str) -> None:
    engine = engine_on(CudaDeviceStream(DEVICE) if there == "cuda" else DeviceStream())
    gradient = torch.ones(64, 64) if there == "cuda" else on_gpu(torch.ones(64, 64))
    with pytest.raises(
        StateError, match=r"gradient of 'weight' is on .*, and this engine works on"
    ):
        engine.submit({"weight": gradient}, step=0)
    engine.close()


def test_a_world_of_one_works_on_its_gpu_too(gpu: None) -> None:
    results = []
    for device_stream in (CudaDeviceStream(DEVICE), DeviceStream()):
        engine = engine_on(device_stream, ErrorFeedback(codec=Int8()))
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
        for step in range(3):
            gradient = x.clone() if device_stream.device.type == "cpu" else on_gpu(x)
            engine.wait([engine.submit({"weight": gradient}, step=step)])
        torch.cuda.current_stream().synchronize()
        results.append(on_cpu(gradient))
        engine.close()
    assert torch.equal(*results)


def test_transports_are_chosen_by_device_and_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group: Any = SimpleNamespace(size=lambda: 2)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    paced = load_config({"schedule": {"pace_bits_per_s": 1e8}})
    coded = load_config({"compressor": "int4", "exchange": {"entropy_level": 1}})
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with mock.patch("torch.distributed.get_backend_config", return_value="cpu:gloo,cuda:nccl"):
        assert choose_transport(Config(), group, gpu) == "nccl"
        assert choose_transport(Config(), group, cpu) == "tcp"
        assert choose_transport(paced, group, gpu) == "tcp"
        assert choose_transport(coded, group, gpu) == "tcp"
    with mock.patch("torch.distributed.get_backend_config", return_value="cpu:gloo,cuda:gloo"):
        assert choose_transport(Config(), group, gpu) == "tcp"
    wanted = load_config({"exchange": {"transport": "nccl"}})
    with pytest.raises(ConfigError, match=r"is for gradients on GPUs, .* on the cpu; use"):
        choose_transport(wanted, group, cpu)
    assert choose_transport(wanted, group, gpu) == "nccl"


def test_a_part_of_the_ranks_has_a_group_of_nccl_though_torch_would_split_one_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group: Any = SimpleNamespace(size=lambda: 2)
    gpu, wanted = torch.device("cuda", 0), load_config({"exchange": {"transport": "nccl"}})
    world = SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=gpu))
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    monkeypatch.setattr(dist, "group", world)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert choose_transport(Config(), group, gpu) == "nccl"
    assert choose_transport(wanted, group, gpu) == "nccl"


def test_what_is_not_ours_can_not_be_paced() -> None:
    paced = {"exchange": {"algorithm": "backend"}, "schedule": {"pace_bits_per_s": 1e8}}
    with pytest.raises(ConfigError, match="no backend can be paced"):
        load_config(paced)


def test_the_allocator_is_told_once_of_each_storage(gpu: None) -> None:
    stream, told = CudaDeviceStream(DEVICE), []
    bucket, alone = on_gpu(torch.ones(6)), on_gpu(torch.ones(2))

    def record(tensor: torch.Tensor, stream: Any) -> None:
        told.append((tensor.untyped_storage().data_ptr(), stream))

    with mock.patch.object(CudaTensor, "record_stream", record):
        stream.mark([bucket[:2], alone, bucket[2:4], bucket[4:]])
    streams, stored = (stream._ahead, stream.stream), (bucket, alone)
    due = {(x.untyped_storage().data_ptr(), each) for x in stored for each in streams}
    assert set(told) == due
    assert len(told) == 4
