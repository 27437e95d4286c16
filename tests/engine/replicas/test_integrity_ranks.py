"""Replicas that differ by one bit are found out, on real ranks, and nothing else is."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _overlapping import train_in_all_ways
from _rank_models import build, loss_of
from _ranks import Group, Pools, same, settings
from _training import _optimizer, digest, lasting_threads, registered, run_steps, train
from torch import nn

import compressa
from compressa.overlap import model as overlap_model

pytestmark = pytest.mark.ranks

PARAMETER = {"rank": 1, "step": 3, "what": "parameter", "name": "2.weight"}
"""Found by the comparison in step 4 if every second step has one, told when step 5 begins."""


NO_FAULT = {"rank": -1, "step": -1, "what": "", "name": ""}


def flip(tensor: torch.Tensor) -> None:
    """Change the lowest bit of the first value, behind torch's back."""
    tensor.detach().numpy().reshape(-1).view(np.uint8)[0] ^= 1


@contextlib.contextmanager
def wrapped(
    way: str, net: nn.Module, optimizer: torch.optim.Optimizer, config: Any
) -> Iterator[tuple[Any, compressa.Handle]]:
    """Wrap a module in one of both ways."""
    if way == "hook":
        with registered(net, config) as both:
            yield both
        return
    model = compressa.OverlappedDataParallel(net, optimizer, config)
    try:
        yield model, model.handle
    finally:
        model.close()


class Fault:
    """A bit that flips on one rank before one step; what it is in says `what`.

    Args:
        net: The model.
        handle: Has the compressors' state.
        rank: Whose.
        step: When.
        what: "parameter", "buffer" (in the forward pass), "broadcast" (a buffer, on the way from
            rank 0) or "state".
        name: Of the tensor.
    """

    def __init__(
        self, net: nn.Module, handle: compressa.Handle, rank: int, step: int, what: str, name: str
    ) -> None:
        self._net, self._handle, self._what, self._name = net, handle, what, name
        self._step = step if dist.get_rank() == rank else -1
        net.register_forward_pre_hook(lambda *_: self.strike("buffer"))
        self._bring = overlap_model._broadcast_coalesced

    def bring(self, *arguments: Any) -> None:
        """Bring buffers to all, one of them with another bit."""
        self._bring(*arguments)
        self.strike("broadcast")

    def strike(self, *kinds: str) -> None:
        """Flip it, if it is due."""
        if self._step == self._handle.next_step and self._what in kinds:
            self._step = -1
            flip(self._tensor())

    def _tensor(self) -> torch.Tensor:
        if self._what == "state":
            return self._handle.engine.state.vectors[self._name]
        return {**dict(self._net.named_parameters()), **dict(self._net.named_buffers())}[self._name]


def perturb(*, config: Any, accumulate: bool, steps: int = 3) -> list[str]:
    """Train as sharpness-aware minimisation does: gradients at a place of each rank's own."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    with warnings.catch_warnings(record=True) as said, registered(net, config) as (model, _):
        warnings.simplefilter("always")
        optimizer = _optimizer(net)
        for step in range(steps):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, rank, 2 * step, torch.float32).backward()
            before = [p.detach().clone() for p in net.parameters()]
            if not accumulate:
                with torch.no_grad():
                    for p in net.parameters():
                        p.add_(p.grad, alpha=0.01)
            loss_of(model, rank, 2 * step + 1, torch.float32).backward()
            with torch.no_grad():
                for p, values in zip(net.parameters(), before, strict=True):
                    p.copy_(values)
            optimizer.step()
        loss_of(model, rank, 0, torch.float32)
    return [digest(net), *(str(w.message) for w in said if w.category is RuntimeWarning)]


def compile_and_train(*, config: Any, how: str, steps: int = 6) -> dict[str, Any]:
    """Train a module that is compiled in one of three ways; return how often it was."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    net = build("normed_cnn", dist.get_rank())
    if how == "in place":
        net.compile(backend=backend)
    inner: Any = torch.compile(net, backend=backend) if how == "module" else net
    with registered(inner, config) as (model, handle):
        called: Any = torch.compile(model, backend=backend) if how == "ddp" else model
        run_steps(called, _optimizer(net), 0, steps)
        loss_of(called, dist.get_rank(), steps, torch.float32)
        return {"compiled": len(compiled), "steps": handle.next_step, "parameters": digest(net)}


