"""Exchanges on the model's own process group, in one order with the collectives of the model.

Two emulated ranks in one process. NCCL pairs their calls by order alone, and what differs, or waits
for ever, is a fault.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from _until import until
from emulated_nccl import Fabric, OneOf
from emulated_streams import DEVICE, Stream, stream_context
from emulated_torch import emulated_torch, on_cpu, on_gpu
from engines import engine_over
from nccl_twin import NAMES, SIDE, config_of
from torch import nn

from compressa.codecs import DGC, Fp8, Int8, NoCompression, TopK
from compressa.compressor import Compressor
from compressa.config import load_config, parameter_infos
from compressa.engine import opening
from compressa.engine.device_stream import CudaDeviceStream, DeviceStream, Ticket
from compressa.engine.engine import Engine
from compressa.errors import ConfigError, TransportError
from compressa.integrations.fsdp.planning import _not_followed
from compressa.testing import LoopbackWorld
from compressa.transports import nccl
from compressa.transports.alone import Alone
from compressa.transports.nccl import NcclTransport
from compressa.wrappers import ErrorFeedback

GATHER, SCATTER = {"kind": "all_gather"}, {"kind": "scatter_reduce"}
CASES: dict[str, tuple[Compressor, dict[str, Any]]] = {
    "dense": (NoCompression(), {"algorithm": "backend"}),
    "gathered": (ErrorFeedback(codec=TopK(density=0.1)), GATHER),
    "scattered": (ErrorFeedback(codec=Int8(block=32)), SCATTER),
    "floats": (ErrorFeedback(codec=Fp8(block=32)), SCATTER),
}
INFOS = parameter_infos(nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in NAMES)))
STEPS = 3
CALLS_TO_MEET = 3


@contextmanager
def ranks(
    compressor: Compressor, exchange: Mapping[str, Any], seed: int | None = None
) -> Iterator[tuple[Fabric, list[Engine]]]:
    """Two ranks over process groups that are the model's."""

    def started(group: OneOf) -> Engine:
        streams = CudaDeviceStream(DEVICE)
        transport = NcclTransport(
            group, 1, streams.stream, 60.0, lambda error: None, lambda seconds: None, shared=True
        )
        return engine_over(
            INFOS,
            dict.fromkeys(NAMES, compressor),
            config=config_of(exchange),
            transport=transport,
            device_stream=streams,
            in_stream_order=True,
        )

    with emulated_torch(seed), mock.patch.object(nccl, "_WARM_UP_BYTES", 64):
        fabric = Fabric(2)
        with ThreadPoolExecutor(2) as pool:
            engines = list(pool.map(started, fabric.ranks))
        try:
            yield fabric, engines
        finally:
            for engine in engines:
                engine.close()


