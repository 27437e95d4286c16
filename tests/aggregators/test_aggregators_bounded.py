"""Codecs whose payload varies in length go through the same rounds, and the same checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from compressa.codecs import Bounded, Codec, Contraction, Draw
from compressa.compressor import Granularity
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.transports.frames import FRAME_HEADER_BYTES


@dataclass(frozen=True, kw_only=True)
class DropsTail(Codec):
    """Sends float32 values up to the last one that is not zero."""

    name: ClassVar[str] = "drops_tail"
    wire_id: ClassVar[int] = 200

    @property
    def granularity(self) -> Granularity:
        return Granularity.ELEMENT

    @property
    def size(self) -> Bounded:
        return Bounded()

    def wire_bytes(self, elems: int) -> int:
        return 4 * elems

    def bias(self, elems: int) -> Contraction:
        return Contraction(1.0)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        indices = x.nonzero()
        length = 4 * (int(indices[-1]) + 1) if len(indices) else 0
        payload[:length].view(torch.float32).copy_(x[: length // 4])
        return length

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        self.check(payload, out.numel())
        values = payload.clone().view(torch.float32)
        out[: values.numel()] += weight * values

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        if payload.numel() % 4:
            raise PayloadError(f"{self.name}: {payload.numel()} bytes are no whole values")


@pytest.mark.parametrize("exchange", ["all_gather", "scatter_reduce"])
def test_only_what_is_there_is_sent(exchange: str) -> None:
    parameters = [ParameterInfo(0, "a", (512,)), ParameterInfo(1, "b", (512,))]
    gradient = torch.zeros(512)
    gradient[:16] = 1.0
    world = LoopbackWorld(2, parameters, DropsTail(), exchange=exchange, unit_bytes=1 << 20)
    mean = world.step([{"a": gradient, "b": gradient}] * 2)[1]
    assert torch.equal(mean["a"], gradient)
    assert torch.equal(mean["b"], gradient)
    traffic = world.loopback.transports[0].traffic
    payload = traffic.sent_bytes - FRAME_HEADER_BYTES * traffic.messages
    # Per message a header of 24 bytes, and per scope its length in 8, then its values.
    scopes = 2 if exchange == "all_gather" else 2 * 1
    assert payload == traffic.messages * 24 + scopes * (8 + 64)


@pytest.mark.parametrize("length", [65, 2**32 - 1, 2049 * 4])
def test_a_scope_that_says_too_much_is_a_payload_error(length: int) -> None:
    parameters = [ParameterInfo(0, "a", (512,))]
    world = LoopbackWorld(2, parameters, DropsTail(), exchange="all_gather", unit_bytes=1 << 20)
    deliver = world.loopback.transports[0].deliver

    def corrupt(sender: int, frame: object, data: torch.Tensor) -> None:
        data[24:28] = torch.tensor([length]).to(torch.uint32).view(torch.uint8)
        deliver(sender, frame, data)  # type: ignore[arg-type]

    world.loopback.transports[0].deliver = corrupt  # type: ignore[method-assign]
    gradient = torch.zeros(512)
    gradient[:16] = 1.0
    with pytest.raises(PayloadError):
        world.step([{"a": gradient}] * 2)


def test_zeros_follow_on_a_length_that_lies_where_values_have_lain() -> None:
    parameters = [ParameterInfo(0, "a", (512,)), ParameterInfo(1, "b", (512,))]
    world = LoopbackWorld(2, parameters, DropsTail(), exchange="all_gather", unit_bytes=1 << 20)
    deliver, came = world.loopback.transports[0].deliver, list[bytes]()

    def noted(sender: int, frame: object, data: torch.Tensor) -> None:
        came.append(bytes(data[24:].tolist()))
        deliver(sender, frame, data)  # type: ignore[arg-type]

    world.loopback.transports[0].deliver = noted  # type: ignore[method-assign]
    one = torch.zeros(512)
    one[0] = 1.0
    for gradient in (torch.ones(512), one):
        world.step([{"a": gradient, "b": gradient}] * 2)
    assert len(came[0]) == 2 * (8 + 4 * 512)
    # Of each a length, four zeros, a value, and what fills up to eight bytes.
    assert [came[1][at : at + 12] for at in (0, 16)] == [b"\4" + bytes(7) + b"\0\0\x80\x3f"] * 2
