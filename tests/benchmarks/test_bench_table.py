"""The table of cases: complete, with the stated targets and bytes on the bus."""

from __future__ import annotations

import pytest
from test_bench_records import row

from benchmarks.kernels import CASES, Operation, tables
from benchmarks.kernels.device import CPU
from benchmarks.kernels.table import GPU_CASES
from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Bf16, Fp16, Int4, Int8, OneBit, TopK
from compressa.compressor import Compressor

BY_NAME = {case.name: case for case in CASES}


def test_names_are_unique_and_every_case_has_a_peer() -> None:
    assert len(BY_NAME) == len(CASES)
    for case in CASES:
        assert case.peers, case.name
        assert len({peer.name for peer in case.peers}) == len(case.peers)


@pytest.mark.parametrize(
    ("name", "compressor", "bytes_per_elem"),
    [
        ("bf16 cast", Bf16(), 8.0),
        ("fp16 cast", Fp16(), 8.0),
        ("int8", Int8(block=256), 6 + 8 / 256),
        ("int8 with residual", Int8(block=256), 14 + 8 / 256),
        ("int8 decode and add", Int8(block=256), 9 + 4 / 256),
        ("int4", Int4(block=128), 5 + 8 / 128),
        ("int4 with residual", Int4(block=128), 13 + 8 / 128),
        ("int4 decode and add", Int4(block=128), 8.5 + 4 / 128),
        ("onebit with residual", OneBit(block=2048), 12.25 + 8 / 2048),
        ("onebit decode and add", OneBit(block=2048), 8.125 + 4 / 2048),
        ("topk 1 % with residual", TopK(), 16.0),
    ],
)
def test_bytes_on_the_bus_follow_from_the_operation(
    name: str, compressor: Compressor, bytes_per_elem: float
) -> None:
    # The scale of a block counts as what it is written with: twice, or once when it is read.
    elems = 1 << 20
    assert BY_NAME[name].bus_bytes(compressor, elems, 2) == bytes_per_elem * elems


def test_a_whole_step_also_writes_its_result() -> None:
    case = BY_NAME["chunked topk with residual"]
    assert case.bus_bytes(TopK(), 1000, 2) == 12_000
    assert case.bus_bytes(PowerSGD(), 1000, 2) == 16_000
    assert BY_NAME["powersgd rank 4, 4096 x 4096"].bus_bytes(PowerSGD(), 1000, 2) is None


def test_bytes_of_what_only_a_gpu_measures() -> None:
    sums = {case.compressor: case for case in GPU_CASES if case.operation is Operation.SUM}
    assert sums["int8"].bus_bytes(Int8(block=256), 1024, 1) == (4 * (1 + 4 / 256) + 4) * 1024
    assert sums["bf16"].bus_bytes(Bf16(), 1000, 1) == (4 * 2 + 4) * 1000
    assert {case.name for case in GPU_CASES} == {
        *(f"{name} sum of 4" for name in ("bf16", "int8", "int4", "onebit")),
        "threshold with residual",
    }
    for case in GPU_CASES:
        assert case.least_share.gpu is not None
        assert case.least_share.cpu is None


@pytest.mark.parametrize(
    ("name", "limit_ratio", "peer_median", "verdict"),
    [
        ("int8 with residual", 0.85, 10.0, True),
        ("int8 with residual", 0.84, 1000.0, False),
        ("topk 1 % with residual", 0.46, 150.0, True),
        ("topk 1 % with residual", 0.46, 149.0, False),
        ("topk 1 % with residual", 0.44, 151.0, False),
        ("powersgd rank 4, 4096 x 4096", None, 8.4, True),
        ("powersgd rank 4, 4096 x 4096", None, 8.3, False),
        ("int2 with residual", 0.1, 1.0, None),
    ],
)
def test_a_row_meets_the_targets_that_apply_to_it(
    name: str, limit_ratio: float | None, peer_median: float, verdict: bool | None
) -> None:
    case = BY_NAME[name]
    measured = row(
        case=f"{name} @ {CPU.default_elems[-1]}",
        limit_ratio=limit_ratio,
        peer=case.peers[0].name,
        peer_median=peer_median,
    )
    assert tables.met(case, measured) is verdict
    said = {True: "met", False: "missed", None: ""}[verdict]
    (cells,) = tables.times([measured], CASES).lines
    assert cells[0] == name
    assert cells[-1] == said
