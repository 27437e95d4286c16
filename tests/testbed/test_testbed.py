"""Network namespaces: they connect, hold their rate, count bytes and run processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _between_hosts import MARKS

from compressa.errors import BackendUnavailable, ConfigError, TransportError
from compressa.testbed import (
    LinkSpec,
    Testbed,
    Watch,
    burstiness,
    check_links,
    open_testbed,
)
from compressa.testbed import netns as netns_module
from compressa.testbed._probing import Probes
from compressa.testbed._processes import find_processes

pytestmark = MARKS


@pytest.fixture(autouse=True, scope="module")
def _own_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESSA_TESTBED_DIR", str(tmp_path_factory.mktemp("testbeds")))
        yield


@pytest.fixture(scope="module")
def bed(_own_directory: None) -> Iterator[Testbed]:
    with open_testbed(hosts=3, link="100mbit", kind="netns", self_check=False) as opened:
        yield opened


def output(bed: Testbed, host_index: int, *argv: str, isolate: bool = False) -> str:
    child = bed.spawn(
        host_index, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, isolate=isolate
    )
    text, _ = child.communicate(timeout=20)
    return str(text.decode())


# --- the network ---------------------------------------------------------------------------------


def test_hosts_reach_each_other(bed: Testbed) -> None:
    with Probes(bed) as probes:
        flows = [(i, j) for i in range(3) for j in range(3) if i != j]
        assert len(probes.transfer(flows, 100)) == 6


def test_hosts_do_not_reach_the_outside(bed: Testbed) -> None:
    connect = "import socket,sys; socket.create_connection((sys.argv[1], 80), timeout=2)"
    for address in ("8.8.8.8", "192.0.2.2", "10.214.0.1"):
        said = output(bed, 0, sys.executable, "-I", "-S", "-c", connect, address)
        assert "Network is unreachable" in said
    assert "default" not in output(bed, 0, "ip", "route")


def test_the_machine_itself_gets_no_interface_and_no_named_namespace(bed: Testbed) -> None:
    links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    assert all(host.address not in links for host in bed.hosts)
    assert not [name for name in os.listdir("/sys/class/net") if name.startswith(("cmpr", "br0"))]
    named = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert bed.name not in named


def test_processes_see_their_own_host(bed: Testbed) -> None:
    assert output(bed, 1, "ls", "/sys/class/net").split() == ["eth0", "lo"]
    assert bed.hosts[1].address in output(bed, 1, "ip", "addr", "show", "eth0")
    assert bed.hosts[2].address in output(bed, 1, "getent", "hosts", bed.hosts[2].name)
    script = 'echo "$GLOO_SOCKET_IFNAME $COMPRESSA_TESTBED_HOST"'
    assert output(bed, 1, "sh", "-c", script).split() == ["eth0", "1"]


def test_isolated_processes_share_neither_hostname_nor_memory(bed: Testbed) -> None:
    script = "hostname; touch /dev/shm/compressa-test; ls /dev/shm"
    said = output(bed, 2, "sh", "-c", script, isolate=True)
    assert said.split() == [bed.hosts[2].name, "compressa-test"]
    assert "compressa-test" not in os.listdir("/dev/shm")
    assert os.uname().nodename != bed.hosts[2].name


def test_links_hold_their_rate_both_ways(bed: Testbed) -> None:
    found = check_links(bed)
    assert {m.n_bytes for m in found} == {64_000, 170_000, 8_000_000, 192_000}
    assert {m.what for m in found} >= {
        f"host {i} {way} all" for i in range(3) for way in ("to", "from")
    }


@pytest.mark.parametrize(
    ("host", "device", "accused"), [(1, "eth0", "host 1 to all"), (None, "h1", "host 1 from all")]
)
def test_self_check_finds_one_unshaped_end(host: int | None, device: str, accused: str) -> None:
    with open_testbed(hosts=3, link="50mbit", kind="netns", self_check=False) as broken:
        words = netns_module._entering(broken._record)(0 if host is None else host + 1)
        subprocess.run([*words, "tc", "qdisc", "del", "dev", device, "root"], check=True)
        with pytest.raises(TransportError, match=accused):
            check_links(broken)


@pytest.mark.parametrize("link", ["500kbit", "1gbit", "250mbit of 1gbit"])
def test_a_short_message_may_find_a_full_bucket(link: str) -> None:
    with open_testbed(hosts=2, link=link, kind="netns", self_check=False) as bed:
        found = check_links(bed)
    shaped = LinkSpec.parse(link)
    bucket = shaped.of_connection
    at_once_bytes = bucket.burst_bytes + (bucket.gso_max_bytes if "of" in link else 0)
    for short in (m for m in found if m.n_bytes == 64_000):
        behind_s = shaped.seconds_for(64_000 * 1514 / 1448 - at_once_bytes)
        assert short.least_share * shaped.seconds_for(64_000) <= behind_s + 1e-9
        assert behind_s <= short.taken_s
    assert all(m.least_share == 0.85 for m in found if m.n_bytes > 64_000)


@pytest.mark.parametrize(("link", "depth_bytes"), [("500kbit", 24_576), ("1gbit", 61_440)])
def test_self_check_finds_a_bucket_that_is_too_deep(
    link: str, depth_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deeper:
        deeper.setattr(LinkSpec, "burst_bytes", depth_bytes)
        broken = open_testbed(hosts=2, link=link, kind="netns", self_check=False)
    with broken, pytest.raises(TransportError, match="64000 bytes in"):
        check_links(broken)


def test_counters_grow_by_what_was_sent(bed: Testbed) -> None:
    before = bed.counters()
    with Probes(bed) as probes:
        probes.transfer([(0, 1)], 1_000_000)
        after = bed.counters()
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert 1_000_000 <= grown[0].tx_bytes <= 1_030_000
    assert 1_000_000 <= grown[1].rx_bytes <= 1_030_000
    assert grown[2].tx_bytes + grown[2].rx_bytes < 10_000
    own = output(bed, 0, "cat", "/sys/class/net/eth0/statistics/tx_bytes")
    assert bed.counters()[0].tx_bytes == int(own)


def test_who_send_to_one_fill_the_queue_of_its_port(bed: Testbed) -> None:
    bed.counters()  # opens them, which takes longer than all the rest
    with Probes(bed) as probes, bed.queue(0) as port, bed.queue(1) as other:
        first, before = port.read(), other.read()  # a watch on a busy machine may begin late
        with Watch(port.read) as queue, Watch(bed.counters) as counters:
            probes.transfer([(1, 0), (2, 0)], 600_000)
            told = other.read()
    seen = [reading for _, reading in queue.readings]
    assert max(reading.backlog_bytes for reading in seen) > 50_000
    assert seen[-1].sent_bytes - first.sent_bytes >= 1_200_000
    assert told.sent_bytes - before.sent_bytes < 200_000
    sent = [(time_s, reading[1].tx_bytes) for time_s, reading in counters.readings]
    assert burstiness(sent) >= 1.0
    again = bed.retransmitted()
    assert len(again) == 3
    assert bool(seen[-1].dropped) <= bool(sum(again))


def test_set_link_changes_the_rate_under_running_processes() -> None:
    with open_testbed(hosts=2, link="unshaped", kind="netns") as bed, Probes(bed) as probes:
        taken_s = {}
        for link in ("unshaped", "20mbit", "100mbit", "unshaped"):
            bed.set_link(link)
            assert str(bed.link) == link
            begin_s, end_s = probes.transfer([(0, 1)], 500_000)[0]
            taken_s[link] = end_s - begin_s
    assert 0.85 * 0.2 <= taken_s["20mbit"] <= 1.5 * 0.2
    assert 0.85 * 0.04 <= taken_s["100mbit"] <= 2 * 0.04
    assert taken_s["unshaped"] < 0.02


def test_each_connection_is_held_to_its_limit_and_all_together_to_the_link() -> None:
    with open_testbed(hosts=3, link="20mbit of 30mbit", kind="netns", self_check=False) as bed:
        one, two = (bed.link.seconds_for(96_000 * n, n) for n in (1, 2))
        found = {m.what: m.taken_s for m in check_links(bed) if m.n_bytes in (170_000, 192_000)}
        assert found["host 0 to host 1"] == pytest.approx(one * 170 / 96, rel=0.2)
        assert found["host 0 to all"] == pytest.approx(two, rel=0.2)
        for link in ("40mbit", "10mbit of 40mbit", "20mbit of 40mbit"):
            bed.set_link(link)
            with Probes(bed) as probes:
                probes.transfer([(0, 1)], 1000)
                spans = [probes.transfer([(0, 1)], 250_000)[0] for _ in range(3)]
            taken_s = min(end_s - begin_s for begin_s, end_s in spans)  # others only lengthen it
            assert taken_s == pytest.approx(bed.link.seconds_for(250_000), rel=0.3)


def test_two_testbeds_at_once_do_not_meet(bed: Testbed) -> None:
    with open_testbed(hosts=2, link="unshaped", kind="netns") as other:
        assert not {h.address for h in bed.hosts} & {h.address for h in other.hosts}
        connect = "import socket,sys; socket.create_connection((sys.argv[1], 80), timeout=2)"
        argv = (sys.executable, "-I", "-S", "-c", connect)
        assert "Network is unreachable" in output(other, 0, *argv, bed.hosts[0].address)
    assert output(bed, 0, "echo", "still up") == "still up\n"


def test_works_inside_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns_module, "_attempts", lambda: [True])
    try:
        opened = open_testbed(hosts=2, link="100mbit", kind="netns")
    except BackendUnavailable as refusal:
        pytest.skip(f"user namespaces are not permitted: {refusal}")
    with opened as bed:
        counters = bed.counters()
        assert counters[0].tx_bytes > 8_000_000
        assert output(bed, 0, "hostname", isolate=True).strip() == bed.hosts[0].name
    assert find_processes(bed.name) == set()


# --- processes -----------------------------------------------------------------------------------


def test_exit_codes_and_failures_to_start_are_passed_on(bed: Testbed) -> None:
    assert bed.spawn(0, ["sh", "-c", "exit 7"]).wait() == 7
    assert bed.spawn(0, ["sh", "-c", "kill -TERM $$"]).wait() == -signal.SIGTERM
    assert "no-such-program: No such file" in output(bed, 0, "no-such-program")
    assert bed.spawn(0, ["no-such-program"], stderr=subprocess.DEVNULL).wait() == 127


def test_a_process_keeps_its_working_directory(bed: Testbed, tmp_path: Path) -> None:
    child = bed.spawn(0, ["pwd"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.communicate()[0].strip() == str(tmp_path)


def test_spawn_refuses_what_it_cannot_do(bed: Testbed) -> None:
    with pytest.raises(ConfigError, match="hosts 0 to 2"):
        bed.spawn(3, ["true"])
    with pytest.raises(ConfigError, match="No command"):
        bed.spawn(0, [])
