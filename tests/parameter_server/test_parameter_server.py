"""A parameter server on a virtual clock: means, mass, windows, cost, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from _server_world import ServerWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs import Bf16, NoCompression
from compressa.codecs.payload import HEADER_BYTES
from compressa.errors import CompressaError, PayloadError, StateError, Timeout
from compressa.parameter_server.keys import MOST_SHARDS
from compressa.parameter_server.protocol import Kind, Request
from compressa.parameters import ParameterInfo
from compressa.testing.inputs import generator
from compressa.testing.world import LoopbackWorld
from compressa.transports.base import Key
from compressa.transports.loopback import Loopback

KEYS: dict[str, tuple[int, ...]] = {"w": (40, 33), "v": (700,), "b": (7,)}
Values = list[dict[str, torch.Tensor]]


def config(name: str, **sections: Any) -> dict[str, Any]:
    parameters = {"density": 0.1} if name == "topk" else {}
    return {"compressor": {"name": name, **parameters}, "dense_below": {"elems": 100}, **sections}


def values_of(workers: int, step: int, *, whole: bool = False) -> Values:
    """Return what each worker pushes in a step; small integers if `whole`."""
    random = generator(step)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        if whole:
            return torch.randint(-8, 8, shape, generator=random).float()
        return torch.randn(shape, generator=random)

    return [{name: draw(shape) for name, shape in KEYS.items()} for _ in range(workers)]


def same(means: Sequence[Mapping[str, torch.Tensor]]) -> Mapping[str, torch.Tensor]:
    """Return what all workers have alike, bit for bit."""
    for mean in means[1:]:
        assert all(torch.equal(mean[name], means[0][name]) for name in means[0])
    return means[0]


def run(world: ServerWorld, steps: int) -> list[Mapping[str, torch.Tensor]]:
    count = len(world.workers)
    return [same(world.step(values_of(count, step))) for step in range(steps)]


def residual(world: ServerWorld, name: str) -> torch.Tensor:
    """Return what is owed of a key: the workers' mean, and the servers', float64."""
    count, key = len(world.workers), world.job.table.numbers[name]
    shape = world.job.table.parameters[key].shape
    kept = torch.zeros(shape, dtype=torch.float64).view(-1)
    for worker in world.workers:
        kept += worker.state.vectors[f"residual/{name}"].double() / count
    for shard in world.job.table.by_key[key]:
        part = shard.segment
        vectors = world.servers[shard.server].state.vectors
        kept[part.start : part.stop] += vectors[f"residual/{part.name}"].double()
    return kept.view(shape)


LAYOUTS: list[dict[str, Any]] = [
    {"size": 4},
    {"size": 4, "servers": [2]},
    {"size": 5, "servers": 1, "colocated": False},
    {"size": 7, "servers": [0, 3, 4], "colocated": False},
]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_without_compression_it_is_the_mean_of_a_dense_all_reduce_bit_for_bit(size: int) -> None:
    parameters = [ParameterInfo(i, name, shape) for i, (name, shape) in enumerate(KEYS.items())]
    dense = LoopbackWorld(size, parameters, NoCompression())
    worlds = [
        ServerWorld(size, KEYS),
        ServerWorld(size + 3, KEYS, servers=3, colocated=False),
        ServerWorld(size, KEYS, servers=1),
    ]
    for step in range(2):
        values = values_of(size, step)
        due = dense.step(values)[0]
        for world in worlds:
            mean = same(world.step(values))
            assert all(torch.equal(mean[name], due[name]) for name in KEYS)


def test_it_is_the_mean_of_a_scatter_reduce_where_both_are_exact() -> None:
    parameters = [ParameterInfo(i, name, shape) for i, (name, shape) in enumerate(KEYS.items())]
    scattered = LoopbackWorld(4, parameters, Bf16(), exchange="scatter_reduce")
    world = ServerWorld(4, KEYS, config("bf16"))
    values = values_of(4, 0, whole=True)
    due, mean = scattered.step(values)[0], same(world.step(values))
    assert all(torch.equal(mean[name], due[name]) for name in KEYS)


@pytest.mark.parametrize("name", ["none", "int8", "onebit", "qsgd", "bf16"])
def test_neither_who_serves_nor_how_many_do_changes_a_bit(name: str) -> None:
    first, *others = (run(ServerWorld(keys=KEYS, config=config(name), **how), 3) for how in LAYOUTS)
    for other in others:
        for step, mean in enumerate(other):
            same([first[step], mean])


@settings(max_examples=25)
@given(
    name=st.sampled_from(["int8", "onebit", "topk", "fp8"]),
    layout=st.sampled_from(LAYOUTS),
    steps=st.integers(1, 6),
)
def test_nothing_is_lost(name: str, layout: dict[str, Any], steps: int) -> None:
    settings = config(name, dense_below={"elems": 0}, feedback={"kind": "error"})
    world = ServerWorld(keys=KEYS, config=settings, **layout)
    count = len(world.workers)
    given = {key: torch.zeros(shape, dtype=torch.float64) for key, shape in KEYS.items()}
    out = {key: zero.clone() for key, zero in given.items()}
    most = 0.0
    for step, mean in enumerate(run(world, steps)):
        for key in KEYS:
            given[key] += sum(own[key].double() / count for own in values_of(count, step))
            out[key] += mean[key].double()
            most = max(most, float(given[key].abs().max()), float(mean[key].abs().max()))
    for key in KEYS:
        kept = residual(world, key)
        most = max(most, float(kept.abs().max()))
        # Of float32, as in `compressa.testing.mass`.
        tolerance = steps * (3 * count + 6) * 2.0**-24 * most
        assert (given[key] - out[key] - kept).abs().max() <= tolerance


def test_servers_keep_residuals_of_what_they_serve_only() -> None:
    world = ServerWorld(4, KEYS, config("int8", dense_below={"elems": 0}))
    run(world, 1)
    kept = [sum(v.numel() for v in server.state.vectors.values()) for server in world.servers]
    assert sum(kept) == world.job.table.elems
    assert max(kept) < world.job.table.elems / 2


def test_a_worker_may_be_a_step_ahead_and_late_ones_get_the_step_that_they_asked_for() -> None:
    due = run(ServerWorld(3, KEYS, config("int8")), 5)
    world = ServerWorld(3, KEYS, config("int8"))
    names = list(KEYS)
    handles: list[list[Any]] = [[] for _ in range(3)]

    def push(worker: int, step: int) -> None:
        world.workers[worker].push(names, list(values_of(3, step)[worker].values()), step=step)

    def pull(worker: int, step: int) -> None:
        handles[worker].append(world.workers[worker].pull(names, step=step))

    for worker in (0, 2):
        for step in (0, 1):
            push(worker, step)
    pull(0, 0)
    push(1, 0)
    push(1, 1)
    mean = [world.workers[0].wait(handles[0][0])]
    push(0, 2)  # worker 2 has not asked for step 0 yet
    pull(0, 1)
    mean.append(world.workers[0].wait(handles[0][1]))
    push(0, 3)
    pull(2, 0)
    pull(2, 1)
    late = [world.workers[2].wait(handle) for handle in handles[2]]
    for step in (0, 1):
        same([due[step], mean[step], late[step]])


MISTAKES: dict[str, Callable[[Any], object]] = {
    "a step is left out": lambda w: w.push("b", torch.zeros(7), step=1),
    "a step is pulled before it is pushed": lambda w: w.pull("b"),
    "there is no such key": lambda w: w.push("c", torch.zeros(7)),
    "a key comes twice": lambda w: w.push(["b", "b"], [torch.zeros(7)] * 2),
    "a shape does not fit": lambda w: w.push("b", torch.zeros(8)),
    "a dtype does not fit": lambda w: w.push("b", torch.zeros(7, dtype=torch.float64)),
    "a tensor is missing": lambda w: w.push(["b", "v"], [torch.zeros(7)]),
    "there is no key": lambda w: w.push([], []),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_and_change_nothing(mistake: str) -> None:
    world = ServerWorld(2, KEYS)
    with pytest.raises(StateError):
        MISTAKES[mistake](world.workers[0])
    run(world, 2)
    world.close()


def test_a_worker_can_not_be_two_steps_ahead() -> None:
    worker = ServerWorld(1, {"b": (7,)}).workers[0]
    for _ in range(2):
        worker.push("b", torch.ones(7))
    with pytest.raises(StateError, match="pull that step, and wait"):
        worker.push("b", torch.ones(7))
    handle = worker.pull("b", step=0)
    with pytest.raises(StateError, match="pull that step, and wait"):
        worker.push("b", torch.ones(7))
    worker.wait(handle)
    worker.push("b", torch.ones(7))
    with pytest.raises(StateError, match="can not be pulled"):
        worker.pull("b", step=0)


def test_steps_begin_where_they_are_told_to_and_pass_32_bits() -> None:
    first = 2**32 - 2
    world = ServerWorld(2, KEYS, config("qsgd"), first_step=first)
    for step in range(4):
        values = values_of(2, step)
        for worker, own in zip(world.workers, values, strict=True):
            worker.push(list(own), list(own.values()), step=first + step)
        same([worker.wait(worker.pull(list(KEYS))) for worker in world.workers])


def test_values_can_be_pulled_into_tensors() -> None:
    world = ServerWorld(2, KEYS)
    outs = [torch.zeros(700), torch.zeros(700)]
    for worker, out in zip(world.workers, outs, strict=True):
        worker.push("v", torch.full((700,), 1.0 + worker.rank))
        worker.pull("v", out)
    for worker in world.workers:
        for handle in list(worker._under_way):
            worker.wait(handle)
    assert all((out == 1.5).all() for out in outs)


def test_all_have_ended_when_all_workers_have_closed() -> None:
    for how in LAYOUTS:
        world = ServerWorld(keys=KEYS, config=config("int8"), **how)
        run(world, 2)
        world.close()
        for server in world.servers:
            assert server.closed.done()
            server.serve()
        assert all(session.closed and session.error is None for session in world.sessions)
        with pytest.raises(StateError, match="closed"):
            world.workers[0].push("b", torch.zeros(7))


def test_a_late_worker_is_named_by_all() -> None:
    world = ServerWorld(4, KEYS, servers=1, colocated=False)
    early = [world.workers[0], world.workers[2]]
    for worker in early:
        worker.push("v", torch.zeros(700))
    handles = [worker.pull("v") for worker in early]
    for worker, handle in zip(early, handles, strict=True):
        with pytest.raises(Timeout, match=r"waited .* for ranks 1 .*push of key 'v'.*step 0"):
            worker.wait(handle)
        with pytest.raises(Timeout):
            worker.push("v", torch.zeros(700))
    server = world.nodes[3]
    with pytest.raises(Timeout, match="ranks 1"):
        server.serve()  # type: ignore[union-attr]


def delay(
    world: ServerWorld, rank: int, *, requests_s: float = 0.0, payloads_s: float = 0.0
) -> None:
    """Have a rank send its requests or payloads later."""
    transport, clock = world.loopback.transports[rank], world.loopback.clock
    send, first = transport.send, world.job.units.request(0, 0, 0)

    def later(peer: int, key: Key, buffer: torch.Tensor, *rest: Any) -> None:
        wait_s = requests_s if key.unit >= first else payloads_s
        clock.at(clock.now_s + wait_s, lambda: send(peer, key, buffer, *rest))

    transport.send = later  # type: ignore[method-assign]


def test_payloads_may_overtake_the_request_that_announces_them() -> None:
    world = ServerWorld(3, KEYS, config("int8"), servers=1, colocated=False)
    clock = world.loopback.clock
    delay(world, 1, requests_s=1.0)
    due = run(ServerWorld(2, KEYS, config("int8")), 3)
    for step, mean in enumerate(run(world, 3)):
        same([due[step], mean])
    clock.at(clock.now_s + 1e6, lambda: None)
    clock.run()
    for session in world.sessions:
        session.expire()  # nothing that is due may be left
    world.close()


def test_a_server_waits_for_idle_workers_as_long_as_it_takes() -> None:
    world = ServerWorld(2, KEYS)
    clock = world.loopback.clock
    run(world, 1)
    clock.at(clock.now_s + 1e6, lambda: None)
    clock.run()
    for session in world.sessions:
        session.expire()
    same(world.step(values_of(2, 1)))


# What comes over the network


def spoil(
    world: ServerWorld, rank: int, units: range, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Change every message of some units that a rank sends."""
    transport = world.loopback.transports[rank]
    send = transport.send

    def spoilt(
        peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        send(peer, key, change(buffer.clone()) if key.unit in units else buffer, priority, sent)

    transport.send = spoilt  # type: ignore[method-assign]


def flipped(byte: int, data: torch.Tensor) -> torch.Tensor:
    data[byte] ^= 0xFF
    return data


def refusal(world: ServerWorld) -> CompressaError:
    with pytest.raises(CompressaError) as caught:
        world.step(values_of(len(world.workers), 0))
    assert all(session.error is not None for session in world.sessions)
    return caught.value


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_no_payload_with_another_header_is_taken(byte: int) -> None:
    change = functools.partial(flipped, byte)
    for rank in (1, 2):  # what is pushed, and what is answered
        world = ServerWorld(3, KEYS, config("int8"), servers=1, colocated=False)
        spoil(world, rank, range(world.job.units.request(0, 0, 0)), change)
        assert isinstance(refusal(world), PayloadError)


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 3), slice(0, 24)])
def test_no_payload_of_another_length_is_taken(cut: slice) -> None:
    for name in ("int8", "threshold"):
        choice = {"name": "threshold", "threshold": 1.0} if name == "threshold" else {"name": name}
        settings = {"compressor": choice, "feedback": {"kind": "none"}}
        world = ServerWorld(3, KEYS, settings, servers=1, colocated=False)
        spoil(world, 1, range(len(world.job.table.shards)), lambda data: data[cut])
        assert isinstance(refusal(world), PayloadError)


