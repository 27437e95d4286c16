"""The hook with gradients on a GPU, as a CPU emulates one: the same bits, however late it is."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _failing import train_until_failure, train_with
from _gradients_on_gpu import on_gpu
from _rank_models import loss_of
from _ranks import Group, same, settings
from _saving import load, save
from _training import registered, train
from emulated_streams import Event, Stream
from emulated_torch import StreamedEmulated
from test_hook_mass import balance_with_scaler, hold_unused
from test_hook_switch import switching

pytestmark = pytest.mark.ranks


def train_and_count_waits(**options: Any) -> dict[str, Any]:
    """Train; return the result, and how often each of the engine's threads waited for the GPU."""
    waits: Counter[str] = Counter()

    def counted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            name = threading.current_thread().name
            if name.startswith("compressa-co"):  # -comm, and -codec with a number
                waits[name.split("_")[0]] += 1
            return wait(*arguments)

        return call

    patches: dict[Any, dict[str, Any]] = {
        Stream: {"synchronize": counted(Stream.synchronize)},
        StreamedEmulated: {"read": counted(StreamedEmulated.read)},
        Event: {"synchronize": counted(Event.synchronize)},
    }
    with contextlib.ExitStack() as stack:
        for target, names in patches.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(target, name, value))
        result = train(**options)
    return {"parameters": result["parameters"], "waits": dict(waits)}


def close_later(*, config: Any, seconds: float) -> float:
    """Train, and close so much later for each rank; return how long that took."""
    rank = dist.get_rank()
    with registered("mlp", config) as (wrapped, handle):
        loss_of(wrapped, rank, 0, torch.float32).backward()
        time.sleep(rank * seconds)
        started_s = time.monotonic()
        handle.close()
        return time.monotonic() - started_s


@pytest.mark.parametrize(
    ("transport", "compressor", "seed"),
    [
        ("tcp", "int8", None),
        ("tcp", "topk", 1),
        ("nccl", "int8", 1),
        ("nccl", "none", 1),
        ("nccl", "topk", None),
        ("nccl", "threshold", 2),
        ("gloo-group", "int8", 1),
    ],
)
def test_training_on_a_gpu_gives_the_bits_of_the_cpu(
    compressor: str, transport: str, seed: int | None, two: Group
) -> None:
    on_host = "tcp" if transport == "nccl" else transport
    config = settings(compressor, exchange={"transport": on_host})
    due = same([r["parameters"] for r in two.run(train, config=config, steps=4)])
    config = settings(compressor, exchange={"transport": transport})
    results = two.run(on_gpu, job=train, config=config, steps=4, seed=seed)
    assert same([result["parameters"] for result in results]) == due


BY_NCCL = [("nccl", "own"), ("nccl", "stream")]
STREAM, GRAPHS = {"exchange": {"order": "stream"}}, {"engine": {"cuda_graphs": True}}


@pytest.mark.parametrize(
    ("compressor", "more", "seed"),
    [
        ("int8", STREAM, 1),
        ("topk", STREAM, None),
        ("none", STREAM, 2),
        ("topk", GRAPHS, 1),
        ("topk", STREAM | GRAPHS, 2),
    ],
)
def test_neither_stream_order_nor_graphs_change_a_bit(
    compressor: str, more: dict[str, Any], seed: int | None, two: Group
) -> None:
    due = same([r["parameters"] for r in two.run(train, config=settings(compressor), steps=5)])
    exchange = {"transport": "nccl", **more.get("exchange", {})}
    config = settings(compressor, **{**more, "exchange": exchange})
    results = two.run(on_gpu, job=train, config=config, steps=5, seed=seed)
    assert same([result["parameters"] for result in results]) == due


@pytest.mark.parametrize(
    ("transport", "seed"), [("tcp", 1), ("tcp", 2), ("nccl", None), ("nccl", 1), ("nccl", 3)]
)
def test_streams_that_are_ahead_of_others_overwrite_nothing(
    transport: str, seed: int | None, two: Group
) -> None:
    # The memory that one stage receives into is the next stage's, too.
    exchange = {"kind": "scatter_reduce"}
    config = settings("int8", exchange=exchange)
    due = same([r["parameters"] for r in two.run(train, config=config, steps=3)])
    config = settings("int8", exchange={**exchange, "transport": transport})
    results = two.run(on_gpu, job=train, config=config, steps=3, seed=seed)
    assert same([result["parameters"] for result in results]) == due


