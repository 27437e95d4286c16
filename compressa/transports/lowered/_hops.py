"""Hops: what the table of a program has sent, heard and added, one hop of a chain after the other.

A hop is over when all that it sends has been handed to the kernel and all that it hears has come.
Then its additions are done, and the next one of its chain begins. What came too early for its hop
has been kept aside (`_receives`), and is taken then.
"""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from . import _words as w
from ._chunks import forget_chunks
from ._libc import free, now_ns
from ._memory import copy_bytes, peek, poke
from ._places import add_to, address, address_or, divide_all, scatter

_WORD = 8
ANY = -1


@lean_nested
def fail(loop: int, fault: int, peer: int, a: int, b: int) -> None:
    """Note the first failure: nothing is done any more."""
    if peek(loop, w.FAULT) == 0:
        poke(loop, w.FAULT_PEER, peer)
        poke(loop, w.FAULT_A, a)
        poke(loop, w.FAULT_B, b)
        poke(loop, w.FAULT, fault)


@lean_nested
def take_in(program: int, row: int, offset: int, count: int, source: int) -> None:
    """Add a part of what a row hears to what it is added to."""
    add_to(program, peek(row, w.R_TO_REGION), peek(row, w.R_TO_OFFSET) + offset, count, source)


@lean_nested
def landing(link: int, row: int, offset: int, count: int) -> int:
    """Return where a frame of a row goes: where it belongs, or beside that until it is whole."""
    beside = peek(link, w.CHUNK)
    if peek(row, w.R_FUSED):
        return beside
    begin = peek(row, w.R_OFFSET) + offset
    return address_or(peek(row, w.R_PROGRAM), peek(row, w.R_REGION), begin, count, beside)


@lean_nested
def name_a(program: int) -> int:
    """Return a program's step and unit, as frames bear them."""
    return (peek(program, w.STEP) & 0xFFFFFFFF) | (peek(program, w.UNIT) << 32)


@lean_nested
def begin_chain(loop: int, program: int, chain: int) -> None:
    """Divide what a chain sums, if asked to, and begin its hops, until one has to wait."""
    if peek(program, w.DIVISOR) > 1:
        divide_all(program, peek(chain, w.C_OFFSET), peek(chain, w.C_BYTES))
    poke(chain, w.C_HOP, peek(chain, w.C_FIRST))
    _go_on(loop, program, chain)


@lean_nested
def row_done(loop: int, row: int) -> None:
    """A row has left, or has come: its hop may be over."""
    program, chain = peek(row, w.R_PROGRAM), peek(row, w.R_CHAIN)
    poke(chain, w.C_OPEN, peek(chain, w.C_OPEN) - 1)
    if peek(chain, w.C_OPEN) == 0:
        _end_hop(program, chain)
        _go_on(loop, program, chain)


@lean_nested
def end_row(loop: int, row: int) -> None:
    """All of a message has left, or has come."""
    if peek(row, w.R_FROM_NS):
        poke(row, w.R_UNTIL_NS, now_ns(loop + _WORD * w.CLOCK))
    row_done(loop, row)


@lean_nested
def _end_hop(program: int, chain: int) -> None:
    """Do a hop's additions."""
    hop = peek(program, w.HOPS) + _WORD * w.HOP_WORDS * peek(chain, w.C_HOP)
    first = peek(hop, w.H_FIRST) + peek(hop, w.H_SENDS) + peek(hop, w.H_RECEIVES)
    for i in range(first, first + peek(hop, w.H_ADDS)):
        row = peek(program, w.ROWS) + _WORD * w.ROW_WORDS * i
        source = address(program, peek(row, w.R_REGION), peek(row, w.R_OFFSET))
        take_in(program, row, 0, peek(row, w.R_BYTES), source)
    poke(chain, w.C_HOP, peek(chain, w.C_HOP) + 1)


