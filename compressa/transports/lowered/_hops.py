"""Hops: what the table of a program has sent, heard and added, one hop of a chain after the other.

A hop is over when all that it sends has been handed to the kernel and all that it hears has come.
Then its additions are done, and the next one of its chain begins. What came too early for its hop
has been kept aside (`_links`), and is taken then.
"""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from ._adds import add, divide
from ._libc import free
from ._memory import copy_bytes, peek, poke
from ._words import (
    ACTIVE,
    BASE,
    C_BYTES,
    C_END,
    C_FIRST,
    C_HOP,
    C_OFFSET,
    C_OPEN,
    CHAIN_COUNT,
    CHAIN_WORDS,
    CHAINS,
    CHAINS_LEFT,
    DIVISOR,
    DONE,
    DONE_COUNT,
    DTYPE,
    E_BYTES,
    E_CAME,
    E_NAME_A,
    E_NAME_B,
    E_NEXT,
    EARLY,
    EARLY_BYTES,
    EARLY_WORDS,
    F_LENGTH,
    FAULT,
    FAULT_A,
    FAULT_B,
    FAULT_PEER,
    H_ADDS,
    H_FIRST,
    H_RECEIVES,
    H_SENDS,
    H_STAGE,
    HOP_WORDS,
    HOPS,
    PEER,
    PRIORITY,
    PROGRAM_ROOM,
    PROGRAMS,
    QUEUE,
    R_AT,
    R_BYTES,
    R_CHAIN,
    R_DONE,
    R_FUSED,
    R_LINK,
    R_NEXT,
    R_PROGRAM,
    R_STAGE,
    R_TO_OFFSET,
    R_TO_REGION,
    ROW_WORDS,
    ROWS,
    STAGE,
    STATUS,
    STEP,
    STRIDE,
    UNDER_WAY,
    UNIT,
)

_WORD = 8


@lean_nested
def fail(loop: int, fault: int, peer: int, a: int, b: int) -> None:
    """Note the first failure: nothing is done any more."""
    if peek(loop, FAULT) == 0:
        poke(loop, FAULT_PEER, peer)
        poke(loop, FAULT_A, a)
        poke(loop, FAULT_B, b)
        poke(loop, FAULT, fault)


@lean_nested
def target(program: int, row: int) -> int:
    """Return the address that what a row hears is added to."""
    return peek(program, BASE + peek(row, R_TO_REGION)) + peek(row, R_TO_OFFSET)


@lean_nested
def name_a(program: int) -> int:
    """Return a program's step and unit, as frames bear them."""
    return (peek(program, STEP) & 0xFFFFFFFF) | (peek(program, UNIT) << 32)


@lean_nested
def begin_chain(loop: int, program: int, chain: int) -> None:
    """Divide what a chain sums, if asked to, and begin its hops, until one has to wait."""
    if peek(program, DIVISOR) > 1:
        at = peek(program, BASE) + peek(chain, C_OFFSET)
        divide(peek(program, DTYPE), at, peek(chain, C_BYTES), peek(program, DIVISOR))
    poke(chain, C_HOP, peek(chain, C_FIRST))
    _go_on(loop, program, chain)


@lean_nested
def row_done(loop: int, row: int) -> None:
    """A row has left, or has come: its hop may be over."""
    program, chain = peek(row, R_PROGRAM), peek(row, R_CHAIN)
    poke(chain, C_OPEN, peek(chain, C_OPEN) - 1)
    if peek(chain, C_OPEN) == 0:
        _end_hop(program, chain)
        _go_on(loop, program, chain)


@lean_nested
def _end_hop(program: int, chain: int) -> None:
    """Do a hop's additions."""
    hop = peek(program, HOPS) + _WORD * HOP_WORDS * peek(chain, C_HOP)
    first = peek(hop, H_FIRST) + peek(hop, H_SENDS) + peek(hop, H_RECEIVES)
    for i in range(first, first + peek(hop, H_ADDS)):
        row = peek(program, ROWS) + _WORD * ROW_WORDS * i
        add(peek(program, DTYPE), target(program, row), peek(row, R_AT), peek(row, R_BYTES))
    poke(chain, C_HOP, peek(chain, C_HOP) + 1)


@lean_nested
def _go_on(loop: int, program: int, chain: int) -> None:
    while peek(loop, FAULT) == 0:
        if peek(chain, C_HOP) == peek(chain, C_END):
            _end_chain(loop, program)
            return
        if _begin_hop(loop, program, chain) > 0:
            return
        _end_hop(program, chain)


@lean_nested
def _end_chain(loop: int, program: int) -> None:
    poke(program, CHAINS_LEFT, peek(program, CHAINS_LEFT) - 1)
    if peek(program, CHAINS_LEFT) == 0:
        poke(program, STATUS, DONE)
        poke(loop, ACTIVE, peek(loop, ACTIVE) - 1)
        poke(loop, DONE_COUNT, peek(loop, DONE_COUNT) + 1)


