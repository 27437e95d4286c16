"""Real ranks for tests: groups of processes that run functions of the tests.

A `Group` of P processes is forked from one that has torch imported already (`_rank_zygote`).
`run` calls one function on every rank, with a deadline, and returns each rank's outcome:
a value, an error with its type, or a death with its exit code and what it wrote to stderr.
A function is pickled, by its module and its name: a rank imports the test module that it stands in.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from _scripts import warm_python
from _training import host_store, join

Job = Callable[..., Any]
MESSAGE_BYTES = 1 << 20
_START_S = 180.0  # torch is imported, from a cold disk at worst
_FRESH_AFTER_JOBS = 40  # a pool is replaced then, so that leaks of a test stay small


@dataclass(frozen=True)
class Outcome:
    """What one rank answered.

    Attributes:
        rank: The rank.
        value: What the function returned.
        error: "type", "bases", "message", "rank", "ranks", "traceback"; None if it returned.
        exit_code: Set if the process ended instead of answering.
        seconds: How long the function ran.
        stderr: What a process that ended had written.
    """

    rank: int
    value: Any = None
    error: dict[str, Any] | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    stderr: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None and self.exit_code is None

    def explain(self) -> str:
        if self.exit_code is not None:
            return f"rank {self.rank} ended with code {self.exit_code}:\n{self.stderr[-3000:]}"
        return f"rank {self.rank}: {self.error['traceback'] if self.error else 'ok'}"


class Zygote:
    """The process that ranks are forked from.

    Attributes:
        python: A program that does what `python` does, by a process that is forked from it, too.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
        self.python, listener = warm_python(Path(self._folder.name))
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TORCH_WARM_POOL": "0",  # where Triton is: torch's compiler would start its processes
        }
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("_rank_zygote.py")),
                str(theirs.fileno()),
                json.dumps(sys.path),
                str(listener.fileno()),
            ],
            pass_fds=[theirs.fileno(), listener.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the tests only; they close the socket
        )
        theirs.close()
        listener.close()
        self._link.settimeout(_START_S)
        assert self._answer() == {"threads": 1}, "a fork would lose the other threads"

    def preload(self, *modules: str) -> None:
        """Import modules, which ranks that are started from now on need not."""
        self._link.send(json.dumps({"do": "import", "modules": modules}).encode())
        assert self._answer() == {"threads": 1}, "a fork would lose the other threads"

    def fork(self, link: socket.socket, stderr: IO[bytes]) -> int:
        """Start a rank; return its process id."""
        request = json.dumps({"do": "fork"}).encode()
        socket.send_fds(self._link, [request], [link.fileno(), stderr.fileno()])
        return int(self._answer())

    def exit_code(self, pid: int) -> int | None:
        """Return a rank's exit code, or None while it runs."""
        self._link.send(json.dumps({"do": "status", "pid": pid}).encode())
        code = self._answer()
        return None if code is None else int(code)

    def close(self) -> None:
        """End it, and all ranks with it."""
        self._link.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _answer(self) -> Any:
        data = self._link.recv(MESSAGE_BYTES)
        assert data, "the process that ranks are forked from has ended"
        return json.loads(data)


