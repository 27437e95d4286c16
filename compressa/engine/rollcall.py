"""Roll call: who has come to make a process group, and an end to the wait for who has not.

torch says that a group could not be made, and not by whose absence; and it waits for the store that
the ranks were started with for as long as that one's connection seems alive. So every rank writes
down that it has come, all of it happens on a thread that need not be waited for, and who did not
come in time is named. Who that is has to be asked over another connection: a store's serves one
call after the other, and the one that makes the group is waiting.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from compressa.errors import Timeout

T = TypeVar("T")

_ASK_S = 0.25  # for the store to say who has come
# Every rank of a group comes to its calls in the same order; a group that is made anew, under the
# same name, may have ranks that were in none before.
_calls: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


class RollCall:
    """One collective call of the ranks of a group.

    Args:
        group: Who must come.
        deadline_s: Until when.
        caller: The function that the user called, for people.
    """

    def __init__(self, group: dist.ProcessGroup, deadline_s: float, caller: str) -> None:
        self._rank, self._size = group.rank(), group.size()
        self._deadline_s = deadline_s
        self._caller = caller
        self._store: Any = dist.distributed_c10d._get_default_store()  # mypy knows no `clone`
        number = _calls.get(group, 0)
        _calls[group] = number + 1
        self._prefix = f"compressa/{group.group_name}/{number}"

    def together(self, call: Callable[[], T]) -> T:
        """Make a call that returns when all ranks make it.

        Raises:
            Timeout: They do not within the deadline, or one of them is lost.
        """
        made: list[T] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                self._store.set(self._key(self._rank), "here")
                made.append(call())
            except Exception as error:
                failures.append(error)

        _wait_for(run, self._deadline_s)
        if made:
            return made[0]
        cause = failures[0] if failures else None
        if cause is not None and not isinstance(cause, RuntimeError):
            raise cause
        absent: list[list[int]] = []
        _wait_for(lambda: absent.append(self._absent()), _ASK_S)
        raise self._timeout(absent[0] if absent else [], cause) from cause

    def _timeout(self, absent: Sequence[int], cause: Exception | None) -> Timeout:
        """Say who did not come, as far as it is known."""
        others = tuple(rank for rank in range(self._size) if rank != self._rank)
        names = ", ".join(map(str, absent or others))
        why = f" ({str(cause).splitlines()[0]})" if cause is not None and str(cause) else ""
        if absent:
            what = f"ranks {names} did not come within {self._deadline_s:g} s"
        elif cause is not None:
            what = f"one of the ranks {names} was lost on the way, or did not go on{why}"
        else:
            what = (
                f"the store that the ranks {names} were started with did not answer within "
                f"{self._deadline_s:g} s: it is kept by rank 0, or by the launcher"
            )
        return Timeout(
            tuple(absent) or others,
            f"rank {self._rank} waited in {self._caller} for the other ranks: {what}; call it on "
            "all ranks of the process group",
        )

    def _absent(self) -> list[int]:
        """Who has not come; nobody where the store does not say."""
        try:
            _look_for(self._store)
            store = self._store.clone()
            return [r for r in range(self._size) if not store.check([self._key(r)])]
        except (RuntimeError, OSError):
            return []

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"


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
