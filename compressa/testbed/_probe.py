"""Sends and receives timed messages on one host, for the testbed's check of itself.

Commands come on standard input, one per line: `connect PEER ADDRESS PORT` and `send PEER BYTES`.
The first line printed is the port on which it listens; every received message prints
`FROM BYTES SENT_S RECEIVED_S`, both times on the machine's one monotonic clock.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time

from compressa.pacing import Pacer

_HEADER = struct.Struct("<qqd")
_PIECE_LEAST_BYTES = 8 * 1024
_PIECE_S = 0.5e-3


def main() -> None:
    """Run the probe: argv[1] is this host's number, argv[2] its address."""
    me, address = int(sys.argv[1]), sys.argv[2]
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    pacer = Pacer.from_environment()
    peers: dict[int, socket.socket] = {}
    for line in sys.stdin:
        word, peer, *rest = line.split()
        if word == "connect":
            peers[int(peer)] = socket.create_connection((rest[0], int(rest[1])), timeout=10)
            peers[int(peer)].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            pacer.reload()
            _send(peers[int(peer)], me, memoryview(bytes(int(rest[0]))), pacer)


def _send(peer: socket.socket, me: int, data: memoryview, pacer: Pacer) -> None:
    peer.sendall(_HEADER.pack(me, len(data), time.monotonic()))
    if pacer.rate_bits_per_s is None:
        peer.sendall(data)
        return
    piece_bytes = max(_PIECE_LEAST_BYTES, int(pacer.rate_bits_per_s / 8 * _PIECE_S))
    for begin in range(0, len(data), piece_bytes):
        piece = data[begin : begin + piece_bytes]
        pacer.wait(len(piece))
        peer.sendall(piece)


def _accept(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=_receive, args=(peer,), daemon=True).start()


def _receive(peer: socket.socket) -> None:
    buffer = memoryview(bytearray(1 << 20))
    while header := peer.recv(_HEADER.size, socket.MSG_WAITALL):
        sender, n_bytes, sent_s = _HEADER.unpack(header)
        left = n_bytes
        while left:
            got = peer.recv_into(buffer, min(left, len(buffer)))
            if not got:
                return
            left -= got
        received_s = time.monotonic()
        # One write per line, since several threads print.
        sys.stdout.write(f"{sender} {n_bytes} {sent_s!r} {received_s!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