@pytest.mark.parametrize("byte", range(20))
def test_no_request_with_another_head_is_taken(byte: int) -> None:
    world = ServerWorld(3, KEYS, servers=1, colocated=False)
    first = world.job.units.request(0, 0, 0)
    spoil(world, 0, range(first, 2**32), functools.partial(flipped, byte))
    assert isinstance(refusal(world), PayloadError)


@pytest.mark.parametrize(
    ("kind", "step", "key"),
    [
        (Kind.PUSH, 1, 0),  # not the next one
        (Kind.PUSH, 0, 3),  # no such key
        (Kind.PULL, 0, 0),  # was not pushed
        (Kind.PULL, 7, 1),
    ],
)
def test_no_request_out_of_order_is_taken(kind: Kind, step: int, key: int) -> None:
    world = ServerWorld(3, KEYS, servers=1, colocated=False)
    world.workers[0]._kept[0] |= {key}
    world.workers[0]._tell(kind, step, [key])
    assert isinstance(refusal(world), PayloadError)


def test_a_step_that_the_server_has_forgotten_is_refused() -> None:
    """A worker hides what it pushes, so that the server does not know how far it is."""
    world = ServerWorld(3, KEYS, servers=1, colocated=False)
    liar, tell = world.workers[1], world.workers[1]._tell
    for step in range(3):
        if step == 1:
            liar._tell = lambda kind, step, keys, rate: []  # type: ignore[method-assign]
        for worker in world.workers:
            worker.push("b", torch.zeros(7), step=step)
        world.workers[0].wait(world.workers[0].pull("b"))
        liar._windows[world.job.table.numbers["b"]].waited(step)
    tell(Kind.PULL, 0, [world.job.table.numbers["b"]])
    world.loopback.clock.run()
    for session in world.sessions:
        assert isinstance(session.error, PayloadError)
        assert "rank 1 pulls step 0" in str(session.error)


