"""One rank of ours and of Gloo's: `python -m compressa.bench.network.rank SOCKET BYTES SECONDS`.

The environment says who it is and where ranks meet, as torchrun's does. SOCKET is the driver's,
BYTES the largest message, SECONDS the longest wait.
"""

from __future__ import annotations

import gc
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from compressa.bench.network.chain import timed
from compressa.bench.network.operations import prepare
from compressa.bench.network.wire import Ask, Wire
from compressa.config import load_config
from compressa.engine.session import Session

_SILENCE_S = 60.0  # many ranks may share few processors


def main(path: str, most_bytes: int, deadline_s: float) -> None:
    """Measure rows until the driver has no more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
    world = dist.group.WORLD
    assert world is not None
    exchange = {"transport": "tcp", "deadline_s": deadline_s, "silence_s": _SILENCE_S}
    session = Session(load_config({"exchange": exchange}), world, most_bytes // 4 + 1)

    def answer(ask: Ask) -> tuple[list[float], int]:
        gc.collect()  # what the last row used is gone before this one begins
        operation = prepare(ask.what, ask.size_bytes, session)
        return timed(
            operation.call, operation.verify, session.barrier, session.slowest, ask.budget_s
        )

    Wire(path, session.rank).serve(torch.__version__, answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    # Not through Python's own exit: it would wait for ranks that may be gone already.
    sys.stderr.flush()
    os._exit(0)
