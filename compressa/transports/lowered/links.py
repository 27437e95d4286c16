"""Links: the memory of a loop's connections, and what programs need to know of them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from compressa.transports.lowered import _words as w
from compressa.transports.lowered._memory import address_of

_MOST_KEPT_BYTES = 1 << 23


class Links(NamedTuple):
    """What a program needs to know of a loop's connections.

    Attributes:
        addresses: By peer, of its first link.
        chunk_bytes: Most bytes of data in a frame.
        several: Whether there are several to a peer, over which chunks come in any order.
    """

    addresses: dict[int, int]
    chunk_bytes: int
    several: bool


def join(
    sockets: Mapping[int, Sequence[socket.socket]],
    rows: np.ndarray,
    staging: np.ndarray,
    chunks: np.ndarray,
    out_chunks: np.ndarray,
) -> Links:
    """Fill in a loop's links, those to one peer side by side.

    Args:
        sockets: By peer, equally many.
        rows: int64 (links, `LINK_WORDS`).
        staging: uint8 (links, bytes): room for what is read with a header.
        chunks: uint8 (links, most bytes of data in a frame): room for a frame that is added.
        out_chunks: Likewise, for one that is gathered from several places.
    """
    firsts, number = {}, 0
    for peer, several in sockets.items():
        firsts[peer] = address_of(rows[number])
        for link in several:
            row = rows[number]
            row[w.FD], row[w.PEER], row[w.PIECE] = link.fileno(), peer, 1
            row[w.FIRST], row[w.SEVERAL] = firsts[peer], len(several) > 1
            row[w.STAGING], row[w.CHUNK] = address_of(staging[number]), address_of(chunks[number])
            row[w.OUT_CHUNK] = address_of(out_chunks[number])
            number += 1
    return Links(firsts, chunks.shape[1], number > len(sockets))


def make_room(link: socket.socket, early_bytes: int) -> None:
    """Have the kernel keep what comes while nothing is under way here, and nobody reads.

    Else a peer that is ahead could not tell a rank that is late from a wire that is slow.

    Args:
        link: A connected socket.
        early_bytes: How much it is to keep, up to a limit.
    """
    # On Linux the buffer grows to twice what is asked to be there at once, and stays so.
    for least_bytes in (min(early_bytes, _MOST_KEPT_BYTES), 1):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least_bytes)
