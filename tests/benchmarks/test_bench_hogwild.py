"""The benchmark of HogWild: it runs, and learns."""

from __future__ import annotations

import re
from unittest import mock

import pytest
from _ranks import Group

from benchmarks import hogwild

pytestmark = pytest.mark.ranks


def told() -> list[str]:
    with mock.patch.multiple(hogwild, WORDS=5000, STEPS=500):
        return list(hogwild.measured())


def test_it_says_how_quickly_processes_learn(two: Group) -> None:
    for (line,) in two.run(told):
        found = re.fullmatch(r"2 processes: [\d,]+ steps a second, ([\d.]+)% .* left", line)
        assert found is not None, line
        assert float(found[1]) < 5
