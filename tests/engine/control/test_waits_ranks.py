"""Whoever holds up the others is named by all of them, and nobody else is."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _ranks import Group, Pools, same, settings
from _stress_arena import Arena, kinds_here
from _training import Logged, _optimizer, digest, registered, run_steps, train
from _transports import ON_HOST
from _until import until
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.config import load_config
from compressa.engine.control import long_waits
from compressa.engine.control.control import Control
from compressa.engine.control.waits import Doing
from compressa.engine.start import startup

pytestmark = pytest.mark.ranks


def _seen(error: BaseException | None, began_s: float) -> dict[str, Any]:
    if error is None:
        return {"type": "", "message": "", "ranks": [], "seconds": time.monotonic() - began_s}
    own = getattr(error, "rank", None)
    ranks = [own] if own is not None else sorted(getattr(error, "ranks", ()))
    seconds = time.monotonic() - began_s
    kind = type(error).__name__
    return {"type": kind, "message": str(error), "ranks": ranks, "seconds": seconds}


def wait_in_a_chain(*, config: Any, chain: list[int]) -> dict[str, Any]:
    """Each rank of a chain waits for the next one, in a call that the next does not make.

    The last one is elsewhere; unless it is the first one, too: then it is a cycle.
    """
    rank = dist.get_rank()
    settings, world = load_config(config), dist.group.WORLD
    control = startup.open_control(settings, world, "a test")
    control.describe(Doing("elsewhere").activity)
    follows = dict(itertools.pairwise(chain))
    began_s, error = time.monotonic(), None
    if rank in follows:
        try:
            purpose = f"the call of {rank}"
            control.exchange({}, {follows[rank]: 1}, purpose).wait(config["exchange"]["deadline_s"])
        except compressa.TransportError as caught:
            error = control.verdict(caught)
    else:
        while error is None and time.monotonic() < began_s + 20.0:
            time.sleep(0.02)
            try:
                control.look("nothing")
            except compressa.TransportError as caught:
                error = caught
    seen = _seen(error, began_s)
    control.close(2.0)
    return seen


def open_late(*, config: Any, culprit: int, seconds: float) -> dict[str, Any]:
    """Register; one rank opens its transport once all others have given up. What each saw."""
    real, own = startup.open_transport, dist.get_rank()

    def late(*arguments: Any, **named: Any) -> Any:
        if own == culprit:
            time.sleep(seconds)
        return real(*arguments, **named)

    began_s, error = time.monotonic(), None
    with mock.patch.object(startup, "open_transport", late):
        try:
            with registered("mlp", config):
                pass
        except compressa.CompressaError as caught:
            error = caught
    return _seen(error, began_s)


def be_late_for_a_step(*, config: Any, culprit: int, how: str, seconds: float) -> dict[str, Any]:
    """Train; one rank does not come to a step for a while. Return what all raise, if they do."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    with Logged() as logged, registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        run_steps(wrapped, optimizer, 0, 2)
        began_s, error = time.monotonic(), None
        if rank == culprit:
            _stay_away(how, seconds)
        try:
            run_steps(wrapped, optimizer, 2, 3)
        except compressa.CompressaError as caught:
            error = caught
        seen = _seen(error, began_s) | {"parameters": digest(net), "step": handle.next_step}
        again = None
        try:
            if error is not None:
                loss_of(wrapped, rank, 5, torch.float32).backward()
        except compressa.CompressaError as caught:
            again = str(caught)
    return seen | {"again": again, "logged": logged.texts}


def _stay_away(how: str, seconds: float) -> None:
    """Sleep; stop, until a process of its own continues it; or hold the interpreter's lock."""
    if how == "sleep":
        time.sleep(seconds)
    elif how == "stop":
        awake = f"sleep {seconds}; kill -CONT {os.getpid()}"
        helper = subprocess.Popen(["sh", "-c", awake])
        os.kill(os.getpid(), signal.SIGSTOP)
        helper.wait()
    else:
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))  # which does not let go of it


