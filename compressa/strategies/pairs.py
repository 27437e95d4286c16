"""Pairs: ranks average with one neighbour at a time, and no rank waits for another's step.

Lian, Zhang, Zhang and Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML
2018 (AD-PSGD). Some ranks are *active*, the others *passive* (`pairs_of`). An active rank a asks a
random passive neighbour p, which answers at once, whatever its training does. With a codec C both
keep one estimate h of what the two have in common:

    c_a = C(x_a - h) as it was when asked;  c_p = C(x_p - h)
    x_a <- x_a + (c_p - c_a) / 2;  x_p <- x_p + (c_a - c_p) / 2;  h <- h + (c_a + c_p) / 2

So the sum over all ranks stays what it is, to rounding, however long messages take: the mixing is
doubly stochastic. Statistics alone go no further than to the mean of the two: what decays
meanwhile, such as a variance, would become negative. Without a codec, c is x and there is no h.
Nobody can wait in a circle: an active rank has one question under way, and takes steps meanwhile; a
passive rank asks nobody.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import torch

from compressa.aggregators.base import Scope, State, StepContext, World
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import carried_over, scratch_tensor
from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec
from compressa.codecs.shrunk import contraction_of
from compressa.collectives.base import Compute, Exchange, Program
from compressa.collectives.graphs import Graph
from compressa.engine.measuring.profiler import Ledger
from compressa.parameter_server.programs import Programs
from compressa.parameters import ParameterInfo, Segment


def pairs_of(graph: Graph) -> list[tuple[int, int]]:
    """Return who may ask whom: the edges of the graph between active and passive ranks.

    Active are the even ranks; if that leaves no way from some rank to another, those at an even
    distance from rank 0, which leaves at least the shortest ways.

    Example:
        >>> from compressa.collectives.graphs import ring
        >>> pairs_of(ring(4))
        [(0, 1), (0, 3), (2, 1), (2, 3)]
    """
    edges = _between(graph, [rank % 2 for rank in range(graph.size)])
    beside: dict[int, list[int]] = {rank: [] for rank in range(graph.size)}
    for a, p in edges:
        beside[a].append(p)
        beside[p].append(a)
    if None in _distances(beside):
        whole = {rank: graph.neighbours(rank) for rank in range(graph.size)}
        edges = _between(graph, [d % 2 for d in _distances(whole) if d is not None])
    return edges


def _between(graph: Graph, side: Sequence[int]) -> list[tuple[int, int]]:
    ranks = range(graph.size)
    return [(a, p) for a in ranks if not side[a] for p in graph.neighbours(a) if side[p]]


def _distances(beside: Mapping[int, Iterable[int]]) -> list[int | None]:
    """Return how far each rank is from rank 0; None if there is no way."""
    found: dict[int, int] = {0: 0}
    queue = deque([0])
    while queue:
        rank = queue.popleft()
        for peer in beside[rank]:
            if peer not in found:
                found[peer] = found[rank] + 1
                queue.append(peer)
    return [found.get(rank) for rank in range(len(beside))]


class Pair:
    """One key of one pair, at one of the two.

    Args:
        number: Of its messages.
        codec: What encodes.
        info: The key.
        values: x of this rank, float32, 1-D; updated under `lock`.
        lock: Held while values change.
        world: The rank that is drawn for.
        ledger: Counts what is sent.
    """

    def __init__(
        self,
        number: int,
        codec: Codec,
        info: ParameterInfo,
        values: torch.Tensor,
        lock: threading.Lock,
        world: World,
        ledger: Ledger,
    ) -> None:
        codec = contraction_of(codec)
        scope = Scope(0, 0, Segment(info, 0, info.elems))
        self.number, self.values, self._lock = number, values, lock
        self._payload = ScopePayload(codec, number, [scope], world, feedback=None)
        self._rank = world.rank
        lossless = codec.bias(info.elems) == LOSSLESS
        self.estimate = None if lossless else values.clone()
        self._own = torch.empty_like(values)  # what was sent, decoded
        self.sent, self.room = self._payload.buffer(), self._payload.buffer()
        self.exact, self._statistics = self._payload.exact, info.exact
        self._name, self._ledger = codec.name, ledger

    def encode(self, context: StepContext) -> torch.Tensor:
        """Encode this rank's values, or how far they are from the estimate."""
        begun_s = time.perf_counter()
        with self._lock:
            self._own.copy_(self.values)
        if self.estimate is not None:
            self._own.sub_(self.estimate)
        payload = self._payload.encode([self._own], context, self.sent)
        if self.estimate is not None:
            self._decode(payload, context, self._rank, self._own.zero_())
        dense_bytes = self._own.numel() * self._own.itemsize
        self._ledger.add_time(self._name, "encode", time.perf_counter() - begun_s)
        self._ledger.add_unit(self._name, dense_bytes, payload.numel())
        return payload

    def go_nearer(self, payload: torch.Tensor, context: StepContext, peer: int) -> None:
        """Move values, and the estimate, by what the other has sent and this rank has.

        Args:
            payload: uint8, as it came; `encode` was called before in the same step.
            context: The step.
            peer: The other rank.

        Raises:
            PayloadError: It is not what the other owes for the step.
        """
        self._payload.check(payload, context, peer)
        other = scratch_tensor("pairs", self.values.numel(), torch.float32, self.values.device)
        self._decode(payload, context, peer, other.zero_())
        if self.estimate is not None:  # by what is the same on both sides, bit for bit
            both = scratch_tensor("pairs.both", other.numel(), torch.float32, other.device)
            self.estimate.add_(torch.add(other, self._own, out=both), alpha=0.5)
        with self._lock:
            if self._statistics:
                middle = torch.lerp(self._own, other, 0.5)
                self.values.copy_(carried_over(self.values, self._own, middle))
            else:
                self.values.add_(other.sub_(self._own), alpha=0.5)

    def agree(self) -> None:
        """Both hold the same values now."""
        if self.estimate is not None:
            self.estimate.copy_(self.values)

    def _decode(
        self, payload: torch.Tensor, context: StepContext, sender: int, out: torch.Tensor
    ) -> None:
        self._payload.decode_add(payload, [out], 1.0, context, sender)


