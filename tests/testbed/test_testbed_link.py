"""Links as text, pacing, and the loopback fallback: none of it needs root."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.errors import BackendUnavailable, ConfigError, StateError
from compressa.testbed import (
    LinkSpec,
    LoopbackTestbed,
    Pacer,
    check_links,
    list_testbeds,
    open_testbed,
)
from compressa.testbed._processes import find_processes, script_argv
from compressa.testbed._records import directory


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESSA_TESTBED_DIR", str(tmp_path))


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate_bits_per_s"),
    [
        ("100mbit", 1e8),
        ("1gbit", 1e9),
        ("2.5 Gbit/s", 2.5e9),
        (" 500KBIT ", 5e5),
        ("10mbitps", 1e7),
        ("1000000bit", 1e6),
        ("unshaped", None),
        ("10mbit+100ms", 1e7),
        ("unshaped + 0.5 ms", None),
    ],
)
def test_links_are_read(text: str, rate_bits_per_s: float | None) -> None:
    link = LinkSpec.parse(text)
    assert link.rate_bits_per_s == rate_bits_per_s
    assert (link.seconds_for(1000) == 0) == (rate_bits_per_s is None)


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "100mb", "-1mbit", "1e3mbit", "mbit", "nan", "+9ms"]
)
def test_what_is_no_link_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match='"100mbit"'):
        LinkSpec.parse(text)


@pytest.mark.parametrize("text", ["10kbit", "0mbit", "200gbit"])
def test_rates_that_cannot_be_shaped_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="between 100kbit and 100gbit"):
        LinkSpec.parse(text)


@given(st.integers(10**5, 10**11))
def test_a_link_is_read_back_from_its_own_text(rate: int) -> None:
    link = LinkSpec(rate_bits_per_s=float(rate))
    assert LinkSpec.parse(str(link)) == link


@given(st.integers(10**5, 10**11), st.integers(10**5, 10**11))
def test_what_a_connection_can_have_is_read_back_too(one: int, other: int) -> None:
    each, whole = sorted((float(one), float(other)))
    link = LinkSpec(rate_bits_per_s=whole, connection_bits_per_s=each)
    assert LinkSpec.parse(str(link)) == link
    for connections in (1, 2, 1000):
        share = min(whole, connections * each)
        assert link.seconds_for(1000, connections) == pytest.approx(8000 / share)


@pytest.mark.parametrize("text", ["2gbit of 1gbit", "1gbit of unshaped", "1gbit of", "1gbit of 2"])
def test_no_connection_can_have_more_than_its_link(text: str) -> None:
    with pytest.raises(ConfigError, match=r"250mbit of 1gbit|A connection cannot have"):
        LinkSpec.parse(text)


@given(st.integers(10**5, 10**9) | st.none(), st.integers(1, 10**6))
def test_a_delay_is_read_back_and_is_no_part_of_the_rate(rate: int | None, delay_us: int) -> None:
    plain = LinkSpec(rate_bits_per_s=rate)
    link = LinkSpec(rate_bits_per_s=rate, delay_ms=delay_us / 1000)
    assert LinkSpec.parse(str(link)) == link
    assert link.seconds_for(1000) == plain.seconds_for(1000)
    assert link.delay_s == pytest.approx(delay_us / 1e6)
    under_way = (rate or 0) / 8 * 2 * link.delay_s
    assert link.queue_bytes == max(plain.queue_bytes, round(under_way))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10mbit+1001ms", "choose 0 to 1000 ms"),
        ("250mbit of 1gbit+20ms", 'Leave out "of" or the delay'),
        ("10mbit+5ms+5ms", '"10mbit[+]100ms"'),
        ("10mbit+5s", '"10mbit[+]100ms"'),
        ("fast+5ms", '"10mbit[+]100ms"'),
        ("20gbit+100ms", "500 MB are under way on a link of 20gbit[+]100ms"),
    ],
)
def test_what_is_no_delay_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LinkSpec.parse(text)


@pytest.mark.parametrize("delay_ms", [-1.0, float("nan"), 0.0001])
def test_delays_that_can_not_be_kept_are_refused(delay_ms: float) -> None:
    with pytest.raises(ConfigError, match="in whole microseconds"):
        LinkSpec(rate_bits_per_s=1e7, delay_ms=delay_ms)


def test_senders_can_not_delay_what_is_delivered() -> None:
    with pytest.raises(ConfigError, match=r'can not delay.*use kind="netns"'):
        open_testbed(hosts=2, link="10mbit+5ms", kind="loopback", self_check=False)
    assert list_testbeds() == []


def test_senders_can_not_limit_their_connections() -> None:
    link = "1mbit of 2mbit"
    with pytest.raises(ConfigError, match=r'use kind="netns"'):
        open_testbed(hosts=2, link=link, kind="loopback", self_check=False)
    with open_testbed(hosts=2, link="2mbit", kind="loopback", self_check=False) as bed:
        with pytest.raises(ConfigError, match=r'use kind="netns"'):
            bed.set_link(link)
        assert str(bed.link) == "2mbit"


@given(st.floats(1e5, 1e11))
def test_the_bucket_holds_a_merged_packet_and_is_small_beside_170_kb(rate: float) -> None:
    link = LinkSpec(rate_bits_per_s=rate)
    assert 1514 < link.gso_max_bytes < link.burst_bytes <= 80 * 1024
    assert link.queue_bytes > link.burst_bytes
    if rate <= 1e9:
        assert link.burst_bytes <= 20 * 1024


# --- pacing --------------------------------------------------------------------------------------


def test_a_paced_sender_keeps_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, late_s = 100.0, 0.0002

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds + late_s

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    monkeypatch.setattr("compressa.pacing.time", clock)
    pacer = Pacer(80e6, now_s=clock.monotonic)
    for _ in range(20):
        pacer.wait(10_000)
    assert 0.02 <= now_s - 100.0 <= 0.02 + late_s + 1e-9  # only the last wake-up's delay shows


def test_a_paced_sender_never_exceeds_the_rate() -> None:
    pacer = Pacer(80e6)
    begin_s = time.monotonic()
    for _ in range(20):
        pacer.wait(10_000)
    assert 0.02 <= time.monotonic() - begin_s < 0.2


def test_an_idle_sender_saves_nothing_up() -> None:
    pacer = Pacer(80e6)
    pacer.wait(10_000)
    time.sleep(0.05)
    begin_s = time.monotonic()
    pacer.wait(100_000)
    assert time.monotonic() - begin_s >= 0.01


def test_without_a_testbed_nothing_is_paced() -> None:
    pacer = Pacer.from_environment({})
    assert pacer.rate_bits_per_s is None
    pacer.reload()
    pacer.wait(10**15)


@pytest.mark.parametrize("text", ["fast", "0", "-3", "nan", "inf"])
def test_a_wrong_rate_in_the_environment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="positive number"):
        Pacer.from_environment({"COMPRESSA_PACE_BITS_PER_S": text})


def test_a_lost_rate_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="still up"):
        Pacer.from_environment({"COMPRESSA_PACE_FILE": str(tmp_path / "gone")})


# --- loopback ------------------------------------------------------------------------------------


def test_loopback_paces_its_own_senders_and_says_what_it_is() -> None:
    with open_testbed(hosts=2, link="20mbit", kind="loopback") as bed:
        assert bed.kind == "loopback"
        assert "no shaped network" in bed.notice
        assert bed.counters() is None
        assert {(h.address, h.interface) for h in bed.hosts} == {("127.0.0.1", "lo")}
        assert len(check_links(bed)) >= 4


def test_set_link_reaches_processes_that_run_already() -> None:
    with open_testbed(hosts=2, link="10mbit", kind="loopback", self_check=False) as bed:
        pacer = Pacer.from_environment(bed.environment(0))
        assert pacer.rate_bits_per_s == 1e7
        bed.set_link("1gbit")
        pacer.reload()
        assert pacer.rate_bits_per_s == 1e9
        bed.set_link("unshaped")
        pacer.reload()
        assert pacer.rate_bits_per_s is None


def test_loopback_leaves_nothing_behind() -> None:
    with open_testbed(hosts=2, kind="loopback", self_check=False) as bed:
        child = bed.spawn(1, ["sh", "-c", "sleep 1000 & wait"])
    assert child.returncode is not None
    assert find_processes(bed.name) == set()
    assert os.listdir(directory()) == ["lock"]
    bed.close()
    with pytest.raises(StateError, match="closed"):
        bed.spawn(0, ["true"])


def test_auto_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressa.testbed._network.shutil.which", lambda _program: None)
    with open_testbed(hosts=2, kind="auto", self_check=False) as bed:
        assert isinstance(bed, LoopbackTestbed)
        assert "iproute2" in bed.notice
        assert "NOT limited" in bed.notice
    with pytest.raises(BackendUnavailable, match="install the package iproute2"):
        open_testbed(hosts=2, kind="netns")


def test_missing_privilege_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BackendUnavailable("unshare: Operation not permitted")

    monkeypatch.setattr("compressa.testbed._network.require_programs", lambda: None)
    monkeypatch.setattr("compressa.testbed._network.choose_addresses", lambda n, taken: ["x"] * n)
    monkeypatch.setattr("compressa.testbed.netns.start_keeper", refuse)
    with pytest.raises(BackendUnavailable, match=r"Operation not permitted.*run as root"):
        open_testbed(hosts=2, kind="netns")
    assert os.listdir(directory()) == ["lock"]


def test_impossible_testbeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose 2 to 64"):
        open_testbed(hosts=1)
    with pytest.raises(ConfigError, match="auto, netns or loopback"):
        open_testbed(kind="vpn")
    assert list_testbeds() == []


def test_an_unreadable_record_is_named() -> None:
    (directory() / "abc.json").write_text("{")
    with pytest.raises(StateError, match=r"abc\.json is no record"):
        open_testbed(hosts=2, kind="loopback")


def test_a_record_of_an_earlier_boot_is_forgotten() -> None:
    with open_testbed(hosts=2, kind="loopback", self_check=False) as bed:
        file = directory() / f"{bed.name}.json"
        old = file.read_text().replace('"boot": "', '"boot": "earlier-')
    (directory() / "old.json").write_text(old.replace(bed.name, "old"))
    open_testbed(hosts=2, kind="loopback", self_check=False).close()
    assert os.listdir(directory()) == ["lock"]


def test_the_package_needs_nothing_but_the_standard_library() -> None:
    done = subprocess.run(script_argv("manage"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
