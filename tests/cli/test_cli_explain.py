"""`compressa explain` shows what is exchanged, by which algorithm, and the numbers behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import printed, refused, run
from test_link_file import favouring, write_link

from compressa.aggregators import Round, Verb
from compressa.collectives import tree
from compressa.collectives.algorithms import segments_of
from compressa.collectives.all_gather import ALL_GATHERS, DIRECT
from compressa.collectives.choice import CANDIDATES, Costs
from compressa.collectives.cost import Link
from compressa.config import assign, load_config
from compressa.engine.units.sums import Sums
from compressa.forecast import Forecast, parameter_of
from compressa.transports.loopback import Loopback
from compressa.transports.lowered import AVAILABLE


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "compressa.toml"
    path.write_text('compressor = "none"\n')
    return path


def explained(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    lines = printed(capsys, "explain", *arguments).splitlines()
    return [" ".join(line.split()) for line in lines]


def test_it_shows_the_choice_and_the_numbers_behind_it(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_link(tmp_path / "link.json", favouring("tree"))
    lines = explained(capsys, config, "--link", file, "--size", "1MiB")
    assert "4 ranks." in lines[0]
    assert all(text in lines[0] for text in ("a = 100 us", "b = 10 ns", "g = 0.1 ns", "100 MB/s"))
    assert any(line.startswith("none tree 1 1 MiB 1 MiB ") for line in lines)
    candidates = [line.split()[0] for line in lines if line.split()[:1] and line[0].islower()]
    assert set(CANDIDATES) <= set(candidates)
    ring = next(line.split() for line in lines if line.startswith("ring "))
    assert ring[1:3] == ["6", "1,572,864"]


def test_more_ranks_than_are_worked_out_are_refused_at_once(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("explain", config, "--ranks", "1000000000", "--size", "1MiB") == 2
    assert "less than or equal to 1024" in capsys.readouterr().err


def test_the_configured_link_is_used_unless_another_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_link(tmp_path / "first.json", favouring("tree"))
    other = write_link(tmp_path / "other.json", favouring("ring"))
    config = tmp_path / "c.toml"
    config.write_text(f'[exchange]\nlink = "{first}"\n')
    assert any("none tree" in line for line in explained(capsys, config, "--size", "1MiB"))
    lines = explained(capsys, config, "--size", "1MiB", "--link", other)
    assert any("none ring" in line for line in lines)


def test_compressed_exchanges_stand_beside_what_dense_ones_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_link(tmp_path / "link.json", {**favouring("ring"), "measured": []})
    config = tmp_path / "c.toml"
    for compressor, way in (("topk", "all_gather"), ("int8", "scatter_reduce")):
        config.write_text(f'compressor = "{compressor}"\n')
        lines = explained(capsys, config, "--link", file, "--size", "16MiB", "--ranks", 8)
        row = next(line.split() for line in lines if line.startswith(f"{compressor} {way} "))
        each_ms, dense_ms, gain = (float(word.replace(",", "")) for word in row[-3:])
        assert gain == pytest.approx(dense_ms / each_ms, rel=0.05)
        assert gain > 2


def test_without_a_link_it_shows_what_is_exchanged(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = explained(capsys, config, "--ranks", 4)
    assert "compressa link --out" in lines[0]
    assert any(line.startswith("none round_robin 1 64 KiB 64 KiB - - -") for line in lines)
    large = "halving_doubling" if AVAILABLE else "backend"
    assert any(line.startswith(f"none {large} 1 1 MiB 1 MiB - - -") for line in lines)


def test_it_shows_the_rounds_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "explained.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))\n"
    )
    config = tmp_path / "c.toml"
    config.write_text(
        'compressor = "powersgd"\n[[rules]]\nmatch = {role = "bias"}\ncompressor = "none"\n'
    )
    monkeypatch.chdir(tmp_path)
    lines = explained(capsys, config, "--model", "explained:build", "--ranks", 4)
    assert any(line.startswith("powersgd ") for line in lines)
    assert any(line.startswith("none ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--ranks is needed"),
        (["--ranks", 4, "--model", "a:b", "--size", "1MiB"], "give one of them"),
        (["--ranks", 4, "--size", "3"], "no size of float32"),
        (["--ranks", 4, "--size", "much"], "--size must be a size in bytes"),
        (["--ranks", 4, "--model", "nowhere"], "--model must be"),
        (["--link", "no.json"], "--link: no.json: cannot be read"),
    ],
)
def test_what_can_not_be_explained_is_refused(
    arguments: list[Any], message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "explain", config, *arguments)


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_a_forecast_names_what_the_figures_choose(ranks: int) -> None:
    costs = Costs(Link(1e-4, 1e-8, 1e-10))
    config = load_config({})
    for size_bytes in (4, 4096, 1 << 20, 20 << 20):
        parameter = parameter_of(size_bytes)
        exchanges = Forecast(config, ranks, costs).exchanges(
            [parameter], assign(config, [parameter])
        )
        (exchange,) = exchanges
        assert exchange.way == costs.best(size_bytes, ranks, backend=True)
        assert exchange.seconds == exchange.dense_s


@pytest.mark.parametrize("size_bytes", [4096, 16 << 20])
def test_candidates_have_as_many_messages_as_are_planned(size_bytes: int) -> None:
    """At the busiest port of a ring one in each exchange, of round_robin one to each other rank."""
    candidates = Forecast(load_config({}), 4, Costs(Link(1e-4, 1e-8))).candidates(size_bytes)
    messages = {candidate.name: candidate.messages for candidate in candidates}
    (transport, *_) = Loopback(4).transports
    plain = Round(Verb.ALL_REDUCE, torch.float32, size_bytes, dense=True)
    for name, each in (("ring", 1), ("tree", 1), ("round_robin", 3), ("all_to_all", 3)):
        assert messages[name] == each * len(Sums(transport, name).transfers(0, [plain])), name


def test_a_sum_that_is_not_cut_is_forecast_in_one_piece() -> None:
    link, parameter = Link(1e-4, 1e-8, 1e-10), parameter_of(256 << 20)
    config = load_config({"compressor": "gtopk", "exchange": {"unit_bytes": "1GiB"}})
    found = Forecast(config, 4, Costs(link)).exchanges([parameter], assign(config, [parameter]))
    ((exchange, count),) = found.items()
    assert (exchange.way, count) == ("tree", 1)
    assert segments_of(exchange.size_bytes, 4) > 1
    assert exchange.seconds == link.time_s(tree.stages(exchange.size_bytes, 4))


@pytest.mark.parametrize(("ranks", "direct"), [(2, True), (6, False)])
def test_a_forecast_says_what_gathers_payloads(ranks: int, direct: bool) -> None:
    costs, parameter = Costs(Link(1e-4, 1e-8, 1e-10)), parameter_of(64 << 10)
    config = load_config({"compressor": "topk"})
    found = Forecast(config, ranks, costs).exchanges([parameter], assign(config, [parameter]))
    ((exchange, count),) = found.items()
    times_s = {name: costs.gather_s(name, exchange.size_bytes, ranks) for name in ALL_GATHERS}
    best = min(times_s, key=times_s.__getitem__)
    assert (exchange.way, count) == ("all_gather" if direct else f"all_gather by {best}", 1)
    assert exchange.seconds == times_s[best]
    assert (best == DIRECT) is direct


def test_link_says_how_it_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert "RANK is not set; start it on all hosts, such as by" in refused(capsys, "link")
