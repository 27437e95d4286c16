"""Drives one probe per host and collects what they measured."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence

from compressa.errors import TransportError
from compressa.testbed._processes import script_argv
from compressa.testbed.base import Testbed

_START_S = 20.0
_SPARE_S = 10.0
# Ways there and back until TCP's window is open, and some for lost packets.
_WAYS = 40


class Probes:
    """One warm TCP connection between every two hosts, in each direction.

    Args:
        bed: The testbed to measure; its link may change later.

    Raises:
        TransportError: A probe did not start, or a host cannot reach another.
    """

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed
        self._probes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._parts: dict[int, bytes] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        for i, host in enumerate(self._bed.hosts):
            argv = script_argv("_probe", str(i), host.address)
            probe = self._bed.spawn(i, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._probes.append(probe)
            self._selector.register(probe.stdout, selectors.EVENT_READ, i)  # type: ignore[arg-type]
        ports = {i: int(words[0]) for i, words in self._lines(len(self._probes), _START_S)}
        for i in range(len(self._probes)):
            for j, host in enumerate(self._bed.hosts):
                if i != j:
                    self._tell(i, f"connect {j} {host.address} {ports[j]}")

    def transfer(self, flows: Sequence[tuple[int, int]], n_bytes: int) -> list[tuple[float, float]]:
        """Send `n_bytes` along every flow at once.

        Args:
            flows: Pairs of sending and receiving host.
            n_bytes: Size of each message.

        Returns:
            For each flow, when it began to send and when the last byte was there, in seconds.

        Raises:
            TransportError: Something did not arrive; the message names the hosts.
        """
        for source, target in flows:
            self._tell(source, f"send {target} {n_bytes}")
        link = self._bed.link
        patience_s = _SPARE_S + _WAYS * link.delay_s + 5 * link.seconds_for(n_bytes * len(flows))
        times_s = {
            (int(words[0]), target): (float(words[2]), float(words[3]))
            for target, words in self._lines(len(flows), patience_s)
        }
        return [times_s[flow] for flow in flows]

    def _tell(self, host_index: int, line: str) -> None:
        stdin = self._probes[host_index].stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise TransportError(f"The probe on host {host_index} has ended.") from error

    def _lines(self, count: int, patience_s: float) -> list[tuple[int, list[str]]]:
        """Wait for `count` lines from any of the probes: (host, words)."""
        lines: list[tuple[int, list[str]]] = []
        deadline_s = time.monotonic() + patience_s
        while len(lines) < count:
            ready = self._selector.select(max(0.0, deadline_s - time.monotonic()))
            if not ready:
                heard = sorted({host for host, _ in lines})
                raise TransportError(
                    f"Hosts of the testbed cannot reach each other: {count - len(lines)} of "
                    f"{count} answers are missing after {patience_s:.0f} s (heard: hosts {heard})."
                )
            for key, _ in ready:
                lines += [(key.data, text.split()) for text in self._read(key.data, key.fd)]
        return lines

    def _read(self, host_index: int, fd: int) -> list[str]:
        data = os.read(fd, 1 << 16)
        if not data:
            raise TransportError(
                f"The probe on host {host_index} has ended; its message is on standard error."
            )
        *whole, rest = (self._parts.get(fd, b"") + data).split(b"\n")
        self._parts[fd] = rest
        return [line.decode() for line in whole]

    def close(self) -> None:
        """End the probes."""
        self._selector.close()
        for probe in self._probes:
            self._bed.end(probe)
        self._probes = []

    def __enter__(self) -> Probes:
        """Return the probes."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the probes."""
        self.close()
