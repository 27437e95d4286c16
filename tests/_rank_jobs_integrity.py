"""Jobs that train while something flips a bit on one rank, which nothing in torch notices."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from _rank_jobs import _optimizer, digest, lasting_threads, registered
from _rank_models import build, loss_of
from torch import nn

import compressa
from compressa.overlap import model as overlap_model

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
        optimizer = _optimizer(net)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(called, dist.get_rank(), step, torch.float32).backward()
            optimizer.step()
        loss_of(called, dist.get_rank(), steps, torch.float32)
        return {"compiled": len(compiled), "steps": handle.next_step, "parameters": digest(net)}


def train(
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
