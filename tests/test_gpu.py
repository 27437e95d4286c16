"""What only a GPU can show: codecs on its tensors, on torch's streams, and in a captured graph."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs import Codec, Draw
from compressa.compressors import COMPRESSORS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

CODECS = ("bf16", "fp16", "fp8", "int8", "int4", "int2", "onebit", "qsgd", "terngrad", "natural")
CODECS_OF_FIXED_CHOICE = ("topk", "randomk")
ELEMS = 1_000_003
DRAW = Draw(seed=1, step=2, parameter=3, start=4096, rank=1)


def codec_of(name: str) -> Codec:
    codec = COMPRESSORS[name].compressor()
    assert isinstance(codec, Codec)
    return codec


def gradient() -> torch.Tensor:
    return torch.randn(ELEMS, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CODECS + CODECS_OF_FIXED_CHOICE)
def test_payloads_residuals_and_results_are_those_of_the_cpu(name: str) -> None:
    codec, made = codec_of(name), []
    for place in ("cuda", "cpu"):
        x, residual = gradient().to(place), (gradient().flip(0) / 3).to(place)
        payload = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8, device=place)
        length = codec.encode_feedback(x, residual, payload, DRAW, 8.0)
        out = torch.ones(ELEMS, device=place)
        codec.decode_add(payload[:length], out, 0.3, DRAW)
        made.append([tensor.cpu() for tensor in (payload[:length], residual, out)])
    for ours, due in zip(*made, strict=True):
        assert torch.equal(ours, due)


def test_a_payload_of_the_gpu_decodes_on_the_cpu() -> None:
    codec = codec_of("int4")
    payload = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8, device="cuda")
    codec.encode(gradient().cuda(), payload, DRAW)
    there, here = torch.zeros(ELEMS, device="cuda"), torch.zeros(ELEMS)
    codec.decode(payload, there, DRAW)
    codec.decode(payload.cpu(), here, DRAW)
    assert torch.equal(there.cpu(), here)


def test_work_is_on_the_stream_that_is_current() -> None:
    codec, x, stream = codec_of("int8"), gradient().cuda(), torch.cuda.Stream()
    payload = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        codec.encode(x, payload, DRAW)
        assert not stream.query()
    stream.synchronize()
    due = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8)
    codec.encode(x.cpu(), due, DRAW)
    assert torch.equal(payload.cpu(), due)


@pytest.mark.parametrize("name", CODECS + CODECS_OF_FIXED_CHOICE)
def test_a_step_can_be_captured_and_replayed(name: str) -> None:
    codec, x = codec_of(name), gradient().cuda()
    payload = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8, device="cuda")
    residual, out = torch.zeros(ELEMS, device="cuda"), torch.zeros(ELEMS, device="cuda")

    def step() -> None:
        codec.encode_feedback(x, residual, payload, DRAW)
        if name in CODECS:  # the indices of others may come from anyone, and are looked at first
            codec.decode_add(payload, out, 0.5, DRAW)

    step()  # compiles
    graph = torch.cuda.CUDAGraph()
    residual.zero_()
    out.zero_()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    found = out.cpu(), residual.cpu()
    residual.zero_()
    out.zero_()
    for _ in range(3):
        step()
    assert torch.equal(found[0], out.cpu())
    assert torch.equal(found[1], residual.cpu())
