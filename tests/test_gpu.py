"""What only a GPU can show: codecs on its tensors, on torch's streams, and in a captured graph."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import nccl_twin
import numpy as np
import pytest
import torch
import torch.distributed as dist
from _conforming import ManyWeights, digest, gradients, means
from _ranks import Group, same, settings
from _transports import ON_HOST
from compressa.kernels import cuda
from compressa.kernels.cuda._gpu import current
from engines import engine_over
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.arrays import as_array
from compressa.codecs import Codec, Draw, NoCompression, Threshold, TopK
from compressa.codecs.payload import HEADER_BYTES, Header, read_header, write_header
from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.compressors import COMPRESSORS
from compressa.config import Config, load_config, parameter_infos
from compressa.engine.compilation import compile_kernels
from compressa.engine.device_stream import CudaDeviceStream
from compressa.engine.start import process_groups
from compressa.testing import LoopbackWorld
from compressa.transports.base import Key
from compressa.transports.gpu_threads import call_at, on, work_on
from compressa.transports.nccl import NcclTransport
from compressa.transports.reactor import Reactor
from compressa.wrappers import ErrorFeedback

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

CODECS = ("bf16", "fp16", "fp8", "int8", "int4", "int2", "onebit", "qsgd", "terngrad", "natural")
CODECS_OF_FIXED_CHOICE = ("topk", "randomk")
ELEMS = 1_000_003
DRAW = Draw(seed=1, step=2, parameter=3, start=4096, rank=1)


def train_over_nccl(*, config: Any, steps: int) -> list[list[str]]:
    """Train a world of one whose process group is NCCL's; return digests of the gradients."""
    torch.cuda.set_device(0)
    group = dist.new_group([0], backend="nccl")
    net = ManyWeights(3).cuda()
    wrapped = DistributedDataParallel(net, device_ids=[0], process_group=group)
    handle = compressa.register_comm_hook(wrapped, config)
    result = []
    for step in range(steps):
        net.zero_grad()
        wrapped(*(factor.cuda() for factor in gradients(3, 0, step))).backward()
        result.append([digest(weight.grad) for weight in net.weights])
    handle.close()
    return result


def train_a_twin_over_nccl(
    *, compressor: Any, exchange: dict[str, Any], in_stream_order: bool
) -> list[str]:
    """Have an engine exchange by NCCL with one that has the same; return digests of the means."""
    torch.cuda.set_device(0)
    assert dist.group.WORLD is not None
    group = process_groups.new_group(Config(), dist.group.WORLD, "nccl", "a test")
    device_stream = CudaDeviceStream(torch.device("cuda", 0))
    engine = nccl_twin.engine_of(
        compressor, exchange, device_stream, group, in_stream_order=in_stream_order
    )
    gradients = {name: x.cuda() for name, x in nccl_twin.values().items()}
    result = [digest(x) for x in nccl_twin.means(engine, gradients)]
    engine.close()
    process_groups.release_groups([group])
    return result


def send_over_nccl(*, sizes: list[int]) -> list[bool]:
    """Have NCCL carry messages of a rank to itself, exact and not; return what arrived whole."""
    torch.cuda.set_device(0)
    stream = torch.cuda.Stream(priority=-1)
    errors: list[Any] = []
    assert dist.group.WORLD is not None
    group = process_groups.new_group(Config(), dist.group.WORLD, "nccl", "a test")
    transport = NcclTransport(group, 1, stream, 60.0, errors.append, lambda seconds: None)
    reactor = Reactor()
    transport.attach(reactor)
    whole = []
    with torch.cuda.stream(stream):
        for number, size in enumerate(sizes):
            for exact in (True, False):
                results: list[Any] = []
                data = torch.arange(size, device="cuda").to(torch.uint8)
                room = torch.zeros(size if exact else size + 9, dtype=torch.uint8, device="cuda")
                exchange = Exchange({0: data}, {0: room}, exact, {0: room.numel()})
                transport.exchange(Key(0, number, int(exact)), exchange, 0, results.append)
                while not results:
                    reactor.run_once(0.1)
                transport.land(exchange)
                whole.append(torch.equal(results[0][0], data))
        total = BackendAllReduce(torch.ones(1000, device="cuda"))
        transport.all_reduce(total, lambda result: None)
        transport.land(total)
        whole.append(bool((total.tensor == 1).all()))
    stream.synchronize()
    transport.close(5.0)
    reactor.close()
    assert not errors
    process_groups.release_groups([group])
    return whole


def codec_of(name: str) -> Codec:
    codec = COMPRESSORS[name].compressor()
    assert isinstance(codec, Codec)
    return codec