def values_of(rank: int, step: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(10 * step + rank)
    return {name: torch.randn(SIDE, SIDE, generator=random) for name in NAMES}


class Model:
    """What a rank trains: gradients, and collectives of the model's own on the same group.

    Attributes:
        own: What these sum up.
        given: Gradients of the step, which become means.
    """

    def __init__(
        self, engine: Engine, group: OneOf, rank: int, *, collectives: bool = True
    ) -> None:
        self._collectives = collectives
        self._engine, self._group, self._rank = engine, group, rank
        self._stream = Stream()
        self.own: list[torch.Tensor] = []
        self.given: dict[str, torch.Tensor] = {}
        self._tickets: list[Ticket] = []

    def backward(self, step: int) -> None:
        """Hand gradients over between collectives; one comes after the last, as DDP's bitmap."""
        with stream_context(self._stream):
            self.given = {name: on_gpu(x) for name, x in values_of(self._rank, step).items()}
            self._tickets = []
            for name in (*NAMES[1:], *NAMES[:1]):  # in another order than the plan's
                self._collective()
                self._tickets += [self._engine.submit({name: self.given[name]}, step=step)]
            self._collective()

    def step(self, step: int) -> None:
        """All of it; either part tells what has failed until then."""
        self.backward(step)
        self.finish()

    def finish(self) -> None:
        """Have the stream wait for the means."""
        with stream_context(self._stream):
            self._engine.wait(self._tickets)
        self._end = self._stream.record_event()

    @property
    def done(self) -> bool:
        """Whether the stream has come to its end; a peer's must go on, too."""
        return self._end.query()

    def _collective(self) -> None:
        if not self._collectives:
            return
        self.own.append(torch.ones(8, device=DEVICE))
        self._group.allreduce(self.own[-1:]).wait()


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_calls_of_both_kinds_meet_and_leave_the_bits_that_are_due(
    case: str, seed: int | None
) -> None:
    compressor, exchange = CASES[case]
    kind = exchange.get("kind", "auto")
    world = LoopbackWorld(2, INFOS, compressor, unit_bytes=4096, exchange=kind)
    calls: list[int] = []
    give = OneOf.give

    def noted(group: OneOf, *arguments: Any) -> Any:
        calls.append(threading.get_ident())
        return give(group, *arguments)

    with ranks(compressor, exchange, seed) as (fabric, engines):
        models = [Model(engines[rank], fabric.ranks[rank], rank) for rank in range(2)]
        for step in range(STEPS):
            due = world.step([values_of(rank, step) for rank in range(2)])
            with mock.patch.object(OneOf, "give", noted):
                for model in models:  # one after the other: nothing is waited for on the host
                    model.backward(step)
            for model in models:
                model.finish()
            assert until(lambda: False not in [model.done for model in models])
            for model, means in zip(models, due, strict=True):
                assert all(torch.equal(on_cpu(model.given[n]), x) for n, x in means.items())
        assert all(on_cpu(x).eq(2).all() for model in models for x in model.own)
        assert not fabric.faults
    assert set(calls) == {threading.get_ident()}
    assert len(calls) >= 2 * STEPS * (len(NAMES) + len(NAMES) + 1)
    assert [group.aborts for group in fabric.ranks] == [0, 0]  # it is the model's


def test_in_an_order_of_their_own_the_same_calls_do_not_meet() -> None:
    """What the last test would find: one rank's collective between two exchanges of the other's."""
    compressor, exchange = CASES["dense"]
    with ranks(compressor, exchange) as (fabric, engines):
        models = [Model(engines[rank], fabric.ranks[rank], rank) for rank in range(2)]
        fabric.ranks[1].allreduce([torch.ones(8, device=DEVICE)]).wait()
        for model in models:
            model.backward(0)
            model.finish()
        assert until(lambda: [model.done for model in models] and fabric.faults)
        assert fabric.faults[0] == "collectives that differ"
        for group in fabric.ranks:
            group.abort()


def test_a_call_that_fails_is_told_to_whoever_waits_and_ends_the_group() -> None:
    allreduce = OneOf.allreduce

    def failing(group: OneOf, tensors: list[torch.Tensor]) -> Any:
        if group.calls > CALLS_TO_MEET:
            raise RuntimeError("NCCL error: remote process exited")
        return allreduce(group, tensors)

    with ranks(*CASES["dense"]) as (fabric, engines):
        model = Model(engines[0], fabric.ranks[0], 0, collectives=False)
        failed = pytest.raises(TransportError, match="NCCL failed: NCCL error: remote process")
        with mock.patch.object(OneOf, "allreduce", failing), failed:
            model.step(0)
        assert fabric.ranks[0].aborts == 1
        with pytest.raises(TransportError, match="remote process exited"):
            engines[0].submit({NAMES[0]: model.given[NAMES[0]]}, step=1)


def test_payloads_of_any_length_are_refused() -> None:
    with pytest.raises(ConfigError, match='order: is "stream", but payloads of dgc vary in length'):
        load_config({"compressor": "dgc", "exchange": {"order": "stream"}})
    with ranks(ErrorFeedback(codec=DGC(density=0.1)), GATHER) as (fabric, engines):
        model = Model(engines[0], fabric.ranks[0], 0, collectives=False)
        with pytest.raises(ConfigError, match=r'unit \d, step 0: its payloads vary.*use "own"'):
            model.step(0)


WRONG = {
    'exchange.transport = "tcp" launches nothing on a GPU': {"exchange": {"transport": "tcp"}},
    'strategy.name is "overlapped"; use "own"': {"strategy": {"name": "overlapped"}},
}


@pytest.mark.parametrize("why", WRONG)
def test_what_launches_elsewhere_is_refused(why: str) -> None:
    given: dict[str, Any] = WRONG[why]
    exchange = {**given.get("exchange", {}), "order": "stream"}
    with pytest.raises(ConfigError, match=why):
        load_config({"compressor": "int8", **given, "exchange": exchange})


def test_ranks_without_nccl_and_shards_are_refused() -> None:
    config = load_config({"compressor": "int8", "exchange": {"order": "stream"}})
    told = mock.patch.object(opening.startup, "agree")
    with told, pytest.raises(ConfigError, match=r'by the transport "tcp".*group of NCCL'):
        opening._agree_on_transport(
            config, mock.Mock(), mock.Mock(rank=0), INFOS, DeviceStream(), None, False, True
        )
    assert any("exchange.order" in text for text in _not_followed(config, "it", shards=False))


def test_a_rank_alone_keeps_the_order_of_a_gpu_s_stream_and_a_cpu_has_none() -> None:
    config, group = load_config({"compressor": "int8"}), mock.Mock()
    group.size.return_value = 1
    with emulated_torch():
        for device_stream in (CudaDeviceStream(DEVICE), DeviceStream()):
            with opening.open_session(
                config, group, 10, device_stream=device_stream, in_stream_order=True
            ) as session:
                on_gpu = isinstance(device_stream, CudaDeviceStream)
                assert (session.communication._inline is not None) == on_gpu


@pytest.mark.parametrize("in_stream_order", [False, True])
def test_the_model_s_group_is_used_as_it_is_or_not_at_all(in_stream_order: bool) -> None:
    config, group, own = load_config({"compressor": "int8"}), mock.Mock(), mock.Mock()
    group.size.return_value = 2
    with (
        mock.patch.multiple(
            opening.startup,
            obstacle=mock.DEFAULT,
            open_control=mock.DEFAULT,
            choose_transport=mock.Mock(return_value="nccl"),
            digest=mock.DEFAULT,
            agree=mock.DEFAULT,
            open_transport=mock.Mock(return_value=Alone()),
        ),
        mock.patch.object(opening.process_groups, "new_group", return_value=own) as made,
        mock.patch.object(opening.process_groups, "release_groups") as released,
    ):
        session = opening.open_session(config, group, 10, in_stream_order=in_stream_order)
        given = opening.startup.open_transport.call_args
        session.close()
    assert given.args[1] is (group if in_stream_order else own)
    assert given.kwargs == {"shared": in_stream_order}
    assert (session.communication._inline is not None) == in_stream_order
    assert made.called != in_stream_order
    assert [group for call in released.call_args_list for group in call.args[0]] == (
        [] if in_stream_order else [own]
    )
