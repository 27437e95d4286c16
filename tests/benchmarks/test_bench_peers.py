"""Peers that need not be there: on a GPU, compiled, out of other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_bench_records import row
from torch.overrides import TorchFunctionMode

from benchmarks.kernels import Bench, Case, Peer, tables
from benchmarks.kernels.cases import PeerUnavailable
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.table import cases_on
from compressa.codecs import Codec

ELEMS = 20_480
ON_GPU = cases_on("cuda")
(INT8,) = (case for case in ON_GPU if case.name == "int8")


class Elsewhere(Operands):
    """Operands on a device that is not the CPU, and holds nothing."""

    def __init__(self, elems: int, dtype: torch.dtype) -> None:
        self.elems = elems
        self._long = torch.zeros(elems + (1 << 16), device="meta", dtype=dtype)
        self.gradient = self._long[:elems]
        self.residual, self.out = torch.zeros(2, elems, device="meta")


class NothingOnTheCpu(TorchFunctionMode):
    """Refuses to make tensors without a device; those of another one can be mixed in places."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("randperm", "randint", "rand", "zeros", "arange"):
            assert torch.device(kwargs["device"]).type == "meta"
        return func(*args, **(kwargs or {}))


def plain_peers() -> list[Any]:
    return [
        pytest.param(case, peer, id=f"{case.name}, {peer.name}")
        for case in ON_GPU
        for peer in case.peers
        if peer.devices == {"cpu", "cuda"} and "threshold" not in case.name
    ]


@pytest.mark.parametrize(("case", "peer"), plain_peers())
def test_torch_operations_stay_on_their_device(case: Case, peer: Peer) -> None:
    operands = Elsewhere(ELEMS, case.gradient)
    with NothingOnTheCpu():
        made = peer.prepare(operands, case.build())()
    assert isinstance(made, torch.Tensor)
    assert made.is_meta


def eager(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """In the place of `torch.compile`."""
    assert options == {"dynamic": False}
    return function


def test_compiled_operations_are_those_that_run_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", eager)
    for case in ON_GPU:
        for peer in case.peers:
            if peer.name == "torch.compile" and isinstance(case.build(), Codec):
                operands = Operands(ELEMS)
                call = peer.prepare(operands, case.build())
                assert not operands.residual.any()  # what compiling has left is forgotten
                call()


def test_a_compiler_that_fails_is_named_and_nothing_else_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled(function: object, **_: object) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            raise RuntimeError("Cannot find a working triton installation.\n" + "Far more. " * 99)

        return fail

    monkeypatch.setattr(torch, "compile", compiled)
    peers = tuple(
        Peer(peer.name, peer.prepare) for peer in INT8.peers if peer.name != "bare loop, 1 byte"
    )
    case = Case(name="int8", compressor="int8", operation=INT8.operation, peers=peers)
    plain, failed, absent = Bench(threads=1, repeats=7).run([case], [4096])
    assert plain.peer_median is not None
    assert failed.peer is not None
    assert failed.peer.startswith("torch.compile: fails (RuntimeError: Cannot find a working tri")
    assert len(failed.peer) < 110
    assert absent.peer == "bitsandbytes: not installed"
    assert failed.peer_median is absent.peer_median is None
    assert failed.median == plain.median


def test_the_table_says_why_a_peer_was_not_there() -> None:
    missing = row(case="int8 @ 1000", peer="bitsandbytes: not installed", peer_median=None)
    (cells,) = tables.times([missing], [INT8]).lines
    assert cells[4:7] == ("bitsandbytes: not installed", "-", "-")


def functional(monkeypatch: pytest.MonkeyPatch, quantize: Callable[..., Any]) -> None:
    module = SimpleNamespace(quantize_blockwise=quantize)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(functional=module))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", module)


def test_bitsandbytes_gets_one_gradient_after_the_other_in_blocks_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[int, int]] = []

    def quantize(x: torch.Tensor, *, blocksize: int) -> None:
        given.append((x.data_ptr(), blocksize))

    functional(monkeypatch, quantize)
    (peer,) = (peer for peer in INT8.peers if peer.name == "bitsandbytes")
    codec: Any = INT8.build()
    peer.prepare(Operands(ELEMS), codec)()
    addresses, blocks = zip(*given, strict=True)
    assert len(set(addresses)) == 3
    assert set(blocks) == {codec.block}


def test_bitsandbytes_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize(x: torch.Tensor, *, blocksize: int) -> None:
        raise ValueError("no kernel image")

    functional(monkeypatch, quantize)
    (peer,) = (peer for peer in INT8.peers if peer.name == "bitsandbytes")
    with pytest.raises(PeerUnavailable, match=r"fails \(ValueError: no kernel image\)"):
        peer.prepare(Operands(ELEMS), INT8.build())
