# python tests/gpu_first.py basics | fork | selection | graphs
"""What a new GPU is tried with first, one command each.

`basics`: the driver, NVRTC, and whether numbers too small to be normal survive. `fork`: a process
that has imported everything forks, and the child works on the GPU, which no import may have begun
to use. `selection`: top-k of 10^8 elements beside other work, 50 times, against `torch.topk`.
`graphs`: units of top-k by CUDA graphs and by single launches: the same bits, and the host's time.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from compressa.kernels import cuda
from compressa.kernels.topk import select_top_k

import compressa
from compressa.aggregators.base import State, StepContext, World, whole_scopes
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import as_array
from compressa.codecs import TopK
from compressa.parameters import Layout, ParameterInfo, Segment

ELEMS, TIMES = 10**8, 50
DENSITY = 0.01
SIZES = (3000, 64, 40_000, 256, 9000, 10)


def basics() -> None:
    """Print versions; raise where kernels can not be compiled or lose denormal numbers."""
    import cupy

    runtime = cupy.cuda.runtime
    print(f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}")
    print(f"NVRTC {cupy.cuda.nvrtc.getVersion()}, sm_{cupy.cuda.Device().compute_capability}")
    cuda.check_available()
    print("denormal numbers are kept")


def import_everything() -> None:
    """Import every module of the library."""
    for module in pkgutil.walk_packages(compressa.__path__, "compressa."):
        importlib.import_module(module.name)


def fork() -> None:
    """Import everything, fork, and have the child and then the parent select on the GPU.

    Raises:
        RuntimeError: The child failed.
    """
    import_everything()
    work = busy_selection(torch.device("cuda"))
    child = os.fork()
    if not child:
        code = 1
        try:
            work(100_000, 1)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("after all imports, a forked process can not use the GPU")
    work(100_000, 1)


def busy_selection(device: torch.device) -> Callable[[int, int], None]:
    """Return what selects the largest of so many elements, so many times."""

    def work(elems: int, times: int) -> None:
        for turn in range(times):
            others = other_work(device)
            x = torch.randn(
                elems, generator=torch.Generator(device).manual_seed(turn), device=device
            )
            check_selection(x, max(1, int(DENSITY * elems)))
            del others

    return work


def other_work(device: torch.device) -> Any:
    """Have the GPU multiply matrices on a stream of its own; return what it writes."""
    if device.type != "cuda":
        return None
    with torch.cuda.stream(torch.cuda.Stream()):
        product = torch.randn(4096, 4096, device=device)
        for _ in range(20):
            product = torch.mm(product, product).clamp_(-1, 1)
    return product


def check_selection(x: torch.Tensor, k: int) -> None:
    """Assert that the k largest are found, with what they are.

    Raises:
        AssertionError: Others are, in another order, or with other values.
    """
    indices = torch.empty(k, dtype=torch.uint32, device=x.device)
    values = torch.empty(k, device=x.device)
    select_top_k(as_array(x), k, as_array(indices), as_array(values))
    selected = indices.to(torch.int64)
    due = torch.topk(x.abs(), k).values
    assert torch.equal(values.abs().sort(descending=True).values, due), "others are larger"
    assert torch.equal(x[selected], values), "values are those of other indices"
    assert bool((selected[1:] > selected[:-1]).all()), "indices are in no order"


def selection() -> None:
    """Select from what fills a good part of the GPU, again and again."""
    busy_selection(torch.device("cuda"))(ELEMS, TIMES)
    print(f"top-k of {ELEMS:,} elements, {TIMES} times: what torch.topk finds")


class Unit:
    """Parameters of a model that are compressed and decoded together, again and again.

    Args:
        device: Where they are.
        graphed: Whether launches that come back are CUDA graphs.
    """

    def __init__(self, device: torch.device, *, graphed: bool) -> None:
        infos = [ParameterInfo(i, str(i), (size,)) for i, size in enumerate(SIZES)]
        layout = Layout(0, tuple(Segment(info, 0, info.elems) for info in infos))
        self._state = State(device)
        world = World(0, 2, 0, "all_gather", self._state)
        codec, scopes, rule = TopK(density=DENSITY), whole_scopes(layout), FeedbackRule()
        self._scopes = ScopePayload(codec, 0, scopes, world, feedback=rule)
        self._payloads = [self._scopes.buffer() for _ in range(2)]
        self._buckets = [torch.zeros(sum(SIZES), device=device) for _ in range(2)]
        self._graphed = graphed
        self._found = torch.zeros(1, dtype=torch.int64, device=device)

    def step(self, bucket: int) -> None:
        """Encode what one of two buckets holds, and write the mean over it."""
        gradients, context = self._buckets[bucket].split(SIZES), StepContext(0)
        later = cuda.answers_later(lambda: as_array(self._found).view(np.uint64))
        with later, cuda.graphs() if self._graphed else nullcontext():
            for payload in self._payloads:
                self._scopes.encode(gradients, context, payload)
            self._scopes.average(self._payloads, gradients, context)

    def trained(self) -> list[torch.Tensor]:
        """What is left of steps whose gradients lie elsewhere after a while, and come back."""
        left, random = [], torch.Generator().manual_seed(0)
        for bucket in (0,) * 5 + (1,) * 5 + (0,) * 2:
            self._buckets[bucket].copy_(torch.randn(sum(SIZES), generator=random))
            self.step(bucket)
            left.append(self._buckets[bucket].cpu().clone())
        return [*left, *(residual.cpu() for residual in self._state.vectors.values())]

    def host_s(self) -> float:
        """The host's seconds for a step, of which the GPU does one at a time."""
        spent_s = 0.0
        for _ in range(TIMES):
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            self.step(0)
            spent_s += time.perf_counter() - began_s
        return spent_s / TIMES


def graphs() -> None:
    """Compare bits with CUDA graphs and without with those of the CPU, and the host's time.

    Raises:
        AssertionError: A bit differs.
    """
    single, graphed = (Unit(torch.device("cuda", 0), graphed=each) for each in (False, True))
    due = Unit(torch.device("cpu"), graphed=False).trained()
    for how, unit in (("launches", single), ("CUDA graphs", graphed)):
        same = all(
            torch.equal(ours, theirs) for ours, theirs in zip(unit.trained(), due, strict=True)
        )
        assert same, f"a unit by {how} has other bits than on the CPU"
    spent = [f"{1e6 * unit.host_s():.0f} us" for unit in (single, graphed)]
    print("the host, for two payloads and a mean: {} by launches, {} by graphs".format(*spent))


COMMANDS = {"basics": basics, "fork": fork, "selection": selection, "graphs": graphs}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]]()
