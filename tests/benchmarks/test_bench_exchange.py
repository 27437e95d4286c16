"""What the benchmark of exchanges wants, counts, judges, shows and writes down; no network."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import hosts
from benchmarks.__main__ import app
from benchmarks.exchange import run, tables, targets
from benchmarks.exchange.means import Compressed
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
    Header,
    Network,
    Omitted,
    Row,
    Simulated,
)
from benchmarks.exchange.simulate import LINK, simulated
from benchmarks.exchange.transfers import check_pattern, indices, pattern
from compressa.collectives.algorithms import ALGORITHMS
from compressa.errors import BackendUnavailable, ConfigError, TransportError
from harness.tables import Table, Verdict

LINE = 1.19e8
MEGABYTES = 4_000_000


def network(hosts: int = 4, link: str = "1gbit") -> Network:
    rate = None if link == "unshaped" else 1e9 if "1gbit" in link else 1e8
    return Network(
        hosts=hosts,
        link=link,
        rate_bits_per_s=rate,
        line_bytes_per_s=LINE,
        message_s=1e-4,
        byte_s=1 / LINE,
        reduce_s=1e-10,
    )


def row(method: str, size_bytes: int, median_s: float, **changes: Any) -> Row:
    known = BY_NAME[method]
    formula_bytes = known.formula_bytes(size_bytes, changes.get("hosts", 4))
    fields: dict[str, Any] = {
        "hosts": 4,
        "link": "1gbit",
        "method": method,
        "by": known.by,
        "verb": known.verb,
        "size_bytes": size_bytes,
        "median_s": median_s,
        "p20_s": median_s,
        "p80_s": median_s,
        "operations": 4,
        "formula_bytes": formula_bytes,
        "line_rate_share": formula_bytes / LINE / median_s,
        "predicted_s": None,
        "counted_bytes": 10 * size_bytes,
        "load": 0.5,
        "timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return Row(**(fields | changes))


def at_line_rate(method: str, share: float, **changes: Any) -> Row:
    line_s = BY_NAME[method].formula_bytes(MEGABYTES, 4) / LINE
    return row(method, MEGABYTES, line_s / share, **changes)


def whole(*rows: Row, networks: Sequence[Network] = (), **more: Any) -> ExchangeMeasurement:
    head = Header.here({"torch": "2.13"}, budget_s=1.0, longest_s=10.0)
    there = [*networks] or [network()]
    return ExchangeMeasurement(
        header=head, networks=there, rows=[*rows], **({"omitted": []} | more)
    )


def left_out(method: str, why: str = "no root") -> Omitted:
    return Omitted(part="sums", hosts=4, link="1gbit", method=method, size_bytes=1024, why=why)


def verdict(name: str, measured: ExchangeMeasurement) -> Verdict:
    (found,) = [v for v in targets.verdicts(measured) if v.target == name]
    return found


class TestPlan:
    """Which rows are wanted."""

    @staticmethod
    def wanted(settings: Settings) -> set[tuple[str, str, int, str, int]]:
        return {
            (cell.part, cell.method.name, hosts, link, cell.size_bytes)
            for hosts in settings.all_hosts()
            for link in settings.links_of(hosts)
            for cell in settings.cells(hosts, link, lambda method: True)
        }

    def test_every_part_can_be_measured_alone_and_all_is_every_method(self) -> None:
        for name, own in PARTS.items():
            found = self.wanted(Settings(parts=[name]))
            grid = len(own.hosts) * len(own.links) * len(own.sizes_bytes) * len(own.methods)
            assert len(found) == grid
            assert {cell[0] for cell in found} == {name}
        names = {cell[1] for cell in self.wanted(Settings())}
        assert names == set(BY_NAME) == {method.name for method in METHODS}

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

    def test_what_takes_more_hosts_time_or_memory_than_there_is_is_left_out(self) -> None:
        def why(method: str, size_bytes: int, hosts: int = 4) -> str:
            return run.too_much(BY_NAME[method], size_bytes, network(hosts), 1.0)

        assert why("ring", 60_000_000) == ""
        assert why("ring", 100_000_000) == "1 s for one operation"
        assert why("all_to_all", 15_000_000) == ""
        assert why("all_to_all", 60_000_000) == "2 s for one operation"
        assert "memory" in why("all_gather", 1 << 40)
        assert why("multi_source from 4", 1 << 20) == "it takes 5 hosts"
        assert why("multi_source from 4", 1 << 20, 5) == ""


class TestMethods:
    """What methods send."""

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
    def test_no_formula_is_below_what_has_to_be_sent(self, method: Any) -> None:
        n = 1 << 20
        for ranks in range(method.least_ranks, 10):
            needs = method.needs(n, ranks)
            least = needs.floor_bytes
            assert method.formula_bytes(n, ranks) >= least * (1 - 1e-9)
            serve = getattr(method, "servers", 0) or ranks
            alike = {"all_reduce": ranks, "all_gather": ranks, "transfer": 1, "push_pull": serve}
            hear = alike.get(method.verb, ranks - getattr(method, "sources", 0))
            assert needs.sent_bytes >= hear * least * (1 - 1e-6)

    def test_what_passes_the_interfaces_by_is_found_out(self) -> None:
        for method in METHODS:
            sent_bytes = method.needs(LARGE_BYTES, 8).sent_bytes
            run.check_counted(method, LARGE_BYTES, 8, 0.98 * sent_bytes)
            said = rf"{sent_bytes} bytes, and .* counted {0.9 * sent_bytes:.0f}: it does not use"
            with pytest.raises(TransportError, match=said):
                run.check_counted(method, LARGE_BYTES, 8, 0.9 * sent_bytes)

    def test_compressed_bytes_are_those_of_the_payloads(self) -> None:
        int8, int4 = BY_NAME["int8"], BY_NAME["int4"]
        assert isinstance(int8, Compressed)
        elems = GRADIENTS_BYTES // 4
        assert int8.wire_bytes(GRADIENTS_BYTES) == pytest.approx(elems * (1 + 4 / 256), rel=1e-4)
        dense = BY_NAME["gloo all_reduce"].formula_bytes(GRADIENTS_BYTES, 4)
        assert dense / int8.formula_bytes(GRADIENTS_BYTES, 4) == pytest.approx(3.94, abs=0.01)
        assert dense / int4.formula_bytes(GRADIENTS_BYTES, 4) == pytest.approx(7.53, abs=0.01)

    @pytest.mark.parametrize(("name", "payload"), [("none", MEGABYTES), ("int8", 1_015_625)])
    def test_servers_have_what_all_workers_push_and_colocated_ones_share_it(
        self, name: str, payload: int
    ) -> None:
        for where, ranks, share in (("2+1", 4, 2), ("3+1", 4, 3), ("colocated", 4, 1.5)):
            found = BY_NAME[f"server {name} {where}"].formula_bytes(MEGABYTES, ranks)
            assert found == pytest.approx(share * payload, rel=1e-4)

    def test_sources_are_different_ranks(self) -> None:
        for ranks in range(1, 10):
            for sources in range(1, ranks + 1):
                assert len(set(indices(sources, ranks))) == sources

    def test_a_wrong_byte_is_seen(self) -> None:
        data = pattern(1000)
        check_pattern("it", data)
        assert not pattern(1000, known=False).any()
        data[999] += 1
        with pytest.raises(ArithmeticError, match="it has brought wrong bytes"):
            check_pattern("it", data)
        assert not torch.equal(pattern(512)[:256], pattern(512)[256:])


class TestTargets:
    """What rows are judged to reach."""

    def test_the_row_farthest_from_line_rate_decides(self) -> None:
        name = "all_reduce, of line rate"
        rows = [at_line_rate("ring", 0.96), at_line_rate("tree", 0.5), row("ring", 1024, 1.0)]
        found = verdict(name, whole(*rows))
        assert (found.reached, found.at, found.met) == ("0.96", "ring, 4 MB", True)
        found = verdict(name, whole(*rows, at_line_rate("halving_doubling", 0.94)))
        assert (found.at, found.met) == ("halving_doubling, 4 MB", False)

    def test_busy_processors_excuse_many_hosts_only(self) -> None:
        name = "all_reduce, of line rate"
        assert verdict(name, whole(at_line_rate("ring", 0.5, load=0.95))).met is False
        busy, idle = (
            at_line_rate("ring", share, load=load, hosts=8)
            for share, load in ((0.5, 0.95), (0.96, 0.5))
        )
        assert verdict(name, whole(busy, idle, networks=[network(8)])).met is True
        found = verdict(name, whole(busy, networks=[network(8)]))
        assert found.met is None
        assert "processors busy in 1 of 1 rows" in found.at

    def test_no_line_rate_is_asked_of_unshaped_links_and_parts_do_not_judge_each_other(
        self,
    ) -> None:
        there = network(4, "unshaped")
        slow = at_line_rate("ring", 0.5, link="unshaped")
        assert targets.verdicts(whole(slow, networks=[there])) == []
        sent = row("send", LARGE_BYTES, 9.0, part="transfer", predicted_s=1.0)
        assert targets.verdicts(whole(sent)) == []

    @pytest.mark.parametrize(("mpi_s", "met"), [(1.1e-3, True), (0.9e-3, False)])
    def test_small_sums_stand_beside_the_best_of_the_others(self, mpi_s: float, met: bool) -> None:
        rows = [
            row("tree", 1024, 3e-3),
            row("ring", 1024, 2e-3),
            row("auto", 1024, 9e-3),
            row("gloo all_reduce", 1024, 4e-3),
            row("mpi Allreduce", 1024, mpi_s),
            row("ring", 1 << 16, 9.0),
        ]
        found = verdict("small, of Gloo and MPI", whole(*rows))
        at = "ring, 1 KiB, beside mpi Allreduce"
        assert (found.reached, found.at, found.met) == (f"{2e-3 / mpi_s:.2f}", at, met)

    @pytest.mark.parametrize(("auto_s", "met"), [(2.1e-3, True), (2.3e-3, False)])
    def test_auto_stands_beside_ours_and_gloo(self, auto_s: float, met: bool) -> None:
        others = [row("gloo all_reduce", 1024, 2e-3), row("mpi Allreduce", 1024, 1e-3)]
        measured = whole(row("auto", 1024, auto_s), row("ring", 1024, 4e-3), *others)
        assert verdict("auto, of ours and Gloo", measured).met is met

    def test_the_model_is_judged_by_large_rows(self) -> None:
        rows = [
            row("ring", 1 << 20, 1.0, predicted_s=1.05, calibrated_s=1.02),
            row("tree", 1 << 20, 1.0, predicted_s=0.96, calibrated_s=0.8),
            row("round_robin", 1 << 20, 1.0, predicted_s=0.7),
            row("ring", 1024, 1.0, predicted_s=9.0, calibrated_s=9.0),
        ]
        assert verdict("formula, median error", whole(*rows)).reached == "5%"
        found = verdict("formula, worst error", whole(*rows))
        assert (found.reached, found.at, found.met) == ("30%", "round_robin, 1 MiB", False)
        found = verdict("what auto goes by, worst error", whole(*rows))
        assert (found.reached, found.at, found.met) == ("20%", "tree, 1 MiB", True)

    @pytest.mark.parametrize(
        ("link", "speed_up", "met"),
        [("100mbit", 3.36, True), ("100mbit", 3.3, False), ("1gbit", 2.77, True)],
    )
    def test_time_saved_is_measured_by_bytes_saved(
        self, link: str, speed_up: float, met: bool
    ) -> None:
        times_s = {"gloo all_reduce": 1.0, "int8": 1 / speed_up, "none": 9.0}
        rows = [
            row(method, GRADIENTS_BYTES, time_s, part="compressed", link=link)
            for method, time_s in times_s.items()
        ]
        found = verdict("compressed, speed-up over Gloo", whole(*rows, networks=[network(4, link)]))
        assert (found.reached, found.at, found.met) == (f"{speed_up:.2f}", "int8, 17.1 MB", met)

    @pytest.mark.parametrize(
        ("share", "load", "met"), [(0.96, 0.5, True), (0.9, 0.5, False), (0.9, 1.0, None)]
    )
    def test_a_broadcast_from_several_sources_is_judged_by_the_floor(
        self, share: float, load: float, met: bool | None
    ) -> None:
        floor_s, there = LARGE_BYTES / LINE, {"part": "broadcast", "hosts": 8}
        rows = [
            row("auto from 4", LARGE_BYTES, floor_s / share, load=load, **there),
            row("auto from 1", LARGE_BYTES, floor_s, **there),
        ]
        found = verdict("broadcast from 4, of the floor", whole(*rows, networks=[network(8)]))
        assert (found.reached, found.met) == (f"{share:.2f}", met)

    @pytest.mark.parametrize(("ours_s", "met"), [(0.8404, True), (0.85, False)])
    def test_a_transfer_with_default_settings_is_to_be_the_fastest(
        self, ours_s: float, met: bool
    ) -> None:
        times_s = {"send": ours_s, "send in large frames": 0.1, "torch send": 0.84, "ray get": 0.9}
        rows = [row(name, LARGE_BYTES, s, part="transfer") for name, s in times_s.items()]
        found = verdict("transfer, of the fastest other", whole(*rows))
        assert (found.at, found.met) == ("send, 100 MB, beside torch send", met)


class TestTables:
    """What is shown."""

    def test_times_have_shares_and_marks(self) -> None:
        rows = [row("ring", 1024, 1.234e-3), at_line_rate("ring", 0.96, load=0.95)]
        measured = whole(*rows, row("gloo all_reduce", 1024, 0.5))
        shown = tables.times(network(), measured.rows)
        assert shown.titles == ("ms (of line rate)", "1 KiB", "4 MB")
        assert shown.lines == [("ring", "1.23", "52.5 (0.96)*"), ("gloo all_reduce", "500", "-")]
        judged = next(iter(tables.shown(measured)))
        assert isinstance(judged, Table)
        assert ("ring, 4 MB", "met") in {line[-2:] for line in judged.lines}

    def test_every_part_has_its_figures(self) -> None:
        there = [
            ("compressed", "gloo all_reduce", GRADIENTS_BYTES, 1.0, {}),
            ("compressed", "int8", GRADIENTS_BYTES, 0.5, {}),
            ("server", "gloo all_reduce", MEGABYTES, 0.09, {}),
            ("server", "server none 3+1", MEGABYTES, 12_000_000 / LINE / 0.8, {}),
            ("broadcast", "k_nomial from 1", LARGE_BYTES, 3 * LARGE_BYTES / LINE, {"hosts": 8}),
            ("transfer", "ray get", LARGE_BYTES, 1.0, {"hosts": 2, "load": 0.95}),
            ("striping", "send over 1", 1 << 20, 1.0, {"hosts": 2}),
            ("striping", "send over 4", 1 << 20, 0.25, {"hosts": 2}),
            ("hosts", "ring", 1 << 10, 0.002, {"hosts": 2, "predicted_s": 0.001}),
            ("hosts", "ring", 1 << 10, 0.004, {"hosts": 3, "predicted_s": 0.003}),
        ]
        rows = [row(m, size, s, part=part, **more) for part, m, size, s, more in there]
        virtual = {"method": "tree", "hosts": 1024, "size_bytes": 1 << 16}
        costs = {"message_s": 1e-4, "byte_s": 8e-8, "took_s": 0.1, "predicted_s": 0.2}
        parts = tables.part_tables(whole(*rows, simulated=[Simulated(**virtual, **costs)]))
        cells = [line for table in parts for line in table.lines]
        assert ("int8", "500", "2.00", "3.94", "0.51") in cells
        assert ("server none 3+1", "126", "101", "0.80", "0.71") in cells
        assert ("k_nomial from 1", "2,521 (0.33)") in cells
        assert ("ray get", "1,000*", "1,000", "1,000", "3") in cells
        assert [("1", "1,000", "1.00"), ("4", "250", "4.00")] in [t.lines for t in parts]
        assert ("ring", "2.00 (1.00)", "4.00 (3.00)") in cells
        assert ("tree", "100 (200)") in cells
        assert tables.part_tables(whole(row("ring", 1024, 1.0))) == []


def test_a_part_that_is_measured_again_takes_the_place_of_older_rows() -> None:
    kept, again = row("ring", 1024, 1.0), row("send", 1024, 2.0)
    older = whole(
        kept, again, networks=[network(2), network(4)], omitted=[left_out("mpi Allreduce")]
    )
    faster, came = (row(m, 1024, 1.5) for m in ("send", "mpi Allreduce"))
    newer = whole(
        faster,
        came,
        networks=[network(4), network(8)],
        omitted=[left_out("ring"), left_out("ray get")],
    )
    newer.header.versions["ray"] = "2.60"
    found = older.updated(newer)
    assert found.rows == [kept, faster, came]
    assert [row.method for row in found.missing] == ["ray get"]  # the others have rows
    assert [n.hosts for n in found.from_slow_to_fast] == [2, 4, 8]
    assert found.header.versions.keys() >= {"torch", "ray"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_virtual_clock_shows_what_each_rank_more_costs(name: str) -> None:
    rows = list(itertools.islice(simulated(name), 5))
    assert [row.hosts for row in rows] == [2, 4, 8, 16, 32]
    for row in rows:
        assert row.took_s == pytest.approx(row.predicted_s, rel=0.05)
        stages = ALGORITHMS[name].stages(row.size_bytes, row.hosts)
        assert row.predicted_s == pytest.approx(LINK.time_s(stages))


def command(*words: str) -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["exchange", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--what", "rong"], "no name matches 'rong'; there are: .*ring.*mpi Allgather"),
        (["--size", "5"], "multiple of 4"),
        (["--size", "many"], "must be a size"),
        (["--link", "fast"], "is not a link"),
    ],
)
def test_a_wrong_option_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        command(*words)


def test_without_namespaces_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BackendUnavailable("Network namespaces are not permitted here; run as root")

    monkeypatch.setattr(hosts, "open_testbed", refuse)
    with pytest.raises(BackendUnavailable, match=r"between network namespaces only.* run as root"):
        command("--quick")
