"""The pair of a state and a hook: DDP's own `register_comm_hook` takes it, and it opens itself."""

from __future__ import annotations

import gc
import pickle
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, same, settings
from _training import _optimizer, digest, lasting_threads, run_steps, state_digest, train_plain
from torch.distributed._composable import replicate
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_post_hooks

import compressa
from compressa.integrations.hook_pair import compressed_mean
from compressa.tracing.reader import read

pytestmark = pytest.mark.ranks


def paired(
    config: Any, model: str = "mlp", ddp: Any = None, **options: Any
) -> tuple[Any, DistributedDataParallel, torch.optim.Optimizer]:
    """Wrap a model, and hand DDP the pair."""
    wrapped = DistributedDataParallel(build(model, dist.get_rank()), **(ddp or {}))
    state, hook = compressa.comm_hook(config, **options)
    wrapped.register_comm_hook(state, hook)
    return state, wrapped, _optimizer(wrapped)


def said_by(function: Any, *arguments: Any) -> str:
    """Return what a call raises, with what kind of error it is."""
    try:
        function(*arguments)
    except compressa.CompressaError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def train_both_ways(*, config: Any, model: str = "mlp") -> list[Any]:
    """Train with a pair and with `register_comm_hook`, with a scaler; return digests of both."""
    ends, before = [], len(_global_optimizer_post_hooks)
    for pair in (True, False):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        if pair:
            state, wrapped, optimizer = paired(config, model, scaler=scaler)
        else:
            wrapped = DistributedDataParallel(build(model, dist.get_rank()))
            optimizer = _optimizer(wrapped)
            handle = compressa.register_comm_hook(wrapped, config, scaler=scaler)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(wrapped, dist.get_rank(), step, torch.float32)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        handle = state.handle if pair else handle
        assert len(_global_optimizer_post_hooks) <= before
        ends.append([digest(wrapped), state_digest(handle), handle.stats().payload_bytes])
        handle.close()
    return [*ends, lasting_threads()]


def train_pair(*, config: Any, model: str, ddp: Any = None) -> dict[str, Any]:
    """Train with a pair, at once compared by `integrity.every = 1`."""
    state, wrapped, optimizer = paired(config, model, ddp)
    said = [said_by(lambda: state.handle)]
    run_steps(wrapped, optimizer, 0, 4)
    parameters, steps = digest(wrapped), state.handle.next_step
    again = said_by(compressa.register_comm_hook, wrapped, config)
    state.handle.close()
    del wrapped, optimizer
    gc.collect()
    return {
        "parameters": parameters,
        "steps": steps,
        "said": [*said, again, said_by(lambda: state.handle)],
        "threads": lasting_threads(),
    }


def use_for_two_models(*, config: Any, late: bool) -> list[str]:
    """Register a state with two models, before or after the first has had its first bucket."""
    state, first, optimizer = paired(config)
    second = DistributedDataParallel(build("mlp", 0))
    said = []
    if late:
        run_steps(first, optimizer, 0, 1)
    second.register_comm_hook(state, compressed_mean)  # a further pair would warn later
    for _ in range(1 if late else 2):
        said += [said_by(run_steps, second, _optimizer(second), 0, 1)]
    if late:
        run_steps(first, optimizer, 1, 1)
        state.handle.close()
    return said


def copy_and_train(*, config: Any) -> dict[str, Any]:
    """Copy a pair as a strategy that is sent to other processes does, and copy its model."""
    state, wrapped, optimizer = paired(config)
    run_steps(wrapped, optimizer, 0, 1)
    sent, hook = pickle.loads(pickle.dumps((state, compressed_mean)))
    fresh = DistributedDataParallel(build("mlp", dist.get_rank()))
    fresh.register_comm_hook(sent, hook)
    run_steps(fresh, _optimizer(fresh), 0, 1)
    ends = {"pickled": digest(fresh), "itself": digest(wrapped)}
    sent.handle.close()
    copied = deepcopy(wrapped)  # of which the hook is not
    handle = compressa.register_comm_hook(copied, config)
    run_steps(copied, _optimizer(copied), 1, 1)
    ends["steps"] = handle.next_step
    handle.close()
    state.handle.close()
    return ends


def train_replicated(*, config: Any) -> list[str]:
    """Train by DistributedDataParallel, and by the composable `replicate`; return digests."""
    state, wrapped, optimizer = paired(config)
    run_steps(wrapped, optimizer, 0, 3)
    state.handle.close()
    net: Any = build("mlp", 0)
    replicate(net)
    other, hook = compressa.comm_hook(config)
    net.register_comm_hook(other, hook)
    run_steps(net, _optimizer(net), 0, 3)
    other.handle.close()
    return [digest(wrapped), digest(net)]


def train_with_absent(*, config: Any) -> list[str]:
    """Train on all ranks but the last, which leaves before its first bucket."""
    _, wrapped, optimizer = paired(config)
    if dist.get_rank() == dist.get_world_size() - 1:
        return []
    return [said_by(run_steps, wrapped, optimizer, step, 1) for step in range(2)]


