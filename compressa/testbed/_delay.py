"""The delay line of a testbed: it carries frames between hosts and holds each for the same time.

Few kernels in containers have sch_netem, so this process is the delay. It runs beside the bridge,
reads what the hosts' links bring to the bridge's ends (packet sockets, see packet(7)), and writes
each frame to the end of the host that it is for when its time has come. The token buckets at both
ends stay as they are: what a host sends is shaped before the line, and what it gets behind it, so
a queue before a port fills and drops as without a delay.

All frames are held for equally long, so those of all hosts are one queue. Frames that the kernel
has merged for segmentation offload, or whose checksum it has left open, pass as they are: a header
in front of each says so (PACKET_VNET_HDR).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_ALL_PROTOCOLS = 3
# As root: these may exceed net.core.wmem_max and rmem_max.
_FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}
_HEADER_BYTES = 10
_TARGET = slice(_HEADER_BYTES, _HEADER_BYTES + 6)
_SOURCE = slice(_HEADER_BYTES + 6, _HEADER_BYTES + 12)
_FRAME_BYTES = _HEADER_BYTES + 14 + 65_536
# So many of one host before the clock is looked at again.
_TURN_FRAMES = 64
# A frame in a queue takes up to this many times its length of the kernel's memory.
_OVERHEAD = 1.5
# The line was away from the processor for this long, at most, if it may lose no frame meanwhile.
_AWAY_BYTES = 4 << 20
_FULL = (errno.ENOBUFS, errno.EAGAIN)


def main() -> None:
    """Run the line: argv[1] is JSON with delay_s, devices and queue_bytes.

    Prints its process number once frames that arrive are carried; says on standard error why not.
    """
    options = json.loads(sys.argv[1])
    try:
        ports = [_open(device, options["queue_bytes"]) for device in options["devices"]]
    except OSError as error:
        sys.exit(error.strerror or str(error))
    if child := os.fork():
        print(child, flush=True)
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # A kernel's own delay would run before all processes. Root alone may let this one do so.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    gc.disable()  # it makes no cycles, and a collection would be a delay of its own
    _carry(ports, options["delay_s"])


def _open(device: str, queue_bytes: int) -> socket.socket:
    """Open a bridge's end of a link; the queue before it must fill before the socket does."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setblocking(False)
    port.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    port.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    _allow(port, socket.SO_RCVBUF, _AWAY_BYTES)
    needed = round(_OVERHEAD * queue_bytes)
    if _allow(port, socket.SO_SNDBUF, needed) < needed:
        raise OSError(0, f"a packet socket needs {needed} bytes: raise net.core.wmem_max to it")
    port.bind((device, _ALL_PROTOCOLS))
    return port


def _allow(port: socket.socket, option: int, n_bytes: int) -> int:
    """Let a socket hold bytes; return how many it may hold (the kernel doubles what is asked)."""
    try:
        port.setsockopt(socket.SOL_SOCKET, _FORCED[option], n_bytes)
    except PermissionError:
        port.setsockopt(socket.SOL_SOCKET, option, n_bytes)
    return port.getsockopt(socket.SOL_SOCKET, option)


def _carry(ports: Sequence[socket.socket], delay_s: float) -> None:
    held: deque[tuple[float, bytes, socket.socket]] = deque()
    homes: dict[bytes, socket.socket] = {}
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select(ports, (), (), wait_s)
        for port in ready:
            due_s = time.monotonic() + delay_s
            for frame in _arrived(port):
                homes[frame[_SOURCE]] = port
                held.append((due_s, frame, port))
        now_s = time.monotonic()
        while held and held[0][0] <= now_s:
            _, frame, source = held.popleft()
            home = homes.get(frame[_TARGET])
            for port in ports if home is None else (home,):
                if port is not source:
                    _send(port, frame)


def _arrived(port: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        for _ in range(_TURN_FRAMES):
            yield port.recv(_FRAME_BYTES)


def _send(port: socket.socket, frame: bytes) -> None:
    try:
        port.send(frame)
    except OSError as error:
        if error.errno not in _FULL:  # the queue before the port drops what it cannot hold
            raise


if __name__ == "__main__":
    main()
