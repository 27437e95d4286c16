"""The table of cases: what `python -m benchmarks kernels` measures, and what it should reach.

A case is a few lines here. Its compressor is looked up in the contract table; a case whose
compressor is not there yet is listed as such. Bytes on the bus follow from the operation and the
wire format, except where choosing what to send takes passes of its own: then they are stated.

A GPU measures those that have a target there, and what encodes with gradients in bfloat16 as well.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.kernels import peers_bare as bare
from benchmarks.kernels import peers_dense as dense
from benchmarks.kernels import peers_sparse as sparse
from benchmarks.kernels import peers_steps as steps
from benchmarks.kernels.cases import SUMMED, Case, Least, Operation, Peer
from benchmarks.kernels.peers import TorchPeer, bitsandbytes
from compressa.codecs import Codec

_CPU, _GPU = frozenset({"cpu"}), frozenset({"cuda"})
_ENCODES = (Operation.ENCODE, Operation.FEEDBACK)
_ONE_PASS = 12.0  # the gradient is read, the residual updated
_TWO_PASSES = 16.0  # and what came of it is read once more


def _torch(operations: TorchPeer, name: str = "torch operations") -> tuple[Peer, Peer]:
    """The operations one by one; and on a GPU compiled, which takes some seconds a case."""
    compiled = Peer("torch.compile", operations.compiled, devices=_GPU, takes_half=False)
    return Peer(name, operations), compiled


CASTS = tuple(
    case
    for name, form in (
        ("bf16", dense.cast(torch.bfloat16)),
        ("fp16", dense.cast(torch.float16)),
    )
    for case in (
        Case(
            name=f"{name} cast",
            compressor=name,
            operation=Operation.ENCODE,
            least_share=Least(0.85, 0.85),
            peers=_torch(form.plain, "torch .to"),
            main=name == "bf16",
        ),
        Case(
            name=f"{name} cast with residual",
            compressor=name,
            operation=Operation.FEEDBACK,
            least_share=Least(gpu=0.85),
            peers=_torch(form.feedback),
        ),
    )
)


def _quantiser(
    name: str,
    form: dense.Format,
    targets: tuple[float, float, float] | None,
    *alone: Peer,
    main: tuple[Operation, ...] = (),
) -> tuple[Case, Case, Case]:
    """The three cases of a quantiser; targets without residual, with it, and decoding."""
    plain, residual, decoded = targets or (None, None, None)
    kinds = (
        (Operation.ENCODE, plain, name, (*_torch(form.plain), *alone)),
        (Operation.FEEDBACK, residual, f"{name} with residual", _torch(form.feedback)),
        (Operation.DECODE, decoded, f"{name} decode and add", _torch(form.addition)),
    )
    encode, feedback, decode = (
        Case(
            name=case,
            compressor=name,
            operation=operation,
            least_share=Least(least, 0.85 if targets else None),
            peers=peers,
            main=operation in main,
        )
        for operation, least, case, peers in kinds
    )
    return encode, feedback, decode


LINEAR = (
    *_quantiser(
        "int8",
        dense.blockwise(8),
        (0.75, 0.85, 0.85),
        Peer("bare loop, 1 byte", bare.one_byte, devices=_CPU),
        Peer("bitsandbytes", bitsandbytes, devices=_GPU),
        main=(Operation.FEEDBACK, Operation.DECODE),
    ),
    *_quantiser(
        "int4",
        dense.blockwise(4),
        (0.75, 0.85, 0.85),
        Peer("bare loop, 1/2 byte", bare.half_a_byte, devices=_CPU),
        Peer("bare loop, only reads", bare.read, devices=_CPU),
        main=(Operation.FEEDBACK,),
    ),
    *_quantiser("int2", dense.blockwise(2), None),
)

FP8 = Case(
    name="fp8 with residual",
    compressor="fp8",
    operation=Operation.FEEDBACK,
    least_share=Least(gpu=0.85),
    peers=_torch(dense.FP8.feedback),
)

ONEBIT = _quantiser("onebit", dense.ONE_BIT, (0.85, 0.85, 0.85), main=(Operation.FEEDBACK,))[1:]
"""Its signs without a residual are of no use."""

STOCHASTIC = tuple(
    Case(
        name=name,
        compressor=name,
        operation=Operation.ENCODE,
        least_share=Least(0.40, 0.70),
        peers=_torch(peer),
        main=name == "qsgd",
    )
    for name, peer in (
        ("qsgd", dense.qsgd),
        ("terngrad", dense.terngrad),
        ("natural", dense.natural),
    )
)


def _top_k(density: float, percent: str, least_speedup: float) -> Case:
    return Case(
        name=f"topk {percent} with residual",
        compressor="topk",
        operation=Operation.FEEDBACK,
        hyper={"density": density},
        bus_bytes_per_elem=_TWO_PASSES,
        least_share=Least(0.45, 0.60),
        peers=(
            Peer("torch.topk", sparse.topk_alone, Least(least_speedup, 10.0)),
            *_torch(sparse.topk_feedback),
            Peer("numpy.argpartition", sparse.argpartition, devices=_CPU),
        ),
        main=density == 0.01,
    )


def _one_pass(name: str, compressor: str, peer: TorchPeer, least_on_gpu: float | None) -> Case:
    """What reads the gradient once; what it sends hardly counts."""
    return Case(
        name=f"{name} with residual",
        compressor=compressor,
        operation=Operation.FEEDBACK,
        bus_bytes_per_elem=_ONE_PASS,
        least_share=Least(0.50, least_on_gpu),
        peers=_torch(peer) if least_on_gpu else (Peer("torch operations", peer),),
    )


SPARSE = (
    _top_k(0.01, "1 %", 15.0),
    _top_k(0.001, "0.1 %", 10.0),
    _one_pass("randomk 1 %", "randomk", sparse.randomk_feedback, 0.70),
    _one_pass("chunked topk", "chunked_topk", sparse.chunked_topk_feedback(0.01), 0.70),
    _one_pass("dgc", "dgc", sparse.dgc_feedback(0.001), None),
    _one_pass("sidco", "sidco", sparse.sidco_feedback(0.01), None),
)

THC = Case(
    name="thc with residual",
    compressor="thc",
    operation=Operation.STEP,
    peers=(Peer("torch operations", steps.thc_feedback),),
)

POWERSGD = Case(
    name="powersgd rank 4, 4096 x 4096",
    compressor="powersgd",
    operation=Operation.STEP,
    hyper={"approx_rank": 4},
    shape=(4096, 4096),
    peers=(
        Peer("torch add_, mm, mm, addmm_", steps.power_iteration, Least(1 / 1.2)),
        Peer("the same, factors transposed", steps.power_iteration_transposed, Least(1 / 1.2)),
    ),
)

SUMS = tuple(
    Case(
        name=f"{name} sum of {SUMMED}",
        compressor=name,
        operation=Operation.SUM,
        least_share=Least(gpu=0.85),
        peers=_torch(form.sum),
    )
    for name, form in (
        ("bf16", dense.cast(torch.bfloat16)),
        ("int8", dense.blockwise(8)),
        ("int4", dense.blockwise(4)),
        ("onebit", dense.ONE_BIT),
    )
)

THRESHOLD = Case(
    name="threshold with residual",
    compressor="threshold",
    operation=Operation.FEEDBACK,
    hyper={"threshold": 3.0, "unit": "rms"},
    bus_bytes_per_elem=_TWO_PASSES,
    least_share=Least(gpu=0.70),
    peers=_torch(sparse.threshold_feedback(3.0)),
)

CASES: tuple[Case, ...] = (
    *CASTS,
    *LINEAR,
    FP8,
    *ONEBIT,
    *STOCHASTIC,
    *SPARSE,
    THC,
    POWERSGD,
)
"""Every case of a CPU; the targets hold at the last of a device's `default_elems`."""

GPU_CASES: tuple[Case, ...] = (*SUMS, THRESHOLD)
"""What a GPU measures besides."""


def cases_on(kind: str) -> tuple[Case, ...]:
    """Return what is measured on a kind of device, "cpu" or "cuda"."""
    if kind == "cpu":
        return CASES
    there = [case for case in (*CASES, *GPU_CASES) if case.least_share.gpu is not None]
    return tuple(case for one in there for case in (one, *_of_half(one)))


def _of_half(case: Case) -> tuple[Case, ...]:
    """The same with gradients in bfloat16, if it encodes them as they are."""
    compressor = case.build()
    if case.operation not in _ENCODES or not isinstance(compressor, Codec):
        return ()
    if not compressor.takes_half:
        return ()
    peers = tuple(peer for peer in case.peers if peer.takes_half)
    name, gradient = f"{case.name}, bfloat16 gradient", torch.bfloat16
    return (replace(case, name=name, gradient=gradient, peers=peers, main=False),)
