"""Broadcasting: buckets from the ranks that hold them to all others, and a look whether they agree.

Several buckets are under way at the same time, as many as fit into a bounded length: while one is
on its last hops the next is on its first. Each ends with a barrier, so that nobody is ahead of
anybody by more than that. Its checksum is taken while the next ones are on the wire.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

from compressa.collectives import barrier, broadcast_multicast
from compressa.collectives.base import Compute, Exchange, Program
from compressa.collectives.broadcast import ASSUMED, BroadcastAlgorithm, chosen
from compressa.collectives.cost import Link
from compressa.collectives.rank_group import RankGroup
from compressa.config import Config
from compressa.engine.replicas.broadcast_buckets import BroadcastBucket
from compressa.engine.replicas.checksum import checksum
from compressa.engine.session import Session
from compressa.errors import CompressaError, PayloadError, StateError, TransportError
from compressa.schedulers import Transfer
from compressa.transports.multicast import MulticastReceiver, MulticastSender
from compressa.transports.multicast_address import agree_on_address

_BURSTS = 8  # of multicast, that fit into a deadline

Bring = Callable[[torch.Tensor, int], Program[None]]
"""Brings the bytes of one bucket, of a number, to where they are not yet."""


class Sizes(NamedTuple):
    """How much goes at once.

    Attributes:
        bucket_bytes: Longest bucket.
        window_bytes: Of all buckets under way, but for a single one.
        threads: How many threads work on them.
    """

    bucket_bytes: int
    window_bytes: int
    threads: int

    @classmethod
    def of(cls, config: Config) -> Sizes:
        """Return what suits a configuration.

        Multicast asks what is missing after each bucket, and sends others meanwhile.
        """
        if config.exchange.broadcast == "multicast":
            return cls(8 << 20, 24 << 20, 4)
        return cls(32 << 20, 64 << 20, 2)


def bring_buckets(
    session: Session, buckets: Sequence[BroadcastBucket], sources: Sequence[int], config: Config
) -> None:
    """Have all ranks hold what the sources do; collective, and the first that a session does.

    Args:
        session: On whose device stream the buckets will be.
        buckets: The same on every rank, but for their values.
        sources: The ranks that hold the values.
        config: How.

    Raises:
        StateError: The sources hold different values; on every rank.
        CompressaError: The values could not be brought.
    """
    try:
        with _way(session, buckets, sources, config) as bring:
            sums = _carry(session, buckets, session.rank in sources, bring, Sizes.of(config))
    except CompressaError as error:
        session.fail(error)  # so that nobody waits for this rank
        raise
    _compare(session, buckets, sums, sources)


def _carry(
    session: Session, buckets: Sequence[BroadcastBucket], holds: bool, bring: Bring, sizes: Sizes
) -> list[int]:
    """Bring all buckets; return their checksums."""
    sums = [0] * len(buckets)
    under_way: deque[tuple[Future[None], BroadcastBucket, torch.Tensor]] = deque()
    device_stream = session.device_stream

    def program(number: int, memory: torch.Tensor) -> Program[None]:
        yield from bring(memory, number)
        sums[number] = yield Compute(partial(checksum, memory), "decode")

    def finish() -> None:
        future, bucket, memory = under_way.popleft()
        session.wait(future)
        if not holds:
            device_stream.join()
            bucket.close(memory)

    for number, bucket in enumerate(buckets):
        while under_way and _length(under_way) + bucket.size_bytes > sizes.window_bytes:
            finish()
        memory = bucket.open(device_stream.device, fill=holds)
        device_stream.follow(device_stream.mark([memory]))
        task = program(number, memory)
        future = session.start(task, step=number + 1, name=f"bucket of {bucket.name}")
        under_way.append((future, bucket, memory))
    while under_way:
        finish()
    return sums


def _length(under_way: deque[tuple[Future[None], BroadcastBucket, torch.Tensor]]) -> int:
    return sum(bucket.size_bytes for _, bucket, _ in under_way)


@contextmanager
def _way(
    session: Session, buckets: Sequence[BroadcastBucket], sources: Sequence[int], config: Config
) -> Iterator[Bring]:
    """Get ready to bring buckets as the configuration says."""
    choice = config.exchange.broadcast
    if choice == "multicast":
        with _multicast(session, sources, config) as by_multicast:
            yield by_multicast
        return
    longest = max((bucket.size_bytes for bucket in buckets), default=0)
    pace = config.schedule.pace_bits_per_s
    link = ASSUMED if pace is None else Link(ASSUMED.message_s, 8 / pace)
    algorithm = chosen(choice, longest, session.size, len(sources), link)
    group = RankGroup.everyone(session.rank, session.size)
    if session.transport.ordered(Exchange({}, {})):
        stages = range(_stages(algorithm, session.size, len(sources)))
        session.follow([Transfer(0, stage, 0) for stage in stages], stages)

    def bring(memory: torch.Tensor, number: int) -> Program[None]:
        yield from algorithm.broadcast(memory, group, sources)
        yield from barrier.barrier(group, memory.device)

    yield bring


def _stages(algorithm: BroadcastAlgorithm, ranks: int, sources: int) -> int:
    return len(algorithm.stages(0, ranks, sources)) + len(barrier.stages(ranks))


@contextmanager
def _multicast(session: Session, sources: Sequence[int], config: Config) -> Iterator[Bring]:
    """Meet in a multicast group: the first source sends, and those that lack the values hear."""
    rank, source = session.rank, sources[0]
    receivers = [other for other in range(session.size) if other not in sources]
    address = agree_on_address(rank, source, session.all_gather)

    def open_end() -> MulticastSender | MulticastReceiver | None:
        epoch, pace = session.transport.epoch, config.schedule.pace_bits_per_s
        if rank == source:
            return MulticastSender(address, epoch, pace, config.exchange.start_wait_s / _BURSTS)
        return MulticastReceiver(address, epoch) if rank in receivers else None

    with _open_on_all(session, open_end) as end:

        def bring(memory: torch.Tensor, number: int) -> Program[None]:
            size = session.size
            if isinstance(end, MulticastSender) and receivers:
                yield from broadcast_multicast.send(memory, number, size, receivers, end)
            elif isinstance(end, MulticastReceiver):
                yield from broadcast_multicast.receive(memory, number, size, source, end)

        yield bring


@contextmanager
def _open_on_all(
    session: Session, open_end: Callable[[], MulticastSender | MulticastReceiver | None]
) -> Iterator[MulticastSender | MulticastReceiver | None]:
    """Open an end of the group on every rank, or on none."""
    end, failure = None, None
    try:
        end = open_end()
    except TransportError as error:
        failure = error
    try:
        _raise_any(session, failure)
        if isinstance(end, MulticastReceiver):
            session.serve(end.attach)
        yield end
    except CompressaError as error:
        session.fail(error)  # first: programs that are under way use the socket
        raise
    finally:
        if isinstance(end, MulticastReceiver):
            session.serve(end.detach)
        elif end is not None:
            end.close()


def _raise_any(session: Session, failure: TransportError | None) -> None:
    own = "" if failure is None else str(failure)
    texts = session.all_gather(own.encode(), "multicast socket")
    if failure is not None:
        raise failure
    for rank, text in enumerate(texts):
        if text:
            raise TransportError(f"rank {rank}: {text.decode(errors='replace')}")


def _compare(
    session: Session,
    buckets: Sequence[BroadcastBucket],
    sums: Sequence[int],
    sources: Sequence[int],
) -> None:
    """Raise an error unless all ranks hold the same now."""
    texts = session.all_gather(json.dumps(sums).encode(), "checksums")
    held = [json.loads(text) for text in texts]
    first = sources[0]
    others = [rank for rank in range(session.size) if held[rank] != held[first]]
    if not others:
        return
    wrong = sorted(set(others) & set(sources)) or others
    differs = [own != due for own, due in zip(held[wrong[0]], held[first], strict=True)]
    where = buckets[differs.index(True)].name
    who = ("rank " if len(wrong) == 1 else "ranks ") + ", ".join(map(str, wrong))
    if wrong[0] in sources:
        raise StateError(
            f"{who} and rank {first} are sources and hold different values of {where}; name as "
            "sources only ranks that hold the same, or one: what the other ranks hold now is of no "
            "use"
        )
    raise PayloadError(f"what {who} received of {where} is not what rank {first} sent")
