"""Jobs that use a transport directly, without an engine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from _reacting import Answers, Reacting
from _until import until

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.engine.start.process_groups import release_groups
from compressa.errors import CompressaError, PayloadError
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.settings import Settings
from compressa.transports.setup import Setup
from compressa.transports.table import TRANSPORTS

CHUNK_BYTES = 512


@contextlib.contextmanager
def opened(
    kind: str = "tcp",
    early_bytes: int = 1 << 20,
    silence_s: float = 10.0,
    window: int = 3,
    connections: int = 1,
) -> Iterator[tuple[Reacting, list[CompressaError]]]:
    """Open a transport on a group of its own; give it and its failures."""
    row, group = TRANSPORTS[kind], dist.new_group(backend="gloo")
    failures: list[CompressaError] = []
    setup = Setup(
        rank=group.rank(),
        size=group.size(),
        group=group,
        settings=Settings(
            5, CHUNK_BYTES, window * CHUNK_BYTES, silence_s=silence_s, heartbeat_s=0.2
        ),
        all_gather=partial(gather, group),
        part=lambda seconds: None,
        failed=failures.append,
        start_s=20.0,
        deadline_s=20.0,
        early_bytes=early_bytes,
        connections=connections,
    )
    transport = Reacting(row.open(setup))
    try:
        yield transport, failures
    finally:
        transport.close(5.0)
        dist.destroy_process_group(group)
        release_groups([group])


def gather(group: dist.ProcessGroup, data: bytes, what: str, deadline_s: float) -> list[bytes]:
    """Bring every rank's bytes to every rank."""
    texts: list[Any] = [None] * group.size()
    dist.all_gather_object(texts, data, group)
    return texts


def message(sender: int, receiver: int, unit: int, size: int) -> torch.Tensor:
    """Return bytes that no other message has."""
    generator = torch.Generator().manual_seed(sender * 100 + receiver * 10 + unit * 1000)
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)


def all_to_all(
    *, kind: str, sizes: list[int], reverse: bool = False, connections: int = 1
) -> dict[str, Any]:
    """Exchange one message of each size with every peer; odd ranks may go backwards."""
    early_bytes = (1 << 20) + sum(sizes)
    with opened(kind, early_bytes, connections=connections) as (transport, failures):
        rank, answers = transport.rank, Answers()
        peers = [peer for peer in range(transport.size) if peer != rank]
        units = list(range(len(sizes)))
        if reverse and rank % 2:
            units.reverse()
        for unit in units:
            key, size = Key(1 << 32, unit, 0), sizes[unit]
            exchange = Exchange(
                {peer: message(rank, peer, unit, size) for peer in peers},
                {peer: torch.zeros(size, dtype=torch.uint8) for peer in peers},
                True,
                dict.fromkeys(peers, size),
            )
            transport.exchange(key, exchange, unit, answers.done(key))
        wrong = 0
        for unit in units:
            received = answers.wait(Key(1 << 32, unit, 0))
            assert isinstance(received, dict), received
            for peer in peers:
                wrong += int(
                    not torch.equal(received[peer], message(peer, rank, unit, sizes[unit]))
                )
        traffic = transport.traffic
    return {
        "wrong": wrong,
        "failures": len(failures),
        "sent_bytes": traffic.sent_bytes,
        "payload_bytes": sum(sizes) * len(peers),
        "messages": traffic.messages,
    }


def shorter_than_capacity(*, kind: str) -> list[int]:
    """Send messages that fill their buffers in part; return the lengths that came."""
    with opened(kind) as (transport, _):
        rank, answers = transport.rank, Answers()
        peer = 1 - rank
        for unit, size in enumerate((700, 1, 1300)):
            out = message(rank, peer, unit, size + rank)
            buffer = torch.zeros(1400, dtype=torch.uint8)
            exchange = Exchange({peer: out}, {peer: buffer}, False, {peer: 1400})
            transport.exchange(Key(0, unit, 0), exchange, 0, answers.done(Key(0, unit, 0)))
        lengths = []
        for unit, size in enumerate((700, 1, 1300)):
            received = answers.wait(Key(0, unit, 0))
            assert isinstance(received, dict)
            assert torch.equal(received[peer], message(peer, rank, unit, size + peer))
            lengths.append(received[peer].numel())
        return lengths