def test_a_worker_that_runs_away_is_stopped_by_the_server() -> None:
    world = ServerWorld(3, KEYS, servers=1, colocated=False)
    for step in range(3):
        world.workers[0]._tell(Kind.PUSH, step, [0])
    world.loopback.clock.run()
    error = refusal(world)
    assert isinstance(error, PayloadError)
    assert "rank 0 pushes step 2" in str(error)


# Cost


def seconds(world: ServerWorld, elems: int) -> tuple[float, float]:
    """Return how long it takes to push a key, and then to pull it."""
    clock, started_s = world.loopback.clock, world.loopback.clock.now_s
    for worker in world.workers:
        worker.push("x", torch.zeros(elems))
    clock.run()
    pushed_s = clock.now_s
    for worker in world.workers:
        worker.pull("x")
    clock.run()
    return pushed_s - started_s, clock.now_s - pushed_s


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 3), (3, 6), (16, 4)])
def test_dedicated_servers_cost_what_the_formula_says(workers: int, servers: int) -> None:
    elems, byte_s = 1 << 14, 1e-6
    size = workers + servers
    loopback = Loopback(size, bandwidth_bytes_per_s=1 / byte_s)
    world = ServerWorld(size, {"x": (elems,)}, servers=servers, colocated=False, loopback=loopback)
    due_s = max(1, workers / servers) * 4 * elems * byte_s
    assert seconds(world, elems) == pytest.approx((due_s, due_s), rel=0.02)