def gradient() -> torch.Tensor:
    return torch.randn(ELEMS, generator=torch.Generator().manual_seed(0))


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
    codec.encode(x, payload, DRAW)  # compiles
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
    fault = torch.zeros(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        with cuda.answers_later(lambda: as_array(fault).view(np.uint64)):  # as an engine asks
            codec.encode_feedback(x, residual, payload, DRAW)
            if name in CODECS:  # others look at indices first, which may come from anyone
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
    assert not fault.item()
    assert torch.equal(found[0], out.cpu())
    assert torch.equal(found[1], residual.cpu())


def test_a_header_can_be_captured_and_is_there_after_each_replay() -> None:
    payload = torch.zeros(HEADER_BYTES + 8, dtype=torch.uint8, device="cuda")
    header = Header(codec=6, epoch=2, step=7, unit=9, elems=1000, body_bytes=8)
    write_header(payload, header)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write_header(payload, header)
    for _ in range(2):
        payload.zero_()
        graph.replay()
        assert read_header(payload) == header
        assert not payload[HEADER_BYTES:].any()


def ahead_of_a_busy_stream() -> list[bool]:
    """Encode a unit while the main stream is busy; return what was done by then, and is in the end.

    The world is of one, where nothing is decoded; what waits is anything on the main stream.
    """
    torch.cuda.set_device(0)
    net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2)))
    streams, codec = CudaDeviceStream(torch.device("cuda", 0)), codec_of("int8")
    config = load_config({"compressor": "int8", "exchange": {"unit_bytes": 1 << 20}})
    names = [name for name, _ in net.named_parameters()]
    engine = engine_over(
        parameter_infos(net), dict.fromkeys(names, codec), config=config, device_stream=streams
    )
    given = {name: torch.ones(512, 512, device="cuda") for name in names}
    for step in range(2):  # the first one allocates
        tickets = [engine.submit({names[0]: given[names[0]]}, step=step)]
        with streams.current():
            torch.cuda._sleep(400_000_000)  # a fifth of a second
        tickets += [engine.submit({names[1]: given[names[1]]}, step=step)]
        for ticket in tickets:
            ticket.result(10.0)
        with streams.ahead():
            torch.cuda.current_stream().synchronize()
        early = not streams.stream.query()
        engine.wait(tickets)
    torch.cuda.current_stream().synchronize()
    right = all(torch.allclose(x, torch.ones_like(x)) for x in given.values())
    engine.close()
    return [early, right]


def test_a_unit_is_encoded_while_the_main_stream_waits() -> None:
    assert ahead_of_a_busy_stream() == [True, True]


def test_a_stream_is_the_current_one_for_a_while() -> None:
    before, outer, inner = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    with on(outer):
        with on(inner):
            assert torch.cuda.current_stream() == inner
        assert torch.cuda.current_stream() == outer
    assert torch.cuda.current_stream() == before


def test_threads_of_ours_break_no_capture() -> None:
    device, over, failed = torch.device("cuda", 0), threading.Event(), list[BaseException]()
    x = torch.zeros(1000, device=device)
    x.add_(1)

    def look() -> None:
        try:
            work_on(device)
            stream = torch.cuda.Stream(device)  # one: torch has 32, and gives them out in turns
            while not over.wait(1e-3):
                with torch.cuda.stream(stream):
                    event = torch.cuda.current_stream().record_event()
                    event.query()
                    event.synchronize()
                    torch.empty(3 << 20, device=device)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                x.add_(1)
                over.wait(2e-3)
    finally:
        over.set()
        thread.join()
    assert not failed
    graph.replay()
    assert x.eq(101).all()


def test_a_stream_wakes_the_compiled_loop_behind_a_copy() -> None:
    from compressa.transports.lowered.fence import Fence, signal_function

    wake = os.eventfd(0, os.EFD_NONBLOCK)
    stream, fence = torch.cuda.Stream(), Fence(wake)
    source = torch.arange(1 << 20, device="cuda", dtype=torch.int32)
    copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        copy.copy_(source, non_blocking=True)
    call_at(stream, signal_function(), fence.address)
    early = fence.reached
    woken, _, _ = select.select([wake], [], [], 10.0)
    os.close(wake)
    assert woken
    assert fence.reached
    assert not early
    assert torch.equal(copy, torch.arange(1 << 20, dtype=torch.int32))


