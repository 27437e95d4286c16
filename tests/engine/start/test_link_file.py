"""Files of `compressa link`: read as written, and refused with place and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.choice import CANDIDATES
from compressa.config import Config, load_config
from compressa.engine.start import link_file
from compressa.engine.start.link_file import AgreedLink
from compressa.errors import ConfigError, StateError


def favouring(name: str) -> dict[str, Any]:
    """Figures by which one algorithm is the fastest for all sums."""
    times = {algorithm: 1e-6 if algorithm == name else 1.0 for algorithm in CANDIDATES}
    return {
        "format": "compressa.link",
        "format_version": 1,
        "ranks": 4,
        "hosts": 2,
        "transport": "tcp",
        "connections": 1,
        "message_s": 1e-4,
        "byte_s": 1e-8,
        "reduce_s": 1e-10,
        "pair_byte_s": 9e-9,
        "measured": [
            {"algorithm": algorithm, "size_bytes": 1024, "median_s": median_s}
            for algorithm, median_s in times.items()
        ],
        "cpu": "any",
        "cores": 2,
        "system": "Linux",
        "versions": {"torch": "2.13"},
        "timestamp": "2026-01-02T03:04:05Z",
    }


def write_link(path: Path, figures: dict[str, Any]) -> Path:
    path.write_text(json.dumps(figures))
    return path


def test_what_was_measured_fastest_is_chosen() -> None:
    for name in CANDIDATES:
        costs = link_file.parse(json.dumps(favouring(name)), "it").costs
        assert costs.best(1 << 20, 4, backend=True) == name


@given(message_s=st.floats(0, 1), byte_s=st.floats(1e-12, 1), median_s=st.floats(1e-9, 1e3))
def test_figures_reach_other_ranks_and_checkpoints_bit_for_bit(
    message_s: float, byte_s: float, median_s: float
) -> None:
    changes = {"message_s": message_s, "byte_s": byte_s}
    changes["measured"] = [{"algorithm": "ring", "size_bytes": 1 << 20, "median_s": median_s}]
    figures = link_file.parse(json.dumps(favouring("ring") | changes), "it")
    told = json.loads(json.dumps({"figures": figures.model_dump(mode="json")}))
    saved = json.loads(json.dumps(AgreedLink(figures).record()))
    for other in (AgreedLink.of(told), AgreedLink.saved(saved, Path("it"))):
        assert other.figures == figures
        for size_bytes in (1000, 10**6, 10**8):
            costs = other.costs(None)
            assert costs.time_s("ring", size_bytes, 7) == figures.costs.time_s(
                "ring", size_bytes, 7
            )


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"byte_s": 0.0}, "byte_s"),
        ({"byte_s": "fast"}, "byte_s"),
        ({"message_s": -1.0}, "message_s"),
        ({"ranks": 1}, "ranks"),
        ({"format": "compressa.bench"}, "format"),
        ({"format_version": 2}, "format_version"),
        ({"more": 1}, "more"),
        ({"measured": [{"algorithm": "magic", "size_bytes": 1, "median_s": 1.0}]}, "measured.0"),
        ({"measured": 2 * [{"algorithm": "ring", "size_bytes": 1, "median_s": 1.0}]}, "twice"),
        ({"measured": [{"algorithm": "ring", "size_bytes": 1, "median_s": 0}]}, "median_s"),
    ],
)
def test_other_files_are_refused(changes: dict[str, Any], place: str, tmp_path: Path) -> None:
    path = write_link(tmp_path / "link.json", favouring("ring") | changes)
    with pytest.raises(ConfigError, match=place) as caught:
        link_file.read(path, "exchange.link: ")
    assert str(caught.value).startswith(f"exchange.link: {path}: ")
    assert "compressa link --out" in str(caught.value)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link.json").write_text("ring")
    with pytest.raises(ConfigError, match="the whole"):
        link_file.read(tmp_path / "link.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        link_file.read(tmp_path)


def test_only_who_has_a_link_offers_it(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    config = load_config({"exchange": {"link": path}})
    assert link_file.offer(Config(), "tcp") is None
    missing = AgreedLink.of(link_file.offer(config, "tcp"))
    with pytest.raises(ConfigError, match="no such file on rank 0"):
        missing.check()
    write_link(path, favouring("ring"))
    found = AgreedLink.of(link_file.offer(config, "tcp"))
    found.check()
    assert found.figures == link_file.read(path)
    with pytest.raises(ConfigError, match="was measured over 'tcp', and these ranks use 'mpi'"):
        link_file.offer(config, "mpi")


def test_where_the_file_is_may_differ_between_ranks() -> None:
    one, other = (load_config({"exchange": {"link": path}}) for path in ("a.json", "b.json"))
    assert one.canonical() == other.canonical() == Config().canonical()


def test_damaged_figures_of_a_checkpoint_are_refused() -> None:
    assert AgreedLink.saved(None, Path("manifest.json")) == AgreedLink()
    with pytest.raises(StateError, match=r"manifest\.json"):
        AgreedLink.saved(favouring("ring") | {"byte_s": -1}, Path("manifest.json"))


def test_a_paced_rank_is_no_faster_than_its_pace() -> None:
    figures = link_file.parse(json.dumps(favouring("ring")), "it")
    assert figures.costs_at(8e6).link.byte_s == 1e-6
    assert figures.costs_at(8e12).link.byte_s == figures.byte_s