@lean_nested
def _go_on(loop: int, program: int, chain: int) -> None:
    while peek(loop, w.FAULT) == 0:
        if peek(chain, w.C_HOP) == peek(chain, w.C_END):
            _end_chain(loop, program)
            return
        if _begin_hop(loop, program, chain) > 0:
            return
        _end_hop(program, chain)


@lean_nested
def _end_chain(loop: int, program: int) -> None:
    poke(program, w.CHAINS_LEFT, peek(program, w.CHAINS_LEFT) - 1)
    if peek(program, w.CHAINS_LEFT) == 0:
        poke(program, w.STATUS, w.DONE)
        poke(loop, w.DONE_COUNT, peek(loop, w.DONE_COUNT) + 1)


@lean_nested
def _begin_hop(loop: int, program: int, chain: int) -> int:
    """Queue what a hop sends, and take what has come for it; return for how much it waits."""
    hop = peek(program, w.HOPS) + _WORD * w.HOP_WORDS * peek(chain, w.C_HOP)
    first, sends, receives = peek(hop, w.H_FIRST), peek(hop, w.H_SENDS), peek(hop, w.H_RECEIVES)
    poke(chain, w.C_OPEN, sends + receives)
    stage = peek(program, w.STAGE) + peek(hop, w.H_STAGE) * peek(program, w.STRIDE)
    for i in range(first, first + sends + receives):
        row = peek(program, w.ROWS) + _WORD * w.ROW_WORDS * i
        poke(row, w.R_DONE, 0)
        poke(row, w.R_FROM_NS, 0)
        poke(row, w.R_LEAVING, 0)
        poke(row, w.R_STAGE, stage)
        poke(row, w.R_CHAIN, chain)
        if i < first + sends:
            _enqueue(loop, program, row)
            continue
        if peek(row, w.R_CAME):
            forget_chunks(loop, peek(row, w.R_CAME), peek(row, w.R_BYTES))
        if _take_early(loop, program, row):
            poke(chain, w.C_OPEN, peek(chain, w.C_OPEN) - 1)
    return peek(chain, w.C_OPEN)


@lean_nested
def _enqueue(loop: int, program: int, row: int) -> None:
    """Put a message where it belongs among those to its peer: urgent ones first, then old ones."""
    poke(loop, w.ENQUEUED, 1)
    queue(row, peek(program, w.PRIORITY) + 1)


@lean_nested
def queue(row: int, urgency: int) -> None:
    """Put a message behind those that are more urgent than a number, and before the others."""
    link = peek(row, w.R_LINK)
    before, behind = 0, peek(link, w.QUEUE)
    while behind != 0 and peek(peek(behind, w.R_PROGRAM), w.PRIORITY) < urgency:
        before, behind = behind, peek(behind, w.R_NEXT)
    poke(row, w.R_NEXT, behind)
    if before:
        poke(before, w.R_NEXT, row)
    else:
        poke(link, w.QUEUE, row)


@lean_nested
def fits(loop: int, row: int, total: int) -> bool:
    """Whether a message may be so long, which is settled with it; else fail."""
    most = peek(row, w.R_BYTES)
    if peek(row, w.R_SHORTER) and total < most:
        poke(row, w.R_BYTES, total)
    elif total != most:
        peer = peek(peek(row, w.R_LINK), w.PEER)
        poke(loop, w.FAULT_NAME_A, name_a(peek(row, w.R_PROGRAM)))
        poke(loop, w.FAULT_NAME_B, peek(row, w.R_STAGE))
        fail(loop, w.F_LONG if peek(row, w.R_SHORTER) else w.F_LENGTH, peer, total, most)
        return False
    poke(row, w.R_SHORTER, 0)
    return True


