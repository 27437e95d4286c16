"""As many elements as fill a GPU: every codec leaves there what it leaves on the CPU, to the bit.

Elsewhere kernels are compared on few blocks, which take many iterations of their loops; here
there are more blocks than a GPU runs at a time, and the last one is not full. Without a GPU, an
emulated one shows on small vectors that the comparisons themselves hold.
"""

from __future__ import annotations

import shutil
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from compressa.kernels import reference, sidco
from compressa.kernels._selection import unscaled
from emulated_streams import DEVICE
from emulated_torch import StreamedEmulated, emulated_torch
from test_codecs_cuda import CODECS

from compressa.codecs import Codec, Draw, SIDCo
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.wrappers import ErrorFeedback

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
emulated = pytest.mark.skipif(
    torch.cuda.is_available() or shutil.which("g++") is None, reason="a GPU does it, or no g++"
)
ELEMS, SHAPE = 10_000_019, (2503, 4001)
FEW_ELEMS, SMALL_SHAPE = 3001, (37, 83)
LOSS_SCALE, WEIGHT = 8.0, 0.3
DRAW = Draw(seed=1, step=2, parameter=3, start=4096, rank=1)
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ALL = CODECS | {"demo": {}, "demo of tiles": {"name": "demo", "columns": 3000}}
WHOLE = ("acpsgd", "chunked_topk", "demo", "onebit_sgd", "powersgd", "thc")
"""What is more than a codec, or looks at the shape."""


class Result(NamedTuple):
    """What a codec leaves, on the CPU."""

    payload: torch.Tensor
    residual: torch.Tensor
    out: torch.Tensor


def codec_of(name: str) -> Codec:
    hyper = dict(ALL[name])
    codec = COMPRESSORS[hyper.pop("name", name)].compressor(**hyper)
    assert isinstance(codec, Codec)
    return codec


def by_default(name: str) -> Compressor:
    """A compressor, with error feedback if it has none of its own."""
    compressor = COMPRESSORS[name].compressor()
    return ErrorFeedback(codec=compressor) if isinstance(compressor, Codec) else compressor


