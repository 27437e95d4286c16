"""compressa.broadcast on real ranks: the same bits on all, or the same error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _gradients_on_gpu import emulated_nccl
from _ranks import Group, same
from _training import lasting_threads
from emulated_streams import current_stream
from emulated_torch import as_cuda, emulated_torch, on_cpu
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.collectives import barrier, broadcast_multicast
from compressa.collectives.base import Compute, Program
from compressa.collectives.rank_group import RankGroup
from compressa.engine import opening, session
from compressa.engine.replicas import broadcast_buckets, broadcasting
from compressa.engine.start import startup
from compressa.errors import StateError
from compressa.transports.multicast import MulticastReceiver
from compressa.transports.staged import Staged

pytestmark = pytest.mark.ranks

WINDOW_BYTES = 1 << 14
_PIECE_BYTES = 600


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of many kinds, with values that depend on the seed."""
    made = torch.Generator().manual_seed(seed)

    def bits(*shape: int) -> torch.Tensor:
        return torch.randint(-(1 << 30), 1 << 30, shape, dtype=torch.int32, generator=made)

    return {
        "large": bits(300, 70).view(torch.float32),
        "large and transposed": torch.randn(90, 80, generator=made).t(),
        "two long rows": torch.randn(2, 5000, generator=made, dtype=torch.float64),
        "half": bits(9).view(torch.float16),  # NaNs of all kinds among them
        "none": torch.empty(3, 0),
        "one": torch.randn((), generator=made),
        "flags": torch.rand(33, generator=made) > 0.5,
        "complex": torch.randn(3, dtype=torch.complex64, generator=made),
        "count": torch.tensor(seed),
        "odd member": bits(17).view(torch.uint8)[3:],
    }


def bits_of(tensor: torch.Tensor) -> list[int]:
    flat = tensor.contiguous().reshape(-1)
    return cast("list[int]", flat.view(torch.uint8).tolist())


