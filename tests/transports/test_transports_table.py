"""The table of transports: what it says is so, and a row in it is all that anybody else needs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _counted_transport import ROW, train_over_it
from _ranks import Group, same, settings
from _training import train
from _transport_calls import opened
from _transports import ON_HOST, ROWS
from compressa.schedulers import POLICIES

from compressa.collectives.base import Exchange
from compressa.config import config_schema, load_config
from compressa.errors import BackendUnavailable, ConfigError
from compressa.transports.table import AUTO, TRANSPORTS, USUAL, Entry, meant

DOCS = Path(__file__).parents[2] / "docs"


def is_ordered(*, kind: str) -> bool:
    """Return whether the transport wants one order of launches for exchanges."""
    with opened(kind) as (transport, _):
        return transport.transport.ordered(Exchange({}, {}))


def test_the_documentation_has_the_rows_of_transports_and_policies() -> None:
    script = runpy.run_path(str(DOCS / "compressor_table.py"))
    text = (DOCS / "guides" / "configuration.md").read_text(encoding="utf-8")
    assert script["with_tables"](text) == text, "run python docs/compressor_table.py"
    assert all(f"| `{name}` |" in text for name in [*TRANSPORTS, *POLICIES])


def test_editors_offer_every_row() -> None:
    offered = config_schema()["$defs"]["Exchange"]["properties"]["transport"]
    assert offered["enum"] == [AUTO, *TRANSPORTS]
    for row in TRANSPORTS.values():
        assert f"{row.name}: {row.summary}" in offered["description"]


def refusal(row: Entry, **sections: Any) -> str:
    """What is said against a configuration with this transport; nothing if it is taken."""
    exchange = {"transport": row.name, **sections.pop("exchange", {})}
    try:
        load_config({"exchange": exchange, **sections})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("row", TRANSPORTS.values(), ids=[*TRANSPORTS])
def test_what_a_row_can_not_do_is_refused_by_the_configuration(row: Entry) -> None:
    assert not refusal(row)
    secret = {"authenticate": True, "secret_file": "s"}
    said = (
        (refusal(row, schedule={"pace_bits_per_s": 1e8}), not row.paced),
        (refusal(row, exchange=secret), not row.authenticated),
        (refusal(row, exchange={"connections": 2}), not row.connections),
        (refusal(row, exchange={"broadcast": "multicast"}), row.ordered),
    )
    for text, expected in said:
        assert bool(text) is expected, text
        assert not expected or (row.name in text and f'"{USUAL}"' in text)


@pytest.mark.parametrize("row", TRANSPORTS.values(), ids=[*TRANSPORTS])
def test_what_is_missing_is_named_with_how_to_get_it(
    row: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_backend_available", lambda backend: backend != row.backend)
    with pytest.raises(BackendUnavailable, match=re.escape(row.needs)):
        row.check(torch.device(row.device or "cpu"), 2)


def test_the_usual_transport_goes_with_everything() -> None:
    row = TRANSPORTS[USUAL]
    assert meant(AUTO)[-1] is row
    assert (row.device, row.package, row.prepare) == ("", "", "")
    assert row.paced
    assert row.authenticated


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ON_HOST)
def test_a_row_says_in_which_order_its_transport_wants_exchanges(kind: str, two: Group) -> None:
    found = two.run(is_ordered, kind=kind)
    assert found == [ROWS[kind].ordered] * 2


@pytest.mark.ranks
def test_a_transport_is_its_file_and_a_row(two: Group) -> None:
    """Nothing else of the library or of the tests names it."""
    with pytest.raises(ConfigError, match='"counted" is not allowed'):
        load_config({"exchange": {"transport": ROW.name}})
    config = settings("int8", exchange={"transport": ROW.name})
    found = two.run(train_over_it, config=config, steps=3)
    usual = settings("int8", exchange={"transport": USUAL})
    expected = two.run(train, config=usual, steps=3)
    same([one["parameters"] for one in (*found, *expected)])
    assert all(one["exchanges"] >= 3 for one in found)
