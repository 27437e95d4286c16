"""Rendezvous: all ranks meet and nobody else gets in, whoever else knocks."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from _meetings import EPOCH, HELLO, MAGIC, NONCE, Links, Meeting, Seats, knock
from _tcp_ends import reset

from compressa.errors import Timeout
from compressa.transports import handshake as handshake_module
from compressa.transports.handshake import ConnectionId, Entrance, Handshake


@pytest.fixture(autouse=True)
def nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Over 127.0.0.1; every descriptor that a test opens is closed in the end."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


def check_mesh(outcomes: dict[int, Future[Links]], connections: int = 1) -> None:
    """Every two ranks have so many connections, numbered alike by both; then close all."""
    meshes = {rank: future.result() for rank, future in outcomes.items()}
    with contextlib.ExitStack() as closing:
        for links in meshes.values():
            for link in chain(*links.values()):
                closing.enter_context(link)
        for rank, links in meshes.items():
            assert sorted(links) == [peer for peer in meshes if peer != rank]
            for peer, several in links.items():
                assert len(several) == connections
                for number, link in enumerate(several):
                    assert link.getblocking()
                    link.sendall(bytes([rank, peer, number]))
        for rank, links in meshes.items():
            for peer, several in links.items():
                for number, link in enumerate(several):
                    link.settimeout(5.0)
                    assert link.recv(3) == bytes([peer, rank, number])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_ranks_meet(size: int) -> None:
    check_mesh(Meeting(size).hold())


@pytest.mark.parametrize(("size", "connections"), [(2, 16), (4, 3)])
def test_all_ranks_meet_several_times(size: int, connections: int) -> None:
    check_mesh(Meeting(size, connections=connections).hold(), connections)


# Strangers

SEAT = json.dumps({"address": "127.0.0.1", "port": 9, "secret": ""}).encode()


def hello(
    link: socket.socket, seats: Seats, *, caller: int = 1, callee: int = 0, **lie: Any
) -> bytes:
    """What a rank would say, but for one lie."""
    theirs = link.recv(handshake_module._NONCE_BYTES, socket.MSG_WAITALL)
    secret = lie.get("secret", bytes.fromhex(seats[0]["secret"]))
    epoch = lie.get("epoch", EPOCH)
    nonces = lie.get("nonce", theirs) + NONCE
    number = lie.get("number", 0)
    text = lie.get("role", b"caller") + struct.pack("<IIII", epoch, caller, callee, number) + nonces
    proof = hmac.digest(secret, text, "sha256")  # by hand, so that no part of it can be lost
    claimed = lie.get("claimed", caller), lie.get("claimed number", number)
    return HELLO.pack(lie.get("magic", MAGIC), epoch, *claimed, NONCE, proof)


LIES: dict[str, dict[str, Any]] = {
    "knows another secret": {"secret": b"x" * 32},
    "knows no secret": {"secret": b""},
    "repeats what was once said": {"nonce": b"o" * handshake_module._NONCE_BYTES},
    "repeats what was said to another rank": {"callee": 1, "caller": 2},
    "gives the proof of the called": {"role": b"callee"},
    "is of another epoch": {"epoch": EPOCH + 1},
    "claims another rank than it proves": {"claimed": 2},
    "claims to be who listens": {"caller": 0},
    "claims a rank that is too large": {"caller": 3},
    "claims the largest rank": {"caller": 2**32 - 1},
    "claims another connection than it proves": {"number": 2, "claimed number": 1},
    "claims one connection too many": {"number": 2},
    "claims the largest connection": {"number": 2**32 - 1},
    "has another magic": {"magic": b"compressa-tcp-3\0"},
}


@pytest.mark.parametrize("lie", LIES)
def test_who_lies_is_sent_away_and_the_others_meet(
    lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    strangers: list[socket.socket] = []
    answers: list[bytes] = []

    def lie_to(seats: Seats) -> None:
        with contextlib.suppress(ConnectionError):
            strangers[0].sendall(hello(strangers[0], seats, **LIES[lie]))
            answers.append(strangers[0].recv(1))

    def queue_up(seats: Seats) -> None:
        strangers.append(knock(seats[0]))  # first, but served only when the ranks are

    check_mesh(Meeting(3, queue_up, lie_to, connections=2).hold(), 2)
    strangers[0].close()
    assert answers in ([b""], [])
    (record,) = caplog.records
    assert record.name == "compressa.transports.handshake"
    assert "rank 0 refused a connection from ('127.0.0.1', " in record.getMessage()


def test_nobody_is_let_in_twice_in_one_place() -> None:
    """Who has proved connection 0 must prove connection 1; the same again is sent away."""
    answers: list[bytes] = []
    links: list[socket.socket] = []

    def attend(seats: Seats) -> None:
        for number in (0, 0, 1):
            link = knock(seats[0])
            links.append(link)
            with contextlib.suppress(ConnectionError):
                link.sendall(hello(link, seats, number=number))
                answers.append(link.recv(handshake_module._PROOF_BYTES, socket.MSG_WAITALL))

    mesh = Meeting(2, beside=attend, said={1: SEAT}, connections=2).hold()[0].result()
    assert [len(answer) for answer in answers if answer] == [handshake_module._PROOF_BYTES] * 2
    assert [link.getpeername() for link in mesh[1]] == [links[n].getsockname() for n in (0, 2)]
    for link in (*mesh[1], *links):
        link.close()


def test_what_is_told_without_a_lie_is_let_in() -> None:
    """The check is checked: the strangers above fail by their lies, and not by their form."""
    links: list[socket.socket] = []
    proofs: list[bytes] = []

    def attend(seats: Seats) -> None:
        link = knock(seats[0])
        links.append(link)
        link.sendall(hello(link, seats))
        proofs.append(link.recv(handshake_module._PROOF_BYTES, socket.MSG_WAITALL))

    mesh = Meeting(2, beside=attend, said={1: SEAT}).hold()[0].result()
    assert sorted(mesh) == [1]
    assert len(proofs[0]) == handshake_module._PROOF_BYTES
    for link in (*mesh[1], *links):
        link.close()


def hang_up(link: socket.socket) -> None:
    link.close()


SENT = {
    "nothing": b"",
    "half a hello": MAGIC,
    "garbage": b"GET / HTTP/1.1\r\n\r\n" * 100,
    "random bytes": random.Random(0).randbytes(1000),
    "an absurd length": struct.pack("<Q", 1 << 63) * 20,
}
CONDUCTS: dict[str, Callable[[socket.socket], None]] = {
    **{what: lambda link, data=data: link.sendall(data) for what, data in SENT.items()},
    "hang up": hang_up,
    "reset": reset,
}


@pytest.mark.parametrize("conduct", CONDUCTS)
def test_strangers_delay_nobody_and_are_logged(
    conduct: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of them are at every rank's handshake before the ranks themselves."""
    strangers: list[socket.socket] = []

    def before(seats: Seats) -> None:
        for seat in seats * 2:
            link = knock(seat)
            strangers.append(link)
            CONDUCTS[conduct](link)

    started_s = time.monotonic()
    check_mesh(Meeting(3, before).hold())
    assert time.monotonic() - started_s < 5.0
    for link in strangers:
        link.close()
    said = [record.getMessage() for record in caplog.records]
    # Rank 2 waits for nobody, and opens its handshake for nobody; who has hung up may be gone
    # unseen.
    assert {text.split(" refused")[0] for text in said} <= {"rank 0", "rank 1"}
    assert said or conduct not in SENT


