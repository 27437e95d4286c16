"""Program: a lowered sum in memory, with what is under way; the same for every step of a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from compressa.collectives.lowering import SCRATCH, Extent, HopTable, Table
from compressa.transports.base import Key
from compressa.transports.lowered import _words as w
from compressa.transports.lowered._adds import (
    BFLOAT16,
    BYTE,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
)
from compressa.transports.lowered._memory import address_of, words
from compressa.transports.lowered.links import Links

DTYPES = {
    torch.float32: FLOAT32,
    torch.float64: FLOAT64,
    torch.float16: FLOAT16,
    torch.bfloat16: BFLOAT16,
    torch.int8: BYTE,
    torch.uint8: BYTE,
    torch.int32: INT32,
    torch.int64: INT64,
}
"""What the loop can add."""

_BITS = 64


class LoweredProgram:
    """One that a loop can run again and again, once at a time.

    Args:
        table: What it does.
        dtype: Of the values; one of `DTYPES`.
        links: Of the loop that runs it.

    Attributes:
        address: Of its memory.
        rows: int64 (rows, `ROW_WORDS`): messages and additions, hop after hop.
    """

    def __init__(self, table: Table, dtype: torch.dtype, links: Links) -> None:
        self._scratch = np.empty(table.scratch_bytes, np.uint8)
        hops = table.hops
        rows = [row for hop in hops for row in _rows(hop, links.addresses)]
        sizes = (
            w.PROGRAM_WORDS,
            w.CHAIN_WORDS * len(table.chains),
            w.HOP_WORDS * len(hops),
            w.ROW_WORDS * len(rows),
        )
        self._words = words(sum(sizes))
        self.address = address_of(self._words)
        self._links = links
        self._peers = {address: peer for peer, address in links.addresses.items()}
        self._head, chains, hop_words, row_words = np.split(
            self._words[: sum(sizes)], np.cumsum(sizes)[:-1]
        )
        self.rows = row_words.reshape(len(rows), w.ROW_WORDS)
        self._chains = chains.reshape(len(table.chains), w.CHAIN_WORDS)
        self._hops = hop_words.reshape(len(hops), w.HOP_WORDS)
        self._fill(table, hops, rows, dtype)
        self._bitmap = words(0)
        self.make_room()

    def make_room(self) -> None:
        """Have a bit for each chunk of what is received, where these come in any order."""
        if not self._links.several:
            return
        counts = -(-self.rows[:, w.R_BYTES] // self._links.chunk_bytes)
        ends = np.cumsum(-(-counts // _BITS))
        if ends.size and ends[-1] > self._bitmap.size:
            self._bitmap = words(int(ends[-1]))
        self.rows[1:, w.R_CAME] = ends[:-1]
        self.rows[:1, w.R_CAME] = 0
        self.rows[:, w.R_CAME] *= w.WORD_BYTES
        self.rows[:, w.R_CAME] += address_of(self._bitmap)

    @property
    def under_way(self) -> bool:
        """Whether it has begun, or waits for a GPU before it does, and has not ended."""
        return int(self._head[w.STATUS]) in (w.UNDER_WAY, w.AT_FENCE)

    @property
    def missing(self) -> list[int]:
        """Peers whose message of the hops under way has not come, or that have not taken theirs."""
        found: set[int] = set()
        if self._head[w.STATUS] == w.AT_FENCE:
            return []
        for hop, _, end, waits, *_ in self._chains.tolist():
            if hop < end and waits:
                _, first, sends, receives, _ = self._hops[hop].tolist()
                for row in self.rows[first : first + sends + receives].tolist():
                    if row[w.R_DONE] < row[w.R_BYTES] or row[w.R_LEAVING]:
                        found.add(self._peers[row[w.R_LINK]])
        return sorted(found)

    def times(self) -> Iterator[tuple[int, bool, int, int]]:
        """Yield of each message its stage, whether it was sent, and when it began and ended.

        Of those that nobody asked about in time, both are 0 or the end comes first.
        """
        for _, first, sends, receives, _ in self._hops.tolist():
            messages = self.rows[first : first + sends + receives, w.R_STAGE : w.R_UNTIL_NS + 1]
            for number, (stage, from_ns, until_ns) in enumerate(messages.tolist()):
                yield stage, number < sends, from_ns, until_ns

    def _fill(
        self, table: Table, hops: list[HopTable], rows: list[list[int]], dtype: torch.dtype
    ) -> None:
        head = self._head
        head[w.CHAINS] = self.address + w.WORD_BYTES * w.PROGRAM_WORDS
        head[w.HOPS] = head[w.CHAINS] + w.WORD_BYTES * self._chains.size
        head[w.ROWS] = head[w.HOPS] + w.WORD_BYTES * self._hops.size
        head[w.CHAIN_COUNT] = len(table.chains)
        head[w.BASE + SCRATCH] = self._scratch.ctypes.data
        head[w.DTYPE] = DTYPES[dtype]
        self.rows[:, : w.FIXED_WORDS] = np.array(rows, np.int64).reshape(len(rows), w.FIXED_WORDS)
        self.rows[:, w.R_PROGRAM] = self.address
        begin = 0
        for number, chain in enumerate(table.chains):
            part = table.parts[number]
            fixed = (begin, begin, begin + len(chain), 0, part.offset_bytes, part.size_bytes)
            self._chains[number] = fixed
            begin += len(chain)
        first = 0
        for number, hop in enumerate(hops):
            additions = len(_apart(hop))
            self._hops[number] = (hop.stage, first, len(hop.sends), len(hop.receives), additions)
            first += len(hop.sends) + len(hop.receives) + additions


def _apart(hop: HopTable) -> list[tuple[Extent, Extent]]:
    """What is added when a hop is over, and not as it comes."""
    fused = any(hop.fused(peer) is not None for peer in hop.receives)
    return [] if fused else list(hop.additions)


def _rows(hop: HopTable, links: Mapping[int, int]) -> list[list[int]]:
    rows = [[links[peer], *extent, 0, 0, 0, 0] for peer, extent in hop.sends.items()]
    for peer, extent in hop.receives.items():
        to = hop.fused(peer)
        target = (0, 0, 0) if to is None else (to.region, to.offset_bytes, 1)
        rows.append([links[peer], *extent, *target, 0])
    for to, source in _apart(hop):
        if source.region != SCRATCH:
            raise NotImplementedError(
                "values may lie in several places: they are added to, never added"
            )
        rows.append([0, *source, to.region, to.offset_bytes, 0, 0])
    return rows


def name_of(key: Key) -> tuple[int, int, int]:
    """Return step, unit and stage of an exchange, as frames bear them."""
    return key.step & 0xFFFFFFFF, key.unit, key.stage | key.part << 16


def stage_of(name: int) -> tuple[int, int]:
    """Return stage and part, as `name_of` puts them together."""
    return name & 0xFFFF, name >> 16
