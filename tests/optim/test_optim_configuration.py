"""The configuration of an optimizer: the paper's, but for what the user sets."""

from __future__ import annotations

from typing import Any

import pytest

from compressa.config import Config
from compressa.optim.configuration import Wanted, configured

PAPER = {"compressor": {"name": "demo"}, "exchange": {"kind": "all_gather"}}
FIXED = {"feedback": {"kind": "error", "decay": 0.9}}


def found(source: Any) -> Config:
    return configured(source, Wanted(PAPER, FIXED))


def test_the_papers_compressor_with_other_settings_keeps_the_papers_exchange() -> None:
    config = found({"compressor": {"name": "demo", "chunk": 32, "kept": 4}})
    given = config.compressor.model_dump(exclude_unset=True)
    assert given == {"name": "demo", "chunk": 32, "kept": 4}
    assert config.exchange.kind == "all_gather"
    assert config.feedback.decay == 0.9


@pytest.mark.parametrize("source", [None, {}, {"compressor": "demo"}])
def test_without_a_word_it_is_the_papers(source: Any) -> None:
    assert found(source) == found(PAPER)


def test_another_compressor_comes_without_the_papers_exchange() -> None:
    config = found({"compressor": "topk"})
    assert (config.compressor.name, config.exchange.kind) == ("topk", "auto")
    assert config.feedback.decay == 0.9


def test_the_users_exchange_counts() -> None:
    assert found({"exchange": {"kind": "scatter_reduce"}}).exchange.kind == "scatter_reduce"