def test_a_flood_of_silent_strangers_keeps_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    strangers: list[socket.socket] = []
    over = threading.Event()

    def flood(seat: dict[str, Any]) -> None:
        for _ in range(3 * handshake_module._MOST_STRANGERS):
            if over.is_set():
                break
            with contextlib.suppress(OSError):  # the handshake was closed meanwhile
                strangers.append(knock(seat))

    floods: list[threading.Thread] = []

    def before(seats: Seats) -> None:
        floods.append(threading.Thread(target=flood, args=(seats[0],)))
        floods[0].start()

    check_mesh(Meeting(3, before).hold())
    over.set()
    floods[0].join(10.0)
    for link in strangers:
        link.close()
    assert len(caplog.records) <= handshake_module._MOST_LOGGED + 1


def test_who_has_waited_longest_must_go_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake_module, "_MOST_STRANGERS", 3)
    monkeypatch.setattr(handshake_module, "_PATIENCE_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
        contextlib.ExitStack() as closing,
    ):
        entrance = Entrance(Handshake(0, EPOCH, b"s" * 32), listener, [ConnectionId(1, 0)])
        waited = pool.submit(entrance.wait, {}, time.monotonic() + 2.0)
        strangers = [
            closing.enter_context(socket.create_connection(listener.getsockname(), 5.0))
            for _ in range(8)
        ]
        for stranger in strangers:
            assert len(stranger.recv(64)) == handshake_module._NONCE_BYTES
        for stranger in strangers[:4]:
            assert stranger.recv(1) == b""
        for stranger in strangers[4:]:
            stranger.settimeout(0.05)
            with pytest.raises(TimeoutError):
                stranger.recv(1)
        assert isinstance(waited.exception(), Timeout)
