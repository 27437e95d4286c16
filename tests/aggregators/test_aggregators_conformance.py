"""Every compressor of the contract table holds what it owes among several ranks."""

from __future__ import annotations

import pytest
from compressor_cases import COMPRESSORS_UNDER_TEST

from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Bf16, Int8, OneBit, RandomK, TopK
from compressa.compressor import Compressor
from compressa.testing.compressor_checks import exchanges_of
from compressa.testing.conformance import check_among_ranks
from compressa.wrappers import ErrorFeedback


@pytest.mark.parametrize("compressor", COMPRESSORS_UNDER_TEST)
def test_compressor_conforms_among_ranks(compressor: Compressor) -> None:
    check_among_ranks(compressor)


@pytest.mark.parametrize(
    ("compressor", "due"),
    [
        (ErrorFeedback(codec=Int8()), ["all_gather", "scatter_reduce", "per_hop"]),
        (ErrorFeedback(codec=OneBit()), ["all_gather", "scatter_reduce", "per_hop"]),
        (ErrorFeedback(codec=Bf16()), ["all_gather", "scatter_reduce", "per_hop"]),
        (ErrorFeedback(codec=TopK()), ["all_gather"]),
        (ErrorFeedback(codec=RandomK()), ["all_reduce", "all_gather"]),
        (PowerSGD(), ["auto"]),
    ],
)
def test_checks_cover_the_exchanges_that_fit(compressor: Compressor, due: list[str]) -> None:
    assert exchanges_of(compressor) == due
