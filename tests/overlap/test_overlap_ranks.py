"""Overlap on real ranks: the bits are DDP's, and failures surface where somebody waits."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import torch.distributed as dist
from _overlapping import _train, around_ddp, optimizer_of, overlapped, train_in_all_ways
from _rank_models import build, loss_of
from _ranks import Group, Pools, same, settings
from _training import digest, registered, state_digest
from test_overlap import OPTIMIZERS
from torch import nn

from compressa import OverlappedDataParallel
from compressa.tracing import reader

pytestmark = pytest.mark.ranks


def resume(*, config: Any, folder: str, optimizer: str, steps: int) -> list[str]:
    """Train in one go, and with a checkpoint in the middle that another model goes on from."""
    rank, half = dist.get_rank(), steps // 2
    ends = []
    net = build("mlp", rank)
    chosen = OPTIMIZERS[optimizer](net.parameters())
    with overlapped(net, chosen, config) as model:
        _train(model, chosen, range(half))
        model.handle.save(folder)
        states = [net.state_dict(), chosen.state_dict()]
        torch.save(states, f"{folder}/rank{rank}.pt")
        _train(model, chosen, range(half, steps))
        ends += [digest(model), state_digest(model.handle)]
    net = build("mlp", rank)
    chosen = OPTIMIZERS[optimizer](net.parameters())
    with overlapped(net, chosen, config) as model:
        _train(model, chosen, range(1))  # what is loaded replaces what is due
        weights, momenta = torch.load(f"{folder}/rank{rank}.pt")
        net.load_state_dict(weights)
        chosen.load_state_dict(momenta)
        model.handle.load(folder)
        _train(model, chosen, range(half, steps))
        ends += [digest(model), state_digest(model.handle)]
    return ends


def mean_of_gradients(*, config: Any) -> bool:
    """Whether the mean of known gradients is within 2 ulp of the sum of their magnitudes / P."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net = build("linear", rank)

    def factors(of: int) -> list[torch.Tensor]:
        made = torch.Generator().manual_seed(of)
        return [torch.randn(p.shape, generator=made) * 10.0**of for p in net.parameters()]

    seen: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with overlapped(net, optimizer, config) as model:
        model(*factors(rank)).backward()
        optimizer.step()
        seen = [-p.detach().double() for p in model.parameters()]  # they were zeros
    right = True
    for i, mean in enumerate(seen):
        all_factors = torch.stack([factors(of)[i] for of in range(size)]).double()
        scale = (all_factors.abs().sum(0) / size).float()
        ulp = (torch.nextafter(scale, torch.tensor(torch.inf)) - scale).double()
        right &= bool(((mean - all_factors.mean(0)).abs() <= 2 * ulp).all())
    return right


def train_in_measured_ways(*, config: Any, steps: int, path: str) -> dict[str, Any]:
    """Train, and say how each step was done; and what it gives if all are done at once."""
    rank, ends = dist.get_rank(), {}
    for way in ("auto", False):
        net = build("mlp", rank)
        chosen = OPTIMIZERS["sgd"](net.parameters())
        with (
            overlapped(net, chosen, config, overlap=way) as model,
            model.handle.trace(path if way == "auto" else f"{path}-{way}"),
        ):
            done = []
            for step in range(steps):
                _train(model, chosen, range(step, step + 1))
                done.append(model.handle.stats().overlap)
            ends[str(way)] = digest(model)
            if way == "auto":
                ends["done"] = [[each.deferring, each.measuring] for each in done]
                ends["times"] = [[each.deferred_s, each.at_once_s] for each in done]
                ends["at once"] = sum(model.overlap_ended.values())
    return ends


def start_unlike() -> tuple[str, list[float]]:
    """Ranks make different models; all have rank 0's. Return its digest and the first buffers."""
    torch.manual_seed(dist.get_rank())
    net = build("normed_cnn", 0)
    for tensor in [*net.parameters(), *net.buffers()]:
        tensor.data.add_(dist.get_rank())
    with overlapped(net, optimizer_of("sgd", net), {"compressor": "none"}) as model:
        return digest(model), [float(b.sum()) for b in model.buffers()]


