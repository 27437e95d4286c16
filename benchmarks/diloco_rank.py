"""One rank that trains by DiLoCo, ours and torchft's, in turns; `harness.rank` runs it.

`ours` and `theirs` hold what a user adds to a training loop, and nothing else.
"""

from __future__ import annotations

import ast
import gc
import inspect
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.optim import SGD, AdamW

import compressa
from compressa.strategies.fragments import begins_after, cut
from harness.wire import Wire

BATCH = 32
_WIDTHS = (64, 512, 512, 512, 512, 512, 10)
_BATCHES = 256  # more than a run needs
_RATE, _OUTER_RATE, _OUTER_MOMENTUM = 1e-3, 0.7, 0.9
_DEADLINE = timedelta(seconds=60)


class Method(NamedTuple):
    """A way for ranks to meet, or none.

    Attributes:
        compressor: Of ours; nothing if it is not ours.
        torchft: What its `DiLoCo` is told besides; None if it is not torchft's.
    """

    compressor: str = ""
    torchft: Mapping[str, bool] | None = None


ALONE, DENSE, TORCHFT = "no meeting", "none", "torchft"
METHODS: Mapping[str, Method] = {
    ALONE: Method(),
    DENSE: Method("none"),
    "bf16": Method("bf16"),
    "int8": Method("int8"),
    "int4": Method("int4"),
    TORCHFT: Method(torchft={}),
    "torchft, use_bucketization": Method(torchft={"use_bucketization": True}),
    "torchft, should_quantize": Method(torchft={"should_quantize": True}),
}
"""By name. The outer optimizer is SGD with Nesterov momentum in all that meet."""


class Cell(NamedTuple):
    """What methods have in common that take turns.

    Attributes:
        every: Steps of a round (H).
        fragments: How many.
        addresses: Of the hosts, by rank.
        lighthouse: Where torchft's ranks find each other.
    """

    every: int
    fragments: int
    addresses: Sequence[str]
    lighthouse: str = ""


Step = Callable[[], object]
"""Takes a step of the inner optimizer, and meets if it is time to."""


def ours(model: nn.Module, optimizer: AdamW, cell: Cell, compressor: str, stack: ExitStack) -> Step:
    """Return the step of `compressa.attach`, whose defaults are the outer optimizer's."""
    strategy = {"name": "diloco", "every": cell.every, "fragments": cell.fragments}
    config = {"compressor": compressor, "strategy": strategy}
    attached = stack.enter_context(compressa.attach(model, optimizer, config))
    return attached.step


def theirs(
    model: nn.Module,
    optimizer: AdamW,
    cell: Cell,
    options: Mapping[str, bool],
    stack: ExitStack,
) -> Step:
    """Return the step of an optimizer that torchft's DiLoCo hooks. Each rank is a replica group.

    Values are equal on all ranks, so its first quorum need not copy rank 0's (`init_sync`), which
    would throw away what the others did until then.
    """
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    pg = ProcessGroupGloo(timeout=_DEADLINE)
    manager = Manager(
        pg=pg,
        load_state_dict=None,
        state_dict=None,
        min_replica_size=len(cell.addresses),
        use_async_quorum=False,
        timeout=_DEADLINE,
        quorum_timeout=_DEADLINE,
        connect_timeout=_DEADLINE,
        init_sync=False,
        max_retries=0,
        **_replica_group(cell, stack),
    )
    stack.callback(pg.shutdown)
    stack.callback(manager.shutdown)
    parts = _parts(model, cell.fragments)
    outer = [_outer(part.parameters()) for part in parts]
    stack.enter_context(DiLoCo(manager, parts, optimizer, outer, cell.every, **options))
    return optimizer.step


def _replica_group(cell: Cell, stack: ExitStack) -> dict[str, Any]:
    """Start the store of a replica group of one rank; return what a launcher's environment says."""
    rank = dist.get_rank()
    address = cell.addresses[rank]
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=_DEADLINE)
    stack.enter_context(nullcontext(store))  # kept, since the other groups meet at it
    return {
        "rank": 0,
        "world_size": 1,
        "store_addr": address,
        "store_port": store.port,
        "lighthouse_addr": cell.lighthouse,
        "replica_id": f"rank_{rank}",
        "hostname": address,
    }


