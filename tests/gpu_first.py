# python tests/gpu_first.py basics | fork | selection
"""What a new GPU is tried with first, one command each.

`basics`: the driver, NVRTC, and whether numbers too small to be normal survive. `fork`: a process
that has imported everything forks, and the child works on the GPU, which no import may have begun
to use. `selection`: top-k of 10^8 elements beside other work, 50 times, against `torch.topk`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import torch
from compressa.kernels import cuda
from compressa.kernels.topk import select_top_k

import compressa
from compressa.arrays import as_array

ELEMS, TIMES = 10**8, 50
DENSITY = 0.01


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
    places = indices.to(torch.int64)
    due = torch.topk(x.abs(), k).values
    assert torch.equal(values.abs().sort(descending=True).values, due), "others are larger"
    assert torch.equal(x[places], values), "values are those of other places"
    assert bool((places[1:] > places[:-1]).all()), "places are in no order"


def selection() -> None:
    """Select from what fills a good part of the GPU, again and again."""
    busy_selection(torch.device("cuda"))(ELEMS, TIMES)
    print(f"top-k of {ELEMS:,} elements, {TIMES} times: what torch.topk finds")


COMMANDS = {"basics": basics, "fork": fork, "selection": selection}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]]()
