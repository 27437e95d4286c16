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
from compressa.bench.network.operations import exchange_of, prepare
from compressa.bench.network.wire import Ask, Wire
from compressa.config import load_config
from compressa.engine.link_file import Figures
from compressa.engine.opening import open_session
from compressa.engine.session import Session

_SILENCE_S = 60.0  # many ranks may share few processors


def main(path: str, most_bytes: int, deadline_s: float) -> None:
    """Measure rows until the driver has no more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
    world = dist.group.WORLD
    assert world is not None

    sessions: dict[tuple[tuple[str, int], ...], Session] = {}

    def opened(settings: tuple[tuple[str, int], ...]) -> Session:
        """Open a session, unless there is one with these settings already."""
        if settings not in sessions:
            exchange = {"transport": "tcp", "deadline_s": deadline_s, "silence_s": _SILENCE_S}
            config = load_config({"exchange": exchange | dict(settings)})
            sessions[settings] = open_session(config, world, most_bytes // 4 + 1)
        return sessions[settings]

    def answer(ask: Ask) -> tuple[list[float], int]:
        gc.collect()  # what the last row used is gone before this one begins
        session = opened(exchange_of(ask.what))
        figures = None if ask.figures is None else Figures.model_validate(ask.figures)
        operation = prepare(ask.what, ask.size_bytes, session, figures)
        found = timed(
            operation.call,
            operation.verify,
            session.barrier,
            session.slowest,
            ask.budget_s,
            ask.rounds,
        )
        operation.close()
        return found

    Wire(path, world.rank()).serve(torch.__version__, answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    # Not through Python's own exit: it would wait for ranks that may be gone already.
    sys.stderr.flush()
    os._exit(0)
