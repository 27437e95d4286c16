"""Dense: the uncompressed mean, in the gradients' own dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import Aggregator, AllReduce, Round, Rounds, Turn, Verb, World
from compressa.aggregators.region import Region
from compressa.codecs.payload import check_countable
from compressa.collectives.combine import DenseSum
from compressa.parameters import Layout


class Dense(Aggregator):
    """Divide by the number of ranks, then sum, as DistributedDataParallel does."""

    def __init__(self, layout: Layout, world: World) -> None:
        self._layout = layout
        self._world = world
        self._region = Region(layout.elems, layout.dtype, world.device)
        self._scratch: dict[int, torch.Tensor] = {}

    @property
    def values_dtype(self) -> torch.dtype:
        """The gradients' own."""
        return self._layout.dtype

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum."""
        size = self._layout.elems * self._layout.dtype.itemsize
        return (Round(Verb.ALL_REDUCE, self._layout.dtype, size, dense=True),)

    def run(self, gradients: Sequence[torch.Tensor], turn: Turn) -> Rounds:
        """One all-reduce, in place where the segments lie together in memory."""
        flat = self._region.join(gradients)
        self._world.divide(flat)
        combine = DenseSum(flat, self._world.rank, self._world.size)
        yield AllReduce(combine, self._receive_buffers(combine))
        self._region.split()

    def rollback(self, turn: Turn) -> None:
        """There is no residual."""

    def _receive_buffers(self, combine: DenseSum) -> dict[int, torch.Tensor]:
        """Made at the first step, and only if the transport does not sum by itself."""
        if not self._scratch:
            size = max(combine.shard_bytes(shard) for shard in range(self._world.size))
            self._scratch = LazyBuffers(self._world, size)
        return self._scratch


class LazyBuffers(dict[int, torch.Tensor]):
    """One uint8 buffer per peer, allocated when first asked for.

    Raises:
        ConfigError: No message can be as long.
    """

    def __init__(self, world: World, size_bytes: int) -> None:
        super().__init__()
        check_countable("a message", 0, size_bytes)
        self._peers = frozenset(world.peers)
        self._device = world.device
        self._size_bytes = size_bytes

    def __bool__(self) -> bool:
        return True

    def __missing__(self, peer: int) -> torch.Tensor:
        if peer not in self._peers:
            raise KeyError(peer)
        self[peer] = torch.empty(self._size_bytes, dtype=torch.uint8, device=self._device)
        return self[peer]