@pytest.mark.parametrize(("workers", "servers"), [(2, 2), (3, 3), (16, 16), (4, 1), (8, 2)])
def test_colocated_servers_cost_what_the_formula_says(workers: int, servers: int) -> None:
    elems, byte_s = 1 << 17, 1e-6
    loopback = Loopback(workers, bandwidth_bytes_per_s=1 / byte_s)
    world = ServerWorld(workers, {"x": (elems,)}, servers=servers, loopback=loopback)
    # A server's port brings the other workers' parts; a worker's takes what it does not serve.
    alone = 1 if servers < workers else (workers - 1) / workers
    due_s = max(alone, (workers - 1) / servers) * 4 * elems * byte_s
    assert seconds(world, elems) == pytest.approx((due_s, due_s), rel=0.04)


def test_pushes_and_pulls_of_many_keys_overlap() -> None:
    elems, byte_s, count = 1 << 12, 1e-6, 32
    loopback = Loopback(6, bandwidth_bytes_per_s=1 / byte_s)
    keys = {f"key {i}": (elems,) for i in range(count)}
    world = ServerWorld(6, keys, servers=2, colocated=False, loopback=loopback)
    for name in keys:
        for worker in world.workers:
            worker.push(name, torch.zeros(elems))
            worker.pull(name)
    loopback.clock.run()
    one_way_s = 4 / 2 * count * 4 * elems * byte_s
    assert loopback.clock.now_s == pytest.approx(one_way_s, rel=0.08)


