"""turns: jobs that share a link send one after the other, and compute while others send.

The jobs stand in one line. A job joins it when its step has something to send, sends when it is
first, and leaves when the step's communication ends. So two periodic jobs fall into step by
themselves: the one that finds the link taken waits once, which shifts its phase, and from then on
each computes while the other sends. That is the aim of CASSINI (Rajasekaran et al., NSDI 2024),
which works out such shifts from the jobs' periods. A line needs no period, which contention would
falsify, and no clock that hosts have in common; it corrects a drift in the step in which it arises,
takes jobs of any periods, and costs a job that is alone one look.

Nobody waits for ever. A job that has been first for twice as long as it said is forgotten, by
whoever looks: it died, or it goes on beside others. And a job waits for a share of its own period
at most, and then sends beside the others. That share is halved whenever it did not suffice, and
doubled when it did: a job of short steps soon waits no more for one that sends for long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MOST_CLAIMS = 64
_FIRST_S = 1.0
_GRACE_S = 0.25
_NEW = 0.25  # weight of the last step in what is usual
_LEAST_SHARE = 1 / 64


@dataclass(frozen=True)
class Claim:
    """A job in the line.

    Attributes:
        job: Its name, which no other has.
        number: Which of its claims it is; no two have the same.
        send_s: For how long the job usually sends.
    """

    job: str
    number: int
    send_s: float

    @property
    def hold_s(self) -> float:
        """For how long it may be first."""
        return 2 * self.send_s + _GRACE_S


@dataclass(frozen=True)
class Line:
    """Jobs that want to send; the first one does.

    Attributes:
        claims: In their order.

    Example:
        >>> line = Line().joined(Claim("a", 1, 0.1)).joined(Claim("b", 1, 0.2))
        >>> line.first.job, line.left("a").first.job
        ('a', 'b')
    """

    claims: tuple[Claim, ...] = ()

    @property
    def first(self) -> Claim | None:
        """The claim of the job that sends; None where the line is empty."""
        return self.claims[0] if self.claims else None

    def has(self, job: str) -> bool:
        """Whether a job is in the line."""
        return any(claim.job == job for claim in self.claims)

    def joined(self, claim: Claim) -> Line:
        """The line with a job at its end, unless it is in it already, or the line is too long."""
        if self.has(claim.job) or len(self.claims) >= MOST_CLAIMS:
            return self
        return Line((*self.claims, claim))

    def left(self, job: str) -> Line:
        """The line without a job."""
        return Line(tuple(claim for claim in self.claims if claim.job != job))


@dataclass(frozen=True)
class Watch:
    """Who was seen first in the line, and since when, by the watcher's own clock.

    Attributes:
        first: The claim.
        since_s: When it was first seen there.
    """

    first: Claim | None = None
    since_s: float = 0.0

    def saw(self, line: Line, now_s: float) -> Watch:
        """Return what is known after another look at the line.

        Args:
            line: As it is now.
            now_s: By the watcher's clock, as `since_s`.
        """
        return self if line.first == self.first else Watch(line.first, now_s)

    def moved(self, line: Line, now_s: float) -> Line:
        """Return the line, without its first if that has been there for longer than it may.

        Args:
            line: As it is now.
            now_s: By the watcher's clock, as `since_s`.
        """
        first = line.first
        late = first is not None and first == self.first and now_s - self.since_s > first.hold_s
        return Line(line.claims[1:]) if late else line


@dataclass(frozen=True)
class Rhythm:
    """What a job knows of its own steps.

    Attributes:
        period_s: What a step usually takes, waits left out; None before the first has ended.
        send_s: How much of it is communication.
        share: Most of a period that the next step waits.
    """

    period_s: float | None = None
    send_s: float = _FIRST_S
    share: float = 1.0

    @property
    def patience_s(self) -> float:
        """For how long the next step waits at most."""
        return self.share * (_FIRST_S if self.period_s is None else self.period_s)

    def waited(self, *, in_time: bool) -> Rhythm:
        """The rhythm after a wait that ended in time, or did not."""
        share = 2 * self.share if in_time else self.share / 2
        return replace(self, share=min(1.0, max(share, _LEAST_SHARE)))

    def stepped(self, period_s: float, send_s: float) -> Rhythm:
        """The rhythm after a step.

        Args:
            period_s: From the begin of its communication to that of the next, waits left out.
            send_s: How long its communication took.
        """
        if self.period_s is None:
            return replace(self, period_s=period_s, send_s=send_s)
        usual_s = self.period_s + _NEW * (period_s - self.period_s)
        return replace(self, period_s=usual_s, send_s=self.send_s + _NEW * (send_s - self.send_s))
