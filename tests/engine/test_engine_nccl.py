"""The engine over NCCL, emulated: a wait on the GPU is for the gradients that it names, no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_nccl import Fabric
from emulated_streams import DEVICE, Event, current_stream
from emulated_torch import emulated_torch, on_cpu, on_gpu
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_twin import NAMES, alone, engine_of, means, values

from compressa.codecs import DGC, AdaComp, Int8, NoCompression, SIDCo, Threshold, TopK
from compressa.compressor import Compressor
from compressa.engine.device_stream import CudaDeviceStream, Ticket
from compressa.transports import nccl_lengths

CALLS_TO_MEET = 3
COMPRESSORS: list[tuple[Compressor, dict[str, Any]]] = [
    (NoCompression(), {"algorithm": "backend"}),
    (Int8(), {"kind": "all_gather"}),
    (Int8(), {"kind": "scatter_reduce"}),
    (TopK(density=0.1), {"kind": "all_gather"}),
]


VARYING: dict[str, Compressor] = {
    "threshold": Threshold(threshold=2.5, unit="rms", max_density=0.5),
    "dgc": DGC(density=0.1),
    "sidco": SIDCo(density=0.1),
    "adacomp": AdaComp(bin_elems=64, max_density=0.9),
}


GATHERED = {"kind": "all_gather"}


class Training:
    """An engine, and gradients of four units, each of which NCCL may be told to hold up."""

    def __init__(
        self, compressor: Compressor, exchange: dict[str, Any], *, graphs: bool = False
    ) -> None:
        self.group = Fabric(1).ranks[0]
        device_stream = CudaDeviceStream(DEVICE, graphs=graphs)
        self.engine = engine_of(compressor, exchange, device_stream, self.group)
        self.values = values()
        self.gradients = {name: on_gpu(x) for name, x in self.values.items()}
        units = [unit.names for unit in self.engine._phase.units]
        launches = list(self.engine.planning.step_plan.launches)
        self.launches = len(launches)
        self._launched = [names for unit, _ in launches for names in [units[unit]]]
        self.last = {name: i for i, (unit, _) in enumerate(launches) for name in units[unit]}

    def submit(self, order: list[str]) -> dict[str, Ticket]:
        return {n: self.engine.submit({n: self.gradients[n]}, step=0) for n in order}

    def complete(self, tickets: Mapping[str, Ticket]) -> None:
        """Wait, on the host, for those of some gradients that wait for no other."""
        for name, ticket in tickets.items():
            if set().union(*self._launched[: self.last[name] + 1]) <= tickets.keys():
                ticket.result(10.0)

    def has_come(self, ticket: Ticket) -> bool:
        """Wait as the training does, on the current stream; return whether that goes on."""
        self.engine.wait([ticket])
        event: Event = current_stream().record_event()
        return event.query()


@contextmanager
def training_with(compressor: Compressor, exchange: dict[str, Any]) -> Iterator[Training]:
    """Train on an emulated GPU, with another rank that does the same."""
    with emulated_torch():
        training = Training(compressor, exchange)
        try:
            yield training
        finally:
            training.group.held = set()
            training.engine.close()


@settings(max_examples=10, deadline=None)
@given(
    case=st.sampled_from(COMPRESSORS),
    order=st.permutations(NAMES),
    share=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_gradient_is_not_waited_for_behind_one_that_is_launched_later(
    case: tuple[Compressor, dict[str, Any]], order: list[str], share: float
) -> None:
    with training_with(*case) as training:
        assert len(set(training.last.values())) == len(NAMES), "each gradient is a unit"
        held = int(share * training.launches)
        training.group.held = {CALLS_TO_MEET + held}
        tickets = training.submit(order)
        for name, last in sorted(training.last.items(), key=lambda item: item[1]):
            assert training.has_come(tickets[name]) == (last < held), name
        training.group.held = set()
        for name, values in training.values.items():
            assert training.has_come(tickets[name])
            if isinstance(case[0], NoCompression):
                assert torch.equal(on_cpu(training.gradients[name]), values)


@pytest.mark.parametrize(
    ("compressor", "exchange"),
    [(NoCompression(), {"algorithm": "backend"}), (TopK(density=0.1), GATHERED)],
)
def test_twins_get_what_one_gets(compressor: Compressor, exchange: dict[str, Any]) -> None:
    with training_with(compressor, exchange) as training:
        results = means(training.engine, training.gradients)
        current_stream().synchronize()
        due = alone(compressor, exchange)
        assert all(torch.equal(on_cpu(x), y) for x, y in zip(results, due, strict=True))


def trained(compressor: Compressor, padded_bytes: int) -> tuple[list[torch.Tensor], int, list[int]]:
    """Return the gradients after a step, what was sent, and how long each payload was."""
    with (
        mock.patch.object(nccl_lengths, "PADDED_BYTES", padded_bytes),
        training_with(compressor, GATHERED) as training,
    ):
        results = means(training.engine, training.gradients)
        current_stream().synchronize()
        gathered: list[Any] = [unit.aggregator for unit in training.engine._phase.units]
        lengths = [own._sent.numel() for own in gathered]
        assert all(own._payload.numel() > n for own, n in zip(gathered, lengths, strict=True))
        return [on_cpu(x) for x in results], training.engine.stats().sent_bytes, lengths


@pytest.mark.parametrize("compressor", VARYING.values(), ids=VARYING)
def test_payloads_of_varying_length_cost_what_they_are_long(compressor: Compressor) -> None:
    results, sent_bytes, lengths = trained(compressor, 0)
    assert sent_bytes == sum(lengths) + 8 * len(lengths)
    padded, padded_bytes, as_long = trained(compressor, 1 << 20)
    assert as_long == lengths
    assert padded_bytes > sent_bytes
    due = alone(compressor, GATHERED)
    assert all(map(torch.equal, results, due))
    assert all(map(torch.equal, padded, due))


@pytest.mark.parametrize(
    ("compressor", "waits"),
    [(c, False) for c in COMPRESSORS] + [((VARYING["dgc"], GATHERED), True)],
)
def test_workers_compute_only_what_may_wait_for_the_gpu(
    compressor: tuple[Compressor, dict[str, Any]], waits: bool
) -> None:
    with training_with(*compressor) as training:
        pool = training.engine._communication._pool
        with mock.patch.object(pool, "submit", wraps=pool.submit) as handed_over:
            training.engine.wait(list(training.submit(NAMES).values()))
            assert handed_over.called == waits
            ask = {"step": 1, "hold_zeros": True}  # whether a gradient is all zero
            tickets = [training.engine.submit({n: training.gradients[n]}, **ask) for n in NAMES]
            training.engine.wait(tickets)
            assert handed_over.called != isinstance(compressor[0], NoCompression)
        assert training.engine.launched
