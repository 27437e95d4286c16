"""CUDA graphs of units, emulated: an engine with them leaves the bits of one without."""

from __future__ import annotations

from itertools import count
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_streams import Emulation, current_stream
from emulated_torch import StreamedEmulated, emulated_torch, on_cpu, on_gpu
from test_engine_nccl import NAMES, Training
from torch import nn

from compressa.codecs import Fp8, TopK
from compressa.compressor import Compressor
from compressa.config import load_config
from compressa.engine.device_stream import CudaDeviceStream, device_stream_of
from compressa.errors import ConfigError
from compressa.hooks.opening import _load
from compressa.wrappers import ErrorFeedback

STEPS = 5
GATHER, SCATTER = {"kind": "all_gather"}, {"kind": "scatter_reduce"}
CASES: dict[str, tuple[Compressor, dict[str, Any], int]] = {
    # Of each of four units the payload and the mean are a graph, which is started thrice.
    "sparse": (ErrorFeedback(codec=TopK(density=0.1)), GATHER, 4 * 2 * 3),
    "of one launch": (ErrorFeedback(codec=Fp8(block=32)), SCATTER, 0),
}


def train(case: str, eager: frozenset[int], *, graphs: bool) -> tuple[list[torch.Tensor], int]:
    """Train on gradients that stay where they are; return what is left, and replays."""
    compressor, exchange, _ = CASES[case]
    replays: list[int] = []
    graph = StreamedEmulated.graph

    def noted(device: Any, launches: Any) -> Any:
        replay = graph(device, launches)
        return lambda: replays.append(len(launches)) or replay()

    drawn = mock.patch.object(Emulation, "draw_eager", side_effect=map(eager.__contains__, count()))
    with emulated_torch(), drawn, mock.patch.object(StreamedEmulated, "graph", noted):
        training = Training(compressor, exchange, graphs=graphs)
        engine, random = training.engine, torch.Generator().manual_seed(0)
        gradients, found = training.gradients, []
        try:
            for step in range(STEPS):
                for x in gradients.values():
                    x.copy_(on_gpu(torch.randn(32, 32, generator=random)))
                engine.wait([engine.submit({n: gradients[n]}, step=step) for n in NAMES])
                current_stream().synchronize()
                found += [on_cpu(x) for x in gradients.values()]
            engine.settle()
            current_stream().synchronize()
            found += [on_cpu(x) for x in engine.state.vectors.values()]
        finally:
            engine.close()
    return found, len(replays)


@pytest.mark.parametrize("case", CASES)
def test_no_bit_differs_and_what_stays_is_replayed(case: str) -> None:
    due, none = train(case, frozenset(), graphs=False)
    assert not none
    for eager in (frozenset[int](), frozenset(range(0, 6, 2)), frozenset(range(6))):
        found, replays = train(case, eager, graphs=True)
        assert all(torch.equal(a, b) for a, b in zip(found, due, strict=True))
        assert replays == CASES[case][2]


def test_graphs_are_asked_for_by_a_setting_and_are_refused_on_a_cpu() -> None:
    assert not load_config({"compressor": "topk"}).engine.cuda_graphs
    config = load_config({"compressor": "topk", "engine": {"cuda_graphs": True}})
    assert config.engine.cuda_graphs
    with pytest.raises(ConfigError, match=r"engine\.cuda_graphs = true.*type 'cpu'.*leave it out"):
        device_stream_of(torch.device("cpu"), graphs=True)
    *_, failure = _load(config, nn.Linear(2, 2), None, lambda config: None)
    assert "engine.cuda_graphs = true" in str(failure)
    with emulated_torch(), mock.patch("compressa.engine.device_stream.cuda.graphs") as entered:
        for graphs in (False, True):
            stream = device_stream_of(torch.device("cuda", 0), graphs=graphs)
            assert isinstance(stream, CudaDeviceStream)
            with stream.checking("a unit"):
                assert entered.called == graphs