BY_GATHER = {"transport": "nccl", "kind": "all_gather"}
BY_SCATTER = {"transport": "nccl", "kind": "scatter_reduce"}
NEVER_WAITING: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8, gathered": ("int8", BY_GATHER),
    "int8, scattered": ("int8", BY_SCATTER),
    "none": ("none", {"transport": "nccl"}),
    "chunked_topk": (
        {"name": "chunked_topk", "density": 0.1, "chunk": 64},
        {"transport": "nccl"},
    ),
    "gtopk": (
        {"name": "gtopk", "density": 0.1, "value_dtype": "float16"},
        {"transport": "nccl"},
    ),
    **{
        f"topk, {dtype} and {indices}": (
            {"name": "topk", "density": 0.1, "value_dtype": dtype, "indices": indices},
            BY_GATHER,
        )
        for dtype, indices in zip(
            ("float32", "bfloat16", "float32"), ("bits", "bitmap", "elias_fano"), strict=True
        )
    },
}


def waits_of(two: Group, compressor: Any, exchange: dict[str, Any]) -> list[dict[str, int]]:
    """How often the engine's threads wait for the GPU; the bits are those of the CPU."""
    on_host = settings(compressor, exchange={**exchange, "transport": "tcp"})
    due = same([r["parameters"] for r in two.run(train, config=on_host, steps=3)])
    config, job = settings(compressor, exchange=exchange), train_and_count_waits
    results = two.run(on_gpu, job=job, config=config, steps=3)
    assert same([result["parameters"] for result in results]) == due
    return [result["waits"] for result in results]


@pytest.mark.parametrize("case", NEVER_WAITING.values(), ids=NEVER_WAITING)
def test_a_step_whose_payloads_are_of_exact_size_never_waits_for_the_gpu(
    case: tuple[Any, dict[str, Any]], two: Group
) -> None:
    assert waits_of(two, *case) == [{}, {}]


def test_a_step_whose_layout_depends_on_the_data_waits_for_numbers(two: Group) -> None:
    for waits in waits_of(two, "dgc", BY_GATHER):
        assert waits.keys() == {"compressa-codec"}


@pytest.mark.parametrize(
    ("compressor", "kind", "mutation"),
    [
        ("int8", "scatter_reduce", "wrong magic"),
        ("topk", "all_gather", "wrong body length"),
        ({"name": "topk", "density": 0.1, "indices": "elias_fano"}, "all_gather", "wrong indices"),
        ("dgc", "all_gather", "wrong indices"),
        ({"name": "gtopk", "density": 0.1, "indices": "bitmap"}, "auto", "wrong indices"),
        ("scalecom", "auto", "wrong indices of the leader"),
    ],
)
def test_a_spoilt_payload_ends_the_training_no_later_than_the_next_step(
    compressor: Any, kind: str, mutation: str, two: Group
) -> None:
    config = settings(compressor, exchange={"kind": kind, "transport": "tcp", "deadline_s": 8.0})
    options = {"job": train_with, "config": config, "mutation": mutation}
    outcomes = two.errors(on_gpu, **options, steps=3, deadline_s=40.0)
    found = [outcome.error for outcome in outcomes if outcome.error]
    assert len(found) == 2
    assert {error["type"] for error in found} <= {"PayloadError", "PeerLost"}, found
    assert any("in step 1 failed a check on the GPU" in error["message"] for error in found), found


@pytest.mark.parametrize("compressor", ["int8", "powersgd"])
def test_a_skipped_step_is_undone_on_a_gpu_as_on_a_cpu(compressor: str, two: Group) -> None:
    poison = {"rank": 1, "step": 2, "parameter": 0, "value": "inf"}
    config, job = settings(compressor), balance_with_scaler
    due = two.run(job, config=config, steps=4, poison=poison)
    assert two.run(on_gpu, job=job, config=config, steps=4, poison=poison) == due
    assert [h["moved"] for h in due[0]["history"]] == [True, True, False, True]


