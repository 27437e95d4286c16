"""One rank of ours and of Gloo's: `python -m benchmarks.exchange.rank SOCKET BYTES SECONDS`.

The environment says who it is and where ranks meet, as torchrun's does. SOCKET is the driver's,
BYTES the largest message, SECONDS the longest wait.
"""

from __future__ import annotations

import gc
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.exchange.methods import BY_NAME
from benchmarks.exchange.sums import AUTO
from benchmarks.hosts.wire import Wire
from compressa.config import load_config
from compressa.engine.opening import open_session
from compressa.engine.session import Session
from compressa.engine.start.link_file import Figures
from compressa.link import operations
from compressa.link.chain import Ask
from compressa.link.operation import Operation
from compressa.link.sums import summed

_SILENCE_S = 60.0  # many ranks may share few processors

Settings = tuple[tuple[str, int], ...]


def main(path: str, most_bytes: int, deadline_s: float) -> None:
    """Measure rows until the driver has no more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
    world = dist.group.WORLD
    assert world is not None

    sessions: dict[Settings, Session] = {}

    def opened(settings: Settings) -> Session:
        """Open a session, unless there is one with these settings already."""
        if settings not in sessions:
            exchange = {"transport": "tcp", "deadline_s": deadline_s, "silence_s": _SILENCE_S}
            config = load_config({"exchange": exchange | dict(settings)})
            sessions[settings] = open_session(config, world, most_bytes // 4 + 1)
        return sessions[settings]

    def answer(message: Any) -> dict[str, Any]:
        gc.collect()  # what the last row used is gone before this one begins
        ask = Ask(*message)
        session = opened(BY_NAME[ask.what].exchange if ask.what in BY_NAME else ())
        return prepare(ask, session).timed(ask, session)._asdict()

    Wire(path, world.rank()).serve(torch.__version__, answer)


def prepare(ask: Ask, session: Session) -> Operation:
    """Return what is asked for: a method, or what is timed for the cost model."""
    if ask.what == AUTO:
        costs = None if ask.figures is None else Figures.model_validate(ask.figures).costs
        return summed(ask.what, ask.size_bytes, session, costs)
    if ask.what in BY_NAME:
        return BY_NAME[ask.what].operation(ask.size_bytes, session)
    return operations.prepare(ask.what, ask.size_bytes, session)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    # Not through Python's own exit: it would wait for ranks that may be gone already.
    sys.stderr.flush()
    os._exit(0)
