"""Drive: begin programs, wait for sockets, go on with what has come, without the interpreter."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean, lean_nested

from . import _words as w
from ._fence import reached
from ._hops import ANY, begin_chain, fail, waiting_row
from ._libc import POLLIN, POLLOUT, free, now_ns, ppoll, read
from ._memory import larger, peek, poke, smaller, swap_if
from ._pace import until_a_frame_may_leave
from ._receives import receive
from ._sends import flush

_WORD = 8
_NS = 1_000_000_000
_EVENTS_SHIFT, _REVENTS_SHIFT = 32, 48

NOTHING, PROGRAM_DONE, OTHER_READY, FAILED, REFUSED = 0, 1, 2, 3, 4
_LARGE_BYTES = 1 << 14
_TICK_NS, _BRIEF_NS = 250_000_000, 1_000_000_000  # a busy machine has a thread wait for a second
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
    fence: int,
    places: int,
) -> None:
    """Begin a program on values at an address, now or at a fence; only for who drives.

    Args:
        loop: Its address.
        program: The program's.
        values: Of what is summed, if it is in one place.
        divisor: What that is divided by before.
        step: Its name: optimizer step,
        unit: unit,
        stage: and number of its first exchange.
        stride: By how much the next ones are larger.
        urgency: The smallest goes first.
        fence: Address of what it waits for; 0 for nothing.
        places: Address of where the values lie, if that is several places; else 0.
    """
    poke(program, w.BASE, values)
    poke(program, w.DIVISOR, divisor)
    poke(program, w.STEP, step)
    poke(program, w.UNIT, unit)
    poke(program, w.STAGE, stage)
    poke(program, w.STRIDE, stride)
    poke(program, w.PRIORITY, urgency)
    poke(program, w.FENCE, fence)
    poke(program, w.PLACES, places)
    if fence and not reached(fence):
        poke(program, w.STATUS, w.AT_FENCE)
        poke(loop, w.AT_FENCES, peek(loop, w.AT_FENCES) + 1)
    else:
        _begin(loop, program)


@lean_nested
def _begin(loop: int, program: int) -> None:
    """Begin a program that has been told all."""
    poke(program, w.CHAINS_LEFT, peek(program, w.CHAIN_COUNT))
    poke(program, w.STATUS, w.UNDER_WAY)
    for c in range(peek(program, w.CHAIN_COUNT)):
        begin_chain(loop, program, peek(program, w.CHAINS) + _WORD * w.CHAIN_WORDS * c)
        _flush_all(loop)  # it leaves while the next ones are divided


@lean_nested
def _begin_reached(loop: int) -> None:
    """Begin the programs whose fences a GPU has come to."""
    for i in range(peek(loop, w.PROGRAM_ROOM)):
        program = peek(peek(loop, w.PROGRAMS), i)
        if program and peek(program, w.STATUS) == w.AT_FENCE and reached(peek(program, w.FENCE)):
            poke(loop, w.AT_FENCES, peek(loop, w.AT_FENCES) - 1)
            _begin(loop, program)


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
    if peek(loop, w.FAULT) or not swap_if(loop, w.DRIVING, w.NOBODY, w.CALLER):
        return REFUSED
    poke(peek(loop, w.PROGRAMS), 0, program)
    poke(loop, w.OTHER_FD, -1)
    poke(loop, w.CORE_FREE, 1)
    values, divisor = peek(arguments, 2), peek(arguments, 3)
    step, unit, stage = peek(arguments, 4), peek(arguments, 5), peek(arguments, 6)
    begin(loop, program, values, divisor, step, unit, stage, 1, 0, 0, 0)
    found = drive(loop, peek(arguments, 7), now_ns(loop + _WORD * w.CLOCK))
    poke(loop, w.CORE_FREE, 0)
    if found != NOTHING:  # else it goes on whenever somebody drives
        poke(peek(loop, w.PROGRAMS), 0, 0)
    poke(loop, w.DONE_COUNT, 0)
    poke(loop, w.DRIVING, w.NOBODY)
    return found


@lean
def take_over(loop: int) -> bool:
    """Become who drives; return False if another thread does."""
    return bool(swap_if(loop, w.DRIVING, w.NOBODY, w.COMMUNICATION))


@lean
def let_go(loop: int) -> None:
    """Drive no more."""
    poke(loop, w.DRIVING, w.NOBODY)


@lean
def drive(loop: int, timeout_ns: int, seen_ns: int) -> int:
    """Go on until a program is done, something else is ready, or so long.

    Args:
        loop: Its address; this thread drives it.
        timeout_ns: Longest wait, but for when this process does not run: stopped by a signal, or
            with the machine.
        seen_ns: When this thread last looked at the clock.

    Returns:
        `PROGRAM_DONE`, `OTHER_READY` (the other file descriptor), `FAILED`, or `NOTHING`.
    """
    began_ns = now_ns(loop + _WORD * w.CLOCK)
    poke(loop, w.SEEN_NS, seen_ns)
    end_ns = began_ns + timeout_ns + _late(loop, began_ns, 0)
    while True:
        if peek(loop, w.AT_FENCES) and not peek(loop, w.FAULT):
            _begin_reached(loop)
        _flush_all(loop)
        if peek(loop, w.FAULT):
            return FAILED
        if peek(loop, w.DONE_COUNT):
            return PROGRAM_DONE
        left_ns = end_ns - peek(loop, w.SEEN_NS)
        asked_ns = smaller(larger(0, left_ns), _TICK_NS)
        ready = _wait(loop, asked_ns)
        end_ns += _late(loop, now_ns(loop + _WORD * w.CLOCK), asked_ns)
        if ready < 0 or (ready == 0 and left_ns <= 0):  # a signal's handler is Python's
            return NOTHING
        other = _serve(loop)
        _check_ended(loop)
        if other and not peek(loop, w.FAULT):
            return OTHER_READY


@lean_nested
def _late(loop: int, now_ns: int, asked_ns: int) -> int:
    """For how long this process did not run since who drives looked at the clock last."""
    late_ns = now_ns - peek(loop, w.SEEN_NS) - asked_ns
    poke(loop, w.SEEN_NS, now_ns)
    if late_ns <= _BRIEF_NS:
        return 0
    poke(loop, w.AWAY_NS, peek(loop, w.AWAY_NS) + late_ns)
    return late_ns


@lean
def forget(loop: int) -> None:
    """Free what came before anybody waited for it."""
    for i in range(peek(loop, w.LINK_COUNT)):
        link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
        early = peek(link, w.EARLY)
        poke(link, w.EARLY, 0)
        while early:
            behind = peek(early, w.E_NEXT)
            free(early)
            early = behind


@lean_nested
def _check_ended(loop: int) -> None:
    """Fail if a peer has ended its streams and owes something."""
    for i in range(peek(loop, w.LINK_COUNT)):
        link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
        ended = peek(link, w.ENDED) and peek(link, w.FIRST) == link and _all_ended(loop, link)
        if ended and waiting_row(loop, link, 0, ANY):
            fail(loop, w.F_LEFT, peek(link, w.PEER), 0, 0)


@lean_nested
def _all_ended(loop: int, first: int) -> bool:
    """Whether a peer has ended all its streams, of which this is the first."""
    for i in range(peek(loop, w.LINK_COUNT)):
        link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
        if peek(link, w.FIRST) == first and not peek(link, w.ENDED):
            return False
    return True


@lean_nested
def _flush_all(loop: int) -> None:
    if peek(loop, w.HELD):
        return
    again = True
    while again:  # a message that has left may begin a hop, which sends to who has had its turn
        poke(loop, w.ENQUEUED, 0)
        for i in range(peek(loop, w.LINK_COUNT)):
            link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
            waits = peek(peek(link, w.FIRST), w.QUEUE) or peek(link, w.OUT_ROW)
            if waits and not peek(link, w.FULL):
                flush(loop, link)
        again = peek(loop, w.ENQUEUED) != 0 and peek(loop, w.FAULT) == 0


@lean_nested
def _wait(loop: int, timeout_ns: int) -> int:
    """Wait until a socket is ready; look for a while before sleeping, if a core is free."""
    fds, count = peek(loop, w.POLLFDS), peek(loop, w.LINK_COUNT)
    timeout_ns = until_a_frame_may_leave(loop, timeout_ns)
    for i in range(count):
        link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
        wanted = POLLOUT * peek(link, w.FULL) + POLLIN * (1 - peek(link, w.ENDED))
        fd = peek(link, w.FD) if wanted else -1
        poke(fds, i, (fd & 0xFFFFFFFF) | wanted << _EVENTS_SHIFT)
    for i, word in ((0, w.WAKE_FD), (1, w.OTHER_FD)):
        fd = peek(loop, word)
        poke(fds, count + i, (fd & 0xFFFFFFFF) | POLLIN << _EVENTS_SHIFT)
    soon_ns = peek(loop, w.POLL_NS) if peek(loop, w.CORE_FREE) else 0
    if soon_ns == 0:
        return _poll(loop, timeout_ns)
    began_ns = now_ns(loop + _WORD * w.CLOCK)
    if peek(loop, w.SOON) and not _in_large(loop):
        ready = _look(loop, began_ns + smaller(soon_ns, timeout_ns))
        if ready:
            return ready
    ready = _poll(loop, timeout_ns)
    poke(loop, w.SOON, now_ns(loop + _WORD * w.CLOCK) - began_ns < soon_ns)
    return ready


@lean_nested
def _in_large(loop: int) -> bool:
    """Whether a large frame is on its way: what is left of it takes longer than to be woken."""
    for i in range(peek(loop, w.LINK_COUNT)):
        link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
        if peek(link, w.FULL) or peek(link, w.IN_LEFT) > _LARGE_BYTES:
            return True
    return False


@lean_nested
def _look(loop: int, until_ns: int) -> int:
    """Look for what comes, without sleeping, until a time; return whether there is something."""
    while now_ns(loop + _WORD * w.CLOCK) < until_ns and peek(loop, w.CORE_FREE):
        for _ in range(_LOOKS):
            came = 0
            for i in range(peek(loop, w.LINK_COUNT)):
                link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
                if not peek(link, w.ENDED):
                    came += receive(loop, link)
            if came or peek(loop, w.FAULT):
                return 1
        ready = _poll(loop, 0)
        if ready:
            return ready
    return 0


@lean_nested
def _poll(loop: int, timeout_ns: int) -> int:
    """Wait for what `_wait` has written down; return for how many there is something."""
    spare = loop + _WORD * w.SPARE
    poke(spare, 0, timeout_ns // _NS)
    poke(spare, 1, timeout_ns % _NS)
    return ppoll(peek(loop, w.POLLFDS), peek(loop, w.LINK_COUNT) + 2, spare, 0)


@lean_nested
def _serve(loop: int) -> bool:
    """Serve what is ready; return whether the other file descriptor is."""
    fds, count = peek(loop, w.POLLFDS), peek(loop, w.LINK_COUNT)
    for i in range(count):
        ready = (peek(fds, i) >> _REVENTS_SHIFT) & 0xFFFF
        if ready:
            link = peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i
            if ready & POLLOUT:
                poke(link, w.FULL, 0)
            if ready & ~POLLOUT:
                receive(loop, link)
    if (peek(fds, count) >> _REVENTS_SHIFT) & 0xFFFF:
        read(peek(loop, w.WAKE_FD), loop + _WORD * w.SPARE, 8)
    return (peek(fds, count + 1) >> _REVENTS_SHIFT) & 0xFFFF != 0