def train_with_fault(
    *,
    config: Any,
    way: str,
    fault: Mapping[str, Any] | None = None,
    model: str = "mlp",
    steps: int = 6,
    save: str | None = None,
) -> dict[str, Any]:
    """Train, and save; return how far it came and why no further, what was said, and digests."""
    rank, why, trained = dist.get_rank(), "", 0
    net = build(model, rank)
    optimizer = _optimizer(net)
    with (
        warnings.catch_warnings(record=True) as said,
        wrapped(way, net, optimizer, config) as (wrapper, handle),
    ):
        warnings.simplefilter("always")
        spoiler = Fault(net, handle, **(fault or NO_FAULT))
        bringing = mock.patch.object(overlap_model, "_broadcast_coalesced", spoiler.bring)
        try:
            for step in range(steps):
                if way == "overlapped":
                    wrapper.flush()
                spoiler.strike("parameter", "state")
                optimizer.zero_grad()
                with bringing:
                    loss_of(wrapper, rank, step, torch.float32).backward()
                optimizer.step()
                trained += 1
            if save is not None:
                handle.save(save)
        except compressa.StateError as error:
            why = str(error)
        if way == "overlapped":
            wrapper.flush()
        state = {k: v for k, v in handle.engine.state.vectors.items() if k.startswith("power")}
    return {
        "trained": trained,
        "why": why,
        "said": [str(w.message) for w in said if w.category is RuntimeWarning],
        "parameters": digest(net),
        "state": {k: float(v.double().sum()) for k, v in state.items()},
        "threads": lasting_threads(),
    }


def config_of(on_mismatch: str, compressor: str = "topk", **sections: Any) -> dict[str, Any]:
    integrity = {"every": 2, "on_mismatch": on_mismatch}
    return settings(compressor, integrity=integrity, **sections)


def run(group: Group, **arguments: Any) -> list[dict[str, Any]]:
    results = group.run(train_with_fault, **arguments)
    assert all(not result["threads"] for result in results)
    return results


def blamed(size: int, rank: int = 1) -> str:
    return f"rank {rank} holds other values" if size > 2 else "ranks 0 and 1 hold different values"


@pytest.mark.parametrize(("way", "size"), [("hook", 2), ("overlapped", 3)])
def test_a_bit_flipped_in_a_weight_ends_the_training_and_is_named(
    way: str, size: int, pools: Pools
) -> None:
    results = run(pools.get(size), config=config_of("raise"), way=way, fault=PARAMETER)
    why = same([result["why"] for result in results])
    assert f"step 4: {blamed(size)} of parameter '2.weight'" in why
    assert "integrity.every = 0" in why
    assert same([result["trained"] for result in results]) == 5


def test_replicas_that_differ_are_not_saved(two: Group, tmp_path: Path) -> None:
    arguments = {"way": "hook", "fault": PARAMETER, "save": str(tmp_path / "ckpt")}
    results = run(two, config=config_of("raise"), steps=5, **arguments)
    assert f"step 4: {blamed(2)}" in same([result["why"] for result in results])
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize(("way", "size"), [("hook", 3), ("overlapped", 2)])
def test_it_is_only_told_if_that_is_wanted(way: str, size: int, pools: Pools) -> None:
    results = run(pools.get(size), config=config_of("warn"), way=way, fault=PARAMETER)
    (said,) = same([result["said"] for result in results])
    assert f"step 4: {blamed(size)} of parameter '2.weight'" in said
    assert same([result["trained"] for result in results]) == 6
    assert len({result["parameters"] for result in results}) == 2


@pytest.mark.parametrize(("way", "size", "odd"), [("hook", 3, 0), ("overlapped", 4, 3)])
def test_a_majority_repairs_it_and_training_goes_on(
    way: str, size: int, odd: int, pools: Pools
) -> None:
    fault = {**PARAMETER, "rank": odd}
    results = run(pools.get(size), config=config_of("repair"), way=way, fault=fault, steps=8)
    (said,) = same([result["said"] for result in results])
    assert f"step 4: {blamed(size, odd)} of parameter '2.weight'" in said
    assert "brought to the others" in said
    assert same([result["trained"] for result in results]) == 8
    same([result["parameters"] for result in results])


