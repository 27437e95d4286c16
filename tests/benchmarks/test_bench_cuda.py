"""Measuring on a GPU, as far as that can be tested without one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compressa.kernels import KernelUnavailable

from benchmarks.kernels import CASES, Bench, Case, Operation, tables
from benchmarks.kernels.device import CPU, EventWatch, current_gpu
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.table import GPU_CASES, cases_on
from benchmarks.timing import Stopwatch
from compressa.codecs import Codec
from compressa.errors import BackendUnavailable

ON_GPU = [case for case in (*CASES, *GPU_CASES) if case.least_share.gpu is not None]


ENCODES = (Operation.ENCODE, Operation.FEEDBACK)


def test_without_a_gpu_it_says_so_and_names_what_helps() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(BackendUnavailable, match=r"--device cuda: torch sees no GPU.*nvidia-smi"):
        current_gpu()


def test_a_gpu_is_told_by_its_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(total_memory=8e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: facts)
    gpu = current_gpu()
    assert (gpu.name, gpu.memory_bytes, gpu.default_elems) == (
        "NVIDIA X",
        8_000_000_000,
        (100_000_000,),
    )
    assert gpu.watch is EventWatch
    updated, source = torch.zeros(3), torch.ones(3)
    gpu.stream(updated, source)
    assert torch.equal(updated, source)


def test_bytes_and_targets_are_those_of_the_device() -> None:
    (case,) = (case for case in CASES if case.name == "int8")
    codec: Any = case.build()
    gradient, payload = 4 * 1000, codec.wire_bytes(1000)
    assert case.bus_bytes(codec, 1000, 1) == gradient + payload
    assert case.bus_bytes(codec, 1000, CPU.store_bytes) == gradient + 2 * payload
    assert (case.least_share.on("cpu"), case.least_share.on("NVIDIA X")) == (0.75, 0.85)


def test_peers_of_another_device_are_left_out_and_targets_are_those_of_the_rows() -> None:
    case = next(case for case in CASES if case.name == "int8")
    plain, _, bare, *_ = case.peers
    kinds = zip((plain, bare), ("cuda", "cpu"), strict=True)
    elsewhere, here = (replace(peer, devices=frozenset({kind})) for peer, kind in kinds)
    (row,) = Bench(threads=1, repeats=7).run([replace(case, peers=(elsewhere, here))], [4096])
    assert (row.peer, row.device) == (here.name, "cpu")
    there = row.model_copy(update={"device": "NVIDIA X", "limit_ratio": 0.80})
    assert tables.met(case, there) is False
    assert tables.met(case, there.model_copy(update={"device": "cpu"})) is True


def test_a_gpu_also_measures_gradients_of_16_bits() -> None:
    there = {case.name: case for case in cases_on("cuda")}
    assert [case.name for case in ON_GPU] == [name for name in there if "bfloat16" not in name]
    half = {name.removesuffix(", bfloat16 gradient") for name in there if "bfloat16" in name}
    assert "int8 with residual" in half
    for case in ON_GPU:
        codec = case.build()
        encodes = isinstance(codec, Codec) and case.operation in ENCODES
        assert (case.name in half) == (encodes and codec.takes_half)  # type: ignore[union-attr]
    for name in half:
        case, other = there[name], there[f"{name}, bfloat16 gradient"]
        assert other.least_share == case.least_share
        whole, less = (c.bus_bytes(c.build(), 1000, 1) for c in (case, other))  # type: ignore[arg-type]
        assert whole is not None
        assert less == whole - 2 * 1000
    assert cases_on("cpu") == CASES


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name) for c in cases_on("cuda") if "bfloat16" in c.name]
)
def test_gradients_of_16_bits_give_the_payload_of_their_values(case: Case) -> None:
    operands, codec = Operands(3000), case.build()
    half = operands.of(torch.bfloat16)
    assert next(half.turns())[0].dtype is torch.bfloat16
    assert half.of(torch.bfloat16) is half
    length = case.prepare(codec, half)()  # type: ignore[arg-type]
    payload, residual = half.payload(length).clone(), half.residual.clone()  # type: ignore[arg-type]
    operands.reset()
    operands._long.copy_(half._long)
    assert case.prepare(codec, operands)() == length  # type: ignore[arg-type]
    assert torch.equal(operands.payload(length), payload)  # type: ignore[arg-type]
    assert torch.equal(operands.residual, residual)
    half.stream()


def test_a_case_without_kernels_there_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare(case: Case, *_: object) -> None:
        raise KernelUnavailable("no kernel")

    monkeypatch.setattr(Case, "prepare", prepare)
    bench = Bench(threads=1, repeats=7, watch=Stopwatch())
    assert list(bench.run([ON_GPU[0]], [1000])) == []
    assert bench.unavailable == {ON_GPU[0].name}
