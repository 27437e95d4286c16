"""Hosts that are Linux network namespaces on a bridge: real TCP stacks, really shaped links."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, final

from compressa.errors import BackendUnavailable
from compressa.testbed import _network
from compressa.testbed._delay_client import end_line, start_line
from compressa.testbed._keeper_client import Keeper, enter_argv, start_keeper
from compressa.testbed._processes import script_argv
from compressa.testbed._records import Record
from compressa.testbed.base import Counters, Testbed
from compressa.testbed.link import LinkSpec
from compressa.testbed.watch import QueueReader

_STATISTICS = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
# A file of /sys that was opened inside a namespace keeps showing that namespace. So a process there
# opens the counters and hands the files over; from then on a reading starts no process.
_SEND_COUNTERS = """
import os, socket, sys
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
with socket.socket(fileno=0) as channel:
    socket.send_fds(channel, [b"c"], fds)
"""


@final
class NetnsTestbed(Testbed):
    """N network namespaces on a bridge, each link shaped both ways. See `open_testbed`.

    Bytes are those of each host's own interface. Processes see a /sys of their host, so
    /sys/class/net/eth0/statistics can also be read by a rank itself.
    """

    kind: Literal["netns", "loopback"] = "netns"
    notice: str | None = None

    def __init__(self, record: Record, keeper: Keeper | None) -> None:
        super().__init__(record, keeper)
        self._statistics: list[list[int]] = []

    def set_link(self, link: LinkSpec | str) -> None:
        """Re-shape both ends of every link, under processes that keep running.

        Frames that a delay still holds are lost.

        Args:
            link: The new one; see `LinkSpec.parse`.

        Raises:
            ConfigError: The link can not be read.
            BackendUnavailable: Links with a delay are not permitted; all is as before.
            StateError: The testbed is closed.
        """
        self._check_open()
        self._record = _linked(self._record, self.link, LinkSpec.parse(link))

    def command(
        self, host_index: int, argv: Sequence[str], *, cwd: str | Path | None, isolate: bool
    ) -> list[str]:
        """Enter the host's namespaces, mount its views, become the command.

        Raises:
            BackendUnavailable: What joins the hosts is gone.
        """
        if self._record.line is not None and not self._record.line.alive():
            raise BackendUnavailable(
                f"Testbed {self.name} has lost its delay line; set its link again, or take it down."
            )
        options = {
            "cwd": os.path.abspath(cwd or os.getcwd()),
            "hosts_file": str(self._record.hosts_file),
            "hostname": self.hosts[host_index].name if isolate else None,
        }
        launcher = script_argv("_launch", json.dumps(options))
        return [*_entering(self._record)(host_index + 1), *launcher, *argv]

    def counters(self) -> list[Counters]:
        """Read each host's interface counters, some 10 microseconds per host after the first time.

        Raises:
            BackendUnavailable: The counters cannot be opened inside a host.
        """
        self._check_open()
        if not self._statistics:
            self._statistics = [self._open_statistics(i) for i in range(len(self.hosts))]
        return [Counters(*(int(os.pread(fd, 32, 0)) for fd in fds)) for fds in self._statistics]

    def queue(self, host_index: int) -> QueueReader:
        """Open the queue that waits for a host's link, at the bridge's end: the server's port.

        Raises:
            ConfigError: There is no such host.
        """
        self.check_host(host_index)
        return QueueReader(_entering(self._record)(0), _network.port(host_index))

    def retransmitted(self) -> list[int]:
        """Return how many TCP segments each host has sent again (TcpRetransSegs of `nstat`).

        Raises:
            BackendUnavailable: The kernel does not tell.
        """
        return [self._retransmitted(i) for i in range(len(self.hosts))]

    def _retransmitted(self, host_index: int) -> int:
        words = [*_entering(self._record)(host_index + 1), "cat", "/proc/net/snmp"]
        text = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        rows = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
        try:
            return int(dict(zip(*rows, strict=True))["RetransSegs"])
        except (TypeError, ValueError, KeyError) as error:
            raise BackendUnavailable(
                f"The TCP counters of host {host_index} cannot be read."
            ) from error

    def _open_statistics(self, host_index: int) -> list[int]:
        folder = f"/sys/class/net/{self.hosts[host_index].interface}/statistics"
        paths = (f"{folder}/{name}" for name in _STATISTICS)
        sender = [sys.executable, "-I", "-S", "-c", _SEND_COUNTERS, *paths]
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                child = self.spawn(
                    host_index, sender, stdin=theirs.fileno(), stderr=subprocess.PIPE
                )
            _, fds, _, _ = socket.recv_fds(ours, 1, len(_STATISTICS))
        _, words = child.communicate()
        self._children.remove(child)
        if len(fds) != len(_STATISTICS):
            raise BackendUnavailable(
                f"The interface counters of host {host_index} cannot be opened ({words.decode()}); "
                "does this kernel let a namespace mount sysfs?"
            )
        return fds

    def _release(self) -> None:
        for fd in (fd for fds in self._statistics for fd in fds):
            os.close(fd)
        self._statistics = []


def make_netns(record: Record, *, user_namespace: bool | None = None) -> NetnsTestbed:
    """Make the namespaces and the network that a record plans.

    Args:
        record: The plan; it is on disk already. Without an owner the testbed is persistent.
        user_namespace: Whether to work inside a user namespace, which needs no root; None to find
            out what is permitted.

    Raises:
        BackendUnavailable: This user, or this kernel, cannot; the message says what would.
    """
    _network.require_programs()
    attempts = [user_namespace] if user_namespace is not None else _attempts()
    keeper, inside = _start_permitted(record, attempts)
    try:
        record = dataclasses.replace(
            record, keeper=keeper.process, net_fds=keeper.net_fds, user_namespace=inside
        )
        record.write()
        record.hosts_file.write_text(_hosts_text(record))
        paths = [f"/proc/{keeper.process.pid}/fd/{fd}" for fd in keeper.net_fds]
        _network.build(_entering(record), paths, [address for _, address, _ in record.hosts])
        unshaped = LinkSpec(rate_bits_per_s=None)
        record = _linked(record, unshaped, LinkSpec.parse(record.link))
    except BaseException:
        keeper.close()
        raise
    return NetnsTestbed(record, keeper if record.owner else None)


def _linked(record: Record, before: LinkSpec, link: LinkSpec) -> Record:
    """Turn links into others. Two ways of a frame overlap, rather than that there is none."""
    enter, hosts = _entering(record), len(record.hosts)
    line = None
    if link.delay_ms:
        ports = [_network.port(i) for i in range(hosts)]
        line = start_line(enter(0), record.mark, ports, link)
    try:
        shaped_before = before.rate_bits_per_s is not None
        _network.shape(enter, hosts, link, shaped_before=shaped_before)
        if link.delay_ms or before.delay_ms:
            _network.widen(enter, hosts, link)
            _network.bridge(enter, hosts, bridged=line is None)
    except BaseException:
        end_line(line)
        raise
    end_line(record.line)
    record = dataclasses.replace(record, link=str(link), line=line)
    record.write()
    return record


def _attempts() -> list[bool]:
    # Root in a container may lack the privilege and still be allowed a user namespace.
    return [False, True] if os.geteuid() == 0 else [True]


def _start_permitted(record: Record, attempts: list[bool]) -> tuple[Keeper, bool]:
    refusals = []
    for inside in attempts:
        try:
            keeper = start_keeper(
                record.mark,
                namespaces=len(record.hosts) + 1,
                user_namespace=inside,
                persistent=record.owner is None,
            )
        except BackendUnavailable as refusal:
            refusals.append(str(refusal))
        else:
            return keeper, inside
    raise BackendUnavailable(
        f"Network namespaces are not permitted here ({'; '.join(refusals)}); run as root, or allow "
        'user namespaces (sysctl user.max_user_namespaces), or use kind="loopback", which shapes '
        "no network."
    )


def _hosts_text(record: Record) -> str:
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address, _ in record.hosts)]
    # torch's store looks up its clients as IPv6 addresses, and warns when they have no name.
    lines += [f"::ffff:{address} {name}-v6" for name, address, _ in record.hosts]
    return "\n".join(lines) + "\n"


def _entering(record: Record) -> Callable[[int], list[str]]:
    keeper, fds = record.keeper, record.net_fds
    if keeper is None or not keeper.alive():
        raise BackendUnavailable(
            f"Testbed {record.name} has lost its namespaces; take it down and open a new one."
        )
    return lambda index: enter_argv(keeper, fds[index], user_namespace=record.user_namespace)
