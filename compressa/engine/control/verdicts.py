"""Verdicts: one error for all ranks, when the network or one of them has failed.

The I/O of `compressa.engine.control.inquest`: notes, a timer, and what this rank knows of its
links.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from compressa.engine.control.channel import Channel
from compressa.engine.control.inquest import Complaint, Inquest, heard, told
from compressa.engine.control.notes import Notes, Take
from compressa.engine.control.waits import Activity
from compressa.errors import CompressaError, PayloadError, PeerLost, TransportError
from compressa.transports.mesh import has_left
from compressa.transports.settings import Settings
from compressa.transports.silence import silent

_ANSWERS_S = 0.45  # for all to answer a complaint
_LATER_S = 0.15  # longer waits who decides if those before do not
_MOST_BEFORE = 2  # so that all know within a second
_LONGEST_S = 0.95
_UNDER_WAY_S = 2.0  # more, while somebody's word may be under way
_BEFORE_S = 2.5  # what a rank has said of itself since then may still hold
_AWAKE_S = 1.0  # after an absence, what comes of it comes within this and two heartbeats


class Verdicts:
    """What this rank says and hears of a failure; the first verdict counts. From any thread.

    Args:
        channel: The control channel.
        notes: Over it.
        settings: Its times.
        activity: Returns what this rank is doing; from any thread.

    Attributes:
        first: The verdict; None while nothing has failed.
    """

    def __init__(
        self,
        channel: Channel,
        notes: Notes,
        settings: Settings,
        activity: Callable[[], Activity],
    ) -> None:
        self.first: CompressaError | None = None
        self._channel = channel
        self._notes = notes
        self._settings = settings
        self._activity = activity
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._listener: Callable[[CompressaError], None] | None = None
        self._inquest: Inquest | None = None
        self._timer: threading.Timer | None = None
        self._latest_s = math.inf
        self._answers: dict[int, tuple[float, Activity]] = {}

    @property
    def takers(self) -> Mapping[str, Take]:
        """By kind of note, what takes those of other ranks; for `Notes.take`."""
        return {
            "ask": self._answer,
            "prepare": self._tell_all,
            "report": self._reported,
            "complaint": self._reported,
            "verdict": self._told,
        }

    def listen(self, listener: Callable[[CompressaError], None]) -> None:
        """Have `listener` called, from any thread, with the verdict; now, if there is one."""
        with self._lock:
            self._listener = listener
            first = self.first
        if first is not None:
            listener(first)

    def fail(self, error: CompressaError) -> None:
        """Take a failure of the control channel itself; from any thread, no waiting.

        One of the network is complained of; any other is the verdict at once.
        """
        if isinstance(error, TransportError):
            self.complain(error)
        else:
            self.settle(error)

    def complain(self, error: CompressaError, *, explained: bool = False) -> None:
        """Tell the others of a failure that this rank has noticed; from any thread, no waiting.

        If this rank itself did not run for too long, the verdict is that, at once.

        Args:
            error: Of the network.
            explained: Whether the chain of waits has been followed already.
        """
        if self.first is not None:
            return
        absence = self._absence()
        if absence:
            own = PeerLost(self._rank, f"rank {self._rank} {absence}; so the others lost it")
            self.settle(own)
            return
        activity, complaint = self._activity(), Complaint(error, explained)
        note = {**told(error, self._rank), "explained": explained, "activity": activity.message()}
        self._notes.send_all("complaint", note)
        self._consider(self._rank, activity, complaint)

    def verdict(self, error: CompressaError, *, explained: bool = False) -> CompressaError:
        """Return what all ranks raise, because of a failure here.

        That takes a second at most, or longer where a message does: on a link that is full. A
        failure of this rank's own is the verdict, unless there is one.

        Args:
            error: Of the network, for which the verdict is waited for; or of this rank.
            explained: As for `complain`.
        """
        if isinstance(error, TransportError):
            self.complain(error, explained=explained)
            self._settled.wait(_LONGEST_S + _UNDER_WAY_S)
            return self.settle(error)
        first = self.settle(error)
        return first if isinstance(error, PayloadError) else error

    def settle(
        self, error: CompressaError, note: Mapping[str, Any] | None = None
    ) -> CompressaError:
        """Have a verdict, unless there is one; return it, and tell all others; no waiting.

        Args:
            error: The verdict.
            note: As another rank has told it, if it comes from there.
        """
        with self._lock:
            if self.first is not None:
                return self.first
            self.first = error
            listener, timer = self._listener, self._timer
        if timer is not None:
            timer.cancel()
        self._notes.send_all("verdict", note or told(error, self._rank))
        self._settled.set()
        if listener is not None:
            listener(error)
        return error

    def ask(self) -> float:
        """Ask all others what they are doing; return the time, of `time.monotonic`; no waiting."""
        now_s = time.monotonic()
        self._notes.send_all("ask", {})
        return now_s

    def prepare(self) -> None:
        """Have all tell all what they are doing, since a deadline is near; no waiting."""
        self._notes.send_all("prepare", {})
        self._tell_all(self._rank, {})

    def answers(self, since_s: float) -> Mapping[int, Activity]:
        """Return, by rank, what has been answered since a time, and what this rank is doing.

        Args:
            since_s: Of `time.monotonic`.
        """
        known = {rank: said for rank, (s, said) in self._answers.copy().items() if s >= since_s}
        return {**known, self._rank: self._activity()}

    def answered(self, since_s: float) -> bool:
        """Return whether all that can be reached have answered since a time; see `answers`."""
        return len(self.answers(since_s).keys() | self._unreachable) == self._channel.size

    def close(self) -> None:
        """Decide nothing any more; waits for a decision that is being made."""
        with self._lock:
            timer = self._timer
        if timer is not None:
            timer.cancel()
            timer.join()

    @property
    def _rank(self) -> int:
        return self._channel.rank

    @property
    def _unreachable(self) -> set[int]:
        return set(self._channel.gone) | self._channel.lost.keys()

    # What other ranks say

    def _answer(self, peer: int, note: Mapping[str, Any]) -> None:
        self._notes.send(peer, "report", {"activity": self._activity().message()})

    def _tell_all(self, peer: int, note: Mapping[str, Any]) -> None:
        self._notes.send_all("report", {"activity": self._activity().message()})

    def _reported(self, peer: int, note: Mapping[str, Any]) -> None:
        activity = Activity.of(note["activity"], self._channel.size)
        complaint = None
        if note["kind"] == "complaint":
            complaint = Complaint(heard(note, self._channel.size), bool(note["explained"]))
        self._consider(peer, activity, complaint)

    def _told(self, peer: int, note: Mapping[str, Any]) -> None:
        error = heard(note, self._channel.size)
        absence = self._absence()
        if isinstance(error, PeerLost) and error.rank == self._rank and absence:
            error = PeerLost(self._rank, f"{error}; rank {self._rank} {absence}")
        self.settle(error, note)

    # What comes of it

    def _consider(self, rank: int, activity: Activity, complaint: Complaint | None) -> None:
        """Take what a rank says; to the first complaint of another, say what this one does."""
        with self._lock:
            if self.first is not None:
                return
            begins = self._inquest is None
            if begins and complaint is None:
                self._answers[rank] = time.monotonic(), activity
                return
            inquest = self._inquest = self._inquest or self._begin()
            inquest.hear(rank, activity, complaint)
        if begins and rank != self._rank:
            own = self._activity()
            self._notes.send_all("report", {"activity": own.message()})
            self._consider(self._rank, own, None)
        unreachable = self._unreachable
        if not inquest.ranks_before(unreachable) and inquest.complete(unreachable):
            self._decide()

    def _begin(self) -> Inquest:
        """Decide in any case, after those that decide before."""
        inquest = Inquest(self._rank, self._channel.size)
        before = min(inquest.ranks_before(self._unreachable), _MOST_BEFORE)
        self._latest_s = time.monotonic() + _LONGEST_S + _UNDER_WAY_S
        self._decide_in(_ANSWERS_S + before * _LATER_S, self._decide_unless_nameless)
        return inquest

    def _decide_in(self, seconds: float, decide: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, decide)
        self._timer.daemon = True
        self._timer.name = "compressa-verdict"
        self._timer.start()

    def _decide_unless_nameless(self) -> None:
        """A call of the backend fails at once if a rank is lost, and does not say which."""
        with self._lock:
            waits = self.first is None and self._inquest is not None and self._inquest.nameless
            if waits:
                self._decide_in(_ANSWERS_S, self._decide_unless_told)
        if not waits:
            self._decide_unless_told()

    def _decide_unless_told(self) -> None:
        """Wait for a verdict that may be under way, on a link that is full or was down."""
        with self._lock:
            waits = self.first is None and time.monotonic() + _LATER_S < self._latest_s
            waits = waits and self._word_is_under_way()
            if waits:
                self._decide_in(_LATER_S, self._decide_unless_told)
        if not waits:
            self._decide()

    def _word_is_under_way(self) -> bool:
        """Whether who decides before this rank is alive, or who has ended its data can still speak.

        Data end in order where a rank fails by itself or closes; it says why, or goodbye, here.
        """
        assert self._inquest is not None
        errors = [complaint.error for complaint in self._inquest.complaints.values()]
        lost = [error for error in errors if isinstance(error, PeerLost)]
        ended = {error.rank for error in lost if str(error) == str(has_left(error.rank))}
        dumb = ended - self._inquest.activities.keys() - self._unreachable
        before = set(range(self._rank)) - self._unreachable
        return bool(dumb) or any(map(self._beats, before))

    def _decide(self) -> None:
        with self._lock:
            inquest = self._inquest
            if self.first is not None or inquest is None:
                return
            left = min(self._channel.gone, default=None)
            before = self.answers(time.monotonic() - _BEFORE_S)
            verdict = has_left(left) if left is not None else inquest.verdict(self._alive(), before)
        self.settle(self._cut_off(inquest) or verdict)

    def _alive(self) -> list[int]:
        """Peers whose heart has beaten within the last two beats, or nearly so."""
        return [peer for peer in self._channel.heard_s if self._beats(peer, _AWAKE_S)]

    def _beats(self, peer: int, more_s: float = 0.0) -> bool:
        """Whether a peer's heart has beaten within the last two beats and some time more."""
        since_s = time.monotonic() - 2 * self._settings.heartbeat_s - more_s
        return self._channel.heard_s.get(peer, -math.inf) > since_s

    def _cut_off(self, inquest: Inquest) -> PeerLost | None:
        """Where nothing comes from any of several ranks, and none has ended, it is this one's link.

        They may all have been lost within a moment; which nobody can tell from here.
        """
        now_s, silence_s = time.monotonic(), self._settings.silence_s
        signs = self._channel.heard_s.values()
        closed = [e for p, e in self._channel.lost.items() if str(e) != str(silent(p, silence_s))]
        if len(signs) < 2 or self._channel.gone or closed or len(inquest.activities) > 1:
            return None
        if now_s - max(signs) < silence_s / 2:
            return None
        return PeerLost(
            self._rank,
            f"rank {self._rank} is cut off: nothing was heard from any other rank for "
            f"{now_s - max(signs):.1f} s",
        )

    def _absence(self) -> str:
        """If this rank did not run for so long that others must take it for lost, say so."""
        settings = self._settings
        absence = self._channel.absence
        recent_s = 2 * settings.heartbeat_s + _AWAKE_S
        if absence is None or time.monotonic() - absence.ended_s > recent_s:
            return ""
        if absence.seconds < settings.silence_s - 2 * settings.heartbeat_s:
            return ""
        return (
            f"was itself not running for {absence.seconds:.1f} s, where exchange.silence_s is "
            f"{settings.silence_s:g}"
        )