class Pairs:
    """All pairs that a rank is one of.

    Args:
        programs: Of this rank.
        graph: Who are neighbours.
        keys: What is averaged, and what compresses each.
        values: x of this rank by key, float32, 1-D; the same on all ranks at first.
        seed: Of random bits, and of whom is asked.
        epoch: Of the transport.
    """

    def __init__(
        self,
        programs: Programs,
        graph: Graph,
        keys: Sequence[tuple[ParameterInfo, Codec]],
        values: Sequence[torch.Tensor],
        seed: int,
        epoch: int,
    ) -> None:
        rank, size = programs.rank, graph.size
        self._programs, self._epoch = programs, epoch
        self._locks = [threading.Lock() for _ in keys]
        self._values, self._statistics = list(values), [info.exact for info, _ in keys]
        self._chance = random.Random(f"{seed}/{rank}")
        edges = pairs_of(graph)
        self._active = any(rank == a for a, _ in edges)
        self._under_way: list[Future[None]] = []
        self._pairs: dict[int, list[Pair]] = {}
        self._asked: dict[int, int] = {}
        world = World(rank, size, seed, "scatter_reduce", State())
        for edge, (a, p) in enumerate(edges):
            if rank not in (a, p):
                continue
            peer = p if self._active else a
            self._asked[peer] = 0
            self._pairs[peer] = [
                Pair(
                    edge * len(keys) + i,
                    codec,
                    info,
                    values[i],
                    self._locks[i],
                    world,
                    programs.ledger,
                )
                for i, (info, codec) in enumerate(keys)
            ]
            if not self._active:
                for pair in self._pairs[peer]:
                    self._listen(peer, pair, 0)

    def ask(self) -> None:
        """Ask a neighbour, if this rank is one that asks, and was answered."""
        if not self._active or not self._pairs or not self.answered:
            return
        peer = self._chance.choice(list(self._pairs))
        step, self._asked[peer] = self._asked[peer], self._asked[peer] + 1
        self._programs.ledger.steps += 1
        self._under_way = [
            self._start(self._asking(peer, pair, step), peer, pair, step)
            for pair in self._pairs[peer]
        ]

    @property
    def answered(self) -> bool:
        """Whether no question of this rank's is under way."""
        return all(future.done() for future in self._under_way)

    def wait(self) -> None:
        """Wait for the answer to the last question.

        Raises:
            CompressaError: A rank is lost, or its answer is not what is due.
        """
        for future in self._under_way:
            self._programs.wait(future)

    def exchange(self, own: Sequence[torch.Tensor], began: Sequence[torch.Tensor]) -> None:
        """Add what training did to the values, and go on from them.

        Args:
            own: By key, what this rank trains; it becomes the values.
            began: What it was when this was called last; likewise.
        """
        held = zip(self._locks, self._values, self._statistics, own, began, strict=True)
        for lock, values, statistics, mine, before in held:
            with lock:
                if statistics:
                    values.copy_(carried_over(mine, before, values))
                else:
                    values.add_(torch.sub(mine, before, out=before))
                mine.copy_(values)
            before.copy_(mine)

    def agree(self) -> None:
        """All ranks hold the same values now, and no question is under way."""
        for pairs in self._pairs.values():
            for pair in pairs:
                pair.agree()

    def _start(self, program: Program[None], peer: int, pair: Pair, step: int) -> Future[None]:
        name = f"average with rank {peer}"
        return self._programs.start(program, name, step=step, unit=pair.number)

    def _listen(self, peer: int, pair: Pair, step: int) -> None:
        """Wait for an active rank's question with a running number, and then for the next one."""
        program = self._answering(peer, pair, step)
        self._start(program, peer, pair, step)

    def _asking(self, peer: int, pair: Pair, step: int) -> Program[None]:
        context = StepContext(step, self._epoch)
        payload = yield Compute(partial(pair.encode, context), "encode")
        yield Exchange({peer: payload}, {}, capacity_bytes={peer: pair.room.numel()})
        received = yield Exchange({}, {peer: pair.room}, pair.exact)
        yield Compute(partial(pair.go_nearer, received[peer], context, peer), "decode")

    def _answering(self, peer: int, pair: Pair, step: int) -> Program[None]:
        context = StepContext(step, self._epoch)
        received = yield Exchange({}, {peer: pair.room}, pair.exact, grace_s=math.inf)
        question = received[peer]

        def answer() -> torch.Tensor:
            payload = pair.encode(context)
            pair.go_nearer(question, context, peer)
            return payload

        payload = yield Compute(answer, "encode")
        self._programs.ledger.steps += pair is self._pairs[peer][0]
        self._listen(peer, pair, step + 1)
        yield Exchange({peer: payload}, {}, capacity_bytes={peer: pair.room.numel()})
