"""Units through the engine below the comm hook: pipelined, and one after the other.

All gradients are there at once and nothing is computed beside, so that what is left is to encode,
send and decode. Of units one after the other, nothing overlaps; pipelined, one is encoded while
another is on the wire, and a third is decoded.
"""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist

import compressa

UNITS = 32
UNIT_ELEMS = 1 << 17
STAGES = ("encode_s", "wire_s", "decode_s")
_FLOAT_BYTES = 4
_WARM_STEPS = 3


def measured(compressor: str, rounds: int) -> dict[str, float]:
    """Measure both ways in turn. Collective.

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
    values = {f"p{i}": torch.zeros(UNIT_ELEMS) for i in range(UNITS)}
    with compressa.open_engine(config, values) as engine:
        return _Turns(engine, list(values)).measure(rounds)


class _Turns:
    def __init__(self, engine: compressa.Handle, names: list[str]) -> None:
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._engine, self._names = engine, names
        self._values = torch.randn(UNITS, UNIT_ELEMS, generator=generator)

    def measure(self, rounds: int) -> dict[str, float]:
        for _ in range(_WARM_STEPS):
            self._pipelined()
        pipelined, apart, stages = [], [], []
        for _ in range(rounds):
            pipelined.append(self._pipelined())
            before_s = self._stages_s()
            apart.append(self._apart())
            after_s = self._stages_s()
            stages.append([after - before for after, before in zip(after_s, before_s, strict=True)])
        sums = map(median, zip(*stages, strict=True))
        whole = {"apart_s": median(apart), "pipelined_s": median(pipelined)}
        return whole | dict(zip(STAGES, sums, strict=True))

    def _pipelined(self) -> float:
        gradients, begin_s = self._begin()
        engine = self._engine
        engine.wait([engine.submit({name: gradient}) for name, gradient in gradients.items()])
        return time.perf_counter() - begin_s

    def _apart(self) -> float:
        gradients, begin_s = self._begin()
        for name, gradient in gradients.items():
            self._engine.wait([self._engine.submit({name: gradient})])
        return time.perf_counter() - begin_s

    def _begin(self) -> tuple[dict[str, torch.Tensor], float]:
        """Have gradients in the order in which backward would have them, and all ranks begin."""
        gradients = dict(zip(reversed(self._names), self._values.clone(), strict=True))
        dist.barrier()
        return gradients, time.perf_counter()

    def _stages_s(self) -> list[float]:
        """Return what was encoded, sent and decoded so far; in turn, nothing of it overlaps."""
        rows = self._engine.stats().compressors.values()
        return [sum(getattr(row, stage) for row in rows) for stage in STAGES]