def test_no_kernel_is_loaded_after_registration() -> None:
    codec, device = codec_of("int8"), torch.device("cuda", 0)
    net = nn.Linear(300, 300)
    compressors = {name: ErrorFeedback(codec=codec) for name, _ in net.named_parameters()}
    infos = parameter_infos(net)
    compile_kernels(infos, compressors, Config(), 3, device)
    with mock.patch.object(current()._cupy, "RawModule", side_effect=AssertionError("loaded")):
        world = LoopbackWorld(3, infos, compressors, device=device)
        for _ in range(2):
            world.step([{p.name: torch.ones(p.shape, device=device) for p in infos}] * 3)


def test_a_child_that_is_forked_after_the_imports_can_use_the_gpu() -> None:
    script = """
import os
import compressa, compressa.engine.opening, compressa.kernels.cuda._gpu, torch
child = os.fork()
if not child:
    code = 1
    try:
        code = int(torch.ones(1, device="cuda").item()) - 1
    finally:
        os._exit(code)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


MANY, TAIL = 2**31 + 4096, 4096


@pytest.mark.parametrize("name", ["int8", "onebit", "bf16", "topk"])
def test_more_elements_than_31_bits_can_count(name: str) -> None:
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("needs 32 GiB of the GPU's memory")
    tail = torch.randn(TAIL, generator=torch.Generator().manual_seed(0)) + 3.0
    x = torch.zeros(MANY, device="cuda")
    x[-TAIL:] = tail.cuda()
    codec = TopK(density=TAIL / MANY) if name == "topk" else codec_of(name)
    payload = torch.zeros(codec.wire_bytes(MANY), dtype=torch.uint8, device="cuda")
    length = codec.encode(x, payload, DRAW)
    codec.decode(payload[:length], x, DRAW)
    due = tail
    if name != "topk":
        alone = torch.zeros(codec.wire_bytes(TAIL), dtype=torch.uint8)
        codec.encode(tail, alone, DRAW)
        due = torch.zeros(TAIL)
        codec.decode(alone, due, DRAW)
    assert torch.equal(x[-TAIL:].cpu(), due)
    assert not x[:-TAIL].any()


@pytest.mark.ranks
@pytest.mark.parametrize("transport", ON_HOST)
@pytest.mark.parametrize("compressor", ["none", "int8", "topk", "powersgd"])
def test_two_ranks_that_share_the_gpu_get_the_bits_of_the_cpu(
    compressor: str, transport: str, two: Group
) -> None:
    config = settings(compressor, exchange={"transport": transport})
    job, what = means, {"config": config, "count": 6, "steps": 4}
    due = same(two.run(job, **what, device="cpu"))
    assert same(two.run(job, **what, device="cuda")) == due


OTHERS = sorted(COMPRESSORS.keys() - {"none", "int8", "topk", "powersgd", "oktopk"})  # no GPU


@pytest.mark.ranks
@pytest.mark.parametrize("compressor", OTHERS)
def test_every_compressor_gives_two_ranks_of_the_gpu_the_same(compressor: str, two: Group) -> None:
    config: dict[str, Any] = settings(compressor)
    same(two.run(means, config=config, count=6, steps=4, device="cuda"))


@pytest.mark.ranks
@pytest.mark.parametrize("compressor", ["none", "int8", "powersgd"])
def test_the_hook_trains_a_world_of_one_whose_group_is_nccl_s(
    compressor: str, fresh: Callable[[int], Group]
) -> None:
    group, config = fresh(1), settings(compressor)
    due = group.run(means, config=config, count=3, steps=3)
    assert group.run(train_over_nccl, config=config, steps=3) == due


TWINS: dict[str, tuple[Any, dict[str, Any]]] = {
    "summed by NCCL": (NoCompression(), {"algorithm": "backend"}),
    "gathered": (TopK(density=0.1), {"kind": "all_gather"}),
    "of varying length": (Threshold(threshold=1.0, max_density=0.5), {"kind": "all_gather"}),
}


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "in_stream_order"), [*((name, False) for name in TWINS), ("gathered", True)]
)
def test_an_engine_over_nccl_agrees_with_its_twin(
    name: str, in_stream_order: bool, fresh: Callable[[int], Group]
) -> None:
    compressor, exchange = TWINS[name]
    due = [digest(x) for x in nccl_twin.alone(compressor, exchange)]
    settings = {"compressor": compressor, "exchange": exchange, "in_stream_order": in_stream_order}
    assert fresh(1).run(train_a_twin_over_nccl, **settings) == [due]


@pytest.mark.ranks
def test_nccl_carries_messages_of_any_length(fresh: Callable[[int], Group]) -> None:
    sizes = [1, 24, 1000, 5_000_000]
    (whole,) = fresh(1).run(send_over_nccl, sizes=sizes)
    assert whole == [True] * (2 * len(sizes) + 1)
