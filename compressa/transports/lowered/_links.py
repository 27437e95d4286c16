"""Links: frames to and from one peer, over one socket, without blocking."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from ._adds import add
from ._frames import checked, high, is_frame, is_whole, low, write_header
from ._hops import fail, name_a, row_done, take_late, target, waiting_row
from ._libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    SO_RCVLOWAT,
    SOL_SOCKET,
    errno,
    malloc,
    recv,
    send_two,
    setsockopt,
)
from ._memory import copy_bytes, peek, poke
from ._words import (
    CHUNK,
    CHUNK_BYTES,
    DTYPE,
    E_BYTES,
    E_CAME,
    E_NAME_A,
    E_NAME_B,
    E_NEXT,
    EARLY,
    EARLY_BYTES,
    EARLY_LIMIT,
    EARLY_WORDS,
    ENDED,
    EPOCH,
    F_DATA,
    F_EARLY,
    F_EPOCH,
    F_HEADER,
    F_LENGTH,
    F_LOST,
    F_MAGIC,
    F_SIZES,
    F_TURN,
    FAULT,
    FD,
    FULL,
    HEADER_BYTES,
    IN_AT,
    IN_BYTES,
    IN_CHECK,
    IN_DATA,
    IN_EARLY,
    IN_LEFT,
    IN_OFFSET,
    IN_ROW,
    IN_STAGED,
    MESSAGES,
    OUT_AT,
    OUT_BYTES,
    OUT_HEADER,
    OUT_ROW,
    OUT_SENT,
    PEER,
    PIECE,
    PROGRAM_ROOM,
    PROGRAMS,
    QUEUE,
    R_AT,
    R_BYTES,
    R_DONE,
    R_FUSED,
    R_NEXT,
    R_PROGRAM,
    R_STAGE,
    SENT_BYTES,
    SPARE,
    STAGING,
    STAGING_BYTES,
    STATUS,
    UNDER_WAY,
)

_WORD = 8
_PIECE_BYTES = 1 << 17  # a wake-up costs as much as some 10 kB
_TURN_BYTES = 1 << 20  # then the other peers have their turn

# Sending


@lean_nested
def flush(loop: int, link: int) -> None:
    """Hand frames to the kernel until it takes no more."""
    while peek(loop, FAULT) == 0 and not peek(link, FULL):
        if peek(link, OUT_ROW) == 0:
            if peek(link, QUEUE) == 0:
                return
            _begin_frame(loop, link)
        _push(loop, link)


@lean_nested
def _begin_frame(loop: int, link: int) -> None:
    """Cut a frame of the most urgent message."""
    row = peek(link, QUEUE)
    total, offset = peek(row, R_BYTES), peek(row, R_DONE)
    count = min(peek(loop, CHUNK_BYTES), total - offset)
    at = peek(row, R_AT) + offset
    name = name_a(peek(row, R_PROGRAM))
    header = link + _WORD * OUT_HEADER
    write_header(header, peek(loop, EPOCH), name, peek(row, R_STAGE), total, offset, at, count)
    poke(row, R_DONE, offset + count)
    if offset + count == total:
        poke(link, QUEUE, peek(row, R_NEXT))
    poke(link, OUT_ROW, row)
    poke(link, OUT_SENT, 0)
    poke(link, OUT_BYTES, count)
    poke(link, OUT_AT, at)


@lean_nested
def _push(loop: int, link: int) -> None:
    """Offer what is left of the frame that has begun."""
    sent, count = peek(link, OUT_SENT), peek(link, OUT_BYTES)
    header_left = max(0, HEADER_BYTES - sent)
    behind = max(0, sent - HEADER_BYTES)
    header = link + _WORD * OUT_HEADER + (HEADER_BYTES - header_left)
    data = peek(link, OUT_AT) + behind
    spare = loop + _WORD * SPARE
    taken = send_two(peek(link, FD), spare, header, header_left, data, count - behind)
    if taken < 0:
        why = errno()
        if why == EAGAIN:
            poke(link, FULL, 1)
        elif why != EINTR:
            fail(loop, F_LOST, peek(link, PEER), why, 0)
        return
    poke(loop, SENT_BYTES, peek(loop, SENT_BYTES) + taken)
    poke(link, OUT_SENT, sent + taken)
    if sent + taken < HEADER_BYTES + count:
        poke(link, FULL, 1)
        return
    row = peek(link, OUT_ROW)
    poke(link, OUT_ROW, 0)
    # A message whose last frame this was is not at the head of the queue any more.
    if peek(row, R_DONE) == peek(row, R_BYTES):
        poke(loop, MESSAGES, peek(loop, MESSAGES) + 1)
        row_done(loop, row)


# Receiving


@lean_nested
def receive(loop: int, link: int) -> int:
    """Take what has come, within this peer's turn; return how much it was."""
    turn = _TURN_BYTES
    while turn > 0 and peek(loop, FAULT) == 0 and not peek(link, ENDED):
        left = peek(link, IN_LEFT)
        staged = peek(link, IN_STAGED)
        if left > 0:
            room = left
            count = recv(peek(link, FD), peek(link, IN_AT), room, MSG_DONTWAIT)
        else:
            room = STAGING_BYTES - staged
            count = recv(peek(link, FD), peek(link, STAGING) + staged, room, MSG_DONTWAIT)
        if count <= 0:
            _stopped(loop, link, count)
            break
        turn -= count
        if left > 0:
            poke(link, IN_AT, peek(link, IN_AT) + count)
            poke(link, IN_LEFT, left - count)
            if count == left:
                _end_frame(loop, link)
        else:
            poke(link, IN_STAGED, staged + count)
            _sort(loop, link)
        if count < room:
            break
    _wake_for_piece(loop, link)
    return _TURN_BYTES - turn


