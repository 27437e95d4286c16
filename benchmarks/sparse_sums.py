"""What passes the busiest port in a step of sparse sums: the largest elements, sent three ways.

    python -m benchmarks.sparse_sums
    torchrun --nproc-per-node 8 -m benchmarks.sparse_sums

The first counts bytes on ranks in this process, of a gradient of a million elements at density
0.01, independent from rank to rank or mostly the same. Those of `topk` and `gtopk` follow from the
number of elements; for `oktopk` three steps are run, of which the first estimates thresholds and
regions. The second runs real processes over TCP, and says what the busiest has sent, with all
headers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

import compressa
from benchmarks.paired import report
from compressa.aggregators import State, World, build_aggregator
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.traffic import busiest_bytes, dense_ring_bytes
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback
from harness.tables import Table, markdown

ELEMS = 1_000_000
RANKS = (4, 8, 16, 32, 64)
ALIKE = {"independent": 0.0, "alike": 0.9}
"""By name, how much the gradients of two ranks correlate."""

_STEPS = 3
_NAMES = ("oktopk", "gtopk", "topk")
_PARAMETER = ParameterInfo(0, "w", (ELEMS,))


class Ports(Loopback):
    """A loopback that counts what comes in, too.

    Attributes:
        bytes: By rank, what it has sent and received, without the headers of frames.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.bytes = torch.zeros(size, 2, dtype=torch.int64)

    def carry(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        on_sent: Callable[[], None],
        arrive: Callable[[], None],
    ) -> None:
        """Count a message, and carry it."""
        size = size_bytes - FRAME_HEADER_BYTES
        self.bytes[sender, 0] += size
        self.bytes[receiver, 1] += size
        super().carry(sender, receiver, size_bytes, on_sent, arrive)


def gradients(ranks: int, step: int, correlation: float) -> list[torch.Tensor]:
    """Return a gradient for each rank; any two correlate as much."""
    made = torch.Generator().manual_seed(step)
    shared = correlation**0.5 * torch.randn(ELEMS, generator=made)
    own = (1.0 - correlation) ** 0.5
    return [shared + own * torch.randn(ELEMS, generator=made) for _ in range(ranks)]


def counted(ranks: int, correlation: float) -> list[int]:
    """Return the bytes at the busiest port in each step of `oktopk`."""
    ports = Ports(ranks)
    compressor = COMPRESSORS["oktopk"].compressor()
    world = LoopbackWorld(
        ranks, [_PARAMETER], compressor, unit_bytes=4 * ELEMS, loopback=ports, deadline_s=1e6
    )
    steps = []
    for step in range(_STEPS):
        ports.bytes.zero_()
        world.step([{"w": own} for own in gradients(ranks, step, correlation)])
        steps.append(int(ports.bytes.max()))
    return steps


def known(compressor: Compressor, ranks: int) -> int:
    """Return the bytes at the busiest port of a compressor whose payloads never vary."""
    layout = Layout(0, (Segment(_PARAMETER, 0, ELEMS),))
    world = World(0, ranks, 0, "auto", State())
    return busiest_bytes(build_aggregator(compressor, layout, world).rounds, ranks)


def table() -> Table:
    """Count, and return what a page shows."""
    titles = ("ranks", "gradients", "oktopk", "when it estimates", "gtopk", "topk", "dense ring")
    lines = []
    for ranks in RANKS:
        fixed = [known(COMPRESSORS[name].compressor(), ranks) for name in _NAMES[1:]]
        fixed.append(round(dense_ring_bytes(ELEMS, ranks)))
        for name, correlation in ALIKE.items():
            first, *others = counted(ranks, correlation)
            lines.append((str(ranks), name, *_kilobytes([max(others), first, *fixed])))
    return Table("", titles, lines, frozenset(titles) - {"gradients"})


def real() -> Iterator[str]:
    """Run steps of each on the ranks that torchrun has started; say what the busiest has sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name in _NAMES:
        config = {"compressor": name, "exchange": {"transport": "tcp"}}
        tensors = {"w": torch.zeros(ELEMS)}
        sent = torch.zeros(_STEPS + 1, dtype=torch.int64)
        with compressa.open_engine(config, tensors) as engine:
            for step in range(_STEPS):
                tensors["w"].copy_(gradients(ranks, step, 0.0)[rank])
                engine.wait([engine.submit(tensors)])
                sent[step + 1] = engine.stats().sent_bytes
        steps = sent.diff()
        dist.all_reduce(steps, dist.ReduceOp.MAX)
        first, *others = steps.tolist()
        shown = _kilobytes([max(others), first])
        yield f"{name} on {ranks} ranks: {shown[0]} kB a step, {shown[1]} kB in the first"


def _kilobytes(sizes: Sequence[int]) -> list[str]:
    return [f"{size / 1e3:,.0f}" for size in sizes]


if __name__ == "__main__":
    if "RANK" in os.environ:
        report(real())
    else:
        print(markdown(table()), end="")
