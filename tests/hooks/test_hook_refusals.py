"""What gradients can not be combined with is refused at the earliest place, on every rank."""

from __future__ import annotations

import io
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, Job, same, settings
from _training import _optimizer, alive_threads, digest, registered, run_steps
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa import OverlappedDataParallel

pytestmark = pytest.mark.ranks


class Sparse(nn.Module):
    """An embedding within another module."""

    def __init__(self, kind: type[nn.Module], sparse: bool) -> None:
        super().__init__()
        self.words = nn.ModuleDict({"table": kind(8, 4, sparse=sparse)})


def register_sparse(*, config: Any, kind: str, overlap: bool, odd: int | None = None) -> None:
    """Register a model with an embedding of sparse gradients, on all ranks or on an odd one."""
    net = Sparse(getattr(nn, kind), odd is None or odd == dist.get_rank())
    if overlap:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        OverlappedDataParallel(net, optimizer, config, init_sync=False)
    else:
        compressa.register_comm_hook(DistributedDataParallel(net), config)


def register_for_python_reducer(*, config: Any) -> None:
    """Register a model that was wrapped for compiled autograd."""
    with mock.patch("torch._dynamo.config.optimize_ddp", "python_reducer"):
        wrapped = DistributedDataParallel(build("mlp", dist.get_rank()))
    compressa.register_comm_hook(wrapped, config)


def train_within_join(*, config: Any, enable: bool, by_class: bool) -> list[str]:
    """Train two steps within join; return what a step raised, and what is left then."""
    net = build("mlp", dist.get_rank())
    said = []
    with registered(net, config) as (wrapped, _):
        joined: Any = wrapped.join(enable=enable)
        if by_class:
            joined = Join([wrapped], enable=enable)
        try:
            with joined:
                for step in range(2):
                    loss_of(wrapped, dist.get_rank(), step, torch.float32).backward()
        except compressa.StateError as error:
            said.append(str(error))
    return said + alive_threads()


def register_within_join(*, config: Any) -> None:
    """Register a model that was given to join before."""
    wrapped = DistributedDataParallel(build("mlp", dist.get_rank()))
    wrapped.join()
    compressa.register_comm_hook(wrapped, config)


def _trained(wrapped: DistributedDataParallel, first: int) -> str:
    run_steps(wrapped, _optimizer(wrapped), first, 2)
    return digest(wrapped)


def _read_again(wrapped: DistributedDataParallel) -> Any:
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickle_ddp(*, config: Any) -> dict[str, Any]:
    """Save a model with a hook in mid-run; train it, its copy, and its copy with a hook."""
    ends: dict[str, Any] = {}
    with registered("mlp", config) as (wrapped, _):
        _trained(wrapped, 0)
        plain, hooked = _read_again(wrapped), _read_again(wrapped)
        ends["plain copy"] = _trained(plain, 2)
        handle = compressa.register_comm_hook(hooked, config)
        ends["hooked copy"] = _trained(hooked, 2)
        ends["steps"] = handle.stats().steps
        handle.close()
        ends["itself"] = _trained(wrapped, 2)
        try:
            compressa.register_comm_hook(wrapped, config)
        except compressa.StateError as error:
            ends["again"] = str(error)
    return ends


def pickle_overlapped(*, config: Any) -> str:
    """Save an overlapped model; return why not."""
    net = build("mlp", dist.get_rank())
    model = OverlappedDataParallel(net, _optimizer(net), config)
    try:
        torch.save(model, io.BytesIO())
    except compressa.StateError as error:
        return str(error)
    finally:
        model.close()
    return ""


def refused(group: Group, job: Job, **how: Any) -> list[str]:
    """What each rank says, soon."""
    return group.refused(job, "StateError", deadline_s=20.0, config=settings("topk"), **how)


@pytest.mark.parametrize(("kind", "overlap"), [("Embedding", False), ("EmbeddingBag", True)])
def test_sparse_gradients_are_refused_at_registration(kind: str, overlap: bool, two: Group) -> None:
    for message in refused(two, register_sparse, kind=kind, overlap=overlap):
        assert "'words.table.weight'" in message
        assert f"{kind} with sparse=False" in message


def test_sparse_gradients_on_one_rank_are_told_to_all(two: Group) -> None:
    how: dict[str, Any] = {"kind": "Embedding", "overlap": True, "odd": 1}
    told = [o.error for o in two.errors(register_sparse, config=settings("topk"), **how)]
    assert [error["type"] for error in told] == ["ConfigError", "StateError"]
    assert all("'words.table.weight'" in error["message"] for error in told)


def test_the_reducer_for_compiled_autograd_is_refused_at_registration(two: Group) -> None:
    for message in refused(two, register_for_python_reducer):
        assert '"ddp_optimizer"' in message


@pytest.mark.parametrize("by_class", [False, True])
def test_uneven_inputs_are_refused_before_the_first_forward_pass(
    by_class: bool, two: Group
) -> None:
    arguments = {"config": settings("topk"), "by_class": by_class}
    for said in two.run(train_within_join, enable=True, **arguments):
        assert len(said) == 1
        assert "join" in said[0]
    assert two.run(train_within_join, enable=False, **arguments) == [[], []]


def test_uneven_inputs_are_refused_at_registration(two: Group) -> None:
    for message in refused(two, register_within_join):
        assert "join" in message


def test_a_model_with_a_hook_is_pickled_without_it(two: Group) -> None:
    ends = two.run(pickle_ddp, config=settings("none"))
    # Without compression the hook's bits are DDP's.
    same([end[way] for end in ends for way in ("plain copy", "hooked copy", "itself")])
    for end in ends:
        assert end["steps"] == 2
        assert "already" in end["again"]


def test_an_overlapped_model_says_what_to_pickle(two: Group) -> None:
    for said in two.run(pickle_overlapped, config=settings("none")):
        assert "save its module" in said