def call_alone(
    *, config: Any, folder: str, call: str, others: str, rest_s: float = 0.0
) -> dict[str, Any]:
    """Rank 0 makes a collective call alone, which ends; then all train, and make it together.

    Args:
        config: The configuration.
        folder: For checkpoints.
        call: Of the handle: "save", "load" or "switch".
        others: What other ranks do meanwhile: "sleep", "step", or another call.
        rest_s: For how long they do nothing after that other call.
    """
    rank = dist.get_rank()
    net = build("mlp", rank)
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        run_steps(wrapped, optimizer, 0, 2)
        handle.save(folder)
        dist.barrier()
        began_s, error = time.monotonic(), None
        if rank and others == "sleep":
            time.sleep(config["exchange"]["deadline_s"] + 1.0)
        elif rank == 0 or others not in ("sleep", "step"):
            try:
                _make(handle, call if rank == 0 else others, folder)
            except compressa.CompressaError as caught:
                error = caught
            time.sleep(rest_s if rank else 0.0)
        else:
            time.sleep(0.5)  # so that their deadline comes later
        seen = _seen(error, began_s)
        run_steps(wrapped, optimizer, 2, 1)
        for _ in range(2):
            _make(handle, call, folder)
        run_steps(wrapped, optimizer, handle.next_step, 3)
        left = len(_early(handle, call))
        return seen | {"parameters": digest(net), "left": left}


def _early(handle: compressa.Handle, call: str) -> list[Any]:
    """Messages of a call in the control channel's inboxes that nobody has taken."""
    control = handle.engine.session.control
    unit = zlib.crc32(f"handle.{call}".encode())
    inboxes = control._channel._transport.inboxes.values()
    return [key for inbox in inboxes for key in inbox._messages if key.unit == unit]


def _make(handle: compressa.Handle, call: str, folder: str) -> None:
    if call == "switch":
        handle.switch({**_as_it_is(handle), "compressor": {"name": "int8"}})
    else:
        getattr(handle, call)(folder)


def _as_it_is(handle: compressa.Handle) -> dict[str, Any]:
    return dict(handle.config.model_dump(exclude_unset=True))


def broadcast_alone(*, config: Any) -> dict[str, Any]:
    """Rank 0 broadcasts alone; then all do, and train."""
    rank = dist.get_rank()
    values, error, began_s = torch.full((1000,), float(rank)), None, time.monotonic()
    if rank == 0:
        try:
            compressa.broadcast(values, config=config)
        except compressa.CompressaError as caught:
            error = caught
    else:
        time.sleep(config["exchange"]["deadline_s"] + 0.5)
    seen = _seen(error, began_s)
    compressa.broadcast(values, sources=[1], config=config)
    with registered("mlp", config) as (wrapped, _):
        loss_of(wrapped, rank, 0, torch.float32).backward()
    dist.new_group(list(range(dist.get_world_size())))
    return seen | {"value": values.unique().tolist()}


