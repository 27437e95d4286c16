"""Drive: begin programs, wait for sockets, go on with what has come, without the interpreter."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean, lean_nested

from ._hops import begin_chain, fail, owed
from ._libc import POLLIN, POLLOUT, free, now_ns, ppoll, read
from ._links import flush, receive
from ._memory import peek, poke, swap_if
from ._words import (
    ACTIVE,
    BASE,
    CALLER,
    CHAIN_COUNT,
    CHAIN_WORDS,
    CHAINS,
    CHAINS_LEFT,
    CLOCK,
    COMMUNICATION,
    CORE_FREE,
    DIVISOR,
    DONE_COUNT,
    DRIVING,
    E_NEXT,
    EARLY,
    ENDED,
    F_LEFT,
    FAULT,
    FD,
    FULL,
    IN_LEFT,
    LINK_COUNT,
    LINK_WORDS,
    LINKS,
    NOBODY,
    OTHER_FD,
    OUT_ROW,
    PEER,
    POLL_NS,
    POLLFDS,
    PRIORITY,
    PROGRAM_ROOM,
    PROGRAMS,
    QUEUE,
    R_AT,
    R_OFFSET,
    R_PROGRAM,
    R_REGION,
    ROW_COUNT,
    ROW_WORDS,
    ROWS,
    SOON,
    SPARE,
    STAGE,
    STATUS,
    STEP,
    STRIDE,
    UNDER_WAY,
    UNIT,
    WAKE_FD,
)

_WORD = 8
_NS = 1_000_000_000
_EVENTS_SHIFT, _REVENTS_SHIFT = 32, 48

NOTHING, PROGRAM_DONE, OTHER_READY, FAILED, REFUSED = 0, 1, 2, 3, 4
_LARGE_BYTES = 1 << 14
_LOOKS = 8  # for what comes over the links, to each for other descriptors


@lean
def begin(
    loop: int,
    program: int,
    values: int,
    divisor: int,
    step: int,
    unit: int,
    stage: int,
    stride: int,
    urgency: int,
) -> None:
    """Begin a program on values at an address; only for who drives.

    Args:
        loop: Its address.
        program: The program's.
        values: Of what is summed.
        divisor: What that is divided by before.
        step: Its name: optimizer step,
        unit: unit,
        stage: and number of its first exchange.
        stride: By how much the next ones are larger.
        urgency: The smallest goes first.
    """
    poke(program, BASE, values)
    poke(program, DIVISOR, divisor)
    poke(program, STEP, step)
    poke(program, UNIT, unit)
    poke(program, STAGE, stage)
    poke(program, STRIDE, stride)
    poke(program, PRIORITY, urgency)
    for i in range(peek(program, ROW_COUNT)):
        row = peek(program, ROWS) + _WORD * ROW_WORDS * i
        poke(row, R_AT, peek(program, BASE + peek(row, R_REGION)) + peek(row, R_OFFSET))
        poke(row, R_PROGRAM, program)
    poke(program, CHAINS_LEFT, peek(program, CHAIN_COUNT))
    poke(program, STATUS, UNDER_WAY)
    poke(loop, ACTIVE, peek(loop, ACTIVE) + 1)
    for c in range(peek(program, CHAIN_COUNT)):
        begin_chain(loop, program, peek(program, CHAINS) + _WORD * CHAIN_WORDS * c)
        _flush_all(loop)  # it leaves while the next ones are divided


@lean
def call(arguments: int) -> int:
    """Run a program by oneself, unless another thread drives; see `begin`.

    Args:
        arguments: Address of eight words, which are faster to hand over: those of the loop, the
            program, the values, and the divisor; step, unit and stage; and the longest wait in
            nanoseconds. A signal ends that, too.

    Returns:
        `PROGRAM_DONE`, `FAILED`, `NOTHING` if it is still under way, or `REFUSED`.
    """
    loop, program = peek(arguments, 0), peek(arguments, 1)
    if peek(loop, FAULT) or not swap_if(loop, DRIVING, NOBODY, CALLER):
        return REFUSED
    poke(peek(loop, PROGRAMS), 0, program)
    poke(loop, PROGRAM_ROOM, max(1, peek(loop, PROGRAM_ROOM)))
    poke(loop, OTHER_FD, -1)
    poke(loop, CORE_FREE, 1)
    values, divisor = peek(arguments, 2), peek(arguments, 3)
    step, unit, stage = peek(arguments, 4), peek(arguments, 5), peek(arguments, 6)
    begin(loop, program, values, divisor, step, unit, stage, 1, 0)
    found = drive(loop, peek(arguments, 7))
    poke(loop, CORE_FREE, 0)
    poke(peek(loop, PROGRAMS), 0, 0)
    poke(loop, DONE_COUNT, 0)
    poke(loop, DRIVING, NOBODY)
    return found


@lean
def take_over(loop: int) -> bool:
    """Become who drives; return False if another thread does."""
    return bool(swap_if(loop, DRIVING, NOBODY, COMMUNICATION))


@lean
def let_go(loop: int) -> None:
    """Drive no more."""
    poke(loop, DRIVING, NOBODY)


@lean
def drive(loop: int, timeout_ns: int) -> int:
    """Go on until a program is done, something else is ready, or so long.

    Args:
        loop: Its address; this thread drives it.
        timeout_ns: Longest wait.

    Returns:
        `PROGRAM_DONE`, `OTHER_READY` (the other file descriptor), `FAILED`, or `NOTHING`.
    """
    end_ns = now_ns(loop + _WORD * CLOCK) + timeout_ns
    while True:
        _flush_all(loop)
        if peek(loop, FAULT):
            return FAILED
        if peek(loop, DONE_COUNT):
            return PROGRAM_DONE
        left_ns = end_ns - now_ns(loop + _WORD * CLOCK)
        ready = _wait(loop, max(0, left_ns))
        if ready < 0 or (ready == 0 and left_ns <= 0):  # a signal's handler is Python's
            return NOTHING
        other = _serve(loop)
        _check_ended(loop)
        if other and not peek(loop, FAULT):
            return OTHER_READY


@lean
def forget(loop: int) -> None:
    """Free what came before anybody waited for it."""
    for i in range(peek(loop, LINK_COUNT)):
        link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
        early = peek(link, EARLY)
        poke(link, EARLY, 0)
        while early:
            behind = peek(early, E_NEXT)
            free(early)
            early = behind


@lean_nested
def _check_ended(loop: int) -> None:
    """Fail if a peer has ended its stream and owes something."""
    for i in range(peek(loop, LINK_COUNT)):
        link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
        if peek(link, ENDED) and owed(loop, link):
            fail(loop, F_LEFT, peek(link, PEER), 0, 0)


@lean_nested
def _flush_all(loop: int) -> None:
    for i in range(peek(loop, LINK_COUNT)):
        link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
        if (peek(link, QUEUE) or peek(link, OUT_ROW)) and not peek(link, FULL):
            flush(loop, link)


@lean_nested
def _wait(loop: int, timeout_ns: int) -> int:
    """Wait until a socket is ready; look for a while before sleeping, if a core is free."""
    fds, count = peek(loop, POLLFDS), peek(loop, LINK_COUNT)
    for i in range(count):
        link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
        wanted = POLLOUT * peek(link, FULL) + POLLIN * (1 - peek(link, ENDED))
        fd = peek(link, FD) if wanted else -1
        poke(fds, i, (fd & 0xFFFFFFFF) | wanted << _EVENTS_SHIFT)
    for i, word in ((0, WAKE_FD), (1, OTHER_FD)):
        fd = peek(loop, word)
        poke(fds, count + i, (fd & 0xFFFFFFFF) | POLLIN << _EVENTS_SHIFT)
    soon_ns = peek(loop, POLL_NS) if peek(loop, CORE_FREE) else 0
    if soon_ns == 0:
        return _poll(loop, timeout_ns)
    began_ns = now_ns(loop + _WORD * CLOCK)
    if peek(loop, SOON) and not _in_large(loop):
        ready = _look(loop, began_ns + min(soon_ns, timeout_ns))
        if ready:
            return ready
    ready = _poll(loop, timeout_ns)
    poke(loop, SOON, now_ns(loop + _WORD * CLOCK) - began_ns < soon_ns)
    return ready


@lean_nested
def _in_large(loop: int) -> bool:
    """Whether a large frame is on its way: what is left of it takes longer than to be woken."""
    for i in range(peek(loop, LINK_COUNT)):
        link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
        if peek(link, FULL) or peek(link, IN_LEFT) > _LARGE_BYTES:
            return True
    return False


@lean_nested
def _look(loop: int, until_ns: int) -> int:
    """Look for what comes, without sleeping, until a time; return whether there is something."""
    while now_ns(loop + _WORD * CLOCK) < until_ns and peek(loop, CORE_FREE):
        for _ in range(_LOOKS):
            came = 0
            for i in range(peek(loop, LINK_COUNT)):
                link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
                if not peek(link, ENDED):
                    came += receive(loop, link)
            if came or peek(loop, FAULT):
                return 1
        ready = _poll(loop, 0)
        if ready:
            return ready
    return 0


@lean_nested
def _poll(loop: int, timeout_ns: int) -> int:
    """Wait for what `_wait` has written down; return for how many there is something."""
    spare = loop + _WORD * SPARE
    poke(spare, 0, timeout_ns // _NS)
    poke(spare, 1, timeout_ns % _NS)
    return ppoll(peek(loop, POLLFDS), peek(loop, LINK_COUNT) + 2, spare, 0)


@lean_nested
def _serve(loop: int) -> bool:
    """Serve what is ready; return whether the other file descriptor is."""
    fds, count = peek(loop, POLLFDS), peek(loop, LINK_COUNT)
    for i in range(count):
        ready = (peek(fds, i) >> _REVENTS_SHIFT) & 0xFFFF
        if ready:
            link = peek(loop, LINKS) + _WORD * LINK_WORDS * i
            if ready & POLLOUT:
                poke(link, FULL, 0)
            if ready & ~POLLOUT:
                receive(loop, link)
    if (peek(fds, count) >> _REVENTS_SHIFT) & 0xFFFF:
        read(peek(loop, WAKE_FD), loop + _WORD * SPARE, 8)
    return (peek(fds, count + 1) >> _REVENTS_SHIFT) & 0xFFFF != 0
