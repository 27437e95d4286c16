"""A measured link on real ranks: all choose alike, a resumed run repeats its bits."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from _ranks import Group, Pools, same, settings
from _training import train
from test_link_file import favouring, write_link

from compressa import cli
from compressa.collectives.choice import CANDIDATES
from compressa.engine.start import link_file
from compressa.link import chain, fit, measure

pytestmark = pytest.mark.ranks


def train_with_link(
    *, config: Mapping[str, Any], first: str | None, others: str | None = None, **how: Any
) -> dict[str, Any]:
    """Train; only rank 0 names a link's file, and the others another one, or none."""
    own = first if dist.get_rank() == 0 else others
    return train(config={**config, "exchange": {**config["exchange"], "link": own}}, **how)


def fit_link(*, out: str) -> str:
    """Run the command, at few sizes, each for a short time; return what it prints."""
    printed = io.StringIO()
    with (
        mock.patch.object(fit, "SIZES_BYTES", (1 << 10, 64 << 10)),
        mock.patch.object(measure, "CHECKED_BYTES", (16 << 10,)),
        mock.patch.object(chain, "LEAST_CHAIN_S", 0.01),
        contextlib.redirect_stdout(printed),
        pytest.raises(SystemExit) as end,
    ):
        cli.main(["link", "--out", out, "--budget", "0.01"])
    assert not end.value.code
    return printed.getvalue()


def dense(**exchange: Any) -> dict[str, Any]:
    config = settings("none")
    return {**config, "exchange": {**config["exchange"], **exchange}}


def trained(group: Group, config: dict[str, Any], first: Path | None, **how: Any) -> Any:
    """The parameters that all ranks end with."""
    path = None if first is None else str(first)
    results = group.run(train_with_link, config=config, first=path, **how)
    return same([result["parameters"] for result in results])


def test_all_ranks_choose_by_the_figures_of_rank_0(four: Group, tmp_path: Path) -> None:
    tree = write_link(tmp_path / "tree.json", favouring("tree"))
    ring = write_link(tmp_path / "ring.json", favouring("ring"))
    chosen = trained(four, dense(), tree, others=str(ring))
    assert chosen == trained(four, dense(algorithm="tree"), None)
    assert chosen != trained(four, dense(algorithm="ring"), None)
    assert chosen != trained(four, dense(), None)


def test_a_resumed_run_repeats_its_bits_whatever_becomes_of_the_file(
    pools: Pools, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    file, folder = tmp_path / "link.json", tmp_path / "saved"
    folder.mkdir()
    write_link(file, favouring("tree"))
    straight = trained(pools.get(4), dense(), file, steps=6)
    trained(pools.get(4), dense(), file, steps=3, save=str(folder))
    write_link(file, favouring("ring"))
    resumed = fresh(4)
    assert trained(resumed, dense(), file, steps=3, load=str(folder)) == straight
    file.unlink()
    assert trained(resumed, dense(), file, steps=3, load=str(folder)) == straight
    assert trained(resumed, dense(), None, steps=3, load=str(folder)) == straight


def test_a_run_without_figures_goes_on_without_though_a_file_is_named_now(
    four: Group, tmp_path: Path
) -> None:
    file, folder = write_link(tmp_path / "link.json", favouring("ring")), tmp_path / "saved"
    folder.mkdir()
    straight = trained(four, dense(), None, steps=6)
    trained(four, dense(), None, steps=3, save=str(folder))
    assert trained(four, dense(), file, steps=3, load=str(folder)) == straight
    assert trained(four, dense(), file, steps=6) != straight


def test_what_is_wrong_with_the_file_ends_the_start_on_every_rank(
    two: Group, tmp_path: Path
) -> None:
    file = tmp_path / "link.json"
    file.write_text("{}")
    how: dict[str, Any] = {"config": dense(), "first": str(file)}
    for message in two.refused(train_with_link, "ConfigError", **how):
        assert "exchange.link" in message
        assert "compressa link" in message
    write_link(file, {**favouring("tree"), "transport": "mpi"})
    for message in two.refused(train_with_link, "ConfigError", **how):
        assert "was measured over 'mpi'" in message


def test_a_missing_file_ends_the_first_step_on_every_rank(two: Group, tmp_path: Path) -> None:
    how: dict[str, Any] = {"config": dense(), "first": str(tmp_path / "no.json")}
    for message in two.refused(train_with_link, "ConfigError", **how):
        assert "no.json: there is no such file on rank 0" in message


def test_link_writes_what_it_has_measured(two: Group, tmp_path: Path) -> None:
    out = tmp_path / "link.json"
    printed, silent = two.run(fit_link, out=str(out))
    assert silent == ""
    figures = link_file.read(out)
    assert (figures.ranks, figures.hosts, figures.transport) == (2, 1, "tcp")
    measured = {(row.algorithm, row.size_bytes) for row in figures.measured}
    assert measured >= {(name, 1 << 10) for name in CANDIDATES}
    for row in figures.measured:
        predicted_s = figures.costs.time_s(row.algorithm, row.size_bytes, 2)
        assert predicted_s == pytest.approx(row.median_s)
    assert all(f"\n{name} " in printed for name in CANDIDATES)
    assert "a message" in printed
    assert f'link = "{out}"' in printed
    assert json.loads(out.read_text())["format"] == "compressa.link"
