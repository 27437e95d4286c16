"""Monitored call: who has come to make a process group, and an end to the wait for who has not.

Every rank writes down that it has come, under a number that nobody else ever uses; the first one
reads them all and answers each with the name of what they make together. So a name never comes
twice, and a call that some rank made alone leaves nothing that a later one could stumble over.

All of it happens on a thread that need not be waited for, since torch waits for the store that the
ranks were started with for as long as that one's connection seems alive, and who did not come in
time is named. Who that is has to be asked over another connection: a store's serves one call after
the other, and the one that makes the group is waiting.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from compressa.errors import CompressaError, Timeout, TransportError

T = TypeVar("T")

_ASK_S = 1.0  # for the store to say who has come, on a machine that is busy
_REFUSED = "refused: "
_GAVE_UP = "gave up"
_NOBODY = "nobody"  # what a store says of a key that it does not have
_LOOK_S = 2e-3


class MonitoredCall:
    """One collective call of some ranks, which all name themselves alike.

    They meet in the store of torch's default group, which must have been made.

    Args:
        name: Of those ranks.
        rank: This one's number among them.
        size: How many they are.
        deadline_s: Until when they must have come.
        caller: The function that the user called, for people.

    Attributes:
        rank: As given.
        size: As given.
        deadline_s: As given.
    """

    def __init__(self, name: str, rank: int, size: int, deadline_s: float, caller: str) -> None:
        self.rank, self.size, self.deadline_s = rank, size, deadline_s
        self._caller = caller
        self._store: Any = dist.distributed_c10d._get_default_store()  # mypy knows no `clone`
        self._patience = timedelta(seconds=deadline_s)
        self._prefix = f"compressa/{name}"
        self._clock = self._key("clock")  # counts comings and goings
        self._began = 0
        self._met = False

    def run(self, call: Callable[[str, Store], T], failure: CompressaError | None = None) -> T:
        """Make a call that returns when all ranks make it; waits for the deadline at most.

        Args:
            call: Takes a name that all ranks share and nobody had before, and a part of the store
                that is empty. It is called on a thread of its own, which is left behind where it
                does not come back.
            failure: Why this rank can not make it, which the others are told.

        Returns:
            What `call` has returned.

        Raises:
            Timeout: They do not within the deadline, or one of them is lost.
            TransportError: Some rank can not make it, and says why.
            CompressaError: The failure that was given.
        """
        made: list[T] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                name = self._meet("" if failure is None else str(failure))
                made.append(call(name, PrefixStore(name, self._store)))
            except Exception as error:
                failures.append(error)

        _wait_for(run, self.deadline_s + _ASK_S)
        if made:
            return made[0]
        if failure is not None:
            raise failure
        cause = failures[0] if failures else None
        if cause is not None and not isinstance(cause, RuntimeError):
            raise cause
        absent: dict[int, bool] = {}
        if not self._met:
            _wait_for(lambda: absent.update(self._absent()), _ASK_S)
        raise self._timeout(absent, cause) from cause

    def _meet(self, refusal: str) -> str:
        """Return the name that the first rank gives to all, once they are here.

        Raises:
            TransportError: Some rank refuses to make the call.
        """
        answer = self._key(uuid.uuid4().hex)
        self._began = self._store.add(self._clock, 1)
        self._store.set(self._here(self.rank), f"{answer}\n{refusal}")
        try:
            if self.rank == 0:
                self._answer()
            self._store.wait([answer], self._patience)
            name: str = self._store.get(answer).decode()
            self._met = True
            self._store.set(self._taken(answer), "")
            self._store.delete_key(answer)
            if name.startswith(_REFUSED):
                raise TransportError(name.removeprefix(_REFUSED))
            return name
        finally:
            with contextlib.suppress(RuntimeError):  # the reason is told by what failed before
                how = "met" if self._met else _GAVE_UP
                self._store.set(self._left(self.rank), f"{self._store.add(self._clock, 1)} {how}")
                # Only now, so that there is no moment in which it seems never to have come.
                self._store.delete_key(self._here(self.rank))

    def _answer(self) -> None:
        here = [self._here(rank) for rank in range(self.size)]
        self._store.wait(here, self._patience)
        said = [self._store.get(key).decode().partition("\n") for key in here]
        name = f"compressa/{uuid.uuid4().hex}"
        for rank, (_, _, refusal) in enumerate(said):
            name = f"{_REFUSED}rank {rank}: {refusal}" if refusal else name
        answers = [answer for answer, _, _ in said]
        for answer in answers:
            self._store.set(answer, name)
        self._until_taken({rank: answer for rank, answer in enumerate(answers) if rank}, name)

    def _until_taken(self, owed: dict[int, str], name: str) -> None:
        """Wait until all have taken their answer; answer anew who comes in the place of one.

        A launcher that starts ranks again may keep the store, and with it what one that was killed
        while it waited had said there.

        Args:
            owed: Where each other rank looks for its answer, as far as it is known.
            name: The answer.
        """
        end_s = time.monotonic() + self.deadline_s
        while owed and time.monotonic() < end_s:
            for rank, answer in tuple(owed.items()):
                # Before it is asked whether the answer was taken: a later call is another matter.
                now = self._store.compare_set(self._here(rank), _NOBODY, _NOBODY).decode()
                if self._store.check([self._taken(answer)]):
                    self._store.delete_key(self._taken(answer))
                    del owed[rank]
                elif now not in (_NOBODY, "") and now.partition("\n")[0] != answer:
                    owed[rank] = now.partition("\n")[0]
                    self._store.set(owed[rank], name)
            if owed:
                time.sleep(_LOOK_S)

    def _timeout(self, absent: Mapping[int, bool], cause: Exception | None) -> Timeout:
        """Say who did not come, as far as it is known."""
        others = tuple(rank for rank in range(self.size) if rank != self.rank)
        missing = tuple(rank for rank, gave_up in absent.items() if not gave_up)
        why = f" ({str(cause).splitlines()[0]})" if cause is not None and str(cause) else ""
        if missing:
            what = f"ranks {_names(missing)} did not come within {self.deadline_s:g} s"
        elif absent:
            missing = (self.rank,)
            what = f"ranks {_names(absent)} had given up waiting before rank {self.rank} came"
        elif cause is not None or self._met:
            what = f"one of the ranks {_names(others)} was lost on the way, or did not go on{why}"
        else:
            what = (
                f"the store that the ranks {_names(others)} were started with did not answer "
                f"within {self.deadline_s:g} s: it is kept by rank 0, or by the launcher"
            )
        return Timeout(
            missing or others,
            f"rank {self.rank} waited in {self._caller} for the other ranks: {what}; call it on "
            "all ranks of the process group",
        )

    def _absent(self) -> dict[int, bool]:
        """Who has not come, and whether it had given up before; nobody if the store is silent."""
        try:
            _look_for(self._store)
            store = self._store.clone()
            others = [rank for rank in range(self.size) if rank != self.rank]
            away = [rank for rank in others if not store.check([self._here(rank)])]
            left = {rank: self._how_it_left(store, rank) for rank in away}
            # Who gave up since this rank came has come all the same.
            return {r: how == _GAVE_UP for r, (at, how) in left.items() if at <= self._began}
        except (RuntimeError, OSError):
            return {}

    def _how_it_left(self, store: Any, rank: int) -> tuple[int, str]:
        """When a rank has left the last call that it came to, and how."""
        if not store.check([self._left(rank)]):
            return 0, ""
        at, _, how = store.get(self._left(rank)).decode().partition(" ")
        return int(at), how

    def _here(self, rank: int) -> str:
        return self._key(f"here/{rank}")

    def _left(self, rank: int) -> str:
        return self._key(f"left/{rank}")

    def _taken(self, answer: str) -> str:
        return f"{answer}/taken"

    def _key(self, what: str) -> str:
        return f"{self._prefix}/{what}"


def _names(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _look_for(store: Any) -> None:
    """See whether a store is still served; to be connected once more, torch would wait far longer.

    Raises:
        OSError: It is not.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        socket.create_connection((store.host, store.port), _ASK_S).close()


def _wait_for(call: Callable[[], None], timeout_s: float) -> None:
    """Make a call that a store which is cut off may keep for longer than anybody would wait."""
    thread = threading.Thread(target=call, name="compressa-start", daemon=True)
    thread.start()
    thread.join(timeout_s)