@contextlib.contextmanager
def small(window_bytes: int = WINDOW_BYTES) -> Iterator[None]:
    """Have buckets be short, so that there are many."""
    sizes = broadcasting.Sizes(window_bytes // 4, window_bytes, 2)
    with (
        mock.patch.object(broadcasting.Sizes, "of", return_value=sizes),
        mock.patch.object(broadcast_buckets, "SMALL_BYTES", window_bytes // 8),
    ):
        yield


@contextlib.contextmanager
def losing(every: int) -> Iterator[list[int]]:
    """Have receivers of multicast lose each so manieth packet; give those that they lost."""
    take, seen, lost = MulticastReceiver._take, [0], list[int]()

    def sometimes(receiver: MulticastReceiver, packet: memoryview) -> str:
        seen[0] += 1
        if every and not seen[0] % every:
            lost.append(seen[0])
            return ""
        return take(receiver, packet)

    with mock.patch.object(MulticastReceiver, "_take", sometimes):
        yield lost


def settings(**exchange: Any) -> dict[str, Any]:
    return {"exchange": {"deadline_s": 20.0, **exchange}}


def bring(
    *,
    sources: Sequence[int],
    exchange: Mapping[str, Any],
    part: Sequence[int] | None = None,
    every: int = 0,
) -> bool | None:
    """Bring tensors to those that do not hold them; return whether all have come, in place.

    Args:
        sources: Who holds them, of those who take part.
        exchange: How.
        part: Who takes part; all unless given.
        every: Lose each so manieth packet of multicast.
    """
    group = None if part is None else dist.new_group(list(part))
    if part is not None and dist.get_rank() not in part:
        return None
    holds = dist.get_rank(group) in sources
    held, due = tensors(7 if holds else 8), tensors(7)
    indices = {name: tensor.data_ptr() for name, tensor in held.items()}
    with small(), losing(every) as lost:
        compressa.broadcast(held, group=group, sources=sources, config=settings(**exchange))
    assert not lasting_threads()
    assert {name: tensor.data_ptr() for name, tensor in held.items()} == indices
    assert bool(lost) == (every > 0 and not holds)
    return all(bits_of(held[name]) == bits_of(due[name]) for name in due)


def bring_to_gpu(*, sources: Sequence[int], exchange: Mapping[str, Any], seed: int | None) -> bool:
    """As `bring`, between emulated GPUs, where values come late; one tensor stays on the CPU."""
    holds = dist.get_rank() in sources
    on_host, due = tensors(7 if holds else 8), tensors(7)
    on_host.pop("odd member")  # the emulation refuses such a view
    with (
        small(),
        emulated_torch(seed),
        emulated_nccl(),
        mock.patch.object(startup, "Staged", lambda *a: Staged(*a, piece_bytes=_PIECE_BYTES)),
    ):
        held = {n: t if n == "count" else as_cuda(t) for n, t in on_host.items()}
        if holds:
            late = held["large"]
            values = late.clone()
            late.zero_()
            current_stream().give(lambda: on_cpu(late, share=True).copy_(on_cpu(values)))
        compressa.broadcast(held, sources=sources, config=settings(**exchange))
        current_stream().synchronize()
        came = {name: on_cpu(tensor) for name, tensor in held.items()}
    return all(bits_of(came[name]) == bits_of(due[name]) for name in came)


def bring_module(*, sources: Sequence[int]) -> list[int]:
    """Bring a module with buffers, wrap it without a synchronisation, train a step."""
    torch.manual_seed(0 if dist.get_rank() in sources else 1 + dist.get_rank())
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with torch.no_grad():
        cast("Any", net[1]).running_mean.normal_()
    compressa.broadcast(net, sources=sources)
    model = DistributedDataParallel(net, init_sync=False, broadcast_buffers=False)
    model(torch.ones(3, 5)).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(parameter.grad)
    return [bit for tensor in net.state_dict().values() for bit in bits_of(tensor)]


def bring_odd(*, what: str) -> None:
    """Rank 1 calls it otherwise than rank 0."""
    odd = dist.get_rank() == 1
    held: Any = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}
    sources, config = [0], settings()
    if odd and what == "shape":
        held["b"] = torch.zeros(4)
    elif odd and what == "order":
        held["a"] = held.pop("a")
    elif odd and what == "sources":
        sources = [1]
    elif odd and what == "configuration":
        config = settings(broadcast="ring")
    elif odd and what == "broken configuration":
        config = settings(broadcast="carrier pigeon")
    elif odd and what == "no tensor":
        held["b"] = [1, 2]
    elif odd and what == "sparse":
        held["b"] = held["b"].to_sparse()
    elif odd and what == "lazy":
        held["b"] = nn.LazyLinear(2).weight
    elif odd and what == "expanded":
        held["b"] = torch.zeros(1).expand(2, 2)
    elif what == "sources that are not there":
        sources = [0, 2]
    compressa.broadcast(held, sources=sources, config=config)


def bring_from_unlike(*, sources: Sequence[int], exchange: Mapping[str, Any]) -> None:
    """The last source holds other values than the first."""
    held = tensors(8 if dist.get_rank() == sources[-1] else 7)
    with small():
        compressa.broadcast(held, sources=sources, config=settings(**exchange))


def bring_to_deaf(*, deaf: int) -> None:
    """No packet of multicast reaches a rank."""
    lose = losing(1) if dist.get_rank() == deaf else contextlib.nullcontext()
    with small(), lose, mock.patch.object(broadcast_multicast, "DEAF_AFTER", 3):
        compressa.broadcast(tensors(7), config=settings(broadcast="multicast"))


def spoil(*, culprit: int) -> None:
    """One rank finds other bytes than were sent."""
    checksum = broadcasting.checksum
    odd = int(dist.get_rank() == culprit)
    patch = mock.patch.object(broadcasting, "checksum", lambda data: checksum(data) + odd)
    with small(), patch:
        compressa.broadcast(tensors(7), config=settings())


def bring_while_some_are_away(*, away: Sequence[int]) -> None:
    """Some ranks never come."""
    if dist.get_rank() not in away:
        compressa.broadcast(tensors(7), config=settings(deadline_s=1.0))


def meet_while_one_is_away(*, away: int, seconds: float) -> None:
    """All come to a barrier of a session one after the other, and one of them later than that."""
    config, rank = compressa.load_config(settings(deadline_s=2.0)), dist.get_rank()
    with opening.open_session(config, cast("Any", dist.group.WORLD), 1) as opened:
        time.sleep(seconds if rank == away else 0.7 * rank)
        opened.barrier()


def take_longer_than_the_deadline() -> float:
    """Run a program of many short exchanges; return by how often the deadline it took longer."""
    deadline_s = 0.1

    def program() -> Program[None]:
        for _ in range(24):
            yield Compute(partial(time.sleep, deadline_s / 2), "encode")
            yield from barrier.barrier(
                RankGroup.everyone(opened.rank, opened.size), opened.device_stream.device
            )

    config = compressa.load_config(settings())
    with (
        mock.patch.object(session, "_MARGIN_S", 1.0),
        opening.open_session(config, cast("Any", dist.group.WORLD), 1) as opened,
    ):
        opened._deadline_s = deadline_s
        begin_s = time.monotonic()
        opened.run(program())
        return (time.monotonic() - begin_s) / deadline_s


def bring_from_an_array_of_sources() -> bool:
    """Sources as other libraries number them."""
    held = tensors(7 + dist.get_rank())
    compressa.broadcast(held, sources=cast("Any", np.array([0])), config=settings())
    return all(bits_of(held[name]) == bits_of(due) for name, due in tensors(7).items())


@pytest.mark.parametrize(
    ("way", "sources"),
    [
        ("auto", [3, 1]),
        ("ring", [0]),
        ("k_nomial", [3, 1]),
        ("scatter", [0]),
        ("multi_source", [3, 1]),
        ("multicast", [0]),
    ],
)
def test_all_ranks_hold_what_the_sources_hold(way: str, sources: list[int], four: Group) -> None:
    results = four.run(bring, sources=sources, exchange={"broadcast": way})
    assert results == [True] * 4


@pytest.mark.parametrize("exchange", [{"transport": "gloo-group"}, {"connections": 2}])
def test_any_transport_will_do(exchange: dict[str, Any], two: Group) -> None:
    assert two.run(bring, sources=[1], exchange=exchange) == [True] * 2


def test_where_all_are_sources_only_their_values_are_compared(two: Group) -> None:
    assert two.run(bring, sources=[0, 1], exchange={}) == [True] * 2


def test_lost_packets_of_multicast_are_sent_again(four: Group) -> None:
    results = four.run(bring, sources=[2], exchange={"broadcast": "multicast"}, every=3)
    assert results == [True] * 4


def test_ranks_join_others_that_have_done_more(four: Group) -> None:
    for part, sources in (([1, 2], [0]), ([0, 1, 2, 3], [1, 2])):
        results = four.run(bring, sources=sources, exchange={}, part=part)
        assert results == [True if rank in part else None for rank in range(4)]


@pytest.mark.parametrize(("transport", "seed"), [("tcp", 1), ("nccl", None), ("nccl", 1)])
def test_tensors_on_gpus_are_brought(transport: str, seed: int | None, two: Group) -> None:
    how: dict[str, Any] = {"exchange": {"transport": transport}, "seed": seed}
    assert two.run(bring_to_gpu, sources=[0], **how) == [True] * 2


def test_a_module_is_wrapped_without_another_synchronisation(two: Group) -> None:
    same(two.run(bring_module, sources=[1]))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "tensors.b.shape"),
        ("order", "tensors.a.index"),
        ("sources", "sources"),
        ("configuration", "configuration.exchange.broadcast"),
        ("broken configuration", "carrier pigeon"),
        ("no tensor", "'b' is of type list"),
        ("sparse", "'b' has the layout torch.sparse_coo"),
        ("expanded", "'b' is expanded"),
        ("lazy", "'b' has no shape yet"),
        ("sources that are not there", "from 0 to 1"),
    ],
)
def test_ranks_that_do_not_agree_are_told_how_they_differ(what: str, says: str, two: Group) -> None:
    for message in two.refused(bring_odd, "ConfigError", what=what):
        assert says in message