class Process:
    """One forked rank."""

    def __init__(self, zygote: Zygote, rank: int) -> None:
        self.rank = rank
        self._zygote = zygote
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = zygote.fork(theirs, self._stderr)
        theirs.close()
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while it runs."""
        if self._exit_code is None:
            self._exit_code = self._zygote.exit_code(self.pid)
        return self._exit_code

    @property
    def stderr(self) -> str:
        """All that it has written so far."""
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")

    def call(self, function: Job, arguments: Mapping[str, Any], *, uncaught: bool = False) -> None:
        """Ask it to call a function.

        With `uncaught`, an exception ends the process as it would end a script.
        """
        request = pickle.dumps((function, dict(arguments), uncaught))
        with contextlib.suppress(BrokenPipeError):  # it is dead; `outcome` finds out
            self.link.send(request)

    def leave(self) -> None:
        """Ask it to end, the ordinary way."""
        with contextlib.suppress(OSError):  # it is dead
            self.link.shutdown(socket.SHUT_WR)

    def outcome(self) -> Outcome:
        """Read its answer, which is there."""
        try:
            data = self.link.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            data = b""
        if data:
            return Outcome(self.rank, **json.loads(data))
        return Outcome(self.rank, exit_code=self.wait(10.0), stderr=self.stderr)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end.

        Raises:
            AssertionError: It runs longer; with the stacks of its threads.
        """
        end_s = time.monotonic() + timeout_s
        while (code := self.exit_code) is None:
            if time.monotonic() > end_s:
                raise AssertionError(f"rank {self.rank} does not end:\n{self.stacks()}")
            time.sleep(0.01)
        return code

    def stacks(self) -> str:
        """Return stderr with the stacks of all threads."""
        self.signal(signal.SIGUSR1)
        time.sleep(0.3)
        return self.stderr[-6000:]

    def end(self) -> None:
        """Kill it if it still runs, and wait until it is gone."""
        self.link.close()
        self.signal(signal.SIGKILL)
        if self.wait(10.0) == -signal.SIGKILL:  # before MPI, if something asked for it, ended
            for file in Path("/dev/shm").glob(f"mpich_shm_{self.pid:x}_*"):
                file.unlink(missing_ok=True)
        self._stderr.close()


class Group:
    """P ranks with a default process group over Gloo on the loopback interface."""

    def __init__(self, zygote: Zygote, size: int) -> None:
        self.size = size
        self.jobs = 0
        self.suspect = False
        self.processes = [Process(zygote, rank) for rank in range(size)]
        self._meet()

    def _meet(self, address: str = "127.0.0.1") -> None:
        """Have all join the default process group, by a store at an address of rank 0's."""
        port = self.run(host_store, ranks=[0], address=address)[0]
        per_rank = [{"rank": rank} for rank in range(self.size)]
        self.run(join, per_rank=per_rank, size=self.size, address=address, port=port)

    def start(
        self,
        function: Job,
        *,
        ranks: Sequence[int] | None = None,
        per_rank: Sequence[Mapping[str, Any]] | None = None,
        **arguments: Any,
    ) -> list[Process]:
        """Call a function on some or all ranks and return at once.

        Args:
            function: What they call; it stands in a module that a rank can import.
            ranks: Who calls it; all unless given.
            per_rank: Further arguments, by rank.
            arguments: The same for all.
        """
        self.jobs += 1
        chosen = [self.processes[r] for r in (range(self.size) if ranks is None else ranks)]
        for process in chosen:
            own = per_rank[process.rank] if per_rank else {}
            process.call(function, {**arguments, **own})
        return chosen

    def collect(self, processes: Sequence[Process], deadline_s: float) -> list[Outcome]:
        """Wait for answers; a rank that owes one after the deadline fails the test."""
        outcomes: dict[int, Outcome] = {}
        end_s = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            for process in processes:
                selector.register(process.link, selectors.EVENT_READ, process)
            while len(outcomes) < len(processes):
                ready = selector.select(max(0.0, end_s - time.monotonic()))
                if not ready:
                    self.suspect = True
                    late = [p for p in processes if p.rank not in outcomes]
                    text = "\n".join(f"rank {p.rank}:\n{p.stacks()}" for p in late)
                    done = "\n".join(o.explain() for o in outcomes.values() if not o.ok)
                    raise AssertionError(f"no answer within {deadline_s} s\n{text}\n{done}")
                for key, _ in ready:
                    outcomes[key.data.rank] = key.data.outcome()
                    selector.unregister(key.fileobj)
        self.suspect |= any(outcome.exit_code is not None for outcome in outcomes.values())
        return [outcomes[process.rank] for process in processes]

    def outcomes(self, function: Job, *, deadline_s: float = 60.0, **how: Any) -> list[Outcome]:
        """Call a function and return every rank's outcome, good or bad."""
        return self.collect(self.start(function, **how), deadline_s)

    def run(self, function: Job, *, deadline_s: float = 60.0, **how: Any) -> list[Any]:
        """Call a function and return every rank's value; an error on any rank is a failure."""
        outcomes = self.outcomes(function, deadline_s=deadline_s, **how)
        bad = [outcome.explain() for outcome in outcomes if not outcome.ok]
        self.suspect |= bool(bad)
        assert not bad, "\n".join(bad)
        return [outcome.value for outcome in outcomes]

    def errors(self, function: Job, *, deadline_s: float = 60.0, **how: Any) -> list[Outcome]:
        """Call a function that must raise a CompressaError of one sentence on every rank.

        The ranks are used again afterwards: a failure has to leave nothing behind.
        """
        outcomes = self.outcomes(function, deadline_s=deadline_s, **how)
        for outcome in outcomes:
            assert outcome.exit_code is None, outcome.explain()
            assert outcome.error is not None, f"rank {outcome.rank} got {outcome.value!r}"
            assert "CompressaError" in outcome.error["bases"], outcome.explain()
            assert 20 < len(outcome.error["message"]) < 900, outcome.explain()
        return outcomes

    def refused(self, function: Job, error: str, /, **how: Any) -> list[str]:
        """Call a function that must raise such an error on every rank; return what is said."""
        outcomes = self.errors(function, **how)
        for outcome in outcomes:
            assert outcome.error["type"] == error, outcome.explain()
        return [outcome.error["message"] for outcome in outcomes]

    def leave(self, timeout_s: float = 20.0) -> list[int]:
        """End all ranks the ordinary way; return their exit codes."""
        for process in self.processes:
            process.leave()
        return [process.wait(timeout_s) for process in self.processes]

    def end(self) -> None:
        """Kill what still runs; `make coverage` has it leave first, which writes what was run."""
        if "COVERAGE_PROCESS_CONFIG" in os.environ:
            with contextlib.suppress(AssertionError):  # one hangs
                self.leave(5.0)
        for process in self.processes:
            process.signal(signal.SIGKILL)
        for process in self.processes:
            process.end()


