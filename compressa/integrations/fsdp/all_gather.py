"""GatheredPart: the weights of some parameters, from the owners of their shards to all ranks.

Each owner encodes its slice once, all ranks decode the same bytes, the owner too: so all compute
with the same weights, whichever they own. The owner's own are exact, and what the optimizer
updates; an error lasts until the next all-gather, and needs no feedback. As ZeRO++'s qwZ (Wang et
al., 2023).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from compressa.aggregators.base import StepContext, World
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs.base import Codec
from compressa.collectives.base import Compute, Exchange, Program
from compressa.engine.measuring.profiler import Ledger
from compressa.integrations.fsdp.reduce_scatter import nothing, scopes_of
from compressa.integrations.fsdp.sliced import SlicedParameter


@dataclass(frozen=True)
class Gathering:
    """One all-gather of a group.

    Attributes:
        out: A slice for every rank, side by side; holds this rank's at first, in its place.
        context: Counts gatherings.
        before: Called before anything is encoded, on the thread that encodes.
        after: Called when all is decoded, on the thread that decodes.
    """

    out: torch.Tensor
    context: StepContext
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing


class GatheredPart:
    """Parameters of one group that are encoded alike.

    Args:
        number: Of the part; payloads bear it.
        codec: What encodes, without feedback.
        sliced: The parameters.
        slice_elems: Elements of a rank's slice of the whole group.
        world: This rank among the shards.
        ledger: Counts what is sent, and how long that takes.
    """

    def __init__(
        self,
        number: int,
        codec: Codec,
        sliced: Sequence[SlicedParameter],
        slice_elems: int,
        world: World,
        ledger: Ledger,
    ) -> None:
        self._name, self._sliced, self._slice = codec.name, sliced, slice_elems
        self._world, self._ledger = world, ledger
        owned = {rank: scopes_of(sliced, rank) for rank in (world.rank, *world.peers)}
        self._payloads = {
            rank: ScopePayload(codec, number, scopes, world, feedback=None)
            for rank, scopes in owned.items()
            if scopes
        }
        self._buffers = {rank: payload.buffer() for rank, payload in self._payloads.items()}
        self._exact = all(payload.exact for payload in self._payloads.values())
        own, itemsize = self._payloads.get(world.rank), sliced[0].parameter.dtype.itemsize
        self._dense_bytes = itemsize * own.elems if own else 0

    def program(self, gathering: Gathering) -> Program[None]:
        """Return the program of one gathering."""
        rank, peers = self._world.rank, self._world.peers
        own: dict[int, torch.Tensor] = yield Compute(partial(self._encode, gathering), "encode")
        outgoing = {peer: payload for payload in own.values() for peer in peers}
        incoming = {peer: buffer for peer, buffer in self._buffers.items() if peer != rank}
        capacity_bytes = {peer: self._buffers[rank].numel() for peer in outgoing}
        received = yield Exchange(outgoing, incoming, self._exact, capacity_bytes)
        yield Compute(partial(self._decode, gathering, {**received, **own}), "decode")

    def warm_up(self) -> None:
        """Call all kernels once, on zeros."""
        elems, dtype = self._slice * self._world.size, self._sliced[0].parameter.dtype
        zeros = Gathering(
            torch.zeros(elems, dtype=dtype, device=self._world.device), StepContext(0)
        )
        for rank, payload in self._payloads.items():
            made = payload.encode(self._slices(zeros, rank), zeros.context, self._buffers[rank])
            payload.decode(made, self._slices(zeros, rank), zeros.context, rank)

    def _encode(self, gathering: Gathering) -> dict[int, torch.Tensor]:
        """Encode the own slice; return its payload by this rank, or nothing if it is empty."""
        begun_s, rank = time.perf_counter(), self._world.rank
        gathering.before()
        if rank not in self._payloads:
            return {}
        slices = self._slices(gathering, rank)
        payload = self._payloads[rank].encode(slices, gathering.context, self._buffers[rank])
        self._ledger.add_unit(self._name, self._dense_bytes, payload.numel())
        self._ledger.add_time(self._name, "encode", time.perf_counter() - begun_s)
        return {rank: payload}

    def _decode(self, gathering: Gathering, everyone: Mapping[int, torch.Tensor]) -> None:
        begun_s, context = time.perf_counter(), gathering.context
        for sender, payload in everyone.items():
            if sender != self._world.rank:
                self._payloads[sender].check(payload, context, sender)
        for sender, payload in everyone.items():
            slices = self._slices(gathering, sender)
            self._payloads[sender].decode(payload, slices, context, sender)
        gathering.after()
        self._ledger.add_time(self._name, "decode", time.perf_counter() - begun_s)

    def _slices(self, gathering: Gathering, rank: int) -> list[torch.Tensor]:
        return [one.view(gathering.out, rank, rank * self._slice) for one in self._sliced]
