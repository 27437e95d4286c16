"""Receives: frames from one peer, over its sockets, without blocking."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from . import _words as w
from ._chunks import bitmap_words, early_bitmap, forget_chunks, is_new_chunk
from ._frames import high, is_frame, is_whole, low
from ._hops import end_row, fail, fits, landing, take_in, take_late, waiting_row
from ._libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    SO_RCVLOWAT,
    SOL_SOCKET,
    errno,
    malloc,
    now_ns,
    recv,
    setsockopt,
)
from ._macs import check_of, is_broken
from ._memory import copy_bytes, larger, peek, poke, smaller
from ._places import scatter

_WORD = 8
_FRONT_BYTES = 32  # of a header, before its checks
_PIECE_BYTES = 1 << 17  # a wake-up costs as much as some 10 kB
_READ_BYTES = 1 << 20  # at a time; then the other peers are read from


@lean_nested
def receive(loop: int, link: int) -> int:
    """Take what has come, as much as may be read at a time; return how much it was."""
    allowed = _READ_BYTES
    while allowed > 0 and peek(loop, w.FAULT) == 0 and not peek(link, w.ENDED):
        left = peek(link, w.IN_LEFT)
        staged = peek(link, w.IN_STAGED)
        if left > 0:
            room = left
            count = recv(peek(link, w.FD), peek(link, w.IN_AT), room, MSG_DONTWAIT)
        else:
            room = w.STAGING_BYTES - staged
            count = recv(peek(link, w.FD), peek(link, w.STAGING) + staged, room, MSG_DONTWAIT)
        if count <= 0:
            _stopped(loop, link, count)
            break
        allowed -= count
        if left > 0:
            poke(link, w.IN_AT, peek(link, w.IN_AT) + count)
            poke(link, w.IN_LEFT, left - count)
            if count == left:
                _end_frame(loop, link)
        else:
            poke(link, w.IN_STAGED, staged + count)
            _sort(loop, link)
        if count < room:
            break
    _wake_for_piece(loop, link)
    return _READ_BYTES - allowed


@lean_nested
def _wake_for_piece(loop: int, link: int) -> None:
    """Have the kernel tell of the next large piece, and not of every packet."""
    piece = larger(1, smaller(peek(link, w.IN_LEFT), _PIECE_BYTES))
    if piece != peek(link, w.PIECE):
        poke(link, w.PIECE, piece)
        spare = loop + _WORD * w.SPARE
        poke(spare, 0, piece)
        setsockopt(peek(link, w.FD), SOL_SOCKET, SO_RCVLOWAT, spare, 4)


@lean_nested
def _stopped(loop: int, link: int, count: int) -> None:
    """Nothing more has come, or ever will."""
    if count < 0:
        why = errno()
        if why != EAGAIN and why != EINTR:
            fail(loop, w.F_LOST, peek(link, w.PEER), why, 0)
    elif peek(link, w.IN_LEFT) or peek(link, w.IN_STAGED):
        fail(loop, w.F_LOST, peek(link, w.PEER), 0, 1)
    else:
        poke(link, w.ENDED, 1)


@lean_nested
def _sort(loop: int, link: int) -> None:
    """Bring the staged bytes to where they belong."""
    staging, end, begin = peek(link, w.STAGING), peek(link, w.IN_STAGED), 0
    while end - begin >= w.HEADER_BYTES and peek(loop, w.FAULT) == 0:
        _expect_frame(loop, link, staging + begin)
        if peek(loop, w.FAULT):
            return
        begin += w.HEADER_BYTES
        count = smaller(peek(link, w.IN_LEFT), end - begin)
        copy_bytes(peek(link, w.IN_AT), staging + begin, count)
        begin += count
        poke(link, w.IN_AT, peek(link, w.IN_AT) + count)
        poke(link, w.IN_LEFT, peek(link, w.IN_LEFT) - count)
        if peek(link, w.IN_LEFT):
            break
        _end_frame(loop, link)
    left = end - begin
    for i in range(0, left, _WORD):  # forwards: the bytes may overlap
        poke(staging + i, 0, peek(staging + begin + i, 0))
    poke(link, w.IN_STAGED, left)


@lean_nested
def _expect_frame(loop: int, link: int, header: int) -> None:
    """Check a header, and say where its data goes."""
    peer = peek(link, w.PEER)
    if not is_frame(header):
        fail(loop, w.F_MAGIC, peer, low(peek(header, 0)), 0)
        return
    if not is_whole(header):
        fail(loop, w.F_HEADER, peer, 0, 0)
        return
    if high(peek(header, 0)) != peek(loop, w.EPOCH):
        fail(loop, w.F_EPOCH, peer, high(peek(header, 0)), peek(loop, w.EPOCH))
        return
    a, b, total = peek(header, 1), low(peek(header, 2)), high(peek(header, 2))
    offset, count = low(peek(header, 3)), high(peek(header, 3))
    if count == 0 or count > peek(loop, w.CHUNK_BYTES) or offset + count > total:
        fail(loop, w.F_SIZES, peer, count, offset)
        return
    poke(link, w.IN_CHECK, peek(header, 4))
    if peek(link, w.IN_MAC):
        copy_bytes(link + _WORD * w.IN_FRONT, header, _FRONT_BYTES)
    poke(link, w.IN_LEFT, count)
    poke(link, w.IN_BYTES, count)
    poke(link, w.IN_OFFSET, offset)
    first = peek(link, w.FIRST)
    row, early = 0, _early_of(first, a, b)
    if early == 0:  # a message that began early goes on there
        row = waiting_row(loop, first, a, b)
    if row:
        _expect_row(loop, link, row, total, offset, count)
    else:
        _expect_early(loop, link, early, a, b, total, offset, count)


@lean_nested
def _is_due(
    loop: int, link: int, bitmap: int, came: int, total: int, offset: int, count: int
) -> bool:
    """Whether a frame is one that may come now; else fail. Over one connection, that is the next.

    Args:
        loop: Its address.
        link: Over which it comes.
        bitmap: Of the chunks that have come, where they may come over several.
        came: How much has come.
        total: Bytes of the message.
        offset: Of the frame.
        count: Its bytes.
    """
    if peek(link, w.SEVERAL):
        right, fault, beside = is_new_chunk(loop, bitmap, total, offset, count), w.F_CHUNK, count
    else:
        right, fault, beside = offset == came, w.F_ORDER, came
    if not right:
        fail(loop, fault, peek(link, w.PEER), offset, beside)
    return right


@lean_nested
def _early_of(link: int, a: int, b: int) -> int:
    early = peek(link, w.EARLY)
    while early and not (peek(early, w.E_NAME_A) == a and peek(early, w.E_NAME_B) == b):
        early = peek(early, w.E_NEXT)
    return early


@lean_nested
def _expect_row(loop: int, link: int, row: int, total: int, offset: int, count: int) -> None:
    if not fits(loop, row, total):
        return
    if peek(loop, w.TIMED) and peek(row, w.R_FROM_NS) == 0:
        poke(row, w.R_FROM_NS, now_ns(loop + _WORD * w.CLOCK))
    if not _is_due(loop, link, peek(row, w.R_CAME), peek(row, w.R_DONE), total, offset, count):
        return
    if peek(row, w.R_FUSED) and not _is_whole_words(offset, count, total):
        fail(loop, w.F_SIZES, peek(link, w.PEER), count, offset)
    else:
        _expect_data(link, row, landing(link, row, offset, count))


@lean_nested
def _is_whole_words(offset: int, count: int, total: int) -> bool:
    """Whether a frame cuts no element, whatever their dtype."""
    return offset % _WORD == 0 and (count % _WORD == 0 or offset + count == total)


@lean_nested
def _expect_data(link: int, row: int, data: int) -> None:
    """Have the frame that comes be written to an address, for a row; 0 for an early message."""
    poke(link, w.IN_ROW, row)
    poke(link, w.IN_DATA, data)
    poke(link, w.IN_AT, data)


@lean_nested
def _expect_early(
    loop: int, link: int, early: int, a: int, b: int, total: int, offset: int, count: int
) -> None:
    """Keep a message aside that nobody waits for yet, within a limit."""
    first = peek(link, w.FIRST)
    if early == 0:
        aside = peek(first, w.EARLY_BYTES) + total
        if aside > peek(loop, w.EARLY_LIMIT):
            fail(loop, w.F_EARLY, peek(link, w.PEER), aside, peek(loop, w.EARLY_LIMIT))
            return
        early = malloc(_WORD * (w.EARLY_WORDS + bitmap_words(loop, total) + 1) + total)
        if early == 0:
            fail(loop, w.F_EARLY, peek(link, w.PEER), aside, 0)
            return
        poke(first, w.EARLY_BYTES, aside)
        poke(early, w.E_NEXT, peek(first, w.EARLY))
        poke(early, w.E_NAME_A, a)
        poke(early, w.E_NAME_B, b)
        poke(early, w.E_BYTES, total)
        poke(early, w.E_CAME, 0)
        poke(early, w.E_FROM_NS, now_ns(loop + _WORD * w.CLOCK) if peek(loop, w.TIMED) else 0)
        poke(first, w.EARLY, early)
        forget_chunks(loop, early_bitmap(early), total)
    if total != peek(early, w.E_BYTES):
        poke(loop, w.FAULT_NAME_A, a)
        poke(loop, w.FAULT_NAME_B, b)
        fail(loop, w.F_LENGTH, peek(link, w.PEER), total, peek(early, w.E_BYTES))
        return
    came = peek(early, w.E_CAME)
    if not _is_due(loop, link, early_bitmap(early), came, total, offset, count):
        return
    poke(link, w.IN_EARLY, early)
    _expect_data(link, 0, early + _WORD * w.EARLY_WORDS + offset)


@lean_nested
def _end_frame(loop: int, link: int) -> None:
    """All of a frame's data is here: check it, and count or add it."""
    data, count = peek(link, w.IN_DATA), peek(link, w.IN_BYTES)
    mac = peek(link, w.IN_MAC)
    found = check_of(mac, link + _WORD * w.IN_FRONT, data, count)
    if is_broken(mac):
        fail(loop, w.F_OPENSSL, peek(link, w.PEER), 0, 0)
        return
    if found != peek(link, w.IN_CHECK):
        fail(loop, w.F_DATA, peek(link, w.PEER), 0, 0)
        return
    row = peek(link, w.IN_ROW)
    if row == 0:
        early = peek(link, w.IN_EARLY)
        poke(early, w.E_CAME, peek(early, w.E_CAME) + count)
        if peek(early, w.E_CAME) == peek(early, w.E_BYTES):
            if peek(early, w.E_FROM_NS):
                poke(early, w.E_UNTIL_NS, now_ns(loop + _WORD * w.CLOCK))
            first = peek(link, w.FIRST)
            late = waiting_row(loop, first, peek(early, w.E_NAME_A), peek(early, w.E_NAME_B))
            if late:
                take_late(loop, late)
        return
    program, offset = peek(row, w.R_PROGRAM), peek(link, w.IN_OFFSET)
    if peek(row, w.R_FUSED):
        take_in(program, row, offset, count, data)
    elif data == peek(link, w.CHUNK):
        scatter(program, peek(row, w.R_REGION), peek(row, w.R_OFFSET) + offset, count, data)
    poke(row, w.R_DONE, peek(row, w.R_DONE) + count)
    if peek(row, w.R_DONE) == peek(row, w.R_BYTES):
        end_row(loop, row)
