"""Compiled models: every way to compile and every mode of `optimize_ddp` trains, or is refused."""

from __future__ import annotations

import shutil
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _rank_models import build
from _ranks import Group, same, settings
from _training import _optimizer, digest, lasting_threads, run_steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa import OverlappedDataParallel

pytestmark = pytest.mark.ranks

WAYS = ["plain", "inside", "outside", "both", "in place", "a part", "pair"]
STEPS = 4


def compile_net(net: nn.Module, way: str, backend: str) -> nn.Module:
    """Compile a network, or a part of it, before it is wrapped."""
    if way == "in place":
        net.compile(backend=backend)
    elif way == "a part":
        net[0] = torch.compile(net[0], backend=backend)
    elif way in ("inside", "both"):
        compiled: Any = torch.compile(net, backend=backend)
        return compiled
    return net


def train_compiled(
    *, config: Any, way: str, mode: Any = True, backend: str = "eager", model: str = "normed_cnn"
) -> dict[str, Any]:
    """Train a model that is compiled in some way; without a configuration, dense."""
    torch._dynamo.reset()
    rank = dist.get_rank()
    with mock.patch("torch._dynamo.config.optimize_ddp", mode):
        net = build(model, rank)
        # Several buckets, between which "ddp_optimizer" cuts the graph.
        wrapped = DistributedDataParallel(
            compile_net(net, way, backend), bucket_cap_mb=1, gradient_as_bucket_view=True
        )
        outside = way in ("outside", "both", "pair")
        called: Any = torch.compile(wrapped, backend=backend) if outside else wrapped
        handle: Any = None
        if config is not None and way == "pair":
            state, hook = compressa.comm_hook(config)
            wrapped.register_comm_hook(state, hook)
        elif config is not None:
            handle = compressa.register_comm_hook(called, config)
        optimizer = _optimizer(net)
        run_steps(called, optimizer, 0, STEPS)
        end: dict[str, Any] = {"parameters": digest(net)}
        if config is not None:
            handle = handle or state.handle
            names = sorted(handle.state_dict())
            end |= {"steps": handle.next_step, "names": names, "scale": handle.stats().ratio}
            handle.close()
        return end | {"threads": lasting_threads()}


def train_overlapped(*, config: Any, way: str, mode: Any, backend: str) -> dict[str, Any]:
    """Train an overlapped model of a compiled network, with DDP's bits."""
    torch._dynamo.reset()
    with mock.patch("torch._dynamo.config.optimize_ddp", mode):
        net = build("normed_cnn", dist.get_rank())
        optimizer = _optimizer(net)
        model = OverlappedDataParallel(compile_net(net, way, backend), optimizer, config)
        run_steps(model, optimizer, 0, STEPS)
        model.flush()
        names = sorted(model.handle.state_dict())
        model.close()
        return {"parameters": digest(net), "names": names, "threads": lasting_threads()}


MODES = [True, False, "ddp_optimizer", "no_optimization", "python_reducer_without_compiled_forward"]


def check(ends: list[dict[str, Any]], dense: list[dict[str, Any]]) -> None:
    same([end["parameters"] for end in [*ends, *dense]])
    for end in ends:
        assert not any("_orig_mod" in name for name in end["names"])
        assert end["threads"] == []


@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_compile_trains_as_it_does_without_a_hook(mode: Any, two: Group) -> None:
    for way in WAYS if mode is True else ["outside"]:
        how = {"way": way, "mode": mode}
        if way == "outside":
            how |= {"backend": "aot_eager", "model": "wide"}
        ends = two.run(train_compiled, config=settings("none"), **how)
        check(ends, two.run(train_compiled, config=None, **how))
        assert {end["steps"] for end in ends} == {STEPS}


@pytest.mark.parametrize("way", ["inside", "in place", "a part"])
def test_overlapped_models_of_compiled_networks_have_the_bits_of_ddp(way: str, two: Group) -> None:
    how = {"mode": True, "backend": "eager"}
    ends = two.run(train_overlapped, config=settings("none"), way=way, **how)
    check(ends, two.run(train_compiled, config=None, way="plain", **how))


def test_the_names_of_residuals_do_not_depend_on_wrappers(two: Group) -> None:
    ends = [
        two.run(train_compiled, config=settings("int8"), way=way)
        for way in ("plain", "both", "a part")
    ]
    assert len({str(end[0]["names"]) for end in ends}) == 1
    assert ends[0][0]["names"] != ["rank0/step"]
    assert all(end[0]["scale"] > 1.5 for end in ends)


@pytest.mark.parametrize("way", ["inside", "pair"])
def test_the_reducer_for_compiled_autograd_is_refused(way: str, two: Group) -> None:
    how = {"config": settings("topk"), "way": way, "mode": "python_reducer"}
    for message in two.refused(train_compiled, "StateError", backend="eager", **how):
        assert 'set it to "ddp_optimizer"' in message


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.timeout(300)
def test_what_inductor_compiles_trains_as_it_does_without_a_hook(two: Group) -> None:
    how = {"way": "outside", "backend": "inductor", "model": "mlp", "deadline_s": 250.0}
    ends = two.run(train_compiled, config=settings("none"), **how)
    check(ends, two.run(train_compiled, config=None, **how))
