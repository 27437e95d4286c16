"""What ranks do in tests of several folders: functions that `_ranks` has them call."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _rank_mutations import MUTATIONS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa

_stores: list[dist.TCPStore] = []


def host_store(*, address: str) -> int:
    """On rank 0: open the rendezvous store on a free port of an address; return the port."""
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    return store.port


def join(*, rank: int, size: int, address: str, port: int) -> None:
    """Join the default process group."""
    torch.set_num_threads(1)
    store = _stores[0] if _stores else dist.TCPStore(address, port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters' bytes."""
    data = b"".join(
        p.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for p in model.parameters()
    )
    return hashlib.sha256(data).hexdigest()


def state_digest(handle: compressa.Handle) -> str:
    """Return the SHA-256 of this rank's residuals, factors and step."""
    sha = hashlib.sha256()
    for key, value in sorted(handle.state_dict().items()):
        sha.update(key.encode() + value.reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return sha.hexdigest()


@contextlib.contextmanager
def registered(
    model: str | nn.Module,
    config: Any,
    *,
    ddp: Mapping[str, Any] | None = None,
    scaler: Any = None,
    mutation: str | None = None,
) -> Iterator[tuple[DistributedDataParallel, compressa.Handle]]:
    """Wrap a model, register, and close the handle at the end."""
    net = build(model, dist.get_rank()) if isinstance(model, str) else model
    wrapped = DistributedDataParallel(net, **(ddp or {}))
    with contextlib.ExitStack() as stack:
        if mutation is not None:
            stack.enter_context(MUTATIONS[mutation]())
        handle = compressa.register_comm_hook(wrapped, config, scaler=scaler)
        stack.callback(handle.close)
        yield wrapped, handle


def _optimizer(model: nn.Module, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def _summary(handle: compressa.Handle) -> dict[str, Any]:
    stats = handle.stats()
    numbers = ("steps", "dense_bytes", "payload_bytes", "sent_bytes", "messages", "ratio")
    times = {
        "codec_s": stats.codec_s,
        "exposed_s": stats.exposed_s,
        "wire_s": sum(row.wire_s for row in stats.compressors.values()),
    }
    rows = {name: row.payload_bytes for name, row in stats.compressors.items()}
    return {name: getattr(stats, name) for name in numbers} | times | {"compressors": rows}


def train(
    *,
    config: Any,
    model: str = "mlp",
    steps: int = 4,
    lr: float = 0.05,
    ddp: Mapping[str, Any] | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    late_s: float = 0.0,
    load: str | None = None,
    save: str | None = None,
    mutation: str | None = None,
) -> dict[str, Any]:
    """Train; return digests, losses and statistics.

    With `load`, the run goes on where the one that wrote `save` stopped.
    """
    rank = dist.get_rank()
    net = build(model, rank)
    dtype = next(net.parameters()).dtype
    time.sleep(late_s)
    with registered(net, config, ddp=ddp, mutation=mutation) as (wrapped, handle):
        optimizer = _optimizer(net, lr)
        first = _load(load, handle, net, optimizer)
        losses = []
        for step in range(first, first + steps):
            optimizer.zero_grad()
            losses.append(_backward(wrapped, rank, step, accumulate, dtype))
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
        if save is not None:
            handle.save(f"{save}/compressa")
            if rank == 0:
                torch.save([net.state_dict(), optimizer.state_dict()], f"{save}/model.pt")
        return {
            "parameters": digest(net),
            "state": state_digest(handle),
            "losses": losses,
            "finite": all(bool(p.isfinite().all()) for p in net.parameters()),
            "stats": _summary(handle),
        }


def _load(
    folder: str | None,
    handle: compressa.Handle,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> int:
    if folder is None:
        return 0
    handle.load(f"{folder}/compressa")
    weights, momenta = torch.load(f"{folder}/model.pt")
    net.load_state_dict(weights)
    optimizer.load_state_dict(momenta)
    return handle.next_step


def _backward(
    wrapped: DistributedDataParallel, rank: int, step: int, accumulate: int, dtype: torch.dtype
) -> float:
    total = 0.0
    for micro in range(accumulate):
        last = micro == accumulate - 1
        with contextlib.nullcontext() if last else wrapped.no_sync():
            loss = loss_of(wrapped, rank, step * accumulate + micro, dtype) / accumulate
            loss.backward()
            total += loss.item()
    return total


def run_steps(wrapped: Any, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    """Train some steps, on the batches of these."""
    dtype = next(wrapped.parameters()).dtype
    for step in range(first, first + count):
        optimizer.zero_grad()
        loss_of(wrapped, dist.get_rank(), step, dtype).backward()
        optimizer.step()


def train_plain(
    *, model: str = "mlp", steps: int = 4, ddp: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Train with plain DistributedDataParallel."""
    net = build(model, dist.get_rank())
    run_steps(DistributedDataParallel(net, **(ddp or {})), _optimizer(net), 0, steps)
    return {"parameters": digest(net)}


class Logged(logging.Handler):
    """What the library logs while it is entered.

    Attributes:
        texts: Each with the name of its logger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.name}: {record.getMessage()}")

    def __enter__(self) -> Logged:
        logging.getLogger("compressa").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("compressa").removeHandler(self)


def lasting_threads(patience_s: float = 5.0) -> list[str]:
    """Return the names of this library's threads that do not end: workers must hear of it first."""
    end_s = time.monotonic() + patience_s
    for thread in threading.enumerate():
        if thread.name.startswith("compressa"):
            thread.join(max(0.0, end_s - time.monotonic()))
    return alive_threads()


def alive_threads() -> list[str]:
    """Return the names of this library's threads that still run, and where each is."""
    frames = sys._current_frames()
    ours = [t for t in threading.enumerate() if t.name.startswith("compressa")]
    return [f"{t.name}: {_where(frames[t.ident])}" for t in ours if t.ident in frames]


def _where(frame: FrameType) -> str:
    """The innermost calls, the last one first."""
    calls = traceback.extract_stack(frame)[:-5:-1]
    return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
