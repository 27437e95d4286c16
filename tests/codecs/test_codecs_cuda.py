"""Codecs on tensors of a GPU, as a CPU emulates one: the same payloads, and either decodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_cuda import on_device, on_emulated_cuda

import compressa.arrays
from compressa.codecs import Codec, Draw
from compressa.compressors import COMPRESSORS

pytestmark = on_emulated_cuda

MODULES = ("_kernel", "_counted", "randomk", "topk")
CODECS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("bf16", "fp16", "fp8", "int8", "int4", "int2", "onebit")},
    **{name: {} for name in ("qsgd", "terngrad", "natural", "topk", "randomk")},
    "natural dithering": {"name": "natural", "levels": 7},
    "natural dithering by maxima": {"name": "natural", "levels": 24, "norm": "max", "block": 64},
    "topk in 16 bits": {"name": "topk", "value_dtype": "bfloat16", "density": 0.3},
    "topk with a list": {"name": "topk", "value_dtype": "float16", "indices": "bits"},
    "randomk, unbiased": {"name": "randomk", "unbiased": True},
    "threshold": {"threshold": 1.5},
    "threshold of no more than fit": {"name": "threshold", "threshold": 0.1, "max_density": 0.02},
    "threshold that none reaches": {"name": "threshold", "threshold": 1e6},
    "threshold in units": {"name": "threshold", "threshold": 2.0, "unit": "rms"},
    "threshold in 16 bits": {"name": "threshold", "unit": "max", "value_dtype": "bfloat16"},
    **{name: {} for name in ("dgc", "sidco", "adacomp")},
    "dgc in 16 bits": {"name": "dgc", "density": 0.1, "value_dtype": "float16"},
    "sidco with a list": {"name": "sidco", "density": 0.05, "indices": "bits"},
    "adacomp with a bitmap": {"name": "adacomp", "bin_elems": 50, "indices": "bitmap"},
}
ELEMS = 3001
DRAW = Draw(seed=1, step=2, parameter=3, start=4096, rank=1)


@contextmanager
def on_gpu() -> Iterator[None]:
    """Have codecs take tensors for those of a GPU."""

    def as_array(x: torch.Tensor) -> Any:
        return on_device(compressa.arrays.as_array(x))

    with ExitStack() as patched:
        for module in MODULES:
            patched.enter_context(mock.patch(f"compressa.codecs.{module}.as_array", as_array))
        yield


def codec_of(name: str) -> Codec:
    hyper = dict(CODECS[name])
    codec = COMPRESSORS[hyper.pop("name", name)].compressor(**hyper)
    assert isinstance(codec, Codec)
    return codec


Encode = Callable[[Codec, torch.Tensor, torch.Tensor, torch.Tensor], int]


def encode(codec: Codec, x: torch.Tensor, residual: torch.Tensor, payload: torch.Tensor) -> int:
    return codec.encode(x, payload, DRAW)


def encode_feedback(
    codec: Codec, x: torch.Tensor, residual: torch.Tensor, payload: torch.Tensor
) -> int:
    return codec.encode_feedback(x, residual, payload, DRAW, 8.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("step", [encode, encode_feedback])
@pytest.mark.parametrize("name", CODECS)
def test_payloads_and_residuals_are_those_of_the_cpu(
    name: str, step: Encode, dtype: torch.dtype
) -> None:
    codec, random = codec_of(name), torch.Generator().manual_seed(0)
    if dtype is not torch.float32 and not codec.takes_half:
        pytest.skip("gradients are widened before they come here")
    x = torch.randn(ELEMS, generator=random).to(dtype)
    left = torch.randn(ELEMS, generator=random)
    made = []
    for gpu in (True, False):
        payload = torch.full((codec.wire_bytes(ELEMS),), 0xA7, dtype=torch.uint8)
        residual = left.clone()
        with on_gpu() if gpu else nullcontext():
            length = step(codec, x, residual, payload)
        made.append((payload[:length], residual))
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])


@pytest.mark.parametrize("name", CODECS)
def test_what_a_gpu_encodes_a_cpu_decodes_and_the_other_way_round(name: str) -> None:
    codec, x = codec_of(name), torch.randn(ELEMS, generator=torch.Generator().manual_seed(0))
    payload, outs = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8), []
    with on_gpu():
        length = codec.encode(x, payload, DRAW)
    for gpu in (True, False):
        out = torch.ones(ELEMS)
        with on_gpu() if gpu else nullcontext():
            codec.decode_add(payload[:length], out, 0.3, DRAW)
        outs.append(out)
    assert torch.equal(*outs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CODECS)
def test_sums_of_payloads_are_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    codec, outs = codec_of(name), []
    if dtype is not torch.float32 and codec.fused.decode_sum is None:
        pytest.skip("sums are made in 32 bits")
    sent = []
    for rank in range(9):
        x = torch.randn(ELEMS, generator=torch.Generator().manual_seed(rank))
        payload = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8)
        draw = replace(DRAW, rank=rank)
        sent.append((payload[: codec.encode(x, payload, draw)], draw))
    for gpu in (True, False):
        out = torch.ones(ELEMS, dtype=dtype)
        with on_gpu() if gpu else nullcontext():
            codec.decode_sum(sent, out, 0.3)
        outs.append(out)
    assert torch.equal(*outs)
