"""What gradients may do: accumulation, clipping, layouts, buckets, groups, late ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, same, settings
from _training import _optimizer, digest, registered, run_steps, train, train_plain
from _transports import ON_HOST
from test_hook_mass import weigh

pytestmark = pytest.mark.ranks


def train_beside_user_traffic(*, config: Any, steps: int) -> dict[str, Any]:
    """Sum metrics on the default group, from the main thread, between and within steps."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = 0
    with registered("normed_cnn", config) as (wrapped, handle):
        optimizer = _optimizer(wrapped)
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(wrapped, rank, step, torch.float32)
            metric = torch.full((257,), float(step * (rank + 1)))
            pending = dist.all_reduce(metric, async_op=True)
            loss.backward()
            pending.wait()
            wrong += int((metric != step * size * (size + 1) / 2).any())
            optimizer.step()
            count = torch.tensor([rank], dtype=torch.int64)
            dist.all_reduce(count)
            wrong += int(count.item() != size * (size - 1) // 2)
        buffers = [b.tolist() for b in wrapped.module.buffers() if b.is_floating_point()]
        # DDP broadcasts rank 0's running statistics at the start of the next forward pass.
        wrapped.eval()
        return {
            "wrong": wrong,
            "parameters": digest(wrapped),
            "moved": any(any(v != 0.0 for v in b) for b in buffers[::2]),
            "steps": handle.stats().steps,
        }


def train_in_subgroups(*, config: Any, model: str = "mlp", steps: int = 3) -> dict[str, Any]:
    """Ranks 0 and 1, and ranks 2 and 3, train apart at the same time."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[rank // 2]
    net = build(model, rank)
    with registered(net, config, ddp={"process_group": own}) as (wrapped, handle):
        run_steps(wrapped, _optimizer(net), 0, steps)
        prefix = next(iter(handle.state_dict())).split("/")[0]
    return {"parameters": digest(net), "prefix": prefix}


def replicas_agree(group: Group, **arguments: Any) -> list[dict[str, Any]]:
    results = group.run(train, **arguments)
    same([result["parameters"] for result in results])
    assert all(result["finite"] for result in results)
    return results


@pytest.mark.parametrize("compressor", ["none", "powersgd"])
def test_accumulation_sends_only_the_last_micro_step(compressor: str, two: Group) -> None:
    config = settings(compressor)
    accumulated = replicas_agree(two, config=config, steps=3, accumulate=3)
    straight = replicas_agree(two, config=config, steps=3)
    sent = [runs[0]["stats"]["payload_bytes"] for runs in (accumulated, straight)]
    assert sent[0] == sent[1]
    assert accumulated[0]["stats"]["steps"] == 3


def test_clipping_sees_the_mean_gradient(two: Group) -> None:
    config = settings("topk")
    clipped = replicas_agree(two, config=config, steps=3, clip=0.05)
    free = replicas_agree(two, config=config, steps=3)
    assert clipped[0]["parameters"] != free[0]["parameters"]


@pytest.mark.parametrize(
    ("compressor", "ddp"),
    [
        ("none", {}),
        ("int8", {"gradient_as_bucket_view": True}),
        ("powersgd", {"gradient_as_bucket_view": True}),
    ],
)
def test_gradients_in_another_memory_order_train_alike(
    compressor: str, ddp: dict[str, Any], two: Group
) -> None:
    config = settings(compressor)
    runs = [
        replicas_agree(two, config=config, steps=2, model=model, ddp=ddp)
        for model in ("cnn", "channels_last_cnn")
    ]
    # Convolutions of another layout round in another order, and no more than that.
    assert runs[0][0]["losses"] == pytest.approx(runs[1][0]["losses"], rel=1e-3)


def test_gradients_as_views_of_buckets_change_no_bit(two: Group) -> None:
    config = settings("topk")
    runs = [
        replicas_agree(two, config=config, steps=3, ddp={"gradient_as_bucket_view": view})
        for view in (False, True)
    ]
    assert runs[0][0]["parameters"] == runs[1][0]["parameters"]


def test_static_graph_trains(two: Group) -> None:
    replicas_agree(two, config=settings("topk"), steps=3, ddp={"static_graph": True})


def test_frozen_layers_are_not_sent(two: Group) -> None:
    frozen = replicas_agree(two, config=settings("none"), model="frozen_mlp", steps=2)
    whole = replicas_agree(two, config=settings("none"), steps=2)
    first_layer_bytes = (16 * 64 + 64) * 4
    sizes = [runs[0]["stats"]["dense_bytes"] for runs in (frozen, whole)]
    assert sizes[1] - sizes[0] == 2 * first_layer_bytes


@pytest.mark.parametrize("transport", ON_HOST)
def test_subgroups_train_apart(transport: str, four: Group) -> None:
    config = settings("topk", exchange={"transport": transport})
    results = four.run(train_in_subgroups, config=config)
    parameters = [result["parameters"] for result in results]
    assert parameters[0] == parameters[1]
    assert parameters[2] == parameters[3]
    assert parameters[0] != parameters[2]
    assert [result["prefix"] for result in results] == ["rank0", "rank1", "rank0", "rank1"]


def test_a_world_of_one_trains_and_conserves_mass(fresh: Callable[[int], Group]) -> None:
    group = fresh(1)
    plain = group.run(train_plain, steps=3)[0]
    for compressor in ("none", "topk", "int8", "powersgd"):
        result = group.run(train, config=settings(compressor), steps=3)[0]
        assert result["finite"]
        assert result["stats"]["sent_bytes"] == 0
        assert (plain["parameters"] == result["parameters"]) == (compressor == "none")
        balanced = group.run(weigh, config=settings(compressor))[0]
        assert max(balanced["errors"]) < 2e-6


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_rank_may_register_late(transport: str, two: Group) -> None:
    config = settings("topk", exchange={"transport": transport, "silence_s": 1.5})
    config["exchange"]["heartbeat_s"] = 0.2
    late = [{"late_s": 0.0}, {"late_s": 2.0}]
    replicas_agree(two, config=config, per_rank=late, steps=2)


@pytest.mark.parametrize("transport", ON_HOST)
def test_user_collectives_run_beside_the_engine(transport: str, four: Group) -> None:
    config = settings("int8", exchange={"transport": transport})
    results = four.run(train_beside_user_traffic, config=config, steps=10)
    same([result["parameters"] for result in results])
    assert all(result["wrong"] == 0 for result in results)
    assert all(result["moved"] and result["steps"] == 10 for result in results)


def test_warm_up_switches_at_its_step(two: Group) -> None:
    def payload(steps: int) -> dict[str, int]:
        config = settings("topk", warmup={"steps": 2}, dense_below={"elems": 0})
        run = replicas_agree(two, config=config, steps=steps)
        found: dict[str, int] = run[0]["stats"]["compressors"]
        return found

    assert payload(2) == {"none": 2 * 4 * parameters_of_mlp()}
    assert set(payload(3)) == {"none", "topk"}
    assert payload(3)["none"] == payload(2)["none"]


def parameters_of_mlp() -> int:
    return 16 * 64 + 64 + 64 * 64 + 64 + 64 * 48 + 48 + 48 * 4 + 4


def test_warm_up_is_dense_training_at_first(two: Group) -> None:
    warm = settings("topk", warmup={"steps": 3})
    runs = [replicas_agree(two, config=c, steps=3)[0] for c in (warm, settings("none"))]
    assert runs[0]["parameters"] == runs[1]["parameters"]


def test_small_parameters_travel_dense(two: Group) -> None:
    config = settings("topk", dense_below={"elems": 1500})
    rows = replicas_agree(two, config=config, steps=1)[0]["stats"]["compressors"]
    assert rows["none"] == 4 * (parameters_of_mlp() - 64 * 64 - 64 * 48)