@lean_nested
def _take_early(loop: int, program: int, row: int) -> bool:
    """Take what came before it was waited for, whole or in part; return whether that was all."""
    link, before = peek(row, w.R_LINK), 0
    early = peek(link, w.EARLY)
    a, b = name_a(program), peek(row, w.R_STAGE)
    while early != 0 and not (peek(early, w.E_NAME_A) == a and peek(early, w.E_NAME_B) == b):
        before, early = early, peek(early, w.E_NEXT)
    if early == 0:
        return False
    count, came = peek(early, w.E_BYTES), peek(early, w.E_CAME)
    if not fits(loop, row, count):
        return False
    data = early + _WORD * w.EARLY_WORDS
    apart = peek(row, w.R_FUSED) or peek(link, w.SEVERAL)
    if apart and came < count:  # the rest comes there as well, and is taken with the last of it
        return False
    if peek(row, w.R_FUSED):
        take_in(program, row, 0, count, data)
    else:
        scatter(program, peek(row, w.R_REGION), peek(row, w.R_OFFSET), came, data)
        _redirect(link, early, row)
    poke(row, w.R_DONE, came)
    poke(row, w.R_FROM_NS, peek(early, w.E_FROM_NS))
    poke(row, w.R_UNTIL_NS, peek(early, w.E_UNTIL_NS))
    if before:
        poke(before, w.E_NEXT, peek(early, w.E_NEXT))
    else:
        poke(link, w.EARLY, peek(early, w.E_NEXT))
    poke(link, w.EARLY_BYTES, peek(link, w.EARLY_BYTES) - count)
    free(early)
    return bool(came == count)


@lean_nested
def _redirect(link: int, early: int, row: int) -> None:
    """Have the frame that is just coming for an early message go on in its receiver's memory."""
    if peek(link, w.IN_LEFT) and peek(link, w.IN_ROW) == 0 and peek(link, w.IN_EARLY) == early:
        data = landing(link, row, peek(link, w.IN_OFFSET), peek(link, w.IN_BYTES))
        came = peek(link, w.IN_AT) - peek(link, w.IN_DATA)
        copy_bytes(data, peek(link, w.IN_DATA), came)
        poke(link, w.IN_ROW, row)
        poke(link, w.IN_DATA, data)
        poke(link, w.IN_AT, data + came)


@lean_nested
def take_late(loop: int, row: int) -> None:
    """Take a message whose last bytes came when it was waited for already."""
    if _take_early(loop, peek(row, w.R_PROGRAM), row):
        row_done(loop, row)


@lean_nested
def waiting_row(loop: int, link: int, name: int, stage: int) -> int:
    """Return the row that waits for a message from a peer; 0 for none.

    Args:
        loop: Its address.
        link: The peer's.
        name: Step and unit of the message; see `name_a`.
        stage: And its stage; `ANY` for a message of any name.
    """
    for p in range(peek(loop, w.PROGRAM_ROOM)):
        program = peek(peek(loop, w.PROGRAMS), p)
        under_way = program and peek(program, w.STATUS) == w.UNDER_WAY
        if under_way and (stage == ANY or name_a(program) == name):
            row = _row_of(program, link, stage)
            if row:
                return row
    return 0


@lean_nested
def _row_of(program: int, link: int, stage: int) -> int:
    for c in range(peek(program, w.CHAIN_COUNT)):
        chain = peek(program, w.CHAINS) + _WORD * w.CHAIN_WORDS * c
        if peek(chain, w.C_HOP) < peek(chain, w.C_END):
            hop = peek(program, w.HOPS) + _WORD * w.HOP_WORDS * peek(chain, w.C_HOP)
            first = peek(hop, w.H_FIRST) + peek(hop, w.H_SENDS)
            for i in range(first, first + peek(hop, w.H_RECEIVES)):
                row = peek(program, w.ROWS) + _WORD * w.ROW_WORDS * i
                waits = peek(row, w.R_LINK) == link and peek(row, w.R_DONE) < peek(row, w.R_BYTES)
                if waits and (stage == ANY or peek(row, w.R_STAGE) == stage):
                    return row
    return 0