def differ(*, rank: int, **options: Any) -> None:
    """One rank is told something else."""
    net = build("mlp", 0)
    optimizer = optimizer_of("sgd", net)
    if options.pop("lbfgs", False) and dist.get_rank() == rank:
        optimizer = torch.optim.LBFGS(net.parameters())
    own = options if dist.get_rank() == rank else {}
    OverlappedDataParallel(net, optimizer, {"compressor": "none"}, **own)


def lose_a_rank(*, config: Any, lost: int) -> dict[str, Any]:
    """A rank ends before its backward; the others, who have done theirs, find out as they wait."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    optimizer = optimizer_of("sgd", net)
    told: dict[str, Any] = {}
    with overlapped(net, optimizer, config, broadcast_buffers=False) as model:
        _train(model, optimizer, range(2))
        loss = loss_of(model, rank, 2, torch.float32)
        stepped = [f"stepped {other}" for other in range(dist.get_world_size()) if other != lost]
        store = dist.distributed_c10d._get_default_store()
        if rank == lost:
            store.wait(stepped, timedelta(seconds=20))  # else they hear of it before they wait
            os._exit(3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.set(f"stepped {rank}", "")
        reads = {
            "forward": lambda: model(torch.zeros(2, 16)),
            "flush": model.flush,
            "state_dict": net.state_dict,
            "parameter": lambda: next(net.parameters()).sum(),
            "save": lambda: model.handle.save("/nowhere"),
        }
        for name, read in reads.items():
            try:
                read()
            except Exception as error:
                told[name] = type(error).__name__
    told["lazy"] = sum(type(p) is not nn.Parameter for p in net.parameters())
    return told


def switch_and_trace(*, config: Any, other: Any, path: str) -> list[str]:
    """Switch while updates are due, and record a trace; return the digest of what comes out."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    optimizer = optimizer_of("sgd", net)
    with overlapped(net, optimizer, config) as model:
        _train(model, optimizer, range(2))
        with model.handle.trace(path):
            first = model.handle.switch(other)
            _train(model, optimizer, range(2, 7))
        assert first == 4
        return [digest(model), state_digest(model.handle)]


def _of_a_step(each: object) -> bool:
    """Whether steps make such; what others left in this process, such as ctypes' types, is not."""
    home = type(each).__module__.partition(".")[0]
    return home in ("compressa", "concurrent", "numpy", "torch") or isinstance(each, memoryview)


def _collect() -> None:
    """Collect garbage, once nobody else does: a thread that is at it may be held up by another."""
    cycle: list[Any] = [nn.Identity()]
    gone = weakref.ref(cycle[0])
    cycle.append(cycle)
    del cycle
    while gone() is not None:
        gc.collect()
        time.sleep(0.001)


def left_to_the_collector(
    *, config: Any, overlap: bool, trace: str, view: bool = False
) -> dict[str, int]:
    """Train without the cyclic garbage collector, with a trace; return what it would have freed."""
    net = build("mlp", dist.get_rank())
    optimizer = optimizer_of("sgd", net)
    with contextlib.ExitStack() as stack:
        if overlap:
            model: Any = stack.enter_context(overlapped(net, optimizer, config))
            handle = model.handle
        else:
            ddp = {"gradient_as_bucket_view": view}
            model, handle = stack.enter_context(registered(net, config, ddp=ddp))
        handle.trace(trace)
        _train(model, optimizer, range(6))  # plans are made, and what is set up once is there
        gc.disable()
        stack.callback(gc.enable)
        _collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        stack.callback(gc.set_debug, 0)
        _train(model, optimizer, range(6, 10))
        gc.collect()
        found = Counter(type(each).__name__ for each in gc.garbage if _of_a_step(each))
        gc.garbage.clear()
    return dict(found)


