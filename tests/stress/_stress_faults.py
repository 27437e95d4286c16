"""What happens to a rank that trains: the faults of a schedule, and what becomes of its calls."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _mass import LR
from _rank_models import Linear, build
from _stress_schedules import DATA, KINDS, LONE, VIOLATIONS, Fault
from _training import digest
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.transports import frames

_MOMENT_S = 0.8  # of what passes
_TOO_LONG_S = 2.5  # more than is allowed
_NO_STEP = -1
_SENDER = re.compile(r"from rank (\d+) to|rank (\d+) (?:has|sends|sent) \d+ bytes")

_kept: list[socket.socket] = []


@dataclass
class Run:
    """What one rank knows of its run, between the calls of it.

    Attributes:
        config: The configuration.
        faults: All of the schedule.
        folder: Holds a file for each fault that has happened, and checkpoints.
        world: Ranks of the run by their number in the group that trains now.
        parts: Ranks and group of each fault for which a part trains another model, by number.
        opened: What was open at the start.
        step: The step that is trained now.
        before: State before each of the last steps, by step.
        digests: Of the parameters after each step since training was last called for.
        children: That were forked.
        calls: What became of calls that were made alone, or by a part.
    """

    config: dict[str, Any]
    faults: list[Fault]
    folder: Path
    world: list[int]
    parts: dict[int, Any]
    opened: dict[str, int]
    net: torch.nn.Module = field(default_factory=Linear)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    wrapped: Any = None
    handle: Any = None
    balance: Any = None
    step: int = _NO_STEP
    before: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    children: list[int] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def due(self, moment: str, kinds: Sequence[str]) -> Iterator[Fault]:
        """Return this rank's faults of this moment, each once in a run; mark them."""
        in_step = moment in ("between", "encode", "exchange")
        for number, fault in enumerate(self.faults):
            now = fault.moment == moment and (fault.step == self.step or not in_step)
            if now and fault.kind in kinds and fault.rank == dist.get_rank():
                with contextlib.suppress(FileExistsError):
                    (self.folder / str(number)).touch(exist_ok=False)
                    yield fault

    def strike(self, moment: str) -> None:
        """Have what is due happen."""
        kinds = [kind for kind in (*KINDS, *VIOLATIONS) if kind not in DATA]
        for fault in self.due(moment, kinds):
            _HAPPENS[fault.kind](self, fault)


def seeing(world: Sequence[int], act: Callable[[], None]) -> dict[str, Any]:
    """Return the error of the library that it raises, with ranks of the whole run."""
    try:
        act()
    except compressa.CompressaError as error:
        return _told(world, error)
    return {"type": "", "message": "", "ranks": [], "senders": [], "at_s": time.time()}


def _told(world: Sequence[int], error: compressa.CompressaError) -> dict[str, Any]:
    own = getattr(error, "rank", None)
    ranks = [own] if own is not None else getattr(error, "ranks", ())
    return {
        "type": type(error).__name__,
        "message": str(error),
        "ranks": sorted(world[rank] for rank in ranks),
        "senders": sorted({world[int(a or b)] for a, b in _SENDER.findall(str(error))}),
        "at_s": time.time(),
    }


