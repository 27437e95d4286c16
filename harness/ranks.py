"""Ranks as the driver sees them: started once, asked for things, watched, ended.

Every wait has a deadline. A rank that dies or fails ends the wait for all of them, and the error
carries its last words; after any error the ranks have to be ended, since others may wait for it.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from compressa.errors import TransportError

Noted = Callable[[int, dict[str, Any]], None]
"""Is told what a rank says before its answer."""

_LAST_LINES = 20
_POLL_S = 0.2
_GRACE_S = 10.0
_EPITAPH_S = 2.0  # a rank that has lost another says so before that one's end is seen
_MOST_LINE_BYTES = 1 << 20


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


class Reply(BaseModel):
    """What a rank says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    kind: Literal["hello", "note", "answer", "failed"]
    version: str = ""
    told: dict[str, Any] = {}
    error: str = ""


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
        self._lines: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._temporary = tempfile.TemporaryDirectory(prefix="compressa-")
        self.folder = Path(self._temporary.name)
        path = self.folder / "driver"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
                door.bind(str(path))
                door.listen(count)
                self._selector.register(door, selectors.EVENT_READ)
                self._started = start(path)
                hellos = self._replies("hello", time.monotonic() + start_s, "did not start")
                self._selector.unregister(door)
            path.unlink()
        except BaseException:
            self.close()
            raise
        self.version = hellos[0].version

    def ask(self, what: str, patience_s: float | None = None, /, **given: Any) -> dict[str, Any]:
        """Have all ranks do something; see `tell` and `hear`."""
        self.tell(what, **given)
        return self.hear(what, patience_s)

    def tell(self, what: str, /, **given: Any) -> None:
        """Have all ranks begin with something, or go on where they wait.

        Args:
            what: A method of what is served there.
            given: Its arguments, as JSON can hold them.
        """
        for line in self._lines:
            with contextlib.suppress(OSError):  # it is dead, which is found out below
                line.sendall(json.dumps([what, given]).encode() + b"\n")

    def hear(self, what: str, patience_s: float | None = None) -> dict[str, Any]:
        """Wait until all have done what they were told; return what the slowest of them tells.

        Args:
            what: They do, for messages.
            patience_s: How long they may take, if not as long as for anything.

        Returns:
            The largest of all ranks' numbers, by name; of lists of numbers, one by one.

        Raises:
            RankError: A rank died, failed, or did not answer in time.
        """
        told = self.answers(what, patience_s)
        return {name: _largest([each[name] for each in told]) for name in told[0]}

    def answers(
        self, what: str, patience_s: float | None = None, noted: Noted = _ignore
    ) -> list[dict[str, Any]]:
        """Wait as `hear` does; return what each rank tells.

        Args:
            what: They do, for messages.
            patience_s: How long they may take, if not as long as for anything.
            noted: Is told what ranks say meanwhile.
        """
        deadline_s = time.monotonic() + (patience_s or self._deadline_s)
        replies = self._replies("answer", deadline_s, f"did not finish {what}", noted)
        return [reply.told for reply in replies]

    def _replies(
        self, kind: str, deadline_s: float, missing: str, noted: Noted = _ignore
    ) -> list[Reply]:
        """Wait for one of each rank, and return them by rank."""
        found: dict[int, Reply] = {}
        begin_s = time.monotonic()
        while len(found) < self.count:
            if time.monotonic() > deadline_s:
                late = ", ".join(str(r) for r in range(self.count) if r not in found)
                waited_s = time.monotonic() - begin_s
                raise RankError(
                    f"ranks {late} {missing} within {waited_s:.0f} s{self._last_words()}"
                )
            for reply in self._poll():
                if reply.kind == "failed":
                    self._raise_if_dead(_EPITAPH_S)
                    raise RankError(f"rank {reply.rank} {missing}: {reply.error}")
                if reply.kind == "note":
                    noted(reply.rank, reply.told)
                elif reply.kind == kind:
                    found[reply.rank] = reply
            self._raise_if_dead()
        return [found[rank] for rank in sorted(found)]

    def _poll(self) -> list[Reply]:
        replies: list[Reply] = []
        for key, _ in self._selector.select(_POLL_S):
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready not in self._lines:
                self._admit(ready)
                continue
            data = ready.recv(1 << 16)
            if not data or len(self._lines[ready]) > _MOST_LINE_BYTES:
                self._raise_if_dead(_EPITAPH_S)
                raise RankError(f"a rank has closed its line{self._last_words()}")
            *whole, self._lines[ready] = (self._lines[ready] + data).split(b"\n")
            replies += map(_read, whole)
        return replies

    def _admit(self, door: socket.socket) -> None:
        line, _ = door.accept()
        self._lines[line] = b""
        self._selector.register(line, selectors.EVENT_READ)

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
        self._selector.close()
        for line in self._lines:
            line.close()
        self._lines = {}
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


def _read(line: bytes) -> Reply:
    try:
        return Reply.model_validate_json(line)
    except ValidationError as error:
        raise RankError(f"a rank said what cannot be read: {line[:100]!r}") from error


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "".join(f"\n  {line}" for line in lines[-_LAST_LINES:])