def urgent_overtakes(*, kind: str = "tcp", frames: int = 600) -> list[int]:
    """Rank 0 queues a long message, then an urgent one; return the order of arrival.

    Rank 1 reads nothing before both are queued, however late rank 0 may be with the second.
    """
    with opened(kind) as (transport, _):
        answers = Answers()
        keys = [Key(0, 0, 0), Key(0, 1, 0)]
        sizes = [frames * CHUNK_BYTES, 10]
        if transport.rank == 1:
            for key, size in zip(keys, sizes, strict=True):
                buffer = torch.zeros(size, dtype=torch.uint8)
                transport.exchange(key, Exchange({}, {0: buffer}), 0, answers.done(key))
            with transport.held():
                dist.barrier()
                dist.barrier()
        else:
            dist.barrier()
            for unit, (key, priority) in enumerate(zip(keys, (9, 0), strict=True)):
                exchange = Exchange({1: message(0, 1, unit, sizes[unit])}, {})
                transport.exchange(key, exchange, priority, answers.done(key))
            dist.barrier()
        for key in keys:
            answers.wait(key)
        dist.barrier()
        return [key.unit for key in answers.order]


def too_much_early(*, limit_bytes: int, size: int, kind: str = "tcp", within_s: float = 5.0) -> str:
    """Rank 0 sends what rank 1 has not asked for; return rank 1's failure."""
    with opened(kind, early_bytes=limit_bytes) as (transport, failures):
        answers = Answers()
        if transport.rank == 0:
            exchange = Exchange({1: message(0, 1, 0, size)}, {})
            transport.exchange(Key(0, 0, 0), exchange, 0, answers.done(Key(0, 0, 0)))
        else:  # it looks for something else, which never comes
            exchange = Exchange({}, {0: torch.zeros(1, dtype=torch.uint8)})
            transport.exchange(Key(0, 1, 0), exchange, 0, answers.done(Key(0, 1, 0)))
        until(lambda: failures or transport.rank == 0, within_s)
        said = str(failures[0]) if failures and transport.rank == 1 else ""
        dist.barrier()  # then rank 0 leaves, which rank 1 takes for a loss
        return said


def wrong_length(*, kind: str, sent: int, due: int) -> str:
    """Rank 0 sends another length than rank 1 expects; return rank 1's error."""
    with opened(kind) as (transport, failures):
        answers, key = Answers(), Key(0, 0, 0)
        if transport.rank == 0:
            exchange = Exchange({1: message(0, 1, 0, sent)}, {}, True, {1: max(sent, due)})
            if kind == "gloo-group":
                exchange = Exchange({1: message(0, 1, 0, sent)}, {}, False, {1: due})
        else:
            exchange = Exchange({}, {0: torch.zeros(due, dtype=torch.uint8)})
        said = ""
        try:
            transport.exchange(key, exchange, 0, answers.done(key))
        except PayloadError as error:
            said = str(error)  # it had come before it was asked for
        if transport.rank == 1 and not said:
            until(lambda: failures or key in answers.order)
            said = str(failures[0]) if failures else str(answers.wait(key))
        dist.barrier()
        return said


def idle(*, seconds: float, kind: str = "tcp") -> dict[str, Any]:
    """Do nothing for longer than the silence that would be a loss."""
    with opened(kind, silence_s=0.8) as (transport, failures):
        time.sleep(seconds)
        dist.barrier()
        traffic = transport.traffic
    return {
        "failures": [str(failure) for failure in failures],
        "sent_bytes": traffic.sent_bytes,
        "messages": traffic.messages,
    }