class Strangers(Group):
    """Ranks that have not met: there is no process group."""

    def _meet(self, address: str = "127.0.0.1") -> None:
        pass


class Pools:
    """One long-lived group per world size, replaced when a job left it in doubt."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self._groups: dict[int, Group] = {}

    def get(self, size: int) -> Group:
        """Return a healthy group of this size."""
        group = self._groups.get(size)
        if group is not None and (group.suspect or group.jobs > _FRESH_AFTER_JOBS):
            group.end()
            group = None
        if group is None:
            group = self._groups[size] = Group(self.zygote, size)
        return group

    def fresh(self, size: int) -> Group:
        """Return a new group that the caller ends."""
        return Group(self.zygote, size)

    def strangers(self, size: int) -> Group:
        """Return ranks without a process group, which the caller ends."""
        return Strangers(self.zygote, size)

    def close(self) -> None:
        """End everything."""
        for group in self._groups.values():
            group.end()
        self.zygote.close()


def settings(compressor: str | Mapping[str, Any] = "topk", **sections: Any) -> dict[str, Any]:
    """Return a configuration for tiny models: several units, messages of several frames."""
    exchange = {
        "unit_bytes": 4096,
        "unit_dense_bytes": 4096,
        "unit_payload_bytes": 1,
        "chunk_bytes": 1024,
        "credit_bytes": 4096,
        "deadline_s": 30.0,
        "heartbeat_s": 0.5,
        "silence_s": 15.0,
    }
    known: dict[str, dict[str, Any]] = {
        "topk": {"density": 0.1},
        "dgc": {"density": 0.1},
        "randomk": {"density": 0.1},
        "powersgd": {"approx_rank": 2},
        "int8": {},
    }
    if isinstance(compressor, str):
        compressor = {"name": compressor, **known.get(compressor, {})}
    config: dict[str, Any] = {
        "compressor": dict(compressor),
        "dense_below": {"elems": 100},
        "integrity": {"every": 1},
        **sections,
    }
    config["exchange"] = {**exchange, **sections.get("exchange", {})}
    return config


def same(values: Sequence[Any]) -> Any:
    """Return what all ranks answered alike."""
    first = values[0]
    for rank, value in enumerate(values):
        assert value == first, f"rank {rank} has {value!r}, rank 0 has {first!r}"
    return first