def statements(function: Callable[..., object]) -> int:
    """Return how many statements a function has beside docstring, imports and return."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(found, ast.FunctionDef)
    return sum(isinstance(one, ast.Assign) for one in found.body) + sum(
        isinstance(one, ast.Expr) for one in found.body[1:]
    )


def _outer(parameters: Iterable[Tensor]) -> SGD:
    return SGD(parameters, lr=_OUTER_RATE, momentum=_OUTER_MOMENTUM, nesterov=True)


def _flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def _parts(model: nn.Module, count: int) -> list[nn.Module]:
    """Return the fragments that ours are, as modules."""
    parameters = dict(model.named_parameters())
    numbers = cut({name: p.numel() for name, p in parameters.items()}, count)
    return [
        nn.ParameterList(p for name, p in parameters.items() if numbers[name] == number)
        for number in range(count)
    ]


def perceptron() -> nn.Module:
    """Return the model, of about a million parameters, with the same values on all ranks.

    It is smooth, so that iterates can be compared: at the kinks of ReLUs, a difference of an ulp
    grows to 1e-2 within 50 steps of AdamW, with no meeting at all; with GELUs it stays below 1e-5.
    """
    torch.manual_seed(0)
    pairs = pairwise(_WIDTHS)
    layers = [layer for ends in pairs for layer in (nn.Linear(*ends), nn.GELU())]
    return nn.Sequential(*layers[:-1])


class _Reference:
    """Outer steps by torch's SGD, each from where the last one that is compared has led.

    Args:
        model: Holds what ranks begin with.
        fragments: How many.
    """

    def __init__(self, model: nn.Module, fragments: int) -> None:
        parts = _parts(model, fragments)
        self._anchors = [_flat(part).requires_grad_() for part in parts]
        self._outer = [_outer([anchor]) for anchor in self._anchors]

    def error(self, number: int, before: Tensor, after: Tensor) -> float:
        """Return the largest difference of a meeting from the same one by torch's SGD. Collective.

        Args:
            number: Of the fragment.
            before: What this rank has trained, all parameters, float32, 1-D.
            after: The same after the meeting.
        """
        sizes = [anchor.numel() for anchor in self._anchors]
        mean, found = before.split(sizes)[number].clone(), after.split(sizes)[number]
        dist.all_reduce(mean)
        anchor = self._anchors[number]
        anchor.grad = anchor.detach() - mean / dist.get_world_size()
        self._outer[number].step()
        error = float((anchor.detach() - found).abs().max())
        with torch.no_grad():
            anchor.copy_(found)
        return error


class _Training:
    """A model, and how it is trained.

    Args:
        method: How ranks meet.
        cell: The rest.
        stack: Closes what is opened.
    """

    def __init__(self, method: Method, cell: Cell, stack: ExitStack) -> None:
        self._every = cell.every
        self._meets_after = {
            begins_after(number, cell.fragments, cell.every) for number in range(cell.fragments)
        }
        drawn = torch.Generator().manual_seed(1 + dist.get_rank())
        self._batches = [
            (
                torch.randn(BATCH, _WIDTHS[0], generator=drawn),
                torch.randint(_WIDTHS[-1], (BATCH,), generator=drawn),
            )
            for _ in range(_BATCHES)
        ]
        self._model = perceptron()
        self._optimizer = AdamW(self._model.parameters(), lr=_RATE, fused=True)
        self._reference = _Reference(self._model, cell.fragments)
        self._taken, self._meets, self._noting_s = 0, False, 0.0
        self.meetings: list[list[Tensor]] = []  # of the last round, parameters before and after
        # Registered before torchft's, so that it is called when nobody has met yet.
        self._optimizer.register_step_post_hook(lambda *_: self._note())
        self._step: Step = self._optimizer.step
        if method.compressor:
            self._step = ours(self._model, self._optimizer, cell, method.compressor, stack)
        elif method.torchft is not None:
            self._step = theirs(self._model, self._optimizer, cell, method.torchft, stack)

    def round(self) -> dict[str, float]:
        """Train for a round; say how long it took, and how long of it meetings took.

        Ranks begin a meeting together. It takes as long as the call in which they meet, less the
        median of the others, which are steps of the inner optimizer alone.
        """
        meetings_s: list[float] = []
        steps_s: list[float] = []
        self.meetings = []
        begin_s = time.perf_counter()
        for number in range(1, self._every + 1):
            self._backward()
            self._meets = number in self._meets_after
            if self._meets:
                dist.barrier()
            step_s, self._noting_s = time.perf_counter(), 0.0
            self._step()
            taken_s = time.perf_counter() - step_s - self._noting_s
            (meetings_s if self._meets else steps_s).append(taken_s)
            if self._meets:
                self.meetings[-1].append(_flat(self._model))
        round_s = time.perf_counter() - begin_s
        inner_s = median(steps_s) * len(meetings_s)
        return {"round_s": round_s, "meeting_s": sum(meetings_s) - inner_s}

    def _backward(self) -> None:
        inputs, classes = self._batches[self._taken % _BATCHES]
        self._taken += 1
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(inputs), classes).backward()

    def errors(self) -> list[float]:
        """Tell how far each meeting of the last round was from the same one by torch's SGD."""
        return [
            self._reference.error(number, before, after)
            for number, (before, after) in enumerate(self.meetings)
        ]

    def _note(self) -> None:
        if self._meets:
            begin_s = time.perf_counter()
            self.meetings.append([_flat(self._model)])
            self._noting_s = time.perf_counter() - begin_s