def step_unheard(*, config: Any, how: str) -> list[str]:
    """Train three steps that no hook hears of; return what is said of it, and where."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    other = torch.nn.Linear(16, 4)
    run_steps(other, _optimizer(other), 0, 1)  # at which pairs of earlier tests speak up
    wrapped = DistributedDataParallel(net)
    state, hook = compressa.comm_hook(config)
    if how != "slot":
        wrapped.register_comm_hook(state, hook)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if how != "slot":
            run_steps(other, _optimizer(other), 0, 1)  # another model's optimizer, as in a GAN
        called: Any = net if how == "past" else wrapped
        for step in range(3):
            optimizer = _optimizer(net)
            if how == "no_sync":
                with wrapped.no_sync():
                    run_steps(called, optimizer, step, 1)
            else:
                run_steps(called, optimizer, step, 1)
    return [f"{w.filename.rpartition('/')[2]}: {w.message}" for w in said if "optimizer" in str(w)]


def step_past_registered(*, config: Any) -> list[str]:
    """Train past a model with a handle, and then a closed one."""
    net = build("mlp", dist.get_rank())
    compressa.register_comm_hook(DistributedDataParallel(net), config).close()  # of no model soon
    wrapped = DistributedDataParallel(build("mlp", dist.get_rank()))
    kept = compressa.register_comm_hook(wrapped, config)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run_steps(wrapped.module, _optimizer(wrapped), 0, 2)
    kept.close()
    return [str(w.message) for w in said if w.category is RuntimeWarning]


def test_a_pair_is_what_register_comm_hook_is_from_the_first_loss_scale_on(two: Group) -> None:
    for pair, registered, threads in two.run(train_both_ways, config=settings("topk")):
        assert pair == registered
        assert threads == []


@pytest.mark.parametrize(
    ("model", "ddp"),
    [
        ("normed_cnn", {}),
        ("transformer", {"static_graph": True}),
        ("branches", {"find_unused_parameters": True}),
        ("wide", {"bucket_cap_mb": 1, "gradient_as_bucket_view": True}),
    ],
)
def test_a_pair_without_compression_equals_plain_ddp_bit_for_bit(
    model: str, ddp: dict[str, Any], two: Group, tmp_path: Path
) -> None:
    plain = two.run(train_plain, model=model, steps=4, ddp=ddp)
    config = settings("none", trace={"path": str(tmp_path / "trace.json")})
    for end in two.run(train_pair, config=config, model=model, ddp=ddp):
        assert end["parameters"] == plain[0]["parameters"]
        assert end["steps"] == 4
        before, again, after = end["said"]
        assert "first backward" in before
        assert "already" in again
        assert "is gone" in after
        assert end["threads"] == []
    for rank in range(2):
        trace = read(tmp_path / f"trace-rank{rank}.json")
        assert [step for step, _ in trace.steps] == [0, 1, 2, 3]


@pytest.mark.parametrize("late", [False, True])
def test_a_state_is_for_one_model(late: bool, two: Group) -> None:
    for said in two.run(use_for_two_models, config=settings("topk"), late=late):
        for text in said:
            assert "two models" in text


def test_a_copied_pair_opens_itself_and_a_copied_model_has_none(two: Group) -> None:
    ends = two.run(copy_and_train, config=settings("topk"))
    same([end[way] for end in ends for way in ("pickled", "itself")])
    assert same([end["steps"] for end in ends]) == 1


def test_replicate_takes_the_pair(two: Group) -> None:
    wrapped, replicated = same(two.run(train_replicated, config=settings("topk")))
    assert replicated == wrapped


def test_what_is_wrong_with_a_configuration_is_said_by_the_first_backward(two: Group) -> None:
    for message in two.refused(
        train_pair, "ConfigError", config={"compressor": "int9"}, model="mlp"
    ):
        assert "int8" in message


def test_a_rank_that_gets_no_bucket_is_named_within_the_deadline(fresh: Any) -> None:
    exchange = {"deadline_s": 3.0, "silence_s": 2.0}
    config = settings("topk", exchange=exchange)
    *others, absent = fresh(3).run(train_with_absent, config=config, deadline_s=40.0)
    assert absent == []
    for first, again in others:
        assert "ranks 2 did not come within 3 s" in first
        assert again == first


@pytest.mark.parametrize("how", ["slot", "past", "no_sync"])
def test_a_hook_that_hears_of_nothing_is_found_out_once(how: str, two: Group) -> None:
    for said in two.run(step_unheard, config=settings("topk"), how=how):
        (text,) = said
        assert text.startswith("_training.py: an optimizer has stepped")  # where step is called
        assert ("compressa.integrations" if how == "slot" else "no_sync()") in text


def test_a_handle_that_hears_of_nothing_is_found_out_once(two: Group) -> None:
    for said in two.run(step_past_registered, config=settings("topk")):
        (text,) = said
        assert "not its module" in text