def given(elems: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient, and a residual."""
    return torch.randn(elems, generator=generator(0)), torch.randn(elems, generator=generator(1))


def result_of(codec: Codec, elems: int, device: torch.device) -> Result:
    """Encode with feedback on a device, and add what that decodes to."""
    x, residual = (torch.zeros(elems, device=device).copy_(values) for values in given(elems))
    payload = torch.zeros(codec.wire_bytes(elems), dtype=torch.uint8, device=device)
    payload = payload[: codec.encode_feedback(x, residual, payload, DRAW, LOSS_SCALE)]
    out = torch.ones(elems, device=device)
    codec.decode_add(payload, out, WEIGHT, DRAW)
    return Result(payload.cpu(), residual.cpu(), out.cpu())


def check(codec: Codec, ours: Result, due: Result) -> None:
    """Assert that a GPU has left what the CPU has, to the bit.

    SIDCo's logarithm may round otherwise there, and so may a threshold: then elements that are as
    large as the lower one are sent or not, and no others.
    """
    if not isinstance(codec, SIDCo):
        for one, other in zip(ours, due, strict=True):
            assert torch.equal(one, other)
        return
    here = torch.ones_like(ours.out)
    codec.decode_add(ours.payload, here, WEIGHT, DRAW)
    assert torch.equal(ours.out, here)
    apart = (ours.residual != due.residual) | (ours.out != due.out)
    sizes = torch.maximum(ours.residual.abs(), due.residual.abs())[apart]
    assert sizes.unique().numel() <= 1, "others are sent"


def stepped(
    compressor: Compressor, shape: tuple[int, int], device: torch.device
) -> dict[str, torch.Tensor]:
    """Have two ranks do two steps on a device; return means and state."""
    parameter = ParameterInfo(0, "w", shape)
    world = LoopbackWorld(2, [parameter], compressor, unit_bytes=1 << 30, device=device)
    found = {}
    for step in range(2):
        noise = [torch.randn(shape, generator=generator(2 * step + rank)) for rank in range(2)]
        ranks = [{"w": torch.zeros(shape, device=device).copy_(values)} for values in noise]
        for rank, mean in enumerate(world.step(ranks)):
            found[f"mean of step {step}, rank {rank}"] = mean["w"]
    for rank, state in enumerate(world.states):
        found |= {f"{name}, rank {rank}": vector for name, vector in state.vectors.items()}
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {name: vector.cpu() for name, vector in found.items()}


def check_steps(found: dict[str, torch.Tensor], due: dict[str, torch.Tensor]) -> None:
    """Assert that means and state are the same."""
    assert found.keys() == due.keys()
    assert len(due) > 4, "there is state"
    assert [name for name in due if not torch.equal(found[name], due[name])] == []


@on_a_gpu
@pytest.mark.parametrize("name", ALL)
def test_payloads_residuals_and_results_are_those_of_the_cpu(name: str) -> None:
    codec = codec_of(name)
    check(codec, result_of(codec, ELEMS, GPU), result_of(codec, ELEMS, CPU))


@on_a_gpu
@pytest.mark.parametrize("name", WHOLE)
def test_means_and_state_of_steps_are_those_of_the_cpu(name: str) -> None:
    compressor = by_default(name)
    check_steps(stepped(compressor, SHAPE, GPU), stepped(compressor, SHAPE, CPU))


@emulated
@pytest.mark.parametrize("name", ALL)
def test_codecs_are_compared_on_an_emulated_gpu(name: str) -> None:
    codec = codec_of(name)
    with emulated_torch():
        ours = result_of(codec, FEW_ELEMS, DEVICE)
    check(codec, ours, result_of(codec, FEW_ELEMS, CPU))


@emulated
@pytest.mark.parametrize("name", WHOLE)
def test_steps_are_compared_on_an_emulated_gpu(name: str) -> None:
    compressor = by_default(name)
    with emulated_torch():
        ours = stepped(compressor, SMALL_SHAPE, DEVICE)
    check_steps(ours, stepped(compressor, SMALL_SHAPE, CPU))


@emulated
def test_what_a_gpu_does_not_do_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = StreamedEmulated.launch

    def launched(self: Any, source: str, name: str, *how: Any) -> None:
        if source not in ("onebit", "lowrank"):
            launch(self, source, name, *how)

    monkeypatch.setattr(StreamedEmulated, "launch", launched)
    codec, compressor = codec_of("onebit"), by_default("powersgd")
    with emulated_torch():
        ours, steps = result_of(codec, FEW_ELEMS, DEVICE), stepped(compressor, SMALL_SHAPE, DEVICE)
    with pytest.raises(AssertionError):
        check(codec, ours, result_of(codec, FEW_ELEMS, CPU))
    with pytest.raises(AssertionError):
        check_steps(steps, stepped(compressor, SMALL_SHAPE, CPU))


def test_thresholds_that_round_otherwise_are_told_from_other_choices() -> None:
    codec = SIDCo(density=0.01)
    x, residual = (values.numpy() for values in given(FEW_ELEMS))
    sizes = np.sort(np.abs(unscaled(x, residual, LOSS_SCALE)))[::-1]

    def sent_from(threshold: np.float32) -> Result:
        fixed = mock.patch.object(sidco, "stage_threshold", return_value=float(threshold))
        with reference(), fixed:
            return result_of(codec, FEW_ELEMS, CPU)

    due = sent_from(sizes[30])
    check(codec, due, due)
    rounded = sent_from(np.nextafter(sizes[30], np.float32(np.inf)))
    assert not torch.equal(rounded.residual, due.residual)
    check(codec, rounded, due)
    with pytest.raises(AssertionError, match="others are sent"):
        check(codec, sent_from(sizes[28]), due)
    with pytest.raises(AssertionError):
        check(codec, due._replace(out=due.out + 1), due)
