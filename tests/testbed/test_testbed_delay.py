"""Links with a delay: it is held, the rate too, and a link can get one and lose it again."""

from __future__ import annotations

import dataclasses
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from _between_hosts import MARKS, own_testbeds
from _until import until

from compressa.errors import BackendUnavailable, TransportError
from compressa.testbed import LinkSpec, NetnsTestbed, check_links, open_testbed
from compressa.testbed import netns as netns_module
from compressa.testbed._delay_client import start_line
from compressa.testbed._probing import Probes
from compressa.testbed._processes import ProcessId, find_processes

__all__ = ["own_testbeds"]  # a fixture for every test here

pytestmark = [*MARKS, pytest.mark.alone]

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as server:
    print("ready", flush=True)
    peer, _ = server.accept()
    while data := peer.recv(64):
        peer.sendall(data)
"""
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7), timeout=10) as peer:
    for _ in range(9):
        begin_s = time.monotonic()
        peer.sendall(b"?" * 64)
        peer.recv(64)
        print(time.monotonic() - begin_s)
"""


def opened(hosts: int, link: str) -> NetnsTestbed:
    bed = open_testbed(hosts, link, kind="netns", self_check=False)
    assert isinstance(bed, NetnsTestbed)
    return bed


def round_trip_s(bed: NetnsTestbed) -> float:
    script = [sys.executable, "-I", "-S", "-c"]
    address = bed.hosts[1].address
    echo = bed.spawn(1, [*script, ECHO, address], stdout=subprocess.PIPE, text=True)
    assert echo.stdout.readline() == "ready\n"
    ask = bed.spawn(0, [*script, ASK, address], stdout=subprocess.PIPE, text=True)
    times, _ = ask.communicate(timeout=30)
    bed.end(echo)
    return statistics.median(map(float, times.split()))


def shares(bed: NetnsTestbed, flows: Sequence[tuple[int, int]], n_bytes: int) -> list[float]:
    """Of the rate, what each stream brings once TCP's window is open."""
    with Probes(bed) as probes:
        probes.transfer(flows, 1_000_000)
        spans = probes.transfer(flows, n_bytes)
    due_s = bed.link.seconds_for(n_bytes)
    return [due_s / (end_s - begin_s - bed.link.delay_s) for begin_s, end_s in spans]


def cpu_s(process: ProcessId) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_far_hosts_keep_their_delay_and_their_rate() -> None:
    with opened(4, "10mbit+100ms") as bed:
        assert 0.2 <= round_trip_s(bed) <= 0.205
        assert shares(bed, [(0, 1)], 1_000_000)[0] >= 0.85
        begin_s, before_s = time.monotonic(), cpu_s(bed._record.line)
        ring = [(i, (i + 1) % 4) for i in range(4)]
        assert min(shares(bed, ring, 2_000_000)) >= 0.85
        assert (cpu_s(bed._record.line) - before_s) / (time.monotonic() - begin_s) < 1 / 3


def test_the_self_check_takes_the_delay_into_account() -> None:
    with opened(3, "10mbit+20ms") as bed:
        found = check_links(bed)
        assert {m.n_bytes for m in found} == {1, 64_000, 170_000, 192_000, 1_000_000}
        bed._record = dataclasses.replace(bed._record, link="10mbit+30ms")
        with pytest.raises(TransportError, match=r"0\.6[0-9] of the delay"):
            check_links(bed)


@pytest.mark.parametrize(
    ("namespace", "device", "accused"), [(2, "eth0", "host 1 to all"), (0, "h1", "host 1 from all")]
)
def test_the_self_check_finds_one_unshaped_end(namespace: int, device: str, accused: str) -> None:
    with opened(3, "20mbit+5ms") as broken:
        words = netns_module._entering(broken._record)(namespace)
        subprocess.run([*words, "tc", "qdisc", "del", "dev", device, "root"], check=True)
        with pytest.raises(TransportError, match=accused):
            check_links(broken)


def test_set_link_gives_a_delay_and_takes_it_away_under_running_processes() -> None:
    with opened(2, "unshaped") as bed, Probes(bed) as probes:
        lines = []
        for link in ("20mbit+50ms", "50mbit", "unshaped+20ms", "unshaped+10ms", "unshaped"):
            bed.set_link(link)
            lines.append(bed._record.line)
            (begin_s, end_s), _ = probes.transfer([(0, 1), (1, 0)], 1)
            assert 0 <= end_s - begin_s - bed.link.delay_s < 0.005
        assert [line is not None for line in lines] == [True, False, True, True, False]
        assert until(lambda: not any(line.alive() for line in lines if line is not None))


def test_sockets_may_hold_what_is_under_way_as_long_as_there_is_a_delay() -> None:
    def most_bytes(bed: NetnsTestbed) -> list[int]:
        files = [f"/proc/sys/net/ipv4/tcp_{name}" for name in ("rmem", "wmem")]
        child = bed.spawn(1, ["cat", *files], stdout=subprocess.PIPE, text=True)
        return [int(line.split()[2]) for line in child.communicate(timeout=10)[0].splitlines()]

    with opened(2, "1gbit") as bed:
        before = most_bytes(bed)
        bed.set_link("1gbit+100ms")
        assert min(most_bytes(bed)) >= 2 * 25_000_000
        bed.set_link("1gbit")
        assert most_bytes(bed) == before


def test_links_have_a_delay_inside_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns_module, "_attempts", lambda: [True])
    try:
        bed = opened(2, "10mbit+20ms")
    except BackendUnavailable as refusal:
        pytest.skip(f"user namespaces are not permitted: {refusal}")
    with bed:
        assert 0.04 <= round_trip_s(bed) <= 0.045
        assert shares(bed, [(0, 1)], 1_000_000)[0] >= 0.85
    assert find_processes(bed.name) == set()


def test_a_delay_that_is_not_permitted_is_refused_with_the_reason_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_sockets(enter: list[str], mark: str, _: list[str], link: LinkSpec) -> ProcessId:
        return start_line(enter, mark, ["no-port"], link)

    monkeypatch.setattr(netns_module, "start_line", without_sockets)
    with opened(2, "20mbit") as bed:
        with pytest.raises(BackendUnavailable, match=r"No such device.*CONFIG_PACKET.*\"20mbit\""):
            bed.set_link("20mbit+5ms")
        assert str(bed.link) == "20mbit"
        check_links(bed)


def test_a_lost_line_is_reported() -> None:
    with opened(2, "unshaped+5ms") as bed:
        line = bed._record.line
        os.kill(line.pid, signal.SIGKILL)
        assert until(lambda: not line.alive())
        with pytest.raises(BackendUnavailable, match="set its link again"):
            bed.spawn(0, ["true"])
        bed.set_link("unshaped+5ms")
        assert 0.01 <= round_trip_s(bed) < 0.015