def test_without_a_majority_nothing_is_repaired(two: Group) -> None:
    results = run(two, config=config_of("repair"), way="overlapped", fault=PARAMETER)
    why = same([result["why"] for result in results])
    assert "ranks 0 and 1 hold different values of parameter '2.weight'" in why
    assert same([result["trained"] for result in results]) == 5


@pytest.mark.parametrize(
    ("way", "what", "odd"), [("hook", "buffer", 0), ("overlapped", "broadcast", 2)]
)
def test_a_bit_flipped_in_a_buffer_is_named_and_repaired(
    way: str, what: str, odd: int, pools: Pools
) -> None:
    fault = {"rank": odd, "step": 4, "what": what, "name": "2.running_mean"}
    arguments = {"way": way, "fault": fault, "model": "normed_cnn"}
    three = pools.get(3)
    told = f"step 4: {blamed(3, odd)} of buffer '2.running_mean'"
    results = run(three, config=config_of("raise"), **arguments)
    assert told in same([result["why"] for result in results])
    results = run(three, config=config_of("repair"), steps=8, **arguments)
    (said,) = same([result["said"] for result in results])
    assert told in said
    same([result["parameters"] for result in results])


def test_a_bit_flipped_in_what_a_compressor_shares_is_named_and_repaired(pools: Pools) -> None:
    three = pools.get(3)
    fault = {"rank": 2, "step": 4, "what": "state", "name": "powersgd_q/2.weight"}
    arguments = {"way": "hook", "fault": fault}
    told = f"step 4: {blamed(3, 2)} of compressor state 'powersgd_q/2.weight'"
    results = run(three, config=config_of("raise", "powersgd"), **arguments)
    assert told in same([result["why"] for result in results])
    results = run(three, config=config_of("repair", "powersgd"), steps=8, **arguments)
    assert told in same([result["said"] for result in results])[0]
    same([result["parameters"] for result in results])
    assert same([result["state"] for result in results])


def test_the_mean_that_ef21_keeps_is_compared(pools: Pools) -> None:
    fault = {"rank": 0, "step": 3, "what": "state", "name": "ef21_mean/2.weight"}
    config = config_of("repair", feedback={"kind": "ef21"})
    results = run(pools.get(3), config=config, way="overlapped", fault=fault, steps=8)
    said = same([result["said"] for result in results])
    assert "compressor state 'ef21_mean/2.weight'" in " ".join(said)


@pytest.mark.parametrize("broadcast", [True, False])
def test_running_statistics_of_each_rank_are_no_fault(broadcast: bool, two: Group) -> None:
    """They differ between ranks from one broadcast to the next, and without one for ever."""
    buffers = {"broadcast_buffers": broadcast}
    how: dict[str, Any] = {"config": settings("int8"), "model": "normed_cnn", "accumulate": 3}
    same([r["parameters"] for r in two.run(train, ddp=buffers, **how)])
    same([r["on"] for r in two.run(train_in_all_ways, options=buffers, ddp=False, **how)])


def test_parameters_that_differ_on_purpose_in_backward_are_no_fault(two: Group) -> None:
    config = settings("topk")
    _, *said = same(two.run(perturb, config=config, accumulate=False))
    assert len(said) == 3
    assert "replicas were not compared in step 1" in said[1]
    assert "integrity.every = 0" in said[1]
    _, *said = same(two.run(perturb, config=config, accumulate=True))
    assert not said


@pytest.mark.parametrize("how", ["module", "in place", "ddp"])
def test_a_compiled_model_is_compared_and_not_compiled_anew(how: str, two: Group) -> None:
    runs = [
        same(
            two.run(
                compile_and_train,
                config=settings("int8", integrity={"every": every}),
                how=how,
            )
        )
        for every in (0, 2)
    ]
    assert runs[0] == runs[1]


def test_nothing_is_compared_if_that_is_not_wanted(two: Group) -> None:
    config = settings("topk", integrity={"every": 0})
    results = run(two, config=config, way="hook", fault=PARAMETER)
    assert same([result["trained"] for result in results]) == 6
    assert len({result["parameters"] for result in results}) == 2
