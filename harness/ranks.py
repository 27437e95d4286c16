"""Ranks as the driver sees them: started once, asked for things, watched, ended.

Every wait has a deadline. A rank that dies or fails ends the wait for all of them, and the error
carries its last words; after any error the ranks have to be ended, since others may wait for it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from compressa.errors import TransportError

Noted = Callable[[int, dict[str, Any]], None]
"""Is told what a rank says before its answer."""

_LAST_LINES = 20
_POLL_S = 0.2
_GRACE_S = 10.0
_EPITAPH_S = 2.0  # a rank that has lost another says so before that one's end is seen


class RankError(TransportError):
    """A rank died, failed, or did not answer in time."""


class Started(NamedTuple):
    """A process that is, or starts, ranks.

    Attributes:
        name: For messages.
        process: It.
        log: Where it writes.
    """

    name: str
    process: subprocess.Popen[Any]
    log: Path


class Reply(NamedTuple):
    """What a rank says.

    Attributes:
        rank: Which.
        kind: "hello", "note", "answer" or "failed".
        told: The library's version, what it notes, the answer, or the error in words.
    """

    rank: int
    kind: str
    told: Any


def _ignore(rank: int, told: dict[str, Any]) -> None:
    """Nobody wants to know."""


class Ranks:
    """One process group on the hosts of a testbed. Use as a context manager.

    Args:
        count: How many ranks.
        start: Starts them, given the path of a socket; they may write beside it.
        start_s: How long they may take to meet.
        deadline_s: How long they may take for anything, where nothing else is said.

    Attributes:
        count: As given.
        folder: Where they may write.
        version: Of the library that is measured.

    Raises:
        RankError: They did not.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[Path], Sequence[Started]],
        start_s: float,
        deadline_s: float = 180.0,
    ) -> None:
        self.count, self._deadline_s = count, deadline_s
        self._started: Sequence[Started] = ()
        self._lines: list[Connection] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="compressa-")
        self.folder = Path(self._temporary.name)
        path = self.folder / "driver"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(path))
                listener.listen(count)
                self._started = start(path)
                end_s = time.monotonic() + start_s
                hello = self._replies("hello", end_s, "did not start", listening=[listener])
                self.version: str = hello[0]
            path.unlink()
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, patience_s: float | None = None, /, **given: Any) -> dict[str, Any]:
        """Have all ranks do something; see `tell` and `hear`."""
        self.tell(what, **given)
        return self.hear(what, patience_s)

    def tell(self, what: str, /, **given: Any) -> None:
        """Have all ranks begin with something, or go on where they wait.

        Args:
            what: A method of what is served there.
            given: Its arguments.
        """
        for line in self._lines:
            with contextlib.suppress(OSError):  # it is dead, which is found out below
                line.send((what, given))

    def hear(self, what: str, patience_s: float | None = None) -> dict[str, Any]:
        """Wait until all have done what they were told; return what the slowest of them tells.

        Args:
            what: They do, for messages; each must tell numbers, and lists of numbers, by name.
            patience_s: How long they may take, if not as long as for anything.

        Returns:
            The largest of all ranks' numbers, by name; of lists of numbers, one by one.

        Raises:
            RankError: A rank died, failed, or did not answer in time.
        """
        told = [answer or {} for answer in self.answers(what, patience_s)]
        return {name: _largest([each[name] for each in told]) for name in told[0]}

    def answers(
        self, what: str, patience_s: float | None = None, noted: Noted = _ignore
    ) -> list[Any]:
        """Wait as `hear` does; return what each rank tells.

        Args:
            what: They do, for messages.
            patience_s: How long they may take, if not as long as for anything.
            noted: Is told what ranks say meanwhile.
        """
        end_s = time.monotonic() + (patience_s or self._deadline_s)
        return self._replies("answer", end_s, f"did not finish {what}", noted)

    def _replies(
        self,
        kind: str,
        end_s: float,
        missing: str,
        noted: Noted = _ignore,
        listening: Sequence[socket.socket] = (),
    ) -> list[Any]:
        """Wait for one of each rank, and return what they tell, by rank."""
        found: dict[int, Any] = {}
        begin_s = time.monotonic()
        while len(found) < self.count:
            if time.monotonic() > end_s:
                late = ", ".join(str(r) for r in range(self.count) if r not in found)
                waited_s = time.monotonic() - begin_s
                raise RankError(
                    f"ranks {late} {missing} within {waited_s:.0f} s{self._last_words()}"
                )
            for reply in self._heard(listening):
                if reply.kind == "failed":
                    self._raise_if_dead(_EPITAPH_S)
                    raise RankError(f"rank {reply.rank} {missing}: {reply.told}")
                if reply.kind == "note":
                    noted(reply.rank, reply.told)
                elif reply.kind == kind:
                    found[reply.rank] = reply.told
            self._raise_if_dead()
        return [found[rank] for rank in sorted(found)]

    def _heard(self, listening: Sequence[socket.socket]) -> list[Reply]:
        """Return what has come within a moment; let in who connects."""
        replies = []
        for ready in wait([*self._lines, *listening], _POLL_S):
            if isinstance(ready, socket.socket):
                self._lines.append(Connection(ready.accept()[0].detach()))
                continue
            assert isinstance(ready, Connection)
            try:
                replies.append(Reply(*ready.recv()))
            except (EOFError, OSError) as error:
                self._raise_if_dead(_EPITAPH_S)
                raise RankError(f"a rank has closed its line{self._last_words()}") from error
        return replies

    def _raise_if_dead(self, within_s: float = 0.0) -> None:
        """Raise if a process has ended, or does so very soon."""
        end_s = time.monotonic() + within_s
        while True:
            for started in self._started:
                code = started.process.poll()
                if code is not None:
                    raise RankError(f"{started.name} ended with status {code}{_tail(started.log)}")
            if time.monotonic() >= end_s:
                return
            time.sleep(0.05)

    def _last_words(self) -> str:
        return "".join(dict.fromkeys(_tail(started.log) for started in self._started))

    def close(self, grace_s: float = 0.0) -> None:
        """Have the ranks leave, and end those that do not.

        Args:
            grace_s: How long they may take.
        """
        for line in self._lines:
            line.close()
        self._lines = []
        end_s = time.monotonic() + grace_s
        for started in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(max(0.0, end_s - time.monotonic()))
            if started.process.poll() is None:
                started.process.kill()
                started.process.wait()
        self._started = ()
        self._temporary.cleanup()

    def __enter__(self) -> Ranks:
        """Return the ranks."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them; after an error at once, since they may wait for each other."""
        self.close(_GRACE_S if kind is None else 0.0)


def _largest(told: Sequence[Any]) -> Any:
    if isinstance(told[0], list):
        return [max(several) for several in zip(*told, strict=True)]
    return max(told)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "".join(f"\n  {line}" for line in lines[-_LAST_LINES:])
