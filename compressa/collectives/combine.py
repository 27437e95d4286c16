"""DenseSum and DenseMax: the combines of plain all-reduces."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence

import torch

from compressa.collectives.base import Combine

_ALIGN_ELEMS = 16
_QUICK_BYTES = 1 << 17  # some ten microseconds; a hand-over to a busy thread takes a hundred


def shard_edges(elems: int, shards: int, align: int = _ALIGN_ELEMS) -> list[int]:
    """Cut `elems` into `shards` nearly equal parts on multiples of `align`.

    Returns:
        `shards + 1` ascending edges from 0 to `elems`.
    """
    inner = (round(elems * i / shards / align) * align for i in range(1, shards))
    return [0, *(min(edge, elems) for edge in inner), elems]


class _Elementwise(Combine):
    """Combine a flat tensor over the ranks, in rank order, element by element, in its dtype.

    Args:
        values: 1-D contiguous tensor; the result takes its place.
        rank: This rank.
        size: Number of ranks.
    """

    def __init__(self, values: torch.Tensor, rank: int, size: int) -> None:
        self._values = values
        self._rank = rank
        edges = shard_edges(values.numel(), size)
        lengths = [high - low for low, high in itertools.pairwise(edges)]
        self._shards = torch.split(values, lengths)
        self._bytes = [shard.view(torch.uint8) for shard in self._shards]

    def shard_bytes(self, shard: int) -> int:
        """Exact size of the shard."""
        return self._bytes[shard].numel()

    def partial(self, shard: int) -> torch.Tensor:
        """The own values, in place."""
        return self._bytes[shard]

    def reduce(self, shard: int, partials: Sequence[torch.Tensor | None]) -> None:
        """Combine from rank 0 to the last."""
        own = self._shards[shard]
        dtype = own.dtype
        terms = [own if part is None else part.view(dtype) for part in partials]
        for term in terms[1:]:
            self._take_in(terms[0], term)
        if terms[0] is not own:
            own.copy_(terms[0])

    @property
    def quick(self) -> bool:
        """Whether the own shard is small."""
        return self.shard_bytes(self._rank) * len(self._shards) <= _QUICK_BYTES

    def sealed(self, shard: int) -> torch.Tensor:
        """The result, in place."""
        return self.partial(shard)

    def landing(self, shard: int) -> torch.Tensor:
        """The shard's own memory."""
        return self.partial(shard)

    @staticmethod
    @abstractmethod
    def _take_in(total: torch.Tensor, term: torch.Tensor) -> None:
        """Combine one more rank's values into `total`."""


class DenseSum(_Elementwise):
    """The sum over the ranks; integers wrap, so whoever sums them leaves room."""

    @staticmethod
    def _take_in(total: torch.Tensor, term: torch.Tensor) -> None:
        torch.add(total, term, out=total)

    @property
    def dense(self) -> torch.Tensor:
        """All values: a backend may sum them."""
        return self._values


class DenseMax(_Elementwise):
    """The largest over the ranks; NaN where any rank has one. No backend's sum can do it."""

    @staticmethod
    def _take_in(total: torch.Tensor, term: torch.Tensor) -> None:
        torch.maximum(total, term, out=total)
