"""Rendezvous: all ranks meet and nobody else gets in, whoever else knocks or fails to come."""

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

from compressa.errors import PeerLost, Timeout, TransportError
from compressa.transports import door as door_module
from compressa.transports.door import Door, Entrance, Place
from compressa.transports.rendezvous import connect_mesh, local_address

EPOCH = 6
DEADLINE_S = 20.0
Seats = list[dict[str, Any]]
Links = dict[int, list[socket.socket]]


@pytest.fixture(autouse=True)
def nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Over 127.0.0.1; every descriptor that a test opens is closed in the end."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


class Meeting:
    """Ranks on threads.

    Args:
        size: Number of ranks.
        before: Called with all that the ranks said of themselves, before any of them knows it.
        said: What some ranks say instead of what they would; they do not take part otherwise.
        connections: How many between every two ranks.
    """

    def __init__(
        self,
        size: int,
        before: Callable[[Seats], None] | None = None,
        said: dict[int, bytes] | None = None,
        connections: int = 1,
    ) -> None:
        self.size = size
        self.connections = connections
        self.before = before
        self.absent = said or {}
        self._texts: dict[int, bytes] = dict(self.absent)
        self._met = threading.Barrier(size - len(self.absent), self._tell)

    def hold(self, deadline_s: float = DEADLINE_S) -> dict[int, Future[Links]]:
        """Have all present ranks meet; return what became of them."""
        present = [rank for rank in range(self.size) if rank not in self.absent]
        with ThreadPoolExecutor(len(present)) as pool:
            return {rank: pool.submit(self._attend, rank, deadline_s) for rank in present}

    def _attend(self, rank: int, deadline_s: float) -> Links:
        def all_gather(data: bytes, what: str, within_s: float) -> list[bytes]:
            assert what == "addresses"
            self._texts[rank] = data
            self._met.wait(within_s)
            return [self._texts[r] for r in range(self.size)]

        return connect_mesh(rank, self.size, EPOCH, all_gather, deadline_s, self.connections)

    def _tell(self) -> None:
        if self.before is not None:
            self.before([json.loads(self._texts[rank]) for rank in range(self.size)])


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

HELLO = door_module._HELLO
MAGIC = door_module._MAGIC
NONCE = b"n" * door_module._NONCE_BYTES


def knock(seat: dict[str, Any]) -> socket.socket:
    return socket.create_connection((seat["address"], seat["port"]), 5.0)


def hello(
    link: socket.socket, seats: Seats, *, caller: int = 1, callee: int = 0, **lie: Any
) -> bytes:
    """What a rank would say, but for one lie."""
    theirs = link.recv(door_module._NONCE_BYTES, socket.MSG_WAITALL)
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
    "repeats what was once said": {"nonce": b"o" * door_module._NONCE_BYTES},
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

    def before(seats: Seats) -> None:
        # It is first in the queue, but is served only when the ranks are.
        link = knock(seats[0])
        strangers.append(link)
        talk = threading.Thread(target=lambda: lie_to(link, seats))
        talk.start()
        threads.append(talk)

    def lie_to(link: socket.socket, seats: Seats) -> None:
        with contextlib.suppress(ConnectionError):
            link.sendall(hello(link, seats, **LIES[lie]))
            answers.append(link.recv(1))

    threads: list[threading.Thread] = []
    check_mesh(Meeting(3, before, connections=2).hold(), 2)
    for thread in threads:
        thread.join(5.0)
    for link in strangers:
        link.close()
    assert answers in ([b""], [])
    (record,) = caplog.records
    assert record.name == "compressa.transports.door"
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
                answers.append(link.recv(door_module._PROOF_BYTES, socket.MSG_WAITALL))

    talks: list[threading.Thread] = []

    def before(seats: Seats) -> None:
        talks.append(threading.Thread(target=attend, args=(seats,)))
        talks[0].start()

    seat = json.dumps({"address": "127.0.0.1", "port": 9, "secret": ""}).encode()
    mesh = Meeting(2, before, said={1: seat}, connections=2).hold()[0].result()
    talks[0].join(5.0)
    assert [len(answer) for answer in answers if answer] == [door_module._PROOF_BYTES] * 2
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
        proofs.append(link.recv(door_module._PROOF_BYTES, socket.MSG_WAITALL))

    talks: list[threading.Thread] = []

    def before(seats: Seats) -> None:
        talks.append(threading.Thread(target=attend, args=(seats,)))
        talks[0].start()

    seat = json.dumps({"address": "127.0.0.1", "port": 9, "secret": ""}).encode()
    mesh = Meeting(2, before, said={1: seat}).hold()[0].result()
    talks[0].join(5.0)
    assert sorted(mesh) == [1]
    assert len(proofs[0]) == door_module._PROOF_BYTES
    for link in (*mesh[1], *links):
        link.close()


