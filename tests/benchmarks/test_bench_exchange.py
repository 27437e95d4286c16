"""What the benchmark of exchanges counts, judges and writes down; no network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import hosts
from benchmarks.__main__ import app
from benchmarks.exchange import run, tables, targets
from benchmarks.exchange.plan import BY_NAME, METHODS
from benchmarks.exchange.records import (
    ExchangeMeasurement,
    Header,
    Network,
    Row,
)
from compressa.errors import BackendUnavailable, ConfigError
from compressa.link.chain import LEAST_CHAIN_S, timed
from harness.tables import Verdict

NETWORK = Network(
    hosts=4,
    link="1gbit",
    rate_bits_per_s=1e9,
    line_bytes_per_s=1.19e8,
    message_s=1e-4,
    byte_s=1 / 1.19e8,
    reduce_s=1e-10,
)


def row(method: str, size_bytes: int, median_s: float, **changes: Any) -> Row:
    known, network = BY_NAME[method], NETWORK
    formula_bytes = known.formula_bytes(size_bytes, network.hosts)
    fields: dict[str, Any] = {
        "hosts": network.hosts,
        "link": network.link,
        "method": method,
        "by": known.by,
        "verb": known.verb,
        "size_bytes": size_bytes,
        "median_s": median_s,
        "p20_s": median_s,
        "p80_s": median_s,
        "operations": 10,
        "formula_bytes": formula_bytes,
        "line_rate_share": formula_bytes / network.line_bytes_per_s / median_s,
        "predicted_s": None,
        "counted_bytes": 10 * size_bytes,
        "load": 0.5,
        "timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return Row(**(fields | changes))


def whole(*rows: Row, networks: Sequence[Network] = (NETWORK,)) -> ExchangeMeasurement:
    head = Header.here({"torch": "2.13"}, budget_s=1.0, longest_s=10.0)
    return ExchangeMeasurement(header=head, networks=[*networks], rows=[*rows], omitted=[])


def verdict(name: str, measured: ExchangeMeasurement) -> Verdict:
    (found,) = [v for v in targets.verdicts(measured) if v.target == name]
    return found


def at_line_rate(method: str, share: float, **changes: Any) -> Row:
    size_bytes = 4_000_000
    line_s = BY_NAME[method].formula_bytes(size_bytes, 4) / NETWORK.line_bytes_per_s
    return row(method, size_bytes, line_s / share, **changes)


class TestChain:
    """How often operations are done, and what is said of it."""

    @pytest.mark.parametrize(
        ("call_s", "samples"),
        [(1e-4, 7), (0.01, 7), (0.2, 5), (0.5, 3), (1.2, 1), (5.0, 1), (20.0, 1)],
    )
    def test_all_operations_are_counted_and_chains_long_enough(
        self, call_s: float, samples: int
    ) -> None:
        done, verified, now_s, lengths = 0, [], [0.0], []

        def call() -> None:
            nonlocal done
            done += 1
            now_s[0] += call_s

        def barrier() -> None:
            lengths.append(done)

        found, operations = timed(
            call, lambda: verified.append(done), barrier, lambda s: s, 1.0, clock=lambda: now_s[0]
        )
        assert found == pytest.approx([call_s] * samples)
        assert operations == done
        assert verified == [1]
        if samples > 1:
            assert (done - lengths[-1]) * call_s >= LEAST_CHAIN_S * 0.99


class TestMethods:
    """What methods send."""

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
    @pytest.mark.parametrize("ranks", range(2, 10))
    def test_no_formula_is_below_what_has_to_be_sent(self, method: Any, ranks: int) -> None:
        n = 1 << 20
        least = method.floor_bytes(n, ranks)
        if ranks >= method.least_ranks:
            assert method.formula_bytes(n, ranks) >= least * (1 - 1e-9)
            serve = getattr(method, "servers", 0) or ranks
            receivers = {
                "all_reduce": ranks,
                "all_gather": ranks,
                "transfer": 1,
                "push_pull": serve,
            }
            sources = getattr(method, "sources", 0)
            hear = receivers.get(method.verb, ranks - sources)
            assert method.sent_bytes(n, ranks) >= hear * least * (1 - 1e-6)

    def test_what_would_take_too_long_or_too_much_memory_is_left_out(self) -> None:
        def why(method: str, size_bytes: int) -> str:
            return run.too_much(BY_NAME[method], size_bytes, NETWORK, 1.0)

        assert why("ring", 60_000_000) == ""
        assert why("ring", 100_000_000) == "1 s for one operation"
        assert why("all_to_all", 15_000_000) == ""
        assert why("all_to_all", 60_000_000) == "2 s for one operation"
        assert "memory" in why("all_gather", 1 << 40)


class TestTargets:
    """What rows are judged to reach."""

    def test_the_row_farthest_from_line_rate_decides(self) -> None:
        rows = [at_line_rate("ring", 0.96), at_line_rate("tree", 0.5), row("ring", 1024, 1.0)]
        found = verdict("all_reduce, of line rate", whole(*rows))
        assert (found.reached, found.at, found.met) == ("0.96", "ring, 4 MB", True)
        found = verdict(
            "all_reduce, of line rate", whole(*rows, at_line_rate("scatter_reduce", 0.94))
        )
        assert (found.at, found.met) == ("scatter_reduce, 4 MB", False)

    def test_busy_processors_excuse_many_hosts_only(self) -> None:
        busy = at_line_rate("ring", 0.5, load=0.95)
        assert verdict("all_reduce, of line rate", whole(busy)).met is False
        eight = NETWORK.model_copy(update={"hosts": 8})
        rows = [busy.model_copy(update={"hosts": 8}), at_line_rate("ring", 0.96, hosts=8)]
        name = "all_reduce, of line rate"
        assert verdict(name, whole(*rows, networks=[eight])).met is True
        found = verdict(name, whole(rows[0], networks=[eight]))
        assert found.met is None
        assert "processors busy in 1 of 1 rows" in found.at

    def test_no_line_rate_is_asked_of_unshaped_links(self) -> None:
        unshaped = NETWORK.model_copy(update={"rate_bits_per_s": None})
        assert targets.verdicts(whole(at_line_rate("ring", 0.5), networks=[unshaped])) == []

    def test_small_sums_stand_beside_the_best_of_the_others(self) -> None:
        rows = [
            row("tree", 1024, 3e-3),
            row("ring", 1024, 2e-3),
            row("auto", 1024, 9e-3),
            row("gloo all_reduce", 1024, 4e-3),
            row("mpi Allreduce", 1024, 1.1e-3),
            row("ring", 1 << 16, 9.0),
        ]
        found = verdict("small, of Gloo and MPI", whole(*rows))
        at = "ring, 1 KiB, beside mpi Allreduce"
        assert (found.reached, found.at, found.met) == ("1.82", at, True)
        faster = whole(*rows[:4], row("mpi Allreduce", 1024, 0.9e-3))
        assert verdict("small, of Gloo and MPI", faster).met is False

    @pytest.mark.parametrize(("auto_s", "met"), [(2.1e-3, True), (2.3e-3, False)])
    def test_auto_stands_beside_ours_and_gloo(self, auto_s: float, met: bool) -> None:
        others = [row("gloo all_reduce", 1024, 2e-3), row("mpi Allreduce", 1024, 1e-3)]
        measured = whole(row("auto", 1024, auto_s), row("ring", 1024, 4e-3), *others)
        assert verdict("auto, of ours and Gloo", measured).met is met

    def test_the_model_is_judged_by_large_rows(self) -> None:
        rows = [
            row("ring", 1 << 20, 1.0, predicted_s=1.05),
            row("tree", 1 << 20, 1.0, predicted_s=0.96),
            row("round_robin", 1 << 20, 1.0, predicted_s=0.7),
            row("ring", 1024, 1.0, predicted_s=9.0),
        ]
        assert verdict("model, median error", whole(*rows)).reached == "5%"
        found = verdict("model, worst error", whole(*rows))
        assert (found.reached, found.at, found.met) == ("30%", "round_robin, 1 MiB", False)

    def test_tables_have_times_shares_and_marks(self) -> None:
        rows = [row("ring", 1024, 1.234e-3), at_line_rate("ring", 0.96, load=0.95)]
        measured = whole(*rows, row("gloo all_reduce", 1024, 0.5))
        shown = tables.times(NETWORK, measured.rows)
        assert shown.titles == ("ms (of line rate)", "1 KiB", "4 MB")
        assert shown.lines == [("ring", "1.23", "52.5 (0.96)*"), ("gloo all_reduce", "500", "-")]
        judged = next(iter(tables.shown(measured)))
        assert isinstance(judged, Table)
        assert ("ring, 4 MB", "met") in {line[-2:] for line in judged.lines}


def command(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["exchange", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


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
