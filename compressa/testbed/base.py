"""What every testbed offers: hosts, a link, processes on hosts, and bytes that were sent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self

from compressa.errors import ConfigError, StateError
from compressa.pacing import PACE_FILE_VARIABLE, PACE_VARIABLE
from compressa.testbed._keeper_client import Keeper
from compressa.testbed._processes import MARK_VARIABLE
from compressa.testbed._records import Record
from compressa.testbed.link import LinkSpec

Stream = int | IO[Any] | None
HOST_VARIABLE = "COMPRESSA_TESTBED_HOST"


@dataclass(frozen=True)
class Host:
    """One host of a testbed.

    Attributes:
        name: Its name; on a netns testbed also its hostname when a process runs isolated.
        address: Its IPv4 address, as the other hosts reach it.
        interface: The network interface that has the address.
    """

    name: str
    address: str
    interface: str


@dataclass(frozen=True)
class Counters:
    """What one host's interface has carried, as the kernel counts it.

    Bytes include Ethernet, IP and TCP headers and acknowledgements, but a packet that segmentation
    offload has merged counts its headers once: 1 MB of payload reads about 0.5 % more. Subtract an
    earlier reading to get the traffic in between.

    Attributes:
        tx_bytes: Bytes sent.
        rx_bytes: Bytes received.
        tx_packets: Packets sent.
        rx_packets: Packets received.
    """

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    def __sub__(self, earlier: Counters) -> Counters:
        """Traffic since `earlier`."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)
        return Counters(*(now - then for now, then in pairs))


class Testbed(ABC):
    """Several hosts on one machine. Use as a context manager, or call `close`.

    Attributes:
        kind: "netns" for real hosts with shaped links, "loopback" for plain processes.
        hosts: The hosts.
        notice: What a reader of results measured here must know, or None.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name
    kind: Literal["netns", "loopback"]
    notice: str | None

    def __init__(self, record: Record, keeper: Keeper | None) -> None:
        self.hosts = tuple(Host(*fields) for fields in record.hosts)
        self._record = record
        self._keeper = keeper
        self._children: list[subprocess.Popen[Any]] = []
        self._closed = False

    @property
    def name(self) -> str:
        """The name by which `compressa testbed` knows it."""
        return self._record.name

    @property
    def link(self) -> LinkSpec:
        """The present link of every host."""
        return LinkSpec.parse(self._record.link)

    @abstractmethod
    def set_link(self, link: LinkSpec | str) -> None:
        """Change the speed of every host's link, under processes that keep running.

        Args:
            link: The new one; see `LinkSpec.parse`.

        Raises:
            ConfigError: The link can not be read.
            StateError: The testbed is closed.
        """

    @abstractmethod
    def counters(self) -> list[Counters] | None:
        """Read each host's interface counters; cheap enough for every training step.

        Returns:
            One entry per host, or None where hosts share one interface and nothing can be told.
        """

    @abstractmethod
    def command(
        self, host_index: int, argv: Sequence[str], *, cwd: str | Path | None, isolate: bool
    ) -> list[str]:
        """Give the command line that runs `argv` on a host, to be started with `environment`.

        Args:
            host_index: Which host, from 0.
            argv: The command and its arguments.
            cwd: Working directory; None for that of this process.
            isolate: As of `spawn`.
        """

    def environment(self, host_index: int) -> dict[str, str]:
        """Give this process's environment with what a process on that host needs added."""
        host = self.hosts[host_index]
        environment = {**os.environ, MARK_VARIABLE: self._record.mark}
        for variable in (PACE_VARIABLE, PACE_FILE_VARIABLE):
            environment.pop(variable, None)
        environment[HOST_VARIABLE] = str(host_index)
        environment["GLOO_SOCKET_IFNAME"] = host.interface
        environment["NCCL_SOCKET_IFNAME"] = host.interface
        return environment

    def spawn(
        self,
        host_index: int,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        cwd: str | Path | None = None,
        text: bool = False,
        isolate: bool = False,
        new_session: bool = True,
    ) -> subprocess.Popen[Any]:
        """Start a process on a host. It ends at the latest with the testbed.

        Args:
            host_index: Which host, from 0.
            argv: The command and its arguments; no shell is involved.
            env: Variables in addition to (or instead of) this process's own.
            stdin: As for `subprocess.Popen`; likewise stdout, stderr and text.
            stdout: See stdin.
            stderr: See stdin.
            cwd: Working directory; by default that of this process.
            text: See stdin.
            isolate: Give the process a hostname and shared memory of its own, so that MPI and NCCL
                use the link. Has no effect on loopback.
            new_session: Keep Ctrl-C at the terminal from reaching the process.

        Raises:
            ConfigError: There is no such host, or no command.
            StateError: The testbed is closed.
        """
        self._check_open()
        self.check_host(host_index)
        if not argv:
            raise ConfigError("No command was given to run on the host.")
        child = subprocess.Popen(
            self.command(host_index, argv, cwd=cwd, isolate=isolate),
            env={**self.environment(host_index), **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            text=text,
            start_new_session=new_session,
        )
        self._children.append(child)
        return child

    def check_host(self, host_index: int) -> None:
        """Raise ConfigError unless there is a host with that number."""
        if not 0 <= host_index < len(self.hosts):
            raise ConfigError(
                f"There is no host {host_index}; this testbed has hosts 0 to {len(self.hosts) - 1}."
            )

    def close(self) -> None:
        """End all processes of the testbed and take it down; a second call does nothing.

        An attached persistent testbed stays up: only the processes started here end.
        """
        if self._closed:
            return
        self._closed = True
        with _without_interrupts():
            self._release()
            if self._keeper is not None:
                self._keeper.close()
                self._record.end()
            for child in self._children:
                _reap(child)

    @abstractmethod
    def _release(self) -> None:
        """Let go of what a subclass holds open."""

    def end(self, child: subprocess.Popen[Any]) -> None:
        """Kill a process that `spawn` of this testbed started, if it runs, and close its pipes."""
        _reap(child)
        self._children.remove(child)

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("The testbed is closed; open a new one.")

    def __enter__(self) -> Self:
        """Return the testbed itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close, however the block ended."""
        self.close()


def _reap(child: subprocess.Popen[Any]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            # Bytes that the dead child never read cannot be flushed.
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    # A second Ctrl-C must not stop the taking down half-way; it is delivered afterwards.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    blocked = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
