"""A twin: the engine over NCCL on one GPU, where a rank exchanges with one that has the same.

NCCL takes a GPU once only, so a machine with one has a group of one rank. What it sends to its twin
comes back to itself, as the twin's; so a sum of NCCL's and an all-gather are as between two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from engines import engine_over
from torch import nn

from compressa.compressor import Compressor
from compressa.config import Config, load_config, parameter_infos
from compressa.engine.device_stream import CudaDeviceStream, DeviceStream
from compressa.engine.engine import Engine
from compressa.transports.nccl import NcclTransport

SIDE, COUNT = 32, 4
NAMES = [f"{i}.weight" for i in range(COUNT)]


class TwinGroup:
    """A group of one that looks like two, of which this is the first.

    Args:
        inner: The group, real or emulated.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def allreduce(self, tensors: list[torch.Tensor]) -> _After:
        self.inner.allreduce(tensors).wait()
        tensors[0].mul_(2)
        return _After()

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor) -> _After:
        self.inner._allgather_base(own, own).wait()
        output.chunk(2)[1].copy_(own)
        return _After()

    def alltoall(self, received: list[torch.Tensor], sent: list[torch.Tensor]) -> Any:
        return self.inner.alltoall(received[1:], sent[1:])

    def abort(self) -> None:
        self.inner.abort()


class _After:
    """Work that is over when the current stream has come so far."""

    def __init__(self) -> None:
        self._event = torch.cuda.current_stream().record_event()

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)


def engine_of(
    compressor: Compressor,
    exchange: Mapping[str, Any],
    device_stream: DeviceStream,
    inner: Any,
    *,
    in_stream_order: bool = False,
) -> Engine:
    """Start an engine of a few units.

    Args:
        compressor: Of each.
        exchange: Settings.
        device_stream: Where it works.
        inner: The group of NCCL that twins use; None for a world of one without exchanges.
        in_stream_order: Whether others use that group, too.
    """
    transport = None
    if inner is not None:
        assert isinstance(device_stream, CudaDeviceStream)
        group: Any = TwinGroup(inner)
        transport = NcclTransport(
            group,
            1,
            device_stream.stream,
            60.0,
            lambda error: None,
            lambda seconds: None,
            shared=in_stream_order,
        )
    net = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(COUNT)))
    return engine_over(
        parameter_infos(net),
        dict.fromkeys(NAMES, compressor),
        config=config_of(exchange),
        transport=transport,
        device_stream=device_stream,
        in_stream_order=in_stream_order,
    )


def config_of(exchange: Mapping[str, Any]) -> Config:
    """Return settings with which every parameter is a unit."""
    sizes = {"unit_bytes": 4096, "unit_payload_bytes": 64, "unit_dense_bytes": 4096}
    return load_config({"compressor": "none", "exchange": {**exchange, **sizes}})


def values() -> dict[str, torch.Tensor]:
    """Return the gradients of a step."""
    made = torch.Generator().manual_seed(0)
    return {name: torch.randn(SIDE, SIDE, generator=made) for name in NAMES}


def means(engine: Engine, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Combine gradients, in place, in a step; return them."""
    tickets = [engine.submit({name: x}, step=0) for name, x in gradients.items()]
    engine.wait(tickets)
    return list(gradients.values())


def alone(compressor: Compressor, exchange: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return what a world of one makes of them on the CPU.

    Twins get the same where all payloads are gathered: half of it twice.
    """
    engine = engine_of(compressor, exchange, DeviceStream(), None)
    try:
        return means(engine, values())
    finally:
        engine.close()
