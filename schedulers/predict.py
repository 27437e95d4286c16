"""predict: how long a step takes with a plan, on one wire.

Backward readies units at known times; they are encoded one after the other, sent over a wire that
is preempted between chunks, decoded one after the other, and the next forward waits for each
where it needs it. Forward only ever waits, so the step takes

    B + F + max(0, max over units of (time of the result - time of the need)),

the largest lateness. Sending what is needed first, of what is ready, whenever the wire is free,
makes it smallest if chunks are small and cost nothing (Horn, 1974). What takes long to decode has
to be there earlier (TicTac, Hashemi et al., 2019, orders by such a model of the step).

Between two stages of a unit, what is computed delays that unit only. Everything is a function of
the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from compressa.schedulers.columns import Columns, Floats, Integers
from compressa.schedulers.link import Link
from compressa.schedulers.plan import Name, Plan, Transfer
from compressa.schedulers.policy import UNKNOWN, Conditions, Draft
from compressa.schedulers.wire import Messages, Sent, Waits, send


@dataclass(frozen=True, eq=False)
class Prediction:
    """A step as it should go.

    Attributes:
        step_s: From the start of backward to the end of the next forward.
        compute_s: What of it is computed: B + F.
        wire_s: For how much of it the wire is held: C.
        columns: The transfers.
        could_s: By row: seconds from the start of backward until it could leave.
        began_s: Until its first byte left.
        ended_s: Until its last byte had left.
        done_s: Until its answer had been decoded.
    """

    step_s: float
    compute_s: float
    wire_s: float
    columns: Columns
    could_s: Floats
    began_s: Floats
    ended_s: Floats
    done_s: Floats

    @property
    def ideal_s(self) -> float:
        """The shortest step that anything could reach: max(B + F, C)."""
        return max(self.compute_s, self.wire_s)

    @property
    def exposed_s(self) -> float:
        """For how long forward waits."""
        return self.step_s - self.compute_s

    def launched(self) -> Integers:
        """Return int64[rows]: all rows, in the order in which they begin to leave."""
        columns = self.columns
        return np.lexsort((columns.stage, columns.unit, self.could_s, self.began_s))


def predict(
    transfers: Sequence[Transfer], plan: Plan, link: Link, compute_s: float = 0.0
) -> Prediction:
    """Predict a step.

    Args:
        transfers: All transfers of the step.
        plan: How they go.
        link: On what.
        compute_s: B + F; see `Conditions`.

    Raises:
        ValueError: The plan is not for these transfers, or its groups wait for each other.

    Example:
        >>> one = Transfer(0, 0, wire_bytes=1000, ready_s=1.0, need_s=1.0)
        >>> predict([one], Plan(((0, 0),)), Link(bytes_per_s=500), compute_s=3.0).step_s
        5.0
    """
    columns = Columns.of(transfers)
    return outlook(columns, Draft.of(plan, columns), link, compute_s)


def launches(
    transfers: Sequence[Transfer], plan: Plan, conditions: Conditions = UNKNOWN
) -> tuple[Name, ...]:
    """Return the one order in which all ranks launch, where a transport needs one.

    A plan's order says what is more urgent. Launched in that order, what is needed first, and
    readied last, would hold back all the rest. So the order is that in which the transfers should
    begin; each stage comes after the one that it waits for.

    Args:
        transfers: All transfers of one step.
        plan: What is more urgent.
        conditions: Without a link, or if no ready time is known, the order is that of readiness.

    Returns:
        (unit, stage), first to last; a pure function of the arguments.

    Raises:
        ValueError: The plan is not for these transfers, or its groups wait for each other.
    """
    columns = Columns.of(transfers)
    draft = Draft.of(plan, columns)
    if conditions.link is None or not columns.ready_s.any():
        rows = columns.in_stages([columns.ready_s])
    else:
        rows = outlook(columns, draft, conditions.link, conditions.compute_s).launched()
    return tuple(columns.names[row] for row in rows.tolist())


def outlook(columns: Columns, draft: Draft, link: Link, compute_s: float) -> Prediction:
    """Predict a step with a plan in the making.

    Args:
        columns: All transfers of the step.
        draft: How they go.
        link: On what.
        compute_s: B + F; see `Conditions`.

    Raises:
        ValueError: Groups of the draft wait for each other.
    """
    message = _message_of(draft)
    sent, wire_s = _send(columns, draft, link, message)
    could_s, began_s, ended_s = (
        times[message] for times in (sent.could_s, sent.began_s, sent.ended_s)
    )
    done_s = _decoded_s(columns, ended_s + link.latency_s)
    compute_s = max(compute_s, float(columns.need_s.max(initial=0.0)))
    late_s = float((done_s - columns.need_s)[columns.is_last].max(initial=0.0))
    return Prediction(
        compute_s + late_s, compute_s, wire_s, columns, could_s, began_s, ended_s, done_s
    )


def _message_of(draft: Draft) -> Integers:
    """By row the number of its message; these are numbered by urgency."""
    urgency = np.empty(len(draft.rows), dtype=np.int64)
    urgency[draft.rows] = np.arange(len(draft.rows))
    if not draft.groups:
        return urgency
    rows = np.fromiter(chain.from_iterable(draft.groups), np.int64)
    sizes = np.fromiter(map(len, draft.groups), np.int64)
    urgent = np.minimum.reduceat(urgency[rows], np.cumsum(sizes) - sizes)
    urgency[rows] = np.repeat(urgent, sizes)
    return np.unique(urgency, return_inverse=True)[1]


def _send(columns: Columns, draft: Draft, link: Link, message: Integers) -> tuple[Sent, float]:
    """Send messages, and tell for how long they hold the wire."""
    sizes = np.bincount(message, weights=columns.wire_bytes)
    chunk_bytes = link.chunk_within(draft.chunk_bytes)
    chunks = np.maximum(np.ceil(sizes / chunk_bytes), 1) if chunk_bytes else np.ones(len(sizes))
    total_s = chunks * link.overhead_s + sizes / link.bytes_per_s
    could_s = np.zeros(len(sizes))
    np.maximum.at(could_s, message, _encoded_s(columns))
    waits = _waits(columns, message, link)
    messages = Messages(could_s, chunks.astype(np.int64), total_s / chunks, waits)
    sent = send(messages, _ahead_s(draft, link, chunk_bytes), link.latency_s)
    return sent, float(total_s.sum())


def _encoded_s(columns: Columns) -> Floats:
    """By row that waits for none: when it is encoded; 0 for the others."""
    rows = np.flatnonzero(columns.before < 0)
    rows = rows[np.argsort(columns.ready_s[rows], kind="stable")]
    result = np.zeros(len(columns))
    result[rows] = _one_by_one(columns.ready_s[rows], columns.encode_s[rows])
    return result


def _decoded_s(columns: Columns, arrived_s: Floats) -> Floats:
    result = arrived_s + columns.decode_s
    rows = np.flatnonzero(columns.is_last)
    rows = rows[np.argsort(arrived_s[rows], kind="stable")]
    result[rows] = _one_by_one(arrived_s[rows], columns.decode_s[rows])
    return result


def _one_by_one(ready_s: Floats, takes_s: Floats) -> Floats:
    """When each is done, if one works on them in this order."""
    until_s = np.cumsum(takes_s)
    if not len(until_s) or not until_s[-1]:
        return ready_s
    return until_s + np.maximum.accumulate(ready_s - (until_s - takes_s))


def _waits(columns: Columns, message: Integers, link: Link) -> Waits | None:
    """Which messages wait for which; None if none does."""
    rows = np.flatnonzero(columns.before >= 0)
    if not len(rows):
        return None
    before = columns.before[rows]
    lags_s = link.latency_s + columns.decode_s[before] + columns.encode_s[rows]
    return Waits(message[rows], message[before], lags_s)


def _ahead_s(draft: Draft, link: Link, chunk_bytes: int | None) -> float | None:
    """Wire time of a window without a chunk; None for a window of one chunk, however large."""
    window_bytes = draft.credit_bytes or link.credit_bytes
    if window_bytes is None:
        return None
    if chunk_bytes is None:
        return link.wire_s(window_bytes)
    chunks = max(window_bytes / chunk_bytes - 1, 0.0)
    return chunks * link.wire_s(chunk_bytes)
