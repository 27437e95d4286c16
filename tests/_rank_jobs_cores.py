"""Jobs about threads and cores."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Any
from unittest import mock

import _rank_jobs
import torch
import torch.distributed as dist
from _rank_jobs import registered
from _rank_models import loss_of

from compressa.collectives.base import Exchange
from compressa.engine.start import startup
from compressa.engine.start.cores import own_place
from compressa.engine.units.unit_runtime import UnitRuntime
from compressa.transports.tcp import TcpTransport


def hired(
    *,
    config: Any,
    cores: list[list[int]] | None = None,
    launched: int | None = None,
    torch_threads: int = 1,
) -> dict[str, Any]:
    """Train a step; return how many threads there were, and what torch used on them.

    Args:
        config: The configuration.
        cores: By rank, the cores that it is bound to before it registers.
        launched: What a launcher says of the machine's ranks.
        torch_threads: The user's own setting.
    """
    usual_cores, usual_threads = os.sched_getaffinity(0), torch.get_num_threads()
    says = {} if launched is None else {"LOCAL_WORLD_SIZE": str(launched)}
    torch.set_num_threads(torch_threads)
    if cores is not None:
        os.sched_setaffinity(0, cores[dist.get_rank()])
    try:
        with mock.patch.dict(os.environ, says):
            return _observed(config)
    finally:
        os.sched_setaffinity(0, usual_cores)
        torch.set_num_threads(usual_threads)


def _observed(config: Any) -> dict[str, Any]:
    collect, seen = UnitRuntime.collect, {}

    def watched(self: UnitRuntime, gradients: Any) -> list[torch.Tensor]:
        values = collect(self, gradients)
        before = _threads_of_libraries()
        torch.ones(1 << 20).add_(1.0)  # large enough for a team of torch's
        made = len(_lasting(_threads_of_libraries() - before))
        seen[threading.current_thread().name] = (torch.get_num_threads(), made)
        return values

    with (
        registered("mlp", config) as (wrapped, handle),  # which compiles on the user's thread
        mock.patch.object(UnitRuntime, "collect", watched),
    ):
        loss_of(wrapped, dist.get_rank(), 0, torch.float32).backward()
        workers = [t.name for t in threading.enumerate() if t.name.startswith("compressa-codec")]
        return {
            "threads": handle.engine.session.threads,
            "workers": len(workers),
            "torch": sorted(set(seen.values())),
            "user": torch.get_num_threads(),
            "later": _in_a_new_thread(),
        }


def _threads_of_libraries() -> set[int]:
    """Return the process's threads that are not Python's: those may begin at any time."""
    every = {int(name) for name in os.listdir("/proc/self/task")}
    return every - {thread.native_id for thread in threading.enumerate()}


def _lasting(threads: set[int]) -> set[int]:
    """Those that are no thread of Python's after a while either: one that begins says so late."""
    end_s = time.monotonic() + 1.0
    while threads and time.monotonic() < end_s:
        time.sleep(0.01)
        threads &= _threads_of_libraries()
    return threads


def _in_a_new_thread() -> int:
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return answers[0]


def train_on_hosts(*, hosts: list[str], **options: Any) -> dict[str, Any]:
    """Train as if each rank were on the host that is named for it; say who heard from whom."""
    own, rank = own_place(), dist.get_rank()
    heard: set[int] = set()
    exchange = TcpTransport.exchange

    def noted(self: Any, key: Any, operation: Exchange, *rest: Any) -> None:
        if any(buffer.numel() for buffer in operation.incoming.values()):
            heard.update(operation.incoming)
        exchange(self, key, operation, *rest)

    place = replace(own, network=hosts[rank])
    with (
        mock.patch.object(startup, "own_place", return_value=place),
        mock.patch.object(TcpTransport, "exchange", noted),
    ):
        return _rank_jobs.train(**options) | {"heard": sorted(heard)}