@pytest.mark.parametrize("sources", [[0, 2], [3, 1, 0]])
def test_sources_that_hold_different_values_are_named(sources: list[int], four: Group) -> None:
    how: dict[str, Any] = {"sources": sources, "exchange": {"broadcast": "multi_source"}}
    for message in four.refused(bring_from_unlike, "StateError", **how):
        said = f"rank {sources[-1]} and rank {sources[0]} are sources and hold different values of"
        assert message.startswith(said + " large")


def test_what_arrives_otherwise_than_it_was_sent_is_found(two: Group) -> None:
    for message in two.refused(spoil, "PayloadError", culprit=1):
        assert message.startswith("what rank 1 received of ")


def test_multicast_that_does_not_get_through_is_an_error_that_names_the_fix(four: Group) -> None:
    outcomes = four.errors(bring_to_deaf, deaf=2)
    for outcome in outcomes:
        assert "TransportError" in outcome.error["bases"], outcome.explain()
        assert "rank 2 heard nothing of 3 bursts" in outcome.error["message"]
        assert "GLOO_SOCKET_IFNAME" in outcome.error["message"]
        assert outcome.seconds < 10.0


def test_who_does_not_come_is_named_and_nobody_else(fresh: Callable[[int], Group]) -> None:
    group = fresh(3)
    outcomes = group.outcomes(bring_while_some_are_away, away=[1])
    assert outcomes[1].ok
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error["ranks"] == [1], outcome.explain()
        assert "waited in compressa.broadcast for" in outcome.error["message"]


def test_who_does_not_come_to_a_call_of_a_session_is_named_on_all_ranks(
    fresh: Callable[[int], Group],
) -> None:
    for outcome in fresh(3).errors(meet_while_one_is_away, away=2, seconds=4.5):
        assert outcome.error["ranks"] == [2], outcome.explain()


def test_a_program_may_take_longer_than_each_of_its_exchanges(two: Group) -> None:
    assert min(two.run(take_longer_than_the_deadline)) > 11


def test_sources_may_come_from_an_array(two: Group) -> None:
    assert two.run(bring_from_an_array_of_sources) == [True] * 2


def test_a_world_of_one_has_nothing_to_bring(fresh: Any) -> None:
    assert fresh(1).run(bring, sources=[0], exchange={}) == [True]


def test_without_a_process_group_there_is_an_error() -> None:
    assert not dist.is_initialized()
    with pytest.raises(StateError, match="init_process_group"):
        compressa.broadcast([torch.zeros(3)])
