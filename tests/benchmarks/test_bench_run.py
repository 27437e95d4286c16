"""Cases and peers do what their names say, and a run gives complete rows."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch

from benchmarks.kernels import CASES, Bench, Case, Operation, scaling
from benchmarks.kernels.device import CPU
from benchmarks.kernels.operands import Operands, gaussian
from benchmarks.kernels.run import require_memory
from benchmarks.kernels.table import GPU_CASES
from benchmarks.timing import Stopwatch
from compressa.codecs import Codec
from compressa.errors import ConfigError

ELEMS = 20_480
HERE = [
    replace(case, peers=tuple(peer for peer in case.peers if "cpu" in peer.devices))
    for case in (*CASES, *GPU_CASES)
]
SMALL = [replace(case, shape=(64, 96)) if case.shape else case for case in HERE]
THERE = [case for case in SMALL if case.build() is not None]
CODEC_CASES = [case for case in THERE if isinstance(case.build(), Codec)]


def params(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.mark.parametrize("case", params(THERE))
def test_every_case_gives_a_complete_row_per_peer(case: Case) -> None:
    square = replace(case, shape=(64, 64)) if case.shape else case
    bench = Bench(threads=2, repeats=7)
    rows = list(bench.run([square], [ELEMS]))
    assert [row.peer for row in rows] == [peer.name for peer in case.peers]
    assert rows == bench.rows
    for row in rows:
        assert (row.name, row.elems) == (case.name, 64 * 64 if case.shape else ELEMS)
        assert (row.benchmark, row.metric, row.unit) == ("kernels", "time", "ms")
        assert (row.device, row.threads) == ("cpu", 2)
        assert (row.limit_ratio is None) == (case.operation is Operation.STEP)


def test_the_yardstick_is_measured_at_every_size_and_written_down() -> None:
    # Each look at the clock is a millisecond later; 12 bytes an element move in each.
    bench = Bench(threads=1, repeats=7, watch=Stopwatch(partial(next, count(0, 1e-3)), 1e-4))
    sizes = [1000, 3000]
    assert len(list(bench.run([THERE[0]], sizes))) == 2
    measurement = bench.measurement()
    yardsticks = [row for row in measurement.rows if row.name == CPU.yardstick]
    assert [row.elems for row in yardsticks] == sizes
    for row in yardsticks:
        assert row.median == pytest.approx(12 * row.elems / 1e-3 / 1e9)
        assert (row.metric, row.unit, row.peer) == ("bandwidth", "GB/s", None)
    assert measurement.rows[2:] == bench.rows


def test_threads_come_and_go_and_torch_keeps_its_own() -> None:
    before, running = torch.get_num_threads(), threading.active_count()
    with Bench(threads=3, repeats=7).hired():
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    assert threading.active_count() == running


@pytest.mark.parametrize(
    "case", params([c for c in CODEC_CASES if c.operation is Operation.FEEDBACK])
)
def test_calls_with_residual_send_all_but_the_residual(case: Case) -> None:
    operands = Operands(ELEMS)
    codec = case.build()
    assert isinstance(codec, Codec)
    length = case.prepare(codec, operands)()
    assert isinstance(length, int)
    decoded = torch.zeros(ELEMS)
    codec.decode(operands.payload(length), decoded, next(operands.turns())[1])
    torch.testing.assert_close(decoded + operands.residual, operands.gradient)


SAME_RESIDUAL = ("int8", "int4", "int2", "onebit", "topk")


@pytest.mark.parametrize(
    "case",
    params(
        [
            case
            for case in THERE
            if case.operation is Operation.FEEDBACK and case.compressor in SAME_RESIDUAL
        ]
    ),
)
def test_peers_leave_the_residual_that_the_case_leaves(case: Case) -> None:
    operands = Operands(ELEMS)
    compressor = case.build()
    call = case.prepare(compressor, operands)
    call(), call()
    expected = operands.residual.clone()
    assert expected.any()
    (peer,) = (peer for peer in case.peers if peer.name == "torch operations")
    operands.reset()
    call = peer.prepare(operands, compressor)
    call(), call()
    # A quotient that lies between two codes may be rounded either way.
    apart = (operands.residual - expected).abs() > 1e-5
    assert apart.float().mean() < 1e-3


DECODES = (Operation.DECODE, Operation.SUM)


@pytest.mark.parametrize("case", params([c for c in THERE if c.operation in DECODES]))
def test_peers_decode_what_the_case_decodes(case: Case) -> None:
    operands = Operands(ELEMS)
    compressor = case.build()
    case.prepare(compressor, operands)()
    expected = operands.out.clone()
    (peer,) = case.peers
    operands.reset()
    peer.prepare(operands, compressor)()
    assert expected.any()
    assert ((operands.out - expected).abs() > 1e-5).float().mean() < 1e-3


@pytest.mark.parametrize(
    "case", params([case for case in CODEC_CASES if case.bus_bytes_per_elem is not None])
)
def test_sparse_peers_send_about_as_much(case: Case) -> None:
    operands = Operands(ELEMS)
    compressor = case.build()
    case.prepare(compressor, operands)()
    ours = int((operands.residual == 0).sum())
    for peer in case.peers:
        operands.reset()
        sent = torch.as_tensor(peer.prepare(operands, compressor)())
        assert 0.5 * ours <= sent.numel() <= 2 * ours, peer.name


def test_casting_peers_give_the_payload_of_the_case() -> None:
    for case in THERE:
        if case.name.endswith(" cast"):
            operands = Operands(ELEMS)
            codec = case.build()
            assert isinstance(codec, Codec)
            case.prepare(codec, operands)()
            cast = case.peers[0].prepare(operands, codec)()
            assert isinstance(cast, torch.Tensor)
            assert torch.equal(cast.view(torch.uint8), operands.payload(2 * ELEMS))


def test_every_call_gets_another_gradient_and_other_random_bits() -> None:
    turns = Operands(1000).turns()
    (first, draw), (second, later) = next(turns), next(turns)
    assert not torch.equal(first, second)
    assert (draw.step, later.step) == (0, 1)
    assert first.numel() == second.numel() == 1000
    assert first.is_contiguous()
    assert second.is_contiguous()


def test_gradients_are_gaussian_and_the_same_in_every_run() -> None:
    before = torch.random.get_rng_state()
    x = gaussian(100_000)
    assert torch.equal(x, gaussian(100_000))
    assert torch.equal(before, torch.random.get_rng_state())
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02


def test_operands_are_as_good_as_new_after_a_reset() -> None:
    operands = Operands(100)
    operands.residual.fill_(1)
    operands.out.fill_(1)
    operands.reset()
    assert not operands.residual.any()
    assert not operands.out.any()
    assert operands.payload(10).data_ptr() == operands.payload(10).data_ptr()


def test_a_size_that_does_not_fit_into_memory_is_refused_before_anything_is_measured() -> None:
    require_memory(1000, CPU)
    bench = Bench(threads=1, repeats=7)
    with pytest.raises(ConfigError, match="GB with all peers, and cpu has"):
        next(bench.run([THERE[0]], [1000, 10**14]))
    assert bench.rows == []


def test_scaling_measures_main_cases_at_all_sizes_and_all_at_the_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "SIZES", (10_000, 20_000))
    chosen = [case for case in THERE if case.compressor in ("int8", "powersgd")]
    rows = list(scaling.run(Bench(threads=1, repeats=7), chosen))
    fixed = [row.case for row in rows if row.benchmark == "kernels-fixed-cost"]
    assert fixed == [f"{case.name} @ 1024" for case in chosen if not case.shape]
    main = [case.name for case in chosen if case.main]
    growth = [row.case for row in rows if row.benchmark == "kernels-scaling"]
    assert growth == [f"{name} @ {elems}" for elems in (10_000, 20_000) for name in main]
    assert {row.unit for row in rows} == {"us"}
