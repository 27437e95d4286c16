"""What a rank that trains can be asked for: each method with a model of its own, in turn.

Processor time is that of threads, by who started them: the training thread, our communication
thread, our workers, and all others of the process, such as those of Gloo. Of ours, those count
that the method itself has started.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.kernels.device import CPU
from benchmarks.steps.memory import kernel_bytes
from benchmarks.steps.models import LARGE_MODELS, MODELS, Batch
from benchmarks.steps.plan import APPROX_RANK, Client, Method
from compressa import Handle, OverlappedDataParallel, load_config, register_comm_hook
from compressa.link.operations import nothing
from harness.wire import Wire

STREAM_ELEMS, STREAMS = 25_000_000, 12
"""Of the yardstick's vectors, 100 MB each; and how often it goes over them in a row."""

_RATE, _MOMENTUM = 1e-3, 0.9
_ONE_BUCKET_MB = 4096.0
_TORCH_START_STEP = 2  # the smallest that it allows with error feedback
_THREADS = {"communication_s": "compressa-comm", "workers_s": "compressa-codec"}

Optimizer = torch.optim.Optimizer


@dataclass
class Trainer:
    """Trains a model of its own; what it does is done on all ranks.

    Attributes:
        forward: The model, as it is called.
        module: Inside of it.
        clear: Makes ready for a backward pass.
        update: Has the optimizer do a step.
        handle: Of our engine, where there is one.
        settle: Waits for all that goes on after a step.
        close: Ends what it has started.
        threads: That it has started.
        last_loss: Of the last step.
    """

    forward: Callable[[Tensor], Tensor]
    module: nn.Module
    clear: Callable[[], object]
    update: Callable[[], object]
    handle: Handle | None = None
    settle: Callable[[], object] = nothing
    close: Callable[[], object] = nothing
    threads: Sequence[threading.Thread] = ()
    last_loss: float | Tensor = field(default=math.nan, init=False)

    def step(self, batch: Batch) -> None:
        """Do a training step; its communication may go on afterwards."""
        inputs, classes = batch
        self.clear()
        loss = nn.functional.cross_entropy(self.forward(inputs), classes)
        loss.backward()
        self.update()
        self.last_loss = loss.detach()  # nobody waits for it

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time so far, by the fields of a `Cpu`."""
        main_s, process_s = time.thread_time(), time.process_time()
        ours = {name: _cpu_s(self._named(prefix)) for name, prefix in _THREADS.items()}
        return {"main_s": main_s, **ours, "other_s": process_s - main_s - sum(ours.values())}

    def _named(self, prefix: str) -> list[threading.Thread]:
        return [thread for thread in self.threads if thread.name.startswith(prefix)]

    def traffic(self) -> dict[str, float]:
        """Return what our statistics say that was sent so far; nothing of others."""
        if self.handle is None:
            return {}
        stats = self.handle.stats()
        return {"sent_bytes": stats.sent_bytes, "messages": stats.messages}


def _cpu_s(threads: Iterable[threading.Thread]) -> float:
    """Processor time of threads of this process that have not ended."""
    clocks = (time.pthread_getcpuclockid(t.ident) for t in threads if t.ident and t.is_alive())
    return sum(map(time.clock_gettime, clocks))


Make = Callable[[nn.Module, Optimizer, Method], Trainer]


def _alone(module: nn.Module, optimizer: Optimizer, method: Method) -> Trainer:
    return Trainer(module, module, optimizer.zero_grad, optimizer.step)


def _ddp(module: nn.Module, optimizer: Optimizer, method: Method) -> Trainer:
    return Trainer(_wrapped(module), module, optimizer.zero_grad, optimizer.step)


def _wrapped(module: nn.Module, cap_mb: float | None = None) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)


def _torch_powersgd(module: nn.Module, optimizer: Optimizer, method: Method) -> Trainer:
    """In one bucket: over Gloo the hook fails with several, whose second sums ranks mix up."""
    model = _wrapped(module, _ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=APPROX_RANK, start_powerSGD_iter=_TORCH_START_STEP
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Trainer(model, module, optimizer.zero_grad, optimizer.step)


def _epfml_powersgd(module: nn.Module, optimizer: Optimizer, method: Method) -> Trainer:
    """As its documentation has it: gradients are never cleared, since residuals stay in them."""
    powersgd = importlib.import_module("powersgd")
    config = powersgd.Config(rank=APPROX_RANK, start_compressing_after_num_steps=0)
    aggregator = powersgd.PowerSGD(list(module.parameters()), config)
    update = partial(powersgd.optimizer_step, optimizer, aggregator)
    return Trainer(module, module, nothing, update)


def _hook(module: nn.Module, optimizer: Optimizer, method: Method) -> Trainer:
    model = _wrapped(module)
    handle = register_comm_hook(model, method.config)
    update = optimizer.zero_grad, optimizer.step
    return Trainer(model, module, *update, handle, close=handle.close)


def _overlapped(module: nn.Module, optimizer: Optimizer, method: Method) -> Trainer:
    model = OverlappedDataParallel(module, optimizer, method.config)
    update = optimizer.zero_grad, optimizer.step
    return Trainer(model, module, *update, model.handle, model.flush, model.close)


_MAKE: Mapping[Client, Make] = {
    "alone": _alone,
    "ddp": _ddp,
    "torch powersgd": _torch_powersgd,
    "epfml powersgd": _epfml_powersgd,
    "hook": _hook,
    "overlapped": _overlapped,
}


class Training:
    """What such a rank can be asked for, each thing of all ranks together.

    Args:
        wire: To the driver, if there is one: it is told nothing but answers.
    """

    def __init__(self, wire: Wire | None = None) -> None:
        self._trainers: dict[str, Trainer] = {}
        self._stream: Sequence[Tensor] = ()

    def begin(self, model: str, device: str = "cpu") -> dict[str, int]:
        """Train this model from now on, on a device; tell how many parameters it has."""
        self._trained = {**MODELS, **LARGE_MODELS}[model]
        self._device = torch.device(device)
        batches = self._trained.batches(dist.get_rank())
        self._batches = cycle([_placed(batch, self._device) for batch in batches])
        return {"parameters": sum(p.numel() for p in self._module().parameters())}

    def open(self, method: Method) -> None:
        """Set a method up."""
        before = set(threading.enumerate())
        module = self._module()
        optimizer = torch.optim.SGD(module.parameters(), _RATE, _MOMENTUM)
        trainer = _MAKE[method.client](module, optimizer, method)
        self._trainers[method.name] = trainer
        trainer.step(next(self._batches))
        trainer.settle()
        trainer.threads = [thread for thread in threading.enumerate() if thread not in before]

    def kernel_bytes(self, method: Method) -> dict[str, float]:
        """Tell what our kernels must move in a step; nothing where that is not stated."""
        compressor = load_config(method.config).compressor.build()
        shapes = [tuple(p.shape) for p in self._module().parameters()]
        found = kernel_bytes(compressor, shapes, dist.get_world_size())
        return {} if found is None else {"kernel_bytes": found}

    def stream(self) -> dict[str, float]:
        """Tell how long the yardstick of memory takes while all ranks do the same."""
        if not self._stream:
            self._stream = torch.ones(STREAM_ELEMS), torch.ones(STREAM_ELEMS)
            CPU.stream(*self._stream)  # compiles it, and touches memory
        dist.barrier()
        CPU.stream(*self._stream)  # ranks leave a barrier one after another
        begin_s = time.perf_counter()
        for _ in range(STREAMS):
            CPU.stream(*self._stream)
        stream_s = (time.perf_counter() - begin_s) / STREAMS
        others = dist.barrier(async_op=True)
        while not others.is_completed():
            CPU.stream(*self._stream)
        others.wait()
        return {"stream_s": stream_s}

    def train(self, method: Method, steps: int) -> dict[str, float]:
        """Train, and tell what a step takes in the midst of it; one more goes before.

        Args:
            method: That was set up.
            steps: How many are timed.

        Returns:
            Seconds, processor time, and what was sent, each of a step.
        """
        trainer = self._trainers[method.name]
        dist.barrier()
        sent = trainer.traffic()
        trainer.step(next(self._batches))
        if method.client == "alone":  # whose ranks nothing else keeps together: they share cores
            dist.barrier()
        self._settle()
        cpu_s = trainer.cpu_s()
        begin_s = time.perf_counter()
        for _ in range(steps):
            trainer.step(next(self._batches))
        self._settle()
        step_s = (time.perf_counter() - begin_s) / steps
        spent_s = _per_step(trainer.cpu_s(), cpu_s, steps)
        trainer.settle()
        return {"step_s": step_s, **spent_s, **_per_step(trainer.traffic(), sent, steps + 1)}

    def look(self, method: Method) -> dict[str, bool]:
        """Tell whether steps are still done in one way after another, of those that there are."""
        handle = self._trainers[method.name].handle
        return {"measuring": handle is not None and handle.stats().overlap.measuring}

    def check(self, method: Method) -> None:
        """Look whether training went well.

        Raises:
            ArithmeticError: The last loss is not finite, or the replicas differ.
        """
        trainer = self._trainers[method.name]
        loss = float(trainer.last_loss)
        if not math.isfinite(loss):
            raise ArithmeticError(f"{method.name}: the loss is {loss}")
        if method.client != "alone":
            check_replicas(method.name, trainer.module)

    def close(self) -> None:
        """End what was set up."""
        for trainer in self._trainers.values():
            trainer.close()
        self._trainers.clear()
        gc.collect()

    def _module(self) -> nn.Module:
        torch.manual_seed(0)  # the same values on every rank
        with self._device:
            return self._trained.make()

    def _settle(self) -> None:
        """Wait for all that a GPU still does."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _placed(batch: Batch, device: torch.device) -> Batch:
    inputs, classes = batch
    return inputs.to(device), classes.to(device)


def check_replicas(name: str, module: nn.Module) -> None:
    """Look whether all ranks have the same parameters, to the bit. Collective.

    Raises:
        ArithmeticError: They differ; on every rank.
    """
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    own = torch.tensor([int.from_bytes(digest.digest()[:7])], device=parameter.device)
    least, most = own.clone(), own.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if not least.equal(most):
        raise ArithmeticError(f"{name}: replicas differ after training")


def _per_step(
    after: Mapping[str, float], before: Mapping[str, float], steps: int
) -> dict[str, Any]:
    return {name: max(0.0, (after[name] - before[name]) / steps) for name in after}
