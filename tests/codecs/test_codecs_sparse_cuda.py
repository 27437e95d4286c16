"""Sparse payloads on an emulated GPU: looked at as often as it takes, and never less."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest
import torch
from emulated_streams import DEVICE
from emulated_torch import StreamedEmulated, emulated_torch, on_cpu, on_gpu

from compressa.codecs import DGC, TopK
from compressa.codecs._sparse import IndexFormat
from compressa.codecs.base import Codec
from compressa.engine.device_stream import CudaDeviceStream
from compressa.errors import PayloadError
from compressa.testing.codec_checks import DRAW
from compressa.testing.inputs import generator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ELEMS = 1009
CHECKS = {"bits": "find_disorder", "bitmap": "list_tiles", "elias_fano": "find_disorder"}
CODECS = [(codec, indices) for codec in (TopK, DGC) for indices in CHECKS]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of the kernels that look at indices is launched."""
    counts: Counter[str] = Counter()
    launch = StreamedEmulated.launch

    def counting(self: Any, source: str, name: str, blocks: int, arguments: Any) -> None:
        if source == "bitpack" and name in {*CHECKS.values(), "find_too_large"}:
            counts[name] += 1
        launch(self, source, name, blocks, arguments)

    monkeypatch.setattr(StreamedEmulated, "launch", counting)
    return counts


def encoded(codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
    """A payload, and what it decodes to."""
    x = torch.randn(ELEMS, generator=generator(5))
    payload, out = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8), torch.zeros(ELEMS)
    payload = payload[: codec.encode(x, payload, DRAW)]
    codec.decode(payload, out, DRAW)
    return payload, out


@pytest.mark.parametrize(("kind", "indices"), CODECS)
def test_what_was_checked_on_arrival_is_looked_at_once(
    kind: Any, indices: IndexFormat, launched: Counter[str]
) -> None:
    codec = kind(density=0.05, indices=indices)
    payload, due = encoded(codec)
    with emulated_torch():
        device_stream, there = CudaDeviceStream(DEVICE), on_gpu(payload)
        with device_stream.current():
            out = torch.zeros(ELEMS, device=DEVICE)
            with device_stream.checking("a unit"):
                codec.check(there, ELEMS)
                codec.decode_add(there, out, 1.0, DRAW)
            device_stream.check_received(wait=True)
        device_stream.stream.synchronize()
        assert torch.equal(on_cpu(out), due)
    high_bits = {"list_tiles": 1} if indices == "elias_fano" else {}
    assert launched == {CHECKS[indices]: 1, **high_bits}


# Where answers come later, a check leaves the indices to whatever reads the payload.
CALLS = [("check", False), *((c, later) for c in ("decode", "decode_add") for later in (0, 1))]


@pytest.mark.parametrize(("call", "later"), CALLS)
@pytest.mark.parametrize(("kind", "indices"), CODECS)
def test_wrong_indices_are_found_by_each_call_alone(
    kind: Any, indices: IndexFormat, call: str, later: bool
) -> None:
    codec = kind(density=0.05, indices=indices)
    payload, _ = encoded(codec)
    payload[-8:] = 0xFF
    with emulated_torch():
        device_stream, there = CudaDeviceStream(DEVICE), on_gpu(payload)
        with device_stream.current():
            out = torch.zeros(ELEMS, device=DEVICE)
            calls = {
                "check": lambda: codec.check(there, ELEMS),
                "decode": lambda: codec.decode(there, out, DRAW),
                "decode_add": lambda: codec.decode_add(there, out, 1.0, DRAW),
            }
            if not later:
                with pytest.raises(PayloadError):
                    calls[call]()
                assert not bool(out.any())
                return
            with device_stream.checking("a unit"):
                calls[call]()
            with pytest.raises(PayloadError, match="failed a check on the GPU"):
                device_stream.check_received(wait=True)


@pytest.mark.parametrize(("kind", "indices"), CODECS)
def test_a_wrong_length_is_refused_on_arrival(kind: Any, indices: IndexFormat) -> None:
    codec = kind(density=0.05, indices=indices)
    payload, _ = encoded(codec)
    with emulated_torch():
        device_stream = CudaDeviceStream(DEVICE)
        with (
            device_stream.current(),
            device_stream.checking("a unit"),
            pytest.raises(PayloadError, match="take"),
        ):
            codec.check(on_gpu(payload[:-1]), ELEMS)
