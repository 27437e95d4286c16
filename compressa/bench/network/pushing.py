"""One rank of a parameter server: `python -m compressa.bench.network.pushing TEXT`.

TEXT is `Rounds` as JSON; the environment says who the rank is and where ranks meet. The last rank
is the server, all others push to it and pull from it. A worker writes "ready" when it has warmed
up, begins when it reads a line, and then writes how long its rounds took. Computing is a timed
wait.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from compressa.parameter_server import Server, Worker, open_parameter_server

_WARM_ROUNDS = 3


@dataclass(frozen=True)
class Rounds:
    """What workers do.

    Attributes:
        key_elems: Elements of each key.
        keys: How many keys.
        rounds: How many rounds are timed.
        compute_s: How long a worker computes between two of them.
        config: Of compressa.
        deadline_s: Longest wait for the other ranks to start.
    """

    key_elems: int
    keys: int
    rounds: int
    compute_s: float
    config: dict[str, Any]
    deadline_s: float = 60.0

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))


def main(text: str) -> None:
    """Work as told."""
    torch.set_num_threads(1)
    rounds = Rounds(**json.loads(text))
    dist.init_process_group("gloo", timeout=timedelta(seconds=rounds.deadline_s))
    group = dist.group.WORLD
    assert group is not None
    keys = {f"key {i}": (rounds.key_elems,) for i in range(rounds.keys)}
    node = open_parameter_server(group, keys, rounds.config, servers=1, colocated=False)
    if isinstance(node, Server):
        node.serve()
    else:
        with node as worker:
            _work(worker, list(keys), rounds)
    dist.barrier()
    dist.destroy_process_group()


def _work(worker: Worker, keys: list[str], rounds: Rounds) -> None:
    values = [torch.full((rounds.key_elems,), 1.0 + worker.rank) for _ in keys]
    out = [torch.empty(rounds.key_elems) for _ in keys]

    def step() -> float:
        begin_s = time.perf_counter()
        time.sleep(rounds.compute_s)
        worker.push(keys, values)
        worker.wait(worker.pull(keys, out))
        return time.perf_counter() - begin_s

    for _ in range(_WARM_ROUNDS):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    step()  # after which all workers are together
    times_s = [step() for _ in range(rounds.rounds)]
    print(json.dumps({"rounds_s": times_s, "mean": float(out[0][0])}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # torch's threads may outlive the interpreter, and nothing is left to be done
