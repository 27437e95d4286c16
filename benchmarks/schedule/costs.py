"""What a step costs besides training: its units through the engine, its chunks through the plan.

Of the units, all gradients are there at once and nothing is computed beside, so that what is left
is to encode, send and decode. Of units one after the other, nothing overlaps; pipelined, one is
encoded while another is on the wire, and a third is decoded. Of the chunks, what counts is to plan
them, and to choose and cut them when they go out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from compressa.schedulers import POLICIES, Conditions, Link, Transfer

import compressa
from compressa.link.operations import nothing
from compressa.transports.base import Key
from compressa.transports.outbox import Outbox

UNITS = 32
UNIT_ELEMS = 1 << 17
STAGES = ("encode_s", "wire_s", "decode_s")
CHUNKS = 10_000

_FLOAT_BYTES = 4
_WARM_STEPS = 3
_CHUNK_BYTES = 1 << 10
_MESSAGES = 200
_LINK = Link(bytes_per_s=25e6, latency_s=1e-4, overhead_s=1e-4)


def unit_costs(compressor: str, rounds: int) -> dict[str, float]:
    """Measure units pipelined and one after the other, in turn. Collective.

    Args:
        compressor: By name; as many parameters as units, each of `UNIT_ELEMS` elements.
        rounds: How often.

    Returns:
        Seconds of a step: as a whole, `apart_s` and `pipelined_s`, and by the names of `STAGES`
        what the units are encoded, sent and decoded for.
    """
    exchange = {
        "transport": "tcp",
        "unit_bytes": UNIT_ELEMS * _FLOAT_BYTES,
        "unit_payload_bytes": 1,
        "unit_dense_bytes": UNIT_ELEMS * _FLOAT_BYTES,
    }
    config = {"compressor": {"name": compressor}, "exchange": exchange}
    names = [f"p{unit}" for unit in range(UNITS)]
    shapes = {name: torch.zeros(UNIT_ELEMS) for name in names}
    with compressa.open_engine(config, shapes) as engine:
        generator = torch.Generator().manual_seed(dist.get_rank())
        # In the order in which backward would have them.
        drawn = torch.randn(UNITS, UNIT_ELEMS, generator=generator).unbind()
        values = dict(zip(reversed(names), drawn, strict=True))
        return _measured(engine, values, rounds)


def _measured(
    engine: compressa.Handle, values: dict[str, torch.Tensor], rounds: int
) -> dict[str, float]:
    for _ in range(_WARM_STEPS):
        _step_s(engine, values, pipelined=True)
    pipelined, apart, stages = [], [], []
    for _ in range(rounds):
        pipelined.append(_step_s(engine, values, pipelined=True))
        before_s = _stages_s(engine)
        apart.append(_step_s(engine, values, pipelined=False))
        after_s = _stages_s(engine)
        stages.append([after - before for after, before in zip(after_s, before_s, strict=True)])
    sums = map(median, zip(*stages, strict=True))
    whole = {"apart_s": median(apart), "pipelined_s": median(pipelined)}
    return whole | dict(zip(STAGES, sums, strict=True))


def _step_s(engine: compressa.Handle, values: dict[str, torch.Tensor], *, pipelined: bool) -> float:
    """Return the seconds of a step that all ranks begin together."""
    gradients = [{name: value.clone()} for name, value in values.items()]
    dist.barrier()
    begin_s = time.perf_counter()
    if pipelined:
        engine.wait([engine.submit(gradient) for gradient in gradients])
    else:
        for gradient in gradients:
            engine.wait([engine.submit(gradient)])
    return time.perf_counter() - begin_s


def _stages_s(engine: compressa.Handle) -> list[float]:
    """Return what was encoded, sent and decoded so far; in turn, nothing of it overlaps."""
    rows = engine.stats().compressors.values()
    return [sum(getattr(row, stage) for row in rows) for stage in STAGES]


def chunk_costs(repeats: int = 5) -> Iterator[tuple[str, float]]:
    """Yield, for each thing that is done for a chunk, its name and the median of its seconds.

    Args:
        repeats: How often each is done, for `CHUNKS` chunks.
    """
    transfers = [
        Transfer(
            unit,
            stage,
            _CHUNK_BYTES * (1 + unit % 97),
            ready_s=1e-4 * unit,
            need_s=1.0 + 1e-4 * (CHUNKS // 2 - unit),
        )
        for unit in range(CHUNKS // 2)
        for stage in range(2)
    ]
    for name, policy in POLICIES.items():
        planned_s = _median_s(partial(policy, transfers, Conditions(_LINK, 2.0)), repeats)
        yield f"plan by {name}", planned_s / CHUNKS
    yield "choose, cut and hand over", _median_s(_hand_over, repeats) / CHUNKS


def _median_s(call: Callable[[], object], repeats: int) -> float:
    times_s = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - begin_s)
    return median(times_s)


def _hand_over() -> None:
    """Queue messages of many chunks, the most urgent last, and take all chunks out again."""
    outbox = Outbox(0, _CHUNK_BYTES)
    payload = torch.zeros(CHUNKS // _MESSAGES * _CHUNK_BYTES, dtype=torch.uint8)
    for unit in range(_MESSAGES):
        outbox.push(Key(0, unit, 0), payload, (0, _MESSAGES - unit), nothing)
    while outbox:
        item = outbox.next_frame()
        item.frame.pack()
        item.message.handed_over()