def descend(net: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= LR * parameter.grad


def _kill(run: Run, fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stay_away(run: Run, fault: Fault) -> None:
    """Be late; or elsewhere for longer than the others wait."""
    too_long_s = run.config["exchange"]["deadline_s"] + _TOO_LONG_S
    time.sleep(too_long_s if fault.kind == "away" else _MOMENT_S)


def _stop(run: Run, fault: Fault) -> None:
    """Stop; a process of its own continues this one."""
    seconds = (
        run.config["exchange"]["silence_s"] + _TOO_LONG_S if fault.kind == "stop" else _MOMENT_S
    )
    own, awake = os.getpid(), f"sleep {seconds}; kill -CONT {os.getpid()}"
    # In a session of its own: mpiexec tells all of a rank's session by a signal that one has died.
    helper = subprocess.Popen(["sh", "-c", awake], start_new_session=True)
    os.kill(own, signal.SIGSTOP)
    helper.wait()


def _cut_off(run: Run, fault: Fault) -> None:
    """Take the link down, and up again after a while."""
    link = ["ip", "link", "set", "dev", os.environ["GLOO_SOCKET_IFNAME"]]
    subprocess.run([*link, "down"], check=True)
    if fault.kind == "outage":
        time.sleep(_MOMENT_S)
        subprocess.run([*link, "up"], check=True)


def _fork(run: Run, fault: Fault) -> None:
    """Fork a child that holds on to whatever it was given."""
    child = os.fork()
    if child:
        run.children.append(child)
        return
    while run.folder.exists():  # it outlives this rank, but not the schedule
        time.sleep(_MOMENT_S)
    os._exit(0)


def _call_alone(run: Run, fault: Fault) -> None:
    """Make a collective call that nobody else makes; note what became of it."""
    began_s = time.time()
    seen = seeing(run.world, lambda: _call(run, fault.kind))
    _note(run, run.faults.index(fault), began_s, seen)


def _call(run: Run, kind: str) -> None:
    if kind == "switch":
        known = dict(run.handle.config.model_dump(exclude_unset=True))
        run.handle.switch({**known, "compressor": {"name": "onebit"}})
    elif kind == "broadcast":
        group = run.wrapped.process_group
        compressa.broadcast(torch.ones(100), config=run.config, group=group)
    elif kind == "save":
        run.handle.save(run.folder / "lone")
    else:
        run.handle.load(run.folder / "first")


def _nothing_more(run: Run, fault: Fault) -> None:
    """All that happens is elsewhere, in groups of a part."""


def _differ(run: Run, fault: Fault) -> None:
    """Have a bit of a parameter that the others have not."""
    vector = next(run.net.parameters()).detach().view(-1).view(torch.int32)
    vector[0] ^= 1


def _lose(run: Run, fault: Fault) -> None:
    """Forget what is owed."""
    for key, vector in run.handle.engine.state.vectors.items():
        if key.startswith("residual/"):
            vector.zero_()


def _keep(run: Run, fault: Fault) -> None:
    """Leave a socket open, for as long as the process lives."""
    _kept.append(socket.socket())


_HAPPENS = {
    **dict.fromkeys(LONE, _call_alone),
    "kill": _kill,
    "stop": _stop,
    "pause": _stop,
    "away": _stay_away,
    "late": _stay_away,
    "link": _cut_off,
    "outage": _cut_off,
    "child": _fork,
    "part": _nothing_more,
    "differ": _differ,
    "lose": _lose,
    "keep": _keep,
}


def train_a_part(run: Run, number: int, group: dist.ProcessGroup) -> None:
    """Train another model on a part of the ranks for a step; note what became of it."""
    began_s, net = time.time(), build("mlp", 0)
    step, run.step = run.step, _NO_STEP  # who waits for it here is elsewhere to all others

    def train() -> None:
        wrapped = DistributedDataParallel(net, process_group=group, init_sync=False)
        with contextlib.closing(compressa.register_comm_hook(wrapped, run.config)):
            wrapped(torch.randn(2, 16)).sum().backward()
        descend(net)

    seen = seeing(dist.get_process_group_ranks(group), train)
    run.step = step
    _note(run, number, began_s, seen, digest(net) if not seen["type"] else "")


def _note(
    run: Run, number: int, began_s: float, seen: Mapping[str, Any], parameters: str = ""
) -> None:
    """Note what became of a call that not all have made."""
    call = {"fault": number, "kind": run.faults[number].kind, "parameters": parameters}
    run.calls.append({**seen, **call, "seconds": seen["at_s"] - began_s})


def frame_is_due(run: Run, frame: frames.Frame, data: memoryview) -> tuple[str, int] | None:
    """Of the run's own transport in a step; of the control channel at registration."""
    if frame.kind is not frames.Kind.DATA or not len(data):
        return None
    moment = "registration" if frame.epoch == 0 else "exchange"
    if moment == "exchange" and frame.key.step != run.step:
        return None
    for fault in run.due(moment, ("flip", "header")):
        return fault.kind, fault.detail
    return None


def payload_is_due(run: Run, step: int) -> int | None:
    for fault in run.due("exchange", ("size",)) if step == run.step else ():
        return fault.detail
    return None