class Training:
    """What such a rank can be asked for."""

    def __init__(self, wire: Wire) -> None:
        self._stack = ExitStack()
        self._trained: dict[str, _Training] = {}

    def open(self, methods: Sequence[str], cell: Cell) -> dict[str, int]:
        """Begin anew by several methods; tell how many parameters there are."""
        for name in methods:
            own = cell
            if METHODS[name].torchft is not None:
                own = cell._replace(lighthouse=self._lighthouse(cell))
            self._trained[name] = _Training(METHODS[name], own, self._stack)
        return {"parameters": sum(p.numel() for p in perceptron().parameters())}

    def round(self, method: str) -> dict[str, float]:
        """Train for a round by a method; see `_Training.round`."""
        gc.collect()
        dist.barrier()
        return self._trained[method].round()

    def compare(self) -> dict[str, Any]:
        """Tell how far apart ours and torchft's are after each meeting of the last round.

        And by name how far each meeting was from the same one by torch's SGD.
        """
        dense, torchft = (self._trained[name] for name in (DENSE, TORCHFT))
        pairs = list(zip(dense.meetings, torchft.meetings, strict=True))
        return {
            "differences": [float((a - b).abs().max()) for (_, a), (_, b) in pairs],
            "largest": max(float(b.abs().max()) for _, (_, b) in pairs),
            DENSE: dense.errors(),
            TORCHFT: torchft.errors(),
        }

    def close(self) -> None:
        """End what `open` has begun."""
        self._trained.clear()
        dist.barrier()
        self._stack.close()

    def _lighthouse(self, cell: Cell) -> str:
        """Have rank 0 start a lighthouse, which lives until `close`; return where it is."""
        from torchft.coordination import LighthouseServer

        port = torch.zeros(1, dtype=torch.int64)
        if dist.get_rank() == 0:
            server = LighthouseServer(bind="[::]:0", min_replicas=len(cell.addresses))
            self._stack.callback(server.shutdown)
            port.fill_(int(server.address().rpartition(":")[2]))
        dist.broadcast(port, 0)
        return f"http://{cell.addresses[0]}:{int(port)}"