def reform_alone(*, config: Any) -> dict[str, Any]:
    """Rank 0 reforms alone, in vain, and the others train; then all reform, and train."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net = build("mlp", rank)
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        run_steps(wrapped, optimizer, 0, 2)
        dist.barrier()
        began_s, error = time.monotonic(), None
        try:
            if rank == 0:
                handle.reform(range(size))
            else:
                run_steps(wrapped, optimizer, 2, 1)
        except compressa.CompressaError as caught:
            error = caught
        seen = _seen(error, began_s)
        if rank:
            time.sleep(config["exchange"]["start_s"] + 1.0)  # by then rank 0 has given up
        source = handle.reform(range(size))
        run_steps(wrapped, optimizer, handle.next_step, 2)
        return seen | {"parameters": digest(net), "source": source, "step": handle.next_step}


def train_on_a_slow_link(*, config: Any, steps: int) -> dict[str, Any]:
    """Train a model whose gradients take the link for longer than a peer may be silent."""
    rank = dist.get_rank()
    net = torch.nn.Linear(300, 300)
    wrapped = DistributedDataParallel(net, init_sync=False)
    handle = compressa.register_comm_hook(wrapped, config)
    began_s, error = time.monotonic(), None
    try:
        for step in range(steps):
            torch.manual_seed(10 * step + rank)
            wrapped(torch.randn(4, 300)).square().sum().backward()
    except compressa.CompressaError as caught:
        error = caught
    seen = _seen(error, began_s)
    handle.close()
    return seen


def send_to_a_stopped_peer(*, silence_s: float, heartbeat_s: float) -> list[float]:
    """Rank 1 stops while rank 0 sends it much; return when rank 0 notices, in seconds from then."""
    noticed: list[float] = []
    times, world = {"heartbeat_s": heartbeat_s, "silence_s": silence_s}, dist.group.WORLD
    control = startup.open_control(load_config({"exchange": times}), world, "a test")
    control.listen(lambda error: noticed.append(time.monotonic()))
    dist.barrier()
    began_s = time.monotonic()
    if dist.get_rank():
        _stay_away("stop", 2 * silence_s)
        return []
    time.sleep(0.2)
    control.exchange({1: bytes(1 << 24)}, {}, "much")
    until(lambda: noticed, 3 * silence_s)
    return [seen_s - began_s for seen_s in noticed]


def wait_for_an_evaluation(*, config: Any, seconds: float) -> dict[str, Any]:
    """Rank 0 evaluates alone for a while, and the others wait for it in backward."""
    with mock.patch.object(long_waits, "LONG_S", 1.0):
        return be_late_for_a_step(config=config, culprit=0, how="sleep", seconds=seconds)


def wait_in_vain_for_each_other(*, config: Any, folder: str) -> dict[str, Any]:
    """Rank 0 saves alone, and the others train: long before its deadline, it gives up."""
    with (
        mock.patch.object(long_waits, "LONG_S", 1.0),
        mock.patch.object(long_waits, "_AGAIN_S", 1.0),
    ):
        return call_alone(config=config, folder=folder, call="save", others="step")


def explain_late(*, config: Any, folder: str) -> dict[str, Any]:
    """Calls differ, and rank 0 asks why only when rank 1 has given up and gone on."""
    explained = Control.explained

    def late(control: Control, *arguments: Any) -> compressa.Timeout:
        time.sleep(0.0 if dist.get_rank() else 0.7)
        return explained(control, *arguments)

    with mock.patch.object(Control, "explained", late):
        return call_alone(config=config, folder=folder, call="load", others="save", rest_s=1.5)


def brisk(compressor: Any = "topk", **exchange: Any) -> dict[str, Any]:
    times = {"heartbeat_s": 0.3, "silence_s": 8.0, "deadline_s": 2.0}
    return settings(compressor, exchange={**times, **exchange})


def check_verdict(seen: Sequence[dict[str, Any]], kind: str, ranks: list[int]) -> None:
    """All raise the same, and name the same."""
    assert [(s["type"], s["ranks"]) for s in seen] == [(kind, ranks)] * len(seen), seen


@pytest.mark.parametrize("chain", [[2, 0, 1], [3, 1, 2, 0]], ids=str)
def test_the_end_of_a_chain_of_waits_is_named(chain: list[int], pools: Pools) -> None:
    group = pools.get(len(chain))
    seen = group.run(wait_in_a_chain, config=brisk(), chain=chain)
    check_verdict(seen, "Timeout", [chain[-1]])
    assert max(s["seconds"] for s in seen) < 2.0 + 1.0 + 2.0  # and the machine's load
    assert all(f"rank {chain[-1]} is elsewhere" in s["message"] for s in seen), seen


@pytest.mark.parametrize(("chain", "cycle"), [([0, 2, 0], [0, 2]), ([0, 3, 1, 2, 3], [1, 2, 3])])
def test_a_cycle_of_waits_is_named_as_a_whole(
    chain: list[int], cycle: list[int], four: Group
) -> None:
    seen = four.run(wait_in_a_chain, config=brisk(), chain=chain)
    check_verdict(seen, "Timeout", cycle)


@pytest.mark.parametrize("transport", ON_HOST)
def test_all_ranks_of_a_ring_name_the_one_that_does_not_come(transport: str, four: Group) -> None:
    """Each waits for its neighbour, most of which are healthy."""
    config = brisk("none", transport=transport, algorithm="ring", kind="all_reduce")
    seen = four.run(be_late_for_a_step, config=config, culprit=1, how="sleep", seconds=3.5)
    check_verdict(seen, "Timeout", [1])
    for s in seen:
        assert "rank 1 is outside of the library, after step 1" in s["message"], s


@pytest.mark.parametrize("how", ["stop", "hold the lock"])
def test_who_was_away_for_longer_than_the_silence_says_so_of_itself(
    how: str, fresh: Callable[[int], Group]
) -> None:
    config = brisk(silence_s=1.5, deadline_s=15.0)
    seen = fresh(3).run(be_late_for_a_step, config=config, culprit=1, how=how, seconds=4.0)
    check_verdict(seen, "PeerLost", [1])
    assert "rank 1 was itself not running for" in seen[1]["message"], seen[1]


@pytest.mark.parametrize("how", ["stop", "hold the lock"])
def test_who_was_away_for_less_than_the_silence_accuses_nobody(
    how: str, fresh: Callable[[int], Group]
) -> None:
    """Not even where that is longer than the deadline for which it waits for others."""
    config = brisk(silence_s=8.0, deadline_s=10.0)
    group = fresh(3)
    seen = group.run(be_late_for_a_step, config=config, culprit=1, how=how, seconds=4.0)
    check_verdict(seen, "", [])
    plain = group.run(train, config=config, steps=5)
    same([s["parameters"] for s in seen] + [p["parameters"] for p in plain])


@pytest.mark.parametrize(
    ("call", "others"), [("save", "sleep"), ("load", "step"), ("switch", "sleep")]
)
def test_a_lone_call_fails_alone_and_the_next_one_works(
    call: str, others: str, pools: Pools, tmp_path: Path
) -> None:
    seen = pools.get(3).run(
        call_alone,
        config=brisk(),
        folder=str(tmp_path),
        call=call,
        others=others,
    )
    check_verdict(seen[1:], "", [])
    assert seen[0]["type"] == "Timeout", seen[0]
    elsewhere = "outside of the library, after step 1" if others == "sleep" else "in step 2"
    for part in (f"in handle.{call}", f"rank 1 is {elsewhere}", f"rank 2 is {elsewhere}"):
        assert part in seen[0]["message"], seen[0]
    same([s["parameters"] for s in seen])
    assert [s["left"] for s in seen] == [0, 0, 0]


def test_a_lone_reform_fails_and_all_reform_after_it(pools: Pools) -> None:
    config = brisk(deadline_s=4.0, start_s=2.0) | {"engine": {"recover": True}}
    seen = pools.get(3).run(reform_alone, config=config)
    assert (seen[0]["type"], seen[0]["ranks"]) == ("Timeout", [1, 2]), seen[0]
    check_verdict(seen[1:], "PeerLost", [0])
    same([s["parameters"] for s in seen])
    assert [(s["source"], s["step"]) for s in seen] == [(None, 4)] * 3


def test_different_calls_do_not_meet_and_both_sides_are_named(two: Group, tmp_path: Path) -> None:
    seen = two.run(
        call_alone,
        config=brisk(),
        folder=str(tmp_path),
        call="load",
        others="save",
    )
    check_verdict(seen, "Timeout", [0, 1])
    for part in ("rank 0 is in handle.load", "rank 1 is in handle.save"):
        assert all(part in s["message"] for s in seen), seen


def test_who_gives_up_second_names_what_the_first_has_found(two: Group, tmp_path: Path) -> None:
    seen = two.run(explain_late, config=brisk(), folder=str(tmp_path))
    check_verdict(seen, "Timeout", [0, 1])


def test_a_lone_broadcast_fails_alone_and_the_next_one_works(fresh: Callable[[int], Group]) -> None:
    seen = fresh(3).run(broadcast_alone, config=brisk(deadline_s=1.5))
    assert (seen[0]["type"], seen[0]["ranks"]) == ("Timeout", [1, 2]), seen[0]
    assert [s["value"] for s in seen] == [[1.0]] * 3


@pytest.fixture(scope="module")
def slow_links(pools: Pools) -> Iterator[Arena]:
    """Hosts with links on which a step takes seconds."""
    with contextlib.closing(Arena(zygote=pools.zygote, rate="1mbit")) as arena:
        yield arena


@pytest.fixture
def slow_hosts(slow_links: Arena) -> Iterator[Group]:
    """Three ranks on hosts of their own."""
    group = slow_links.network_group(3)
    yield group
    group.end()


@pytest.mark.netns
@pytest.mark.skipif("link" not in kinds_here(), reason="needs root, ip, tc and nsenter")
def test_nobody_is_lost_while_bytes_move(slow_hosts: Group) -> None:
    """A step takes several times as long as a peer may be silent."""
    config = brisk("none", silence_s=1.0, deadline_s=100.0)
    seen = slow_hosts.run(train_on_a_slow_link, config=config, steps=1)
    assert min(s["seconds"] for s in seen) > 3.0, seen
    check_verdict(seen, "", [])


@pytest.mark.netns
@pytest.mark.skipif("link" not in kinds_here(), reason="needs root, ip, tc and nsenter")
def test_a_deadline_that_a_slow_link_misses_accuses_nobody_alone(slow_hosts: Group) -> None:
    config = brisk("none", silence_s=1.0, deadline_s=1.5)
    seen = slow_hosts.run(train_on_a_slow_link, config=config, steps=1)
    (named,) = {tuple(s["ranks"]) for s in seen}
    assert {s["type"] for s in seen} == {"Timeout"}
    assert len(named) > 1, seen


def test_silence_is_noticed_though_a_send_is_stuck(
    fresh: Callable[[int], Group],
) -> None:
    (noticed_s,) = fresh(2).run(send_to_a_stopped_peer, silence_s=2.0, heartbeat_s=0.9)[0]
    assert 1.0 < noticed_s < 3.5, noticed_s


def test_a_rank_that_is_elsewhere_is_waited_for_with_a_word_in_the_log(
    fresh: Callable[[int], Group],
) -> None:
    """Longer than a dead or silent one would be."""
    config = brisk(silence_s=1.5, deadline_s=60.0)
    seen = fresh(3).run(wait_for_an_evaluation, config=config, seconds=4.0)
    check_verdict(seen, "", [])
    assert seen[0]["logged"] == []
    for rank in (1, 2):
        (text,) = seen[rank]["logged"]
        assert text.startswith(
            f"compressa.engine.control.long_waits: rank {rank} has waited for rank 0 in"
        )
        assert "rank 0 is outside of the library, after step 1" in text


def test_a_lone_call_gives_up_when_others_wait_for_its_rank(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    config = brisk(deadline_s=60.0)
    seen = fresh(3).run(wait_in_vain_for_each_other, config=config, folder=str(tmp_path))
    check_verdict(seen[1:], "", [])
    assert (seen[0]["type"], seen[0]["ranks"]) == ("Timeout", [0, 1, 2]), seen[0]
    assert seen[0]["seconds"] < 20.0
    assert "in vain" in seen[0]["message"]
    same([s["parameters"] for s in seen])


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_start_waits_for_a_rank_no_longer_than_it_says(transport: str, four: Group) -> None:
    """Though it waits for much longer where a rank compiles."""
    config = brisk(transport=transport)
    seen = four.run(open_late, config=config, culprit=0, seconds=4.5)
    check_verdict(seen[1:], "Timeout", [0])