@lean_nested
def _wake_for_piece(loop: int, link: int) -> None:
    """Have the kernel tell of the next large piece, and not of every packet."""
    piece = max(1, min(peek(link, IN_LEFT), _PIECE_BYTES))
    if piece != peek(link, PIECE):
        poke(link, PIECE, piece)
        spare = loop + _WORD * SPARE
        poke(spare, 0, piece)
        setsockopt(peek(link, FD), SOL_SOCKET, SO_RCVLOWAT, spare, 4)


@lean_nested
def _stopped(loop: int, link: int, count: int) -> None:
    """Nothing more has come, or ever will."""
    if count < 0:
        why = errno()
        if why != EAGAIN and why != EINTR:
            fail(loop, F_LOST, peek(link, PEER), why, 0)
    elif peek(link, IN_LEFT) or peek(link, IN_STAGED):
        fail(loop, F_LOST, peek(link, PEER), 0, 1)
    else:
        poke(link, ENDED, 1)


@lean_nested
def _sort(loop: int, link: int) -> None:
    """Bring the staged bytes to where they belong."""
    staging, end, begin = peek(link, STAGING), peek(link, IN_STAGED), 0
    while end - begin >= HEADER_BYTES and peek(loop, FAULT) == 0:
        _expect_frame(loop, link, staging + begin)
        if peek(loop, FAULT):
            return
        begin += HEADER_BYTES
        count = min(peek(link, IN_LEFT), end - begin)
        copy_bytes(peek(link, IN_AT), staging + begin, count)
        begin += count
        poke(link, IN_AT, peek(link, IN_AT) + count)
        poke(link, IN_LEFT, peek(link, IN_LEFT) - count)
        if peek(link, IN_LEFT):
            break
        _end_frame(loop, link)
    left = end - begin
    for i in range(0, left, _WORD):  # forwards: the bytes may overlap
        poke(staging + i, 0, peek(staging + begin + i, 0))
    poke(link, IN_STAGED, left)


@lean_nested
def _expect_frame(loop: int, link: int, header: int) -> None:
    """Check a header, and say where its data goes."""
    peer = peek(link, PEER)
    if not is_frame(header):
        fail(loop, F_MAGIC, peer, low(peek(header, 0)), 0)
        return
    if not is_whole(header):
        fail(loop, F_HEADER, peer, 0, 0)
        return
    if high(peek(header, 0)) != peek(loop, EPOCH):
        fail(loop, F_EPOCH, peer, high(peek(header, 0)), peek(loop, EPOCH))
        return
    a, b, total = peek(header, 1), low(peek(header, 2)), high(peek(header, 2))
    offset, count = low(peek(header, 3)), high(peek(header, 3))
    if count == 0 or count > peek(loop, CHUNK_BYTES) or offset + count > total:
        fail(loop, F_SIZES, peer, count, offset)
        return
    poke(link, IN_CHECK, peek(header, 4))
    poke(link, IN_LEFT, count)
    poke(link, IN_BYTES, count)
    poke(link, IN_OFFSET, offset)
    row, early = 0, _early_of(link, a, b)
    if early == 0:  # a message that began early goes on there
        row = _row_of(loop, link, a, b)
    if row:
        _expect_row(loop, link, row, total, offset, count)
    else:
        _expect_early(loop, link, early, a, b, total, offset)


