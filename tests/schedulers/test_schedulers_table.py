"""The table of policies: what it says is so, and a row in it is all that anybody else needs."""

from __future__ import annotations

import pytest
from _ranks import Group, same, settings
from _shortest_first import shortest, train_by_it
from _training import train
from compressa.schedulers import POLICIES, Policy, Transfer
from simulated import profile

from compressa.config import config_schema, load_config
from compressa.errors import ConfigError
from compressa.simulation import Scenario, simulate


def test_editors_offer_every_row() -> None:
    offered = config_schema()["$defs"]["Schedule"]["properties"]["policy"]
    assert offered["enum"] == [*POLICIES]
    for policy in POLICIES.values():
        assert f"{policy.name}: {policy.summary}" in offered["description"]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=[*POLICIES])
def test_only_what_overtakes_changes_the_order_of_readiness(policy: Policy) -> None:
    """What is ready last, needed first and shortest shows it."""
    units = [
        Transfer(unit, 0, 500 - 100 * unit, ready_s=unit, need_s=10.0 - unit) for unit in range(4)
    ]
    as_ready = tuple((unit, 0) for unit in range(4))
    assert (policy(units).order != as_ready) is policy.overtaking


@pytest.mark.ranks
def test_a_policy_is_its_file_and_a_row(two: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of the library or of the tests names it."""
    with pytest.raises(ConfigError, match='"shortest" is not allowed'):
        load_config({"schedule": {"policy": "shortest"}})
    config = settings("int8", schedule={"policy": shortest.name, "profile_steps": 2})
    found = two.run(train_by_it, config=config, steps=6)
    usual = two.run(train, config=settings("int8"), steps=6)
    same([one["parameters"] for one in (*found, *usual)])

    monkeypatch.setitem(POLICIES, shortest.name, shortest)
    file = profile([(5000, 0.1, 0.0), (50_000, 0.05, 0.01)], backward_s=0.1, forward_s=0.05)
    scenario = Scenario.of(file, policy=shortest.name, bandwidth_bits_per_s=1e8)
    assert simulate(scenario).policy == shortest.name