@pytest.mark.parametrize(
    ("workers", "servers", "colocated"), [(1, 1, False), (3, 1, False), (2, 2, False), (4, 4, True)]
)
def test_a_large_key_is_on_its_way_back_while_it_is_pushed(
    workers: int, servers: int, colocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compressa.parameter_server.keys.SHARD_BYTES", 1 << 12)
    elems, byte_s, size = servers << 14, 1e-6, workers + (not colocated) * servers
    loopback = Loopback(size, bandwidth_bytes_per_s=1 / byte_s)
    how = {"servers": servers, "colocated": colocated}
    world = ServerWorld(size, {"x": (elems,)}, loopback=loopback, **how)
    for rank in range(size):
        delay(world, rank, payloads_s=1e-9)  # the virtual network knows no urgency
    for worker in world.workers:
        worker.push("x", torch.zeros(elems))
        worker.pull("x")
    loopback.clock.run()
    others = workers - colocated
    one_way_s = max(servers - colocated, others) / servers * 4 * elems * byte_s
    if colocated:
        one_way_s *= 2  # each port carries pushes and answers both ways
    assert one_way_s <= loopback.clock.now_s <= (1 + 1.5 / MOST_SHARDS) * one_way_s


@pytest.mark.parametrize("name", ["none", "int8", "topk", "qsgd"])
def test_how_often_a_key_is_cut_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = LAYOUTS[1:3]
    due = [run(ServerWorld(keys=KEYS, config=config(name), **how), 3) for how in layouts]
    monkeypatch.setattr("compressa.parameter_server.keys.SHARD_BYTES", 64)
    for how, means in zip(layouts, due, strict=True):
        world = ServerWorld(keys=KEYS, config=config(name), **how)
        several = max(len(shards) for shards in world.job.table.by_key)
        assert name == "topk" or several > len(world.servers)
        for mean, expected in zip(run(world, 3), means, strict=True):
            same([expected, mean])
        world.close()


def test_small_keys_are_announced_and_asked_for_in_one_request_to_each_server() -> None:
    keys = {f"key {i}": (7,) for i in range(20)}
    whole = {"exchange": {"unit_payload_bytes": 1000}}
    world = ServerWorld(4, keys, whole, servers=2, colocated=False)
    transport, first = world.loopback.transports[0], world.job.units.request(0, 0, 0)
    requests: list[tuple[int, int]] = []
    send = transport.send

    def noted(peer: int, key: Key, buffer: torch.Tensor, *rest: Any) -> None:
        if key.unit >= first:
            requests.append((peer, buffer.numel()))
        send(peer, key, buffer, *rest)

    transport.send = noted  # type: ignore[method-assign]
    world.step([{name: torch.zeros(7) for name in keys}] * 2)
    length = Request.most_bytes(10)
    assert sorted(requests) == [(2, length), (2, length), (3, length), (3, length)]


def test_urgent_keys_go_first() -> None:
    world = ServerWorld(3, {f"key {i}": (512,) for i in range(4)}, servers=1, colocated=False)
    priorities = world.sessions[0].driver._plan.priorities
    units, shards = world.job.units, world.job.table.shards
    order = [(priorities[units.push(s), 0], priorities[units.answer(s, 0), 0]) for s in shards]
    assert order == sorted(order)
    assert max(order[0]) < min(order[1])
    assert (units.request(0, 0, 0), 0) not in priorities  # and so before all of them


def test_a_compressed_key_takes_a_payload_each_way() -> None:
    world = ServerWorld(4, {"x": (1 << 14,)}, config("int8"), servers=1, colocated=False)
    shard = world.job.table.shards[0]
    values = [{"x": torch.randn(1 << 14)} for _ in range(3)]
    world.step(values)
    due = world.job.table.codings[0].codec.wire_bytes(shard.segment.elems)
    sent = [transport.traffic.sent_bytes for transport in world.loopback.transports]
    assert all(due < own < due + 300 for own in sent[:3])
    assert 3 * due < sent[3] < 3 * due + 300