def all_reduces(*, kind: str, elems: int) -> dict[str, Any]:
    """Sum with the backend, beside named messages."""
    with opened(kind) as (transport, failures):
        rank, answers = transport.rank, Answers()
        tensor = torch.full((elems,), float(rank + 1))
        peers = [peer for peer in range(transport.size) if peer != rank]
        for unit in range(3):
            key = Key(0, unit, 0)
            exchange = Exchange(
                {peer: message(rank, peer, unit, 900) for peer in peers},
                {peer: torch.zeros(900, dtype=torch.uint8) for peer in peers},
            )
            transport.exchange(key, exchange, unit, answers.done(key))
        transport.all_reduce(BackendAllReduce(tensor), answers.done(Key(1, 0, 0)))
        assert answers.wait(Key(1, 0, 0)) == {}
        for unit in range(3):
            received = answers.wait(Key(0, unit, 0))
            assert isinstance(received, dict)
            assert all(torch.equal(received[p], message(p, rank, unit, 900)) for p in peers)
        traffic = transport.traffic
    return {
        "sum": sorted(set(tensor.tolist())),
        "failures": len(failures),
        "sent_bytes": traffic.sent_bytes - 3 * len(peers) * (900 + 2 * FRAME_HEADER_BYTES),
    }


def leave_early(*, kind: str = "tcp") -> str:
    """Rank 1 says goodbye while rank 0 waits for it; return rank 0's failure."""
    with opened(kind) as (transport, failures):
        if transport.rank == 0:
            buffer = torch.zeros(8, dtype=torch.uint8)
            transport.exchange(
                Key(0, 0, 0), Exchange({}, {1: buffer}), 0, Answers().done(Key(0, 0, 0))
            )
            assert list(transport.missing(Key(0, 0, 0))) == [1]
            until(lambda: failures)
    return str(failures[0]) if failures else ""


def send_to_who_left(*, kind: str) -> str:
    """Rank 0 only sends, to a rank that has said goodbye; return rank 0's failure."""
    with opened(kind) as (transport, failures):
        if transport.rank == 0:
            own: Any = transport.transport
            until(lambda: 1 in own.gone)
            assert not failures  # nothing was due
            exchange = Exchange({1: message(0, 1, 0, 100)}, {})
            transport.exchange(Key(0, 0, 0), exchange, 0, Answers().done(Key(0, 0, 0)))
            until(lambda: failures)
    return str(failures[0]) if failures else ""


def fail_in_the_middle(*, kind: str, size: int, connections: int = 1) -> dict[str, Any]:
    """Rank 0 gives up while rank 1 sends it far more than the kernel holds; both must end."""
    started_s = time.monotonic()
    with opened(kind, connections=connections) as (transport, failures):
        key, answers = Key(0, 0, 0), Answers()
        buffer = torch.zeros(size, dtype=torch.uint8)
        if transport.rank == 0:
            transport.exchange(key, Exchange({}, {1: buffer}), 0, answers.done(key))
            dist.barrier()  # no rank sends so much to one that does not wait for it
            until(buffer.any)
            transport.fail(CompressaError("enough"))
            kept = buffer.clone()
            time.sleep(0.2)
            untouched = torch.equal(kept, buffer)
        else:
            sent = Exchange({0: torch.ones(size, dtype=torch.uint8)}, {0: buffer})
            dist.barrier()
            transport.exchange(key, sent, 0, answers.done(key))
            until(lambda: failures)
            untouched = True
    return {
        "untouched": untouched,
        "answers": len(answers.order),
        "failures": [str(failure) for failure in failures],
        "seconds": time.monotonic() - started_s,
    }


def reopen(*, kind: str, times: int, connections: int = 1) -> list[int]:
    """Open and close; return how many files are open each time."""
    files = []
    for _ in range(times):
        with opened(kind, connections=connections) as (transport, failures):
            key, answers = Key(0, 0, 0), Answers()
            peers = [peer for peer in range(transport.size) if peer != transport.rank]
            exchange = Exchange(
                {peer: torch.ones(5, dtype=torch.uint8) for peer in peers},
                {peer: torch.zeros(5, dtype=torch.uint8) for peer in peers},
            )
            transport.exchange(key, exchange, 0, answers.done(key))
            answers.wait(key)
        assert not failures
        dist.barrier()
        files.append(len(os.listdir("/proc/self/fd")))
    return files
