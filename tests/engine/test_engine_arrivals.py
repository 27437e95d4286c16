"""What arrives on a GPU is checked there, and judged without a wait, before the next step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from _until import until
from compressa.kernels import check_indices
from compressa.kernels.cuda import answers_come_later
from emulated_streams import DEVICE, Event, Stream
from emulated_torch import StreamedEmulated, emulated_torch, on_gpu
from engines import engine_over
from torch import nn

from compressa.arrays import as_array
from compressa.codecs import Int8
from compressa.codecs.fused import Fused
from compressa.codecs.payload import HEADER_BYTES, Header, check_header, write_header
from compressa.config import parameter_infos
from compressa.engine import communication
from compressa.engine.device_stream import CudaDeviceStream, DeviceStream, _Answer
from compressa.engine.engine import Engine
from compressa.errors import PayloadError

DUE = Header(codec=3, epoch=1, step=7, unit=2, elems=100, body_bytes=8)


@pytest.fixture
def gpu() -> Iterator[None]:
    with emulated_torch():
        yield


@pytest.fixture
def device_stream(gpu: None) -> Iterator[CudaDeviceStream]:
    device_stream = CudaDeviceStream(DEVICE)
    with device_stream.current():
        yield device_stream


def check(index: int) -> None:
    """Whether an index that a GPU has is below 5."""
    number = on_gpu(torch.tensor([index], dtype=torch.int32))
    check_indices(as_array(number).view("u4"), 5)


def check_two(index: int) -> None:
    """Fail after a check on the GPU."""
    check(index)
    raise ValueError("lengths do not match")


def arrived(header: Header = DUE, size_bytes: int = HEADER_BYTES + DUE.body_bytes) -> torch.Tensor:
    payload = torch.zeros(size_bytes, dtype=torch.uint8)
    write_header(payload, header)
    return on_gpu(payload)


def test_a_cpu_looks_at_once() -> None:
    device_stream = DeviceStream()
    with device_stream.checking("a unit"):
        assert not answers_come_later()
    device_stream.check_received()
    device_stream.check_received(wait=True)


def test_a_fault_is_judged_afterwards_and_named(device_stream: CudaDeviceStream) -> None:
    for index in (3, 5, 4):
        with device_stream.checking(f"the unit {index}"):
            check(index)
    with pytest.raises(
        PayloadError, match=r"what arrived for the unit 5 failed a check on the GPU"
    ):
        device_stream.check_received()


def test_what_has_not_come_is_judged_later(device_stream: CudaDeviceStream) -> None:
    with device_stream.checking("a unit"):
        check(5)
    with mock.patch.object(Event, "query", return_value=False):
        device_stream.check_received()
        device_stream.check_received()
        with pytest.raises(PayloadError):
            device_stream.check_received(wait=True)


def test_answers_serve_again_once_they_are_judged(device_stream: CudaDeviceStream) -> None:
    with mock.patch("compressa.engine.device_stream._Answer", wraps=_Answer) as made:
        for step in range(5):
            for unit in range(3):
                with device_stream.checking(f"unit {unit} in step {step}"):
                    check(unit)
                    check(unit)
            device_stream.check_received()
        with device_stream.checking("nothing"):
            pass
        assert made.call_count == 3
        with device_stream.checking("the last"):
            check(9)
    with pytest.raises(PayloadError, match="the last"):
        device_stream.check_received()


def test_work_that_fails_leaves_an_answer_that_blames_nobody_and_serves_again(
    device_stream: CudaDeviceStream,
) -> None:
    with pytest.raises(ValueError, match="do not match"), device_stream.checking("a unit"):
        check_two(9)
    assert not answers_come_later()
    device_stream.check_received(wait=True)
    with mock.patch("compressa.engine.device_stream._Answer") as made:
        with device_stream.checking("the next"):
            check(2)
        device_stream.check_received(wait=True)
        made.assert_not_called()


@pytest.mark.parametrize("field", ["codec", "epoch", "step", "unit", "elems", "body_bytes"])
def test_each_field_of_a_header_counts(device_stream: CudaDeviceStream, field: str) -> None:
    with device_stream.checking("a unit"):
        assert check_header(arrived(), DUE, 1, exact=True) == DUE.body_bytes
    device_stream.check_received(wait=True)
    wrong = replace(DUE, **{field: getattr(DUE, field) + 1})
    with device_stream.checking("a unit"):
        check_header(arrived(wrong), DUE, 1, exact=True)
    with pytest.raises(PayloadError, match="its header or its indices"):
        device_stream.check_received()


def test_only_headers_of_payloads_of_exact_size_are_checked_without_a_wait(
    device_stream: CudaDeviceStream,
) -> None:
    with mock.patch.object(Stream, "synchronize") as waits, device_stream.checking("a unit"):
        check_header(arrived(), DUE, 1, exact=True)
        waits.assert_not_called()
    with mock.patch.object(Stream, "synchronize", autospec=True, side_effect=run) as waits:
        with device_stream.checking("a unit"):
            check_header(arrived(), DUE, 1, exact=False)
        assert waits.call_count == 1
        check_header(arrived(), DUE, 1, exact=True)
        assert waits.call_count == 2


def run(stream: Stream) -> None:
    stream.run_until(stream._given)


def test_a_payload_of_another_length_is_refused_at_once(device_stream: CudaDeviceStream) -> None:
    for size_bytes in (HEADER_BYTES, HEADER_BYTES + DUE.body_bytes + 1):
        with (
            device_stream.checking("a unit"),
            pytest.raises(PayloadError, match=r"from rank 1 has .* where exactly 32 are due"),
        ):
            check_header(arrived(size_bytes=size_bytes), DUE, 1, exact=True)


@pytest.fixture
def engine(gpu: None) -> Iterator[Engine]:
    """One that finds a fault in step 1."""
    encode = Int8.encode

    def checked(codec: Int8, *rest: Any) -> int:
        check(5 if rest[-1].step == 1 else 4)
        return encode(codec, *rest)

    net = nn.Linear(64, 64, bias=False)
    with mock.patch.multiple(Int8, encode=checked, fused=Fused()):
        engine = engine_over(
            parameter_infos(net), {"weight": Int8()}, device_stream=CudaDeviceStream(DEVICE)
        )
        yield engine
        engine.close()


def do(engine: Engine, step: int) -> None:
    engine.wait([engine.submit({"weight": on_gpu(torch.ones(64, 64))}, step=step)])


def test_a_fault_ends_the_training_no_later_than_the_next_step(engine: Engine) -> None:
    with mock.patch.object(communication, "_TICK_S", 1000.0):  # nothing else looks at answers
        do(engine, 0)
        do(engine, 1)
        with pytest.raises(PayloadError, match=r"the unit .* in step 1 failed a check on the GPU"):
            do(engine, 2)


def train_and_wait(engine: Engine) -> None:
    """Train the step with the fault, and wait until it is known, in that call or later."""
    do(engine, 0)
    do(engine, 1)
    until(lambda: engine._error is not None)
    engine.check()


def test_a_fault_ends_the_training_if_no_step_comes(engine: Engine) -> None:
    with (
        mock.patch.object(communication, "_TICK_S", 0.02),
        pytest.raises(PayloadError, match="in step 1 failed a check"),
    ):
        train_and_wait(engine)


def test_nothing_is_saved_after_a_fault(engine: Engine) -> None:
    do(engine, 0)
    engine.settle()
    with mock.patch.object(Event, "query", return_value=False):
        do(engine, 1)
        with pytest.raises(PayloadError, match="in step 1 failed a check"):
            engine.settle()


def test_a_step_without_a_fault_reads_nothing_back(gpu: None) -> None:
    net = nn.Linear(64, 64, bias=False)
    engine = engine_over(
        parameter_infos(net), {"weight": Int8()}, device_stream=CudaDeviceStream(DEVICE)
    )
    with (
        mock.patch.object(StreamedEmulated, "read") as read,
        mock.patch.object(Stream, "synchronize") as waits,
    ):
        do(engine, 0)
        do(engine, 1)
    read.assert_not_called()
    waits.assert_not_called()
    engine.close()
