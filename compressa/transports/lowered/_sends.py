"""Sends: frames to one peer, over its sockets, without blocking."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from . import _words as w
from ._frames import write_header
from ._hops import end_row, fail, name_a, queue
from ._libc import EAGAIN, EINTR, errno, now_ns, send_two
from ._macs import is_broken
from ._memory import larger, peek, poke, smaller
from ._pace import must_wait, reserve
from ._places import address_or, gather
from ._receives import receive

_WORD = 8


@lean_nested
def flush(loop: int, link: int) -> None:
    """Hand frames to the kernel until it takes no more."""
    while peek(loop, w.FAULT) == 0 and not peek(link, w.FULL):
        if _is_overtaken(link):
            _give_back(link)
        if peek(link, w.OUT_ROW) == 0:
            first = peek(link, w.FIRST)
            if peek(first, w.QUEUE) == 0 or peek(first, w.WAITING):
                return
            _begin_frame(loop, link)
            if peek(loop, w.FAULT):
                return
        if must_wait(loop, link):
            return
        _push(loop, link)


@lean_nested
def _begin_frame(loop: int, link: int) -> None:
    """Cut a frame of the most urgent message."""
    first = peek(link, w.FIRST)
    row = peek(first, w.QUEUE)
    total, offset = peek(row, w.R_BYTES), peek(row, w.R_DONE)
    count = smaller(peek(loop, w.CHUNK_BYTES), total - offset)
    at = _together(link, row, offset, count)
    name = name_a(peek(row, w.R_PROGRAM))
    header, mac = link + _WORD * w.OUT_HEADER, peek(link, w.OUT_MAC)
    stage = peek(row, w.R_STAGE)
    write_header(header, peek(loop, w.EPOCH), name, stage, total, offset, at, count, mac)
    if is_broken(mac):
        fail(loop, w.F_OPENSSL, peek(link, w.PEER), 0, 0)
    reserve(loop, link, w.HEADER_BYTES + count)
    poke(row, w.R_DONE, offset + count)
    poke(row, w.R_LEAVING, peek(row, w.R_LEAVING) + 1)
    if offset == 0 and peek(loop, w.TIMED):
        poke(row, w.R_FROM_NS, now_ns(loop + _WORD * w.CLOCK))
    if offset + count == total:
        poke(first, w.QUEUE, peek(row, w.R_NEXT))
    poke(link, w.OUT_ROW, row)
    poke(link, w.OUT_SENT, 0)
    poke(link, w.OUT_BYTES, count)
    poke(link, w.OUT_AT, at)


@lean_nested
def _together(link: int, row: int, offset: int, count: int) -> int:
    """Return where a frame's data is, all in one place."""
    program, region = peek(row, w.R_PROGRAM), peek(row, w.R_REGION)
    begin = peek(row, w.R_OFFSET) + offset
    beside = peek(link, w.OUT_CHUNK)
    at = address_or(program, region, begin, count, beside)
    if at == beside:
        gather(program, region, begin, count, beside)
    return at


@lean_nested
def _push(loop: int, link: int) -> None:
    """Offer what is left of the frame that has begun."""
    sent, count = peek(link, w.OUT_SENT), peek(link, w.OUT_BYTES)
    header_left = larger(0, w.HEADER_BYTES - sent)
    behind = larger(0, sent - w.HEADER_BYTES)
    header = link + _WORD * w.OUT_HEADER + (w.HEADER_BYTES - header_left)
    data = peek(link, w.OUT_AT) + behind
    spare = loop + _WORD * w.SPARE
    alone = not peek(link, w.SEVERAL) and peek(loop, w.BUCKET) == 0
    more = alone and peek(link, w.QUEUE) != 0  # here, and now
    taken = send_two(peek(link, w.FD), spare, header, header_left, data, count - behind, more)
    if taken < 0:
        why = errno()
        if why == EAGAIN:
            poke(link, w.FULL, 1)
            if sent == 0 and peek(link, w.SEVERAL):
                _give_back(link)
        elif why != EINTR:
            _refused(loop, link, why)
        return
    poke(loop, w.SENT_BYTES, peek(loop, w.SENT_BYTES) + taken)
    poke(link, w.OUT_SENT, sent + taken)
    if sent + taken < w.HEADER_BYTES + count:
        poke(link, w.FULL, 1)
        return
    row = peek(link, w.OUT_ROW)
    poke(link, w.OUT_ROW, 0)
    poke(row, w.R_LEAVING, peek(row, w.R_LEAVING) - 1)
    # A message whose last frame this was is not at the head of the queue any more.
    if peek(row, w.R_DONE) == peek(row, w.R_BYTES) and peek(row, w.R_LEAVING) == 0:
        poke(loop, w.MESSAGES, peek(loop, w.MESSAGES) + 1)
        end_row(loop, row)


@lean_nested
def _refused(loop: int, link: int, why: int) -> None:
    """A peer takes nothing more: it is lost, unless it has ended its stream in order before."""
    came = 1
    while came:
        came = receive(loop, link)
    fail(loop, w.F_LEFT if peek(link, w.ENDED) else w.F_LOST, peek(link, w.PEER), why, 0)


@lean_nested
def _is_overtaken(link: int) -> bool:
    """Whether something more urgent has come than a frame that found no room."""
    row, urgent = peek(link, w.OUT_ROW), peek(peek(link, w.FIRST), w.QUEUE)
    if row == 0 or urgent == 0 or peek(link, w.OUT_SENT) or peek(link, w.NOT_BEFORE_NS):
        return False
    return peek(peek(urgent, w.R_PROGRAM), w.PRIORITY) < peek(peek(row, w.R_PROGRAM), w.PRIORITY)


@lean_nested
def _give_back(link: int) -> None:
    """Have a frame cut anew, of another link or later; nothing was cut since."""
    row, first, mac = peek(link, w.OUT_ROW), peek(link, w.FIRST), peek(link, w.OUT_MAC)
    count = peek(link, w.OUT_BYTES)
    if peek(row, w.R_DONE) == peek(row, w.R_BYTES):  # it is not in the queue any more
        queue(row, peek(peek(row, w.R_PROGRAM), w.PRIORITY))
    poke(row, w.R_DONE, peek(row, w.R_DONE) - count)
    poke(row, w.R_LEAVING, peek(row, w.R_LEAVING) - 1)
    poke(link, w.OUT_ROW, 0)
    poke(first, w.PAID_BYTES, w.HEADER_BYTES + count)
    if mac:
        poke(mac, w.M_NUMBER, peek(mac, w.M_NUMBER) - 1)
