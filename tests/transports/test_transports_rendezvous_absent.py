"""Rendezvous: who does not come, or cannot be understood, is named within the deadline."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from _meetings import (
    DEADLINE_S,
    EPOCH,
    HELLO,
    MAGIC,
    NONCE,
    Meeting,
    Seats,
    failures,
    knock,
    somebody_else,
)

from compressa.errors import PeerLost, Timeout, TransportError
from compressa.transports.rendezvous import connect_mesh, local_address


@pytest.fixture(autouse=True)
def nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Over 127.0.0.1; every descriptor that a test opens is closed in the end."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


# Those who do not come


def test_a_rank_that_never_comes_is_named_within_the_deadline() -> None:
    with somebody_else(None) as seat:
        started_s = time.monotonic()
        found = failures(Meeting(4, said={3: seat}).hold(deadline_s=0.7))
        assert time.monotonic() - started_s < 5.0
    assert sorted(found) == [0, 1, 2]
    for error in found.values():
        assert isinstance(error, Timeout)
        assert error.ranks == (3,)
        assert "ranks 3 did not connect in time" in str(error)


def test_strangers_do_not_put_off_the_deadline() -> None:
    """Somebody who sends a byte now and then is no reason to wait for longer."""

    def dribble(seats: Seats) -> None:
        with contextlib.suppress(OSError), knock(seats[0]) as link:
            for byte in MAGIC * 4:
                link.sendall(bytes([byte]))
                time.sleep(0.1)

    with somebody_else(None) as seat:
        started_s = time.monotonic()
        found = failures(Meeting(2, beside=dribble, said={1: seat}).hold(deadline_s=0.7))
        assert time.monotonic() - started_s < 3.0
    assert isinstance(found[0], Timeout)


def named(serve: Callable[[socket.socket], None] | None, deadline_s: float) -> BaseException:
    """Return rank 1's error when somebody else listens in rank 0's place."""
    with somebody_else(serve) as text:
        seat = json.loads(text) | {"secret": "ab" * 32}
        return failures(Meeting(2, said={0: json.dumps(seat).encode()}).hold(deadline_s))[1]


def test_a_rank_that_listens_and_never_answers_is_named() -> None:
    started_s = time.monotonic()
    error = named(None, deadline_s=0.7)
    assert time.monotonic() - started_s < 5.0
    assert isinstance(error, Timeout)
    assert error.ranks == (0,)
    assert "rank 0 at 127.0.0.1 did not answer in time" in str(error)


def test_an_answer_in_drops_does_not_put_off_the_deadline() -> None:
    def dribble(link: socket.socket) -> None:
        for _ in range(20):
            link.sendall(b"x")
            time.sleep(0.2)

    started_s = time.monotonic()
    error = named(dribble, deadline_s=0.7)
    assert time.monotonic() - started_s < 3.5
    assert isinstance(error, Timeout)


@pytest.mark.parametrize("answer", [b"", NONCE, NONCE + b"p" * 32])
def test_who_listens_in_a_ranks_place_must_know_the_secret(answer: bytes) -> None:
    def serve(link: socket.socket) -> None:
        link.sendall(answer)
        link.settimeout(5.0)
        link.recv(HELLO.size, socket.MSG_WAITALL if len(answer) >= len(NONCE) else 0)

    error = named(serve if answer else lambda link: None, DEADLINE_S)
    assert isinstance(error, TransportError)
    assert "rank 0 cannot be reached at 127.0.0.1" in str(error)
    why = "it does not know the secret" if len(answer) > len(NONCE) else "hung up|reset"
    with pytest.raises(TransportError, match=why):
        raise error


def test_a_closed_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    seat = json.dumps({"address": "127.0.0.1", "port": port, "secret": "ab" * 32}).encode()
    error = failures(Meeting(2, said={0: seat}).hold())[1]
    assert isinstance(error, TransportError)
    assert f"rank 0 cannot be reached at 127.0.0.1, port {port} (Connection refused)" in str(error)
    assert "GLOO_SOCKET_IFNAME" in str(error)


# What cannot be read

GOOD = {"address": "127.0.0.1", "port": 1, "secret": ""}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"address": "127.0.0.1", "port": 1}',
        *(
            json.dumps(GOOD | change).encode()
            for change in (
                {"address": "example.org"},
                {"address": "127.0.0.1; rm"},
                {"address": None},
                {"port": 0},
                {"port": -1},
                {"port": 70_000},
                {"port": float("inf")},
                {"port": float("nan")},
                {"port": "http"},
                {"secret": "xyz"},
                {"secret": 5},
                {"secret": "ab"},
            )
        ),
    ],
)
@pytest.mark.parametrize("peer", [0, 2])
def test_an_address_that_cannot_be_read_names_its_rank(text: bytes, peer: int) -> None:
    if peer == 0:  # it has drawn a secret
        text = text.replace(b'"secret": ""', b'"secret": "' + b"ab" * 32 + b'"')
    found = failures(Meeting(3, said={peer: text}).hold())
    assert len(found) == 2
    for error in found.values():
        assert isinstance(error, PeerLost)
        assert error.rank == peer
        assert f"rank {peer} sent an address that cannot be read" in str(error)


def test_rank_0_must_draw_a_secret() -> None:
    meeting = Meeting(2, said={0: json.dumps(GOOD).encode()})
    error = failures(meeting.hold())[1]
    assert isinstance(error, PeerLost)
    assert error.rank == 0


# Where to listen


def test_an_unknown_interface_is_named_with_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(TransportError, match=r'GLOO_SOCKET_IFNAME is "nowhere0".*\blo\b'):
        connect_mesh(0, 2, EPOCH, lambda *_: pytest.fail("asked"), DEADLINE_S)


def test_the_first_of_several_interfaces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nowhere0")
    assert local_address() == "127.0.0.1"


def test_without_an_interface_the_hosts_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert local_address() in ("127.0.0.1", "::1")
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert local_address() == "127.0.0.1"


def test_an_error_of_the_channel_passes_and_leaves_nothing_open() -> None:
    def all_gather(data: bytes, what: str, within_s: float) -> list[bytes]:
        raise PeerLost(1, "rank 1 is lost")

    with pytest.raises(PeerLost, match="rank 1 is lost"):
        connect_mesh(0, 2, EPOCH, all_gather, DEADLINE_S)