def test_unused_parameters_keep_their_residuals_on_a_gpu(two: Group) -> None:
    config, job = settings("int8"), hold_unused
    assert two.run(on_gpu, job=job, config=config) == two.run(job, config=config)


@pytest.mark.parametrize("compressor", ["topk", "powersgd"])
def test_a_gpu_and_a_cpu_read_each_other_s_checkpoints(
    compressor: str, two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, warmup={"steps": 2})
    jobs = {"cpu": save, "gpu": load}
    for saved, loaded in (("cpu", "gpu"), ("gpu", "cpu")):
        due = run_on(two, saved, jobs["cpu"], config=config, folder=str(tmp_path / saved))
        assert run_on(two, loaded, jobs["gpu"], config=config, folder=str(tmp_path / saved)) == due


def test_compressors_are_switched_on_a_gpu_as_on_a_cpu(two: Group, tmp_path: Path) -> None:
    switches = [(1, {"compressor": "int8"}, 3), (3, {"compressor": "none"}, None)]
    job, config = switching, settings("topk")
    results = [
        run_on(two, device, job, config=config, switches=switches, steps=7, folder=str(tmp_path))
        for device in ("cpu", "gpu")
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize(("transport", "order"), [("tcp", "own"), *BY_NCCL])
def test_a_killed_rank_is_named_and_nothing_is_left_behind(
    transport: str, order: str, fresh: Callable[[int], Group]
) -> None:
    group, job = fresh(2), train_until_failure
    times = {"heartbeat_s": 0.3, "silence_s": 2.0, "deadline_s": 20.0}
    config = settings("int8", exchange={"transport": transport, "order": order, **times})
    fault = {"culprit": 1, "how": "kill", "phase": "backward", "close": True}
    outcomes = group.collect(group.start(on_gpu, job=job, config=config, **fault), 20.0)
    assert outcomes[0].ok, outcomes[0].explain()
    seen = outcomes[0].value
    assert (seen["type"], seen["rank"], seen["left"]) == ("PeerLost", 1, [])
    assert seen["seconds"] < 8.0


def test_no_rank_takes_nccl_away_from_another_that_still_needs_it(two: Group) -> None:
    config = settings("int8", exchange={"transport": "nccl"})
    took_s = two.run(on_gpu, job=close_later, config=config, seconds=0.5)
    assert 0.4 < took_s[0] < 5.0
    assert took_s[1] < took_s[0]


@pytest.mark.parametrize(("transport", "order"), BY_NCCL)
def test_a_rank_that_stops_is_given_up_and_what_waits_for_it_on_the_gpu_goes_on(
    transport: str, order: str, fresh: Callable[[int], Group]
) -> None:
    # Heartbeats stop, too, but are not missed before the deadline has passed.
    group, job = fresh(2), train_until_failure
    times = {"heartbeat_s": 0.3, "silence_s": 60.0, "deadline_s": 2.0}
    config = settings("int8", exchange={"transport": transport, "order": order, **times})
    fault = {"culprit": 1, "how": "stop", "phase": "forward", "close": True}
    started = group.start(on_gpu, job=job, config=config, **fault)
    (outcome,) = group.collect(started[:1], 20.0)
    assert outcome.ok, outcome.explain()
    seen = outcome.value
    assert seen["type"] == "Timeout", seen
    # The control channel waits for a goodbye until the silence has lasted long enough.
    assert {left.partition(":")[0] for left in seen["left"]} <= {"compressa-control"}
    assert seen["message"].startswith("rank 0 waited 2 s for NCCL in stage 0 of unit ")
    assert seen["again"] == seen["saved"] == seen["message"]
    assert seen["seconds"] < 4.0


def run_on(group: Group, device: str, job: Callable[..., Any], **options: Any) -> Any:
    """Do a job with gradients on the CPU, or on an emulated GPU."""
    if device == "cpu":
        return group.run(job, **options)
    return group.run(on_gpu, job=job, **options)
