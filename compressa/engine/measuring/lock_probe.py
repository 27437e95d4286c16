"""Lock probe: asks for the interpreter's lock again and again, and notes when it does not get it.

Nobody can ask a thread whether it waits for the lock. So another one asks for it while a trace is
recorded, every 10 ms, as gilknocker does, and what it finds holds for whoever wants the lock then.
The lock was taken if the probe was blocked for longer than a millisecond after it had been woken:
the time in which it was ready to run without a core does not count, and it must have been given a
core again since. A knock that finds it taken stands for the time since the middle of the pause
before it, and to the middle of the pause behind it.

Locks that are held for less than a millisecond at a time are not noticed.
"""

from __future__ import annotations

import threading
import time

from compressa.tracing import Reading, Span, ThreadClock, Tracer, spent

_PAUSE_S = 10e-3  # each knock costs up to a tenth of a millisecond of a core
_NOTICED_S = 1e-3


class LockProbe:
    """A thread that asks for the lock while a tracer is on, and ends by itself when it is not.

    Args:
        tracer: What it tells, in spans of stage "lock".
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._told_s = 0.0  # until when
        thread = threading.Thread(target=self._run, name="compressa-lock-probe", daemon=True)
        thread.start()

    def _run(self) -> None:
        clock = ThreadClock()
        recording = self._tracer.recording
        after = clock.read()
        while self._tracer.on and self._tracer.recording is recording:
            before = after
            time.sleep(_PAUSE_S)
            after = clock.read()
            blocked_s = blocked_for(before, after)
            if blocked_s > _NOTICED_S:
                self._tell(after.at_s - blocked_s - _PAUSE_S / 2, after.at_s + _PAUSE_S / 2)

    def _tell(self, begin_s: float, end_s: float) -> None:
        begin_s, self._told_s = max(begin_s, self._told_s), end_s
        self._tracer.add(Span("lock", "taken", self._tracer.step, begin_s, end_s - begin_s))


def blocked_for(before: Reading, after: Reading) -> float:
    """For how long the probe had a core and no lock, in seconds, between two looks.

    Args:
        before: Before it slept.
        after: When it had the lock again.
    """
    if after.core_s is not None and after.runs < before.runs + 2:
        return 0.0  # it was woken late, and never stopped again
    return after.at_s - before.at_s - _PAUSE_S - (spent(before, after).core_s or 0.0)