@lean_nested
def _begin_hop(loop: int, program: int, chain: int) -> int:
    """Queue what a hop sends, and take what has come for it; return for how much it waits."""
    hop = peek(program, HOPS) + _WORD * HOP_WORDS * peek(chain, C_HOP)
    first, sends, receives = peek(hop, H_FIRST), peek(hop, H_SENDS), peek(hop, H_RECEIVES)
    poke(chain, C_OPEN, sends + receives)
    stage = peek(program, STAGE) + peek(hop, H_STAGE) * peek(program, STRIDE)
    for i in range(first, first + sends + receives):
        row = peek(program, ROWS) + _WORD * ROW_WORDS * i
        poke(row, R_DONE, 0)
        poke(row, R_STAGE, stage)
        poke(row, R_CHAIN, chain)
        if i < first + sends:
            _enqueue(loop, program, row)
        elif _take_early(loop, program, row):
            poke(row, R_DONE, peek(row, R_BYTES))
            poke(chain, C_OPEN, peek(chain, C_OPEN) - 1)
    return peek(chain, C_OPEN)


@lean_nested
def _enqueue(loop: int, program: int, row: int) -> None:
    """Put a message where it belongs among those to its peer: urgent ones first, then old ones."""
    link = peek(row, R_LINK)
    urgency = peek(program, PRIORITY)
    before, behind = 0, peek(link, QUEUE)
    while behind != 0 and peek(peek(behind, R_PROGRAM), PRIORITY) <= urgency:
        before, behind = behind, peek(behind, R_NEXT)
    poke(row, R_NEXT, behind)
    if before:
        poke(before, R_NEXT, row)
    else:
        poke(link, QUEUE, row)


@lean_nested
def _take_early(loop: int, program: int, row: int) -> bool:
    """Take what came before it was waited for, whole or in part; return whether that was all."""
    link, before = peek(row, R_LINK), 0
    early = peek(link, EARLY)
    a, b = name_a(program), peek(row, R_STAGE)
    while early != 0 and not (peek(early, E_NAME_A) == a and peek(early, E_NAME_B) == b):
        before, early = early, peek(early, E_NEXT)
    if early == 0:
        return False
    count, came = peek(early, E_BYTES), peek(early, E_CAME)
    if count != peek(row, R_BYTES):
        fail(loop, F_LENGTH, peek(link, PEER), count, peek(row, R_BYTES))
        return False
    if came < count:  # the rest comes there as well, and is taken with the last of it
        return False
    data = early + _WORD * EARLY_WORDS
    if peek(row, R_FUSED):
        add(peek(program, DTYPE), target(program, row), data, count)
    else:
        copy_bytes(peek(row, R_AT), data, count)
    if before:
        poke(before, E_NEXT, peek(early, E_NEXT))
    else:
        poke(link, EARLY, peek(early, E_NEXT))
    poke(link, EARLY_BYTES, peek(link, EARLY_BYTES) - count)
    free(early)
    return True


@lean_nested
def take_late(loop: int, row: int) -> None:
    """Take a message whose last bytes came when it was waited for already."""
    if _take_early(loop, peek(row, R_PROGRAM), row):
        poke(row, R_DONE, peek(row, R_BYTES))
        row_done(loop, row)


@lean_nested
def waiting_row(loop: int, link: int, program: int, name_b: int) -> int:
    """Return the row of a program that waits for a message of a stage from a peer; 0 for none."""
    chains = peek(program, CHAINS)
    for c in range(peek(program, CHAIN_COUNT)):
        chain = chains + _WORD * CHAIN_WORDS * c
        if peek(chain, C_HOP) < peek(chain, C_END):
            hop = peek(program, HOPS) + _WORD * HOP_WORDS * peek(chain, C_HOP)
            stage = peek(program, STAGE) + peek(hop, H_STAGE) * peek(program, STRIDE)
            if stage == name_b:
                first = peek(hop, H_FIRST) + peek(hop, H_SENDS)
                for i in range(first, first + peek(hop, H_RECEIVES)):
                    row = peek(program, ROWS) + _WORD * ROW_WORDS * i
                    if peek(row, R_LINK) == link and peek(row, R_DONE) < peek(row, R_BYTES):
                        return row
    return 0


@lean_nested
def owed(loop: int, link: int) -> bool:
    """Return whether a program waits for a peer's message."""
    programs = peek(loop, PROGRAMS)
    for p in range(peek(loop, PROGRAM_ROOM)):
        program = peek(programs, p)
        if program and peek(program, STATUS) == UNDER_WAY and owes(program, link):
            return True
    return False


@lean_nested
def owes(program: int, link: int) -> bool:
    """Return whether one program waits for a peer's message."""
    for c in range(peek(program, CHAIN_COUNT)):
        chain = peek(program, CHAINS) + _WORD * CHAIN_WORDS * c
        if peek(chain, C_HOP) < peek(chain, C_END):
            hop = peek(program, HOPS) + _WORD * HOP_WORDS * peek(chain, C_HOP)
            first = peek(hop, H_FIRST) + peek(hop, H_SENDS)
            for i in range(first, first + peek(hop, H_RECEIVES)):
                row = peek(program, ROWS) + _WORD * ROW_WORDS * i
                if peek(row, R_LINK) == link and peek(row, R_DONE) < peek(row, R_BYTES):
                    return True
    return False
