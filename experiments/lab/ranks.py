"""The ranks as the driver sees them: started once, given cells, watched, taken down.

Every wait has a deadline. A rank that dies or fails ends the wait on all of them, and the error
carries the last lines of its log; the other ranks may then be stuck in a collective for which
nobody comes, so after any error the pool has to be stopped and a new one started.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from compressa.testbed import Testbed
from lab.cells import (
    REPLIES,
    Armed,
    Cell,
    Failed,
    Go,
    Hello,
    Progress,
    Quit,
    TimeAnswer,
    TrainAnswer,
)
from lab.channel import Channel, ChannelClosed

WORKER = Path(__file__).with_name("worker.py")
LOG_LINES_SHOWN = 20
GRACE_S = 5.0
Answer = TrainAnswer | TimeAnswer


class LabError(Exception):
    """A cell gave no result; the message says why, in words for the person who ran it."""


class RankPool:
    """One worker per host of ``testbed``, in one process group.

    Args:
        testbed: Where the ranks live.
        folder: A folder for the socket and the logs (its path must be short: Unix sockets).
        start_timeout_s: How long importing torch and meeting may take.
    """

    def __init__(self, testbed: Testbed, folder: Path, start_timeout_s: float = 120.0) -> None:
        self._testbed = testbed
        self._folder = folder
        self._start_timeout_s = start_timeout_s
        self._processes: list[subprocess.Popen[Any]] = []
        self._channels: dict[int, Channel] = {}
        self._generation = 0

    @property
    def running(self) -> bool:
        """Whether the ranks are up and usable."""
        return bool(self._channels)

    def start(self) -> None:
        """Starts all ranks and waits until they have met.

        Raises:
            LabError: If one dies or the time is over.
        """
        self._generation += 1
        path = self._folder / f"{self._generation}.sock"
        deadline = time.monotonic() + self._start_timeout_s
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
            listener.bind(str(path))
            listener.listen(len(self._testbed.hosts))
            port = _free_port()
            for rank in range(len(self._testbed.hosts)):
                self._processes.append(self._spawn(rank, path, port))
            channels = [self._accept(listener, deadline) for _ in self._processes]
        for channel in channels:
            hello = self._hello(channel, deadline)
            self._channels[hello.rank] = channel

    def _spawn(self, rank: int, path: Path, port: int) -> subprocess.Popen[Any]:
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self._testbed.hosts)),
            "MASTER_ADDR": self._testbed.hosts[0].address,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        argv = [sys.executable, str(WORKER), str(path), str(self._log(rank))]
        return self._testbed.spawn(rank, argv, env=env, stdin=subprocess.DEVNULL)

    def _accept(self, listener: socket.socket, deadline: float) -> Channel:
        while time.monotonic() < deadline:
            if select.select([listener], [], [], 0.2)[0]:
                return Channel(listener.accept()[0])
            self._raise_if_dead()
        raise LabError(f"not all ranks came up within {self._start_timeout_s:.0f} s")

    def _hello(self, channel: Channel, deadline: float) -> Hello:
        while time.monotonic() < deadline:
            try:
                reply = REPLIES.validate_json(channel.receive(timeout_s=0.5))
            except TimeoutError:
                self._raise_if_dead()
            except ChannelClosed:
                time.sleep(0.2)  # let the exit status arrive
                self._raise_if_dead()
            else:
                if isinstance(reply, Hello):
                    return reply
                raise LabError(f"a rank began with {reply.kind} instead of hello")
        raise LabError(f"the ranks did not meet within {self._start_timeout_s:.0f} s")

    def run(
        self,
        cell: Cell,
        timeout_s: float,
        on_progress: Callable[[int], None],
        at_edge: Callable[[Literal["start", "end"]], None],
    ) -> list[Answer]:
        """Runs one cell on all ranks; the answers, by rank.

        Raises:
            LabError: If a rank fails or dies, or the cell takes longer than ``timeout_s``.
        """
        self._broadcast(cell)
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Answer] = {}
        armed: set[int] = set()
        while len(answers) < len(self._channels):
            if time.monotonic() > deadline:
                waiting = sorted(set(self._channels) - set(answers))
                raise LabError(f"no answer from ranks {waiting} within {timeout_s:.0f} s")
            for reply in self._poll():
                if isinstance(reply, Progress):
                    on_progress(reply.step)
                elif isinstance(reply, Armed):
                    armed.add(reply.rank)
                    if len(armed) == len(self._channels):
                        at_edge(reply.edge)
                        armed.clear()
                        self._broadcast(Go())
                elif isinstance(reply, TrainAnswer | TimeAnswer):
                    answers[reply.rank] = reply
        return [answers[rank] for rank in sorted(answers)]

    def _broadcast(self, message: BaseModel) -> None:
        for rank, channel in self._channels.items():
            try:
                channel.send(message)
            except ChannelClosed as error:
                raise LabError(self._epitaph(rank)) from error

    def _poll(self) -> list[Progress | Armed | Answer]:
        """What came within a fifth of a second; raises for the rank that failed or died."""
        ranks = {channel.fileno(): rank for rank, channel in self._channels.items()}
        readable, _, _ = select.select(list(ranks), [], [], 0.2)
        replies: list[Progress | Armed | Answer] = []
        for descriptor in readable:
            rank = ranks[descriptor]
            try:
                lines = self._channels[rank].lines()
            except ChannelClosed as error:
                raise LabError(self._epitaph(rank)) from error
            for line in lines:
                reply = REPLIES.validate_json(line)
                if isinstance(reply, Failed):
                    raise LabError(self._cause_of(reply))
                if isinstance(reply, Hello):
                    raise LabError(f"rank {reply.rank} said hello twice")
                replies.append(reply)
        return replies

    def _cause_of(self, failed: Failed) -> str:
        """A rank that reports a lost connection is rarely the cause: looks for a dead one first."""
        told = f"rank {failed.rank}: {failed.error}\n{failed.traceback}"
        for _ in range(10):
            for rank, process in enumerate(self._processes):
                if process.poll() is not None:
                    return f"{self._epitaph(rank)}\nand then {told}"
            time.sleep(0.1)
        return told

    def _raise_if_dead(self) -> None:
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                raise LabError(self._epitaph(rank))

    def _epitaph(self, rank: int) -> str:
        """How a rank ended, with the last lines of its log."""
        try:
            status: object = self._processes[rank].wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            status = "unknown"
        log = self._log(rank)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        tail = "\n".join(lines[-LOG_LINES_SHOWN:]) or "(its log is empty)"
        return f"rank {rank} died with exit status {status}; its last lines:\n{tail}"

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.{self._generation}.log"

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ends all ranks: asks first, then kills what is left after ``grace_s``."""
        for channel in self._channels.values():
            try:
                channel.send(Quit())
            except ChannelClosed:
                continue  # dead already, which is what is wanted
        deadline = time.monotonic() + (grace_s if self._channels else 0.0)
        for process in self._processes:
            try:
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._processes.clear()


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