@lean_nested
def _row_of(loop: int, link: int, a: int, b: int) -> int:
    programs = peek(loop, PROGRAMS)
    for i in range(peek(loop, PROGRAM_ROOM)):
        program = peek(programs, i)
        if program and peek(program, STATUS) == UNDER_WAY and name_a(program) == a:
            row = waiting_row(loop, link, program, b)
            if row:
                return row
    return 0


@lean_nested
def _early_of(link: int, a: int, b: int) -> int:
    early = peek(link, EARLY)
    while early and not (peek(early, E_NAME_A) == a and peek(early, E_NAME_B) == b):
        early = peek(early, E_NEXT)
    return early


@lean_nested
def _expect_row(loop: int, link: int, row: int, total: int, offset: int, count: int) -> None:
    if total != peek(row, R_BYTES):
        fail(loop, F_LENGTH, peek(link, PEER), total, peek(row, R_BYTES))
    elif offset != peek(row, R_DONE):
        fail(loop, F_TURN, peek(link, PEER), offset, peek(row, R_DONE))
    elif peek(row, R_FUSED):
        data = peek(link, CHUNK)
        poke(link, IN_ROW, row)
        poke(link, IN_DATA, data)
        poke(link, IN_AT, data)
    else:
        data = peek(row, R_AT) + offset
        poke(link, IN_ROW, row)
        poke(link, IN_DATA, data)
        poke(link, IN_AT, data)


@lean_nested
def _expect_early(
    loop: int, link: int, early: int, a: int, b: int, total: int, offset: int
) -> None:
    """Keep a message aside that nobody waits for yet, within a limit."""
    if early == 0:
        aside = peek(link, EARLY_BYTES) + total
        if aside > peek(loop, EARLY_LIMIT):
            fail(loop, F_EARLY, peek(link, PEER), aside, peek(loop, EARLY_LIMIT))
            return
        early = malloc(_WORD * EARLY_WORDS + total)
        if early == 0:
            fail(loop, F_EARLY, peek(link, PEER), aside, 0)
            return
        poke(link, EARLY_BYTES, aside)
        poke(early, E_NEXT, peek(link, EARLY))
        poke(early, E_NAME_A, a)
        poke(early, E_NAME_B, b)
        poke(early, E_BYTES, total)
        poke(early, E_CAME, 0)
        poke(link, EARLY, early)
    if total != peek(early, E_BYTES):
        fail(loop, F_LENGTH, peek(link, PEER), total, peek(early, E_BYTES))
        return
    if offset != peek(early, E_CAME):
        fail(loop, F_TURN, peek(link, PEER), offset, peek(early, E_CAME))
        return
    data = early + _WORD * EARLY_WORDS + offset
    poke(link, IN_ROW, 0)
    poke(link, IN_EARLY, early)
    poke(link, IN_DATA, data)
    poke(link, IN_AT, data)


@lean_nested
def _end_frame(loop: int, link: int) -> None:
    """All of a frame's data is here: check it, and count or add it."""
    data, count = peek(link, IN_DATA), peek(link, IN_BYTES)
    if not checked(data, count, peek(link, IN_CHECK)):
        fail(loop, F_DATA, peek(link, PEER), 0, 0)
        return
    row = peek(link, IN_ROW)
    if row == 0:
        early = peek(link, IN_EARLY)
        poke(early, E_CAME, peek(early, E_CAME) + count)
        if peek(early, E_CAME) == peek(early, E_BYTES):
            late = _row_of(loop, link, peek(early, E_NAME_A), peek(early, E_NAME_B))
            if late:
                take_late(loop, late)
        return
    if peek(row, R_FUSED):
        program = peek(row, R_PROGRAM)
        add(peek(program, DTYPE), target(program, row) + peek(link, IN_OFFSET), data, count)
    poke(row, R_DONE, peek(row, R_DONE) + count)
    if peek(row, R_DONE) == peek(row, R_BYTES):
        row_done(loop, row)
