"""The parts of the exchanges beside sums: what is wanted, judged, shown and merged."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench_exchange import NETWORK, verdict, whole
from test_bench_exchange import row as row_of_sums

from benchmarks.exchange import run, targets
from benchmarks.exchange.means import Compressed
from benchmarks.exchange.method import Method
from benchmarks.exchange.plan import (
    BY_NAME,
    GRADIENTS_BYTES,
    LARGE_BYTES,
    METHODS,
    PARTS,
    Settings,
)
from benchmarks.exchange.records import (
    ExchangeMeasurement,
    Network,
    Omitted,
    Row,
    Simulated,
)
from benchmarks.exchange.simulate import LINK, simulated
from benchmarks.exchange.tables import part_tables
from benchmarks.exchange.transfers import check_pattern, indices, pattern
from compressa.collectives.algorithms import ALGORITHMS
from compressa.errors import ConfigError, TransportError

LINE = NETWORK.line_bytes_per_s


def network(hosts: int = 4, link: str = "1gbit") -> Network:
    rate = None if link == "unshaped" else 1e9 if "1gbit" in link else 1e8
    return NETWORK.model_copy(update={"hosts": hosts, "link": link, "rate_bits_per_s": rate})


def row(part: str, method: str, size_bytes: int, median_s: float, **changes: Any) -> Row:
    formula_bytes = BY_NAME[method].formula_bytes(size_bytes, changes.get("hosts", 4))
    own = {
        "part": part,
        "operations": 4,
        "formula_bytes": formula_bytes,
        "line_rate_share": formula_bytes / LINE / median_s,
        "predicted_s": median_s,
    }
    return row_of_sums(method, size_bytes, median_s, **(own | changes))


class TestPlan:
    """Which rows are wanted."""

    @pytest.mark.parametrize("part", PARTS)
    def test_each_part_can_be_measured_alone(self, part: str) -> None:
        settings = Settings(parts=[part])
        wanted = {
            (cell.part, cell.method.name, hosts, link, cell.size_bytes)
            for hosts in settings.all_hosts()
            for link in settings.links_of(hosts)
            for cell in settings.cells(hosts, link, lambda method: True)
        }
        own = PARTS[part]
        grid = len(own.hosts) * len(own.links) * len(own.sizes_bytes) * len(own.methods)
        assert len(wanted) == grid
        assert {place[0] for place in wanted} == {part}

    def test_by_default_every_method_of_every_part_is_wanted(self) -> None:
        settings = Settings()
        wanted = {
            cell.method.name
            for hosts in settings.all_hosts()
            for link in settings.links_of(hosts)
            for cell in settings.cells(hosts, link, lambda method: True)
        }
        assert wanted == set(BY_NAME) == {method.name for method in METHODS}

    def test_options_take_the_place_of_what_parts_have(self) -> None:
        settings = Settings(parts=["sums", "transfer"], hosts=[3], links=["1gbit"], pattern="send")
        assert settings.all_hosts() == [3]
        (cell,) = settings.cells(3, "1gbit", lambda method: True)
        assert (cell.part, cell.method.name, cell.rounds) == ("transfer", "send", 25)
        assert list(settings.cells(3, "100mbit", lambda method: True)) == []
        assert settings.most_bytes(3) == LARGE_BYTES

    def test_what_there_is_not_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="there is no 'sum'; there are: sums, compressed"):
            Settings(parts=["sum"])
        with pytest.raises(
            ConfigError, match="matches 'ring'; there are: send, send in large frames, torch send"
        ):
            Settings(parts=["transfer"], pattern="ring")

    def test_too_few_hosts_are_said_to_be_so(self) -> None:
        from_four = BY_NAME["multi_source from 4"]
        assert run.too_much(from_four, 1 << 20, network(4), 10.0) == "it takes 5 hosts"
        assert run.too_much(from_four, 1 << 20, network(5), 10.0) == ""


class TestMethods:
    """What methods send."""

    def test_compressed_bytes_are_those_of_the_payloads(self) -> None:
        int8, int4 = BY_NAME["int8"], BY_NAME["int4"]
        assert isinstance(int8, Compressed)
        elems = GRADIENTS_BYTES // 4
        assert int8.wire_bytes(GRADIENTS_BYTES) == pytest.approx(elems * (1 + 4 / 256), rel=1e-4)
        dense = BY_NAME["gloo all_reduce"].formula_bytes(GRADIENTS_BYTES, 4)
        assert dense / int8.formula_bytes(GRADIENTS_BYTES, 4) == pytest.approx(3.94, abs=0.01)
        assert dense / int4.formula_bytes(GRADIENTS_BYTES, 4) == pytest.approx(7.53, abs=0.01)

    def test_servers_have_what_all_workers_push_and_colocated_ones_share_it(self) -> None:
        size, wire = 4_000_000, 1_015_625  # int8 with a scale for each block of 256
        for name, payload in (("none", size), ("int8", wire)):
            busiest = {where: f"server {name} {where}" for where in ("2+1", "3+1", "colocated")}
            found = {w: BY_NAME[m].formula_bytes(size, 4) / payload for w, m in busiest.items()}
            assert found == pytest.approx({"2+1": 2, "3+1": 3, "colocated": 1.5}, rel=1e-4)
            assert BY_NAME[busiest["2+1"]].formula_bytes(size, 8) / payload == pytest.approx(
                2, rel=1e-4
            )

    def test_sources_are_different_ranks(self) -> None:
        for ranks in range(1, 10):
            for sources in range(1, ranks + 1):
                assert len(set(indices(sources, ranks))) == sources

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
    def test_what_passes_the_interfaces_by_is_found_out(self, method: Method) -> None:
        sent_bytes = method.sent_bytes(LARGE_BYTES, 8)
        run.check_counted(method, LARGE_BYTES, 8, 0.98 * sent_bytes)
        said = rf"{sent_bytes} bytes, and .* counted {0.9 * sent_bytes:.0f}: it does not use"
        with pytest.raises(TransportError, match=said):
            run.check_counted(method, LARGE_BYTES, 8, 0.9 * sent_bytes)

    def test_a_wrong_byte_is_seen(self) -> None:
        data = pattern(1000)
        check_pattern("it", data)
        data[999] += 1
        with pytest.raises(ArithmeticError, match="it has brought wrong bytes"):
            check_pattern("it", data)
        assert not torch.equal(pattern(512)[:256], pattern(512)[256:])


class TestTargets:
    """What rows are judged to reach."""

    @pytest.mark.parametrize(
        ("link", "speed_up", "met"),
        [("100mbit", 3.36, True), ("100mbit", 3.3, False), ("1gbit", 2.77, True)],
    )
    def test_time_saved_is_measured_by_bytes_saved(
        self, link: str, speed_up: float, met: bool
    ) -> None:
        rows = [
            row("compressed", "gloo all_reduce", GRADIENTS_BYTES, 1.0, link=link),
            row("compressed", "int8", GRADIENTS_BYTES, 1 / speed_up, link=link),
            row("compressed", "none", GRADIENTS_BYTES, 9.0, link=link),
        ]
        measured = whole(*rows, networks=[network(4, link)])
        found = verdict("compressed, speed-up over Gloo", measured)
        assert (found.reached, found.at, found.met) == (f"{speed_up:.2f}", "int8, 17.1 MB", met)

    @pytest.mark.parametrize(
        ("share", "load", "met"), [(0.96, 0.5, True), (0.9, 0.5, False), (0.9, 1.0, None)]
    )
    def test_a_broadcast_from_several_sources_is_judged_by_the_floor(
        self, share: float, load: float, met: bool | None
    ) -> None:
        floor_s = LARGE_BYTES / LINE
        rows = [
            row("broadcast", "auto from 4", LARGE_BYTES, floor_s / share, hosts=8, load=load),
            row("broadcast", "auto from 1", LARGE_BYTES, floor_s, hosts=8),
        ]
        found = verdict("broadcast from 4, of the floor", whole(*rows, networks=[network(8)]))
        assert (found.reached, found.met) == (f"{share:.2f}", met)

    @pytest.mark.parametrize(("ours_s", "met"), [(0.8404, True), (0.85, False)])
    def test_a_transfer_with_default_settings_is_to_be_the_fastest(
        self, ours_s: float, met: bool
    ) -> None:
        rows = [
            row("transfer", "send", LARGE_BYTES, ours_s),
            row("transfer", "send in large frames", LARGE_BYTES, 0.1),
            row("transfer", "torch send", LARGE_BYTES, 0.84),
            row("transfer", "ray get", LARGE_BYTES, 0.9),
        ]
        found = verdict("transfer, of the fastest other", whole(*rows))
        assert (found.at, found.met) == ("send, 100 MB, beside torch send", met)

    def test_parts_do_not_judge_each_other(self) -> None:
        rows = [row("transfer", "send", LARGE_BYTES, 9.0, predicted_s=1.0)]
        assert targets.verdicts(whole(*rows)) == []


class TestTables:
    """What is shown."""

    def test_every_part_has_its_figures(self) -> None:
        rows = [
            row("compressed", "gloo all_reduce", GRADIENTS_BYTES, 1.0),
            row("compressed", "int8", GRADIENTS_BYTES, 0.5),
            row("server", "gloo all_reduce", 4_000_000, 0.09),
            row("server", "server none 3+1", 4_000_000, 12_000_000 / LINE / 0.8),
            row("broadcast", "k_nomial from 1", LARGE_BYTES, 3 * LARGE_BYTES / LINE, hosts=8),
            row("transfer", "ray get", LARGE_BYTES, 1.0, hosts=2, load=0.95),
            row("striping", "send over 1", 1 << 20, 1.0, hosts=2),
            row("striping", "send over 4", 1 << 20, 0.25, hosts=2),
            row("hosts", "ring", 1 << 10, 0.002, hosts=2, predicted_s=0.001),
            row("hosts", "ring", 1 << 10, 0.004, hosts=3, predicted_s=0.003),
        ]
        simulation = Simulated(
            method="tree",
            hosts=1024,
            size_bytes=1 << 16,
            message_s=1e-4,
            byte_s=8e-8,
            took_s=0.1,
            predicted_s=0.2,
        )
        measured = whole(*rows).model_copy(update={"simulated": [simulation]})
        tables = part_tables(measured)
        cells = [line for table in tables for line in table.lines]
        assert ("int8", "500", "2.00", "3.94", "0.51") in cells
        assert ("server none 3+1", "126", "101", "0.80", "0.71") in cells
        assert ("k_nomial from 1", "2,521 (0.33)") in cells
        assert ("ray get", "1,000*", "1,000", "1,000", "3") in cells
        assert [("1", "1,000", "1.00"), ("4", "250", "4.00")] in [t.lines for t in tables]
        assert ("ring", "2.00 (1.00)", "4.00 (3.00)") in cells
        assert ("tree", "100 (200)") in cells

    def test_what_was_not_measured_has_no_table(self) -> None:
        assert part_tables(whole(row("sums", "ring", 1024, 1.0))) == []


class TestUpdates:
    """A part that is measured again."""

    def test_newer_rows_take_the_place_of_older_ones(self, tmp_path: Path) -> None:
        kept = row("sums", "ring", 1024, 1.0)
        again = row("transfer", "send", 1024, 2.0)
        left_out = Omitted(
            part="transfer", hosts=4, link="1gbit", method="ray get", size_bytes=1024, why="no"
        )
        older = whole(kept, again, networks=[network(2), network(4)])
        older = older.model_copy(update={"omitted": [left_out]})
        faster = again.model_copy(update={"p20_s": 1.0, "median_s": 1.5})
        came = row("transfer", "ray get", 1024, 3.0)
        newer = whole(faster, came, networks=[network(4), network(8)])
        newer.header.versions["ray"] = "2.60"
        found = older.updated(newer)
        assert found.rows == [kept, faster, came]
        assert found.missing == []
        assert [n.hosts for n in found.from_slow_to_fast] == [2, 4, 8]
        assert found.header.versions.keys() >= {"torch", "ray"}
        found.write(tmp_path / "out.json")
        assert ExchangeMeasurement.read(tmp_path / "out.json") == found

    def test_what_can_not_be_measured_again_stays(self) -> None:
        older = whole(row("transfer", "mpi Send", 1024, 1.0))
        refused = [
            Omitted(
                part="transfer", hosts=4, link="1gbit", method=name, size_bytes=1024, why="no root"
            )
            for name in ("mpi Send", "ray get")
        ]
        found = older.updated(whole().model_copy(update={"omitted": refused}))
        assert found.rows == older.rows
        assert [row.method for row in found.missing] == ["ray get"]

    def test_rows_of_another_machine_are_refused(self) -> None:
        older = whole(row("sums", "ring", 1024, 1.0))
        head = older.header.model_copy(update={"cpu": "another"})
        with pytest.raises(ConfigError, match=r"cpu is another, and .* write another file"):
            older.model_copy(update={"header": head}).updated(older)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_virtual_clock_shows_what_each_rank_more_costs(name: str) -> None:
    rows = list(itertools.islice(simulated(name), 5))
    assert [row.hosts for row in rows] == [2, 4, 8, 16, 32]
    for row in rows:
        assert row.took_s == pytest.approx(row.predicted_s, rel=0.05)
        stages = ALGORITHMS[name].stages(row.size_bytes, row.hosts)
        assert row.predicted_s == pytest.approx(LINK.time_s(stages))
