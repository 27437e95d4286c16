"""ReducedPart: the gradients of some parameters, to the owners of their shards.

Each rank encodes what it has of every other rank's slice, with what it could not send before, and
sends it there; the owner decodes, adds the others' to its own exact values in the order of ranks,
and divides as FSDP2 says. As ZeRO++'s qgZ (Wang et al., 2023), with the feedback of LoCo (Xie et
al., 2024): a residual for every element that another rank owns, so that

    sum_t out_t + (1/P) sum_i e_i(T) = (1/P) sum_t sum_i g_i(t).

A checkpoint of another number of ranks may have some for elements that this rank owns now: it adds
those once. Nothing is sent twice, so nothing is encoded twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from compressa.aggregators.base import Scope, StepContext, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import put
from compressa.collectives.base import Compute, Exchange, Program
from compressa.engine.measuring.profiler import Ledger
from compressa.integrations.fsdp.sliced import SlicedParameter
from compressa.parameter_server.coding import Coding


def nothing() -> None:
    """A CPU has done what it was given."""


@dataclass(frozen=True)
class Reduction:
    """One reduce-scatter of a group.

    Attributes:
        source: This rank's gradients: a slice for every rank, side by side.
        out: The own slice of the result.
        weight: What sums are multiplied by.
        context: Counts reductions.
        before: Called before anything is encoded, on the thread that encodes.
        after: Called when all is added up, on the thread that decodes.
    """

    source: torch.Tensor
    out: torch.Tensor
    weight: float
    context: StepContext
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing


def scopes_of(sliced: Sequence[SlicedParameter], rank: int) -> list[Scope]:
    """Return what a rank owns of parameters, each as a scope of its own.

    Args:
        sliced: The parameters; the `gradient` of a scope is the number of its own among them.
        rank: The owner; a parameter of which it owns nothing has no scope.
    """
    owned = [(i, one.of(rank)) for i, one in enumerate(sliced)]
    return [Scope(i, 0, segment) for i, segment in owned if segment.elems]


class ReducedPart:
    """Parameters of one group that are encoded alike.

    Args:
        number: Of the part; payloads bear it.
        coding: What encodes.
        sliced: The parameters.
        slice_elems: Elements of a rank's slice of the whole group.
        world: This rank among the shards, and its state.
        ledger: Counts what is sent, and how long that takes.
    """

    def __init__(
        self,
        number: int,
        coding: Coding,
        sliced: Sequence[SlicedParameter],
        slice_elems: int,
        world: World,
        ledger: Ledger,
    ) -> None:
        self._name, self._sliced, self._slice = coding.codec.name, sliced, slice_elems
        self._world, self._ledger = world, ledger
        owned = {rank: scopes_of(sliced, rank) for rank in (world.rank, *world.peers)}
        make = partial(ScopePayload, coding.codec, number, world=world)
        self._given = {
            peer: make(owned[peer], feedback=coding.rule) for peer in world.peers if owned[peer]
        }
        self._buffers = {peer: payload.buffer() for peer, payload in self._given.items()}
        self._own = make(owned[world.rank], feedback=None)
        # Zeros, but when they come from a checkpoint of another number of ranks.
        self._residuals = {} if coding.rule is None else self._kept(owned[world.rank], coding.rule)
        self._unsent: dict[int, torch.Tensor] = {}
        receives = bool(owned[world.rank])
        self._incoming = {peer: self._own.buffer() for peer in world.peers if receives}
        itemsize = sliced[0].parameter.dtype.itemsize
        self._dense_bytes = itemsize * sum(payload.elems for payload in self._given.values())

    def program(self, reduction: Reduction) -> Program[None]:
        """Return the program of one reduction."""
        payloads = yield Compute(partial(self._encode, reduction), "encode")
        capacity_bytes = {peer: payload.wire_bytes for peer, payload in self._given.items()}
        received = yield Exchange(payloads, self._incoming, self._own.exact, capacity_bytes)
        yield Compute(partial(self._decode, reduction, received), "decode")

    def resume(self) -> None:
        """Have the next reduction add what was loaded for elements that this rank owns."""
        self._unsent = {i: x for i, x in self._residuals.items() if bool(x.any())}

    def warm_up(self) -> None:
        """Call all kernels once, on zeros, which leave residuals of zeros as they are."""
        elems, dtype = self._slice * self._world.size, self._sliced[0].parameter.dtype
        source = torch.zeros(elems, dtype=dtype, device=self._world.device)
        zeros = Reduction(source, source[: self._slice].clone(), 1.0, StepContext(0))
        self._payloads(zeros)
        if self._incoming:
            own = self._slices(source, self._world.rank)
            payload = self._own.encode(own, zeros.context, self._own.buffer())
            self._add_up(zeros, {self._world.peers[0]: payload})

    def _encode(self, reduction: Reduction) -> dict[int, torch.Tensor]:
        begun_s = time.perf_counter()
        reduction.before()
        payloads = self._payloads(reduction)
        sent_bytes = sum(payload.numel() for payload in payloads.values())
        self._ledger.add_unit(self._name, self._dense_bytes, sent_bytes)
        self._ledger.add_time(self._name, "encode", time.perf_counter() - begun_s)
        return payloads

    def _decode(self, reduction: Reduction, received: Mapping[int, torch.Tensor]) -> None:
        begun_s = time.perf_counter()
        for sender, payload in received.items():
            self._own.check(payload, reduction.context, sender)
        self._add_up(reduction, received)
        reduction.after()
        self._ledger.add_time(self._name, "decode", time.perf_counter() - begun_s)

    def _payloads(self, reduction: Reduction) -> dict[int, torch.Tensor]:
        source, context = reduction.source, reduction.context
        return {
            peer: payload.encode(self._slices(source, peer), context, self._buffers[peer])
            for peer, payload in self._given.items()
        }

    def _add_up(self, reduction: Reduction, received: Mapping[int, torch.Tensor]) -> None:
        """Add the others' to the own values, in the order of ranks, in float32; round once."""
        rank, weight = self._world.rank, reduction.weight
        outs = [one.view(reduction.out, rank) for one in self._sliced]
        sums = [x if x.dtype is torch.float32 else x.to(torch.float32) for x in outs]
        for total, own in zip(sums, self._slices(reduction.source, rank), strict=True):
            total.copy_(own).mul_(weight)
        for i, residual in self._unsent.items():
            sums[i].add_(residual, alpha=weight)
            residual.zero_()
        self._unsent = {}
        for sender in sorted(received):
            self._own.decode_add(received[sender], sums, weight, reduction.context, sender)
        for total, x in zip(sums, outs, strict=True):
            put(total, x)

    def _kept(self, owned: Sequence[Scope], rule: FeedbackRule) -> dict[int, torch.Tensor]:
        """Return by parameter the residual of what this rank owns."""
        state, residuals = self._world.state, {}
        for scope in owned:
            vector = state.residual(scope.segment.parameter, rule.dtype)
            residuals[scope.gradient] = vector[scope.segment.start : scope.segment.stop]
        return residuals

    def _slices(self, source: torch.Tensor, rank: int) -> list[torch.Tensor]:
        """Return by parameter what `source` has of a rank's slice."""
        return [one.view(source, rank, rank * self._slice) for one in self._sliced]