def send_nothing(link: socket.socket) -> None:
    pass


def send_random_bytes(link: socket.socket) -> None:
    link.sendall(random.Random(0).randbytes(1000))


def send_an_absurd_length(link: socket.socket) -> None:
    link.sendall(struct.pack("<Q", 1 << 63) * 20)


def send_half_a_hello(link: socket.socket) -> None:
    link.sendall(MAGIC)


def send_garbage(link: socket.socket) -> None:
    link.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)


def hang_up(link: socket.socket) -> None:
    link.close()


def reset(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


@pytest.mark.parametrize(
    "conduct",
    [
        send_nothing,
        send_half_a_hello,
        send_garbage,
        send_random_bytes,
        send_an_absurd_length,
        hang_up,
        reset,
    ],
)
def test_strangers_delay_nobody_and_are_logged(
    conduct: Callable[[socket.socket], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Two of them are at every rank's door before the ranks themselves."""
    strangers: list[socket.socket] = []

    def before(seats: Seats) -> None:
        for seat in seats * 2:
            link = knock(seat)
            strangers.append(link)
            conduct(link)

    started_s = time.monotonic()
    check_mesh(Meeting(3, before).hold())
    assert time.monotonic() - started_s < 5.0
    for link in strangers:
        link.close()
    said = [record.getMessage() for record in caplog.records]
    # Rank 2 waits for nobody, and opens its door for nobody; who has hung up may be gone unseen.
    assert {text.split(" refused")[0] for text in said} <= {"rank 0", "rank 1"}
    assert said or conduct in (hang_up, reset)


def test_a_flood_of_silent_strangers_keeps_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    strangers: list[socket.socket] = []
    over = threading.Event()

    def flood(seat: dict[str, Any]) -> None:
        for _ in range(3 * door_module._MOST_STRANGERS):
            if over.is_set():
                break
            with contextlib.suppress(OSError):  # the door was closed meanwhile
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
    assert len(caplog.records) <= door_module._MOST_LOGGED + 1


def test_who_has_waited_longest_must_go_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door_module, "_MOST_STRANGERS", 3)
    monkeypatch.setattr(door_module, "_PATIENCE_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
        contextlib.ExitStack() as closing,
    ):
        entrance = Entrance(Door(0, EPOCH, b"s" * 32), listener, [Place(1, 0)])
        waited = pool.submit(entrance.wait, {}, time.monotonic() + 2.0)
        strangers = [
            closing.enter_context(socket.create_connection(listener.getsockname(), 5.0))
            for _ in range(8)
        ]
        for stranger in strangers:
            assert len(stranger.recv(64)) == door_module._NONCE_BYTES
        for stranger in strangers[:4]:
            assert stranger.recv(1) == b""
        for stranger in strangers[4:]:
            stranger.settimeout(0.05)
            with pytest.raises(TimeoutError):
                stranger.recv(1)
        assert isinstance(waited.exception(), Timeout)


# Those who do not come


@contextlib.contextmanager
def somebody_else(serve: Callable[[socket.socket], None] | None) -> Iterator[bytes]:
    """Somebody listens in a rank's place; what the rank says of itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seat = {"address": "127.0.0.1", "port": listener.getsockname()[1], "secret": ""}

        def accept() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                serve(link) if serve else None

        thread = threading.Thread(target=accept)
        if serve:
            thread.start()
        yield json.dumps(seat).encode()
        if serve:
            thread.join(5.0)


def failures(outcomes: dict[int, Future[Links]]) -> dict[int, BaseException]:
    """Return the errors of those who failed; close the links of the others."""
    found = {}
    for rank, future in outcomes.items():
        error = future.exception()
        if error is None:
            for link in chain(*future.result().values()):
                link.close()
        else:
            found[rank] = error
    return found


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
    over = threading.Event()

    def dribble(seat: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), knock(seat) as link:
            for byte in MAGIC * 4:
                link.sendall(bytes([byte]))
                if over.wait(0.1):
                    return

    threads: list[threading.Thread] = []

    def before(seats: Seats) -> None:
        threads.append(threading.Thread(target=dribble, args=(seats[0],)))
        threads[0].start()

    with somebody_else(None) as seat:
        started_s = time.monotonic()
        found = failures(Meeting(2, before, said={1: seat}).hold(deadline_s=0.7))
        assert time.monotonic() - started_s < 3.0
    over.set()
    threads[0].join(5.0)
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