def check(ends: list[dict[str, Any]], *, ddp: bool = True) -> dict[str, Any]:
    """All ways gave the same bits on all ranks; return rank 0's."""
    for way in ("on", "off"):
        same([end[way] for end in ends])
    for end in ends:
        assert end["on"] == end["off"]
        assert end["on state"] == end["off state"]
        assert not ddp or end["on"] == end["ddp"]
        assert end["finite"]
    return ends[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor", "muonish"])
def test_without_compression_the_bits_are_those_of_ddp(optimizer: str, two: Group) -> None:
    check(two.run(train_in_all_ways, config=settings("none"), optimizer=optimizer))


@pytest.mark.parametrize("model", ["transformer", "normed_cnn", "scaled", "frozen_mlp"])
def test_models_of_every_kind_train_as_with_ddp(model: str, two: Group) -> None:
    check(two.run(train_in_all_ways, config=settings("none"), model=model, optimizer="adam"))


def test_complex_models_train_as_with_ddp(two: Group) -> None:
    check(two.run(train_in_all_ways, config=settings("none"), model="complex64"))
    how: dict[str, Any] = {"config": settings("int8"), "model": "complex64"}
    check(two.run(train_in_all_ways, ddp=False, **how), ddp=False)


def test_updates_that_wait_for_a_slow_network_give_the_same_bits(two: Group) -> None:
    slow = {"policy": "priority", "pace_bits_per_s": 5e6}
    config = settings("none", schedule=slow)
    assert check(two.run(train_in_all_ways, config=config, steps=3))["late"] > 0


@pytest.mark.parametrize("compressor", ["topk", "int8", "powersgd"])
def test_overlap_changes_no_bit_of_what_is_compressed(compressor: str, four: Group) -> None:
    config = settings(compressor, schedule={"policy": "priority"})
    check(four.run(train_in_all_ways, config=config, ddp=False), ddp=False)


def test_accumulation_and_loss_scaling_give_the_bits_of_ddp(two: Group) -> None:
    check(two.run(train_in_all_ways, config=settings("none"), accumulate=2))
    end = check(two.run(train_in_all_ways, config=settings("none"), scaled=True, max_norm=0.1))
    assert sum(end["ended"].values()) >= 3


def test_an_overflow_on_one_rank_skips_the_step_on_all(two: Group) -> None:
    for compressor in ("none", "topk"):
        plain = compressor == "none"
        how = {"ddp": plain, "scaled": True, "steps": 5, "spoil": {1: 1, 3: 0}}
        check(two.run(train_in_all_ways, config=settings(compressor), **how), ddp=plain)


def test_unused_parameters_are_left_as_ddp_leaves_them(two: Group) -> None:
    how: dict[str, Any] = {"model": "branches", "options": {"find_unused_parameters": True}}
    for compressor in ("none", "topk"):
        plain = compressor == "none"
        check(two.run(train_in_all_ways, config=settings(compressor), ddp=plain, **how), ddp=plain)


def test_unused_parameters_are_cut_and_unscaled_on_the_ranks_that_do_not_use_them(
    two: Group,
) -> None:
    how: dict[str, Any] = {"model": "branches", "options": {"find_unused_parameters": True}}
    for compressor in ("none", "topk"):
        config, plain = settings(compressor), compressor == "none"
        summed = {"accumulate": 2, "apart": False}
        for more in ({"scaled": True, "max_norm": 0.1}, {"accumulate": 2}, summed):
            check(two.run(train_in_all_ways, config=config, ddp=plain, **how, **more), ddp=plain)
        # The norm's terms have a zero among them where DDP leaves None: it may round elsewhere.
        check(two.run(train_in_all_ways, config=config, ddp=False, max_norm=0.1, **how), ddp=False)


def test_a_rank_may_take_its_time_between_backward_and_step(two: Group) -> None:
    """Nobody needs the flags of a step in which each rank reaches all; the next one waits."""
    how: dict[str, Any] = {"options": {"find_unused_parameters": True}, "slow": 0}
    check(two.run(train_in_all_ways, config=settings("none"), **how))


def test_a_model_that_averages_already_is_refused(two: Group) -> None:
    for said in two.refused(around_ddp, "StateError", config=settings("none")):
        assert "give OverlappedDataParallel its module" in said


def test_each_gradient_is_cut_alike_with_and_without_overlap(two: Group) -> None:
    how: dict[str, Any] = {"config": settings("int8"), "options": {"clip_each": 0.01}}
    check(two.run(train_in_all_ways, ddp=False, **how), ddp=False)


def test_a_world_of_one_trains(pools: Pools) -> None:
    for compressor in ("none", "int8"):
        ddp = compressor == "none"
        check(pools.get(1).run(train_in_all_ways, config=settings(compressor), ddp=ddp), ddp=ddp)


def test_means_on_four_ranks_are_right_to_two_units_in_the_last_place(four: Group) -> None:
    assert all(four.run(mean_of_gradients, config=settings("none")))


def test_a_checkpoint_while_updates_are_due_goes_on_with_the_same_bits(
    two: Group, tmp_path: Path
) -> None:
    config = settings("topk", schedule={"pace_bits_per_s": 5e6})
    how = {"config": config, "folder": str(tmp_path), "optimizer": "adam", "steps": 4}
    for one, its_state, other, other_state in two.run(resume, **how):
        assert one == other
        assert its_state == other_state


def test_steps_are_done_in_the_way_that_takes_less_time(two: Group, tmp_path: Path) -> None:
    config = settings("int8", schedule={"profile_steps": 2, "replan_steps": 3})
    how = {"config": config, "steps": 120, "path": str(tmp_path / "t.json")}
    ends = same(two.run(train_in_measured_ways, **how))
    assert ends["auto"] == ends["False"]
    # Told in step 2, followed from 5 on; measured from 6 on; tried in turn from 11 on, six steps
    # each, until one clearly leads: in three cycles of both, or in nine at most.
    done = ends["done"]
    assert done[:11] == [[True, False]] * 11
    chosen = done.index([ANY, False], 11)
    assert chosen in range(11 + 5 * 6, 11 + 17 * 6 + 1, 2 * 6)
    assert done[11:chosen] == [[number // 6 % 2 == 1, True] for number in range(chosen - 11)]
    deferred_s, at_once_s = ends["times"][chosen]
    deferring, _ = done[chosen]
    assert deferring is (deferred_s < 0.98 * at_once_s)
    assert ends["at once"] == sum(not deferring for deferring, _ in done)
    waits = [s for s in reader.read(tmp_path / "t-rank1.json").spans if s.stage == "wait"]
    told = {span.step: span.name for span in waits if span.name.startswith("updates")}
    assert told[11].startswith("updates at once, to measure it; a step: deferred ")
    way = "deferred" if deferring else "at once"
    assert told[chosen].startswith(f"updates {way}; a step: deferred ")


def test_all_ranks_start_from_the_values_of_the_first(two: Group) -> None:
    same(two.run(start_unlike))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_each": 1.0}, "clip_each: rank 0 has None, rank 1 has 1.0"),
        ({"overlap": False}, "overlap: rank 0 has 'auto', rank 1 has False"),
        ({"find_unused_parameters": True}, "rank 1"),
        ({"lbfgs": True}, "LBFGS moves all parameters at once"),
    ],
)
def test_ranks_that_differ_are_told(options: dict[str, Any], message: str, two: Group) -> None:
    for outcome in two.errors(differ, rank=1, **options):
        assert message in outcome.error["message"]


def test_a_lost_rank_surfaces_wherever_somebody_waits(fresh: Callable[[int], Group]) -> None:
    outcomes = fresh(3).outcomes(lose_a_rank, config=settings("topk"), lost=2)
    assert outcomes[2].exit_code == 3
    for outcome in outcomes[:2]:
        assert outcome.ok, outcome.explain()
        reads = ("forward", "flush", "state_dict", "parameter", "save")
        assert outcome.value == dict.fromkeys(reads, "PeerLost") | {"lazy": 0}


def test_a_switch_goes_with_overlap_and_traces_name_what_is_applied(
    two: Group, tmp_path: Path
) -> None:
    how = {"config": settings("none"), "other": settings("int8"), "path": str(tmp_path / "t.json")}
    same([end[0] for end in two.run(switch_and_trace, **how)])
    for rank in range(2):
        trace = reader.read(tmp_path / f"t-rank{rank}.json")
        applied = {span.name.split(" ")[0] for span in trace.spans if span.stage == "apply"}
        assert applied
        assert applied <= {f"{layer}.{kind}" for layer in range(8) for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    ("compressor", "overlap", "view"),
    [("none", True, False), ("topk", False, False), ("topk", False, True)],
)
def test_memory_of_a_step_is_free_without_the_garbage_collector(
    compressor: str, overlap: bool, view: bool, pools: Pools, tmp_path: Path
) -> None:
    config = settings(compressor, exchange={"algorithm": "ring"})
    trace = str(tmp_path / "trace.json")
    group = pools.fresh(2)  # what others have compiled may become garbage meanwhile
    how = {"config": config, "overlap": overlap, "view": view, "trace": trace}
    found = group.run(left_to_the_collector, **how)
    group.end()
    assert found == [{}, {}]
