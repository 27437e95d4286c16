"""Ranks that have imported frameworks, which takes seconds; so all tests of them share two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _ranks import Group, Pools


@pytest.fixture(scope="session")
def framework_ranks(pools: Pools) -> Iterator[Group]:
    """Two ranks for all tests of integrations."""
    pools.zygote.preload("lightning.pytorch", "transformers.trainer")
    group = pools.fresh(2)
    yield group
    group.end()
