"""`python -m benchmarks sparse-sums`: what passes the busiest port in a step of sparse sums.

The largest elements, sent three ways. Bytes are counted on ranks in this process, of a gradient of
a million elements at density 0.01, independent from rank to rank or mostly the same. Those of
`topk` and `gtopk` follow from the number of elements; for `oktopk` three steps are run, of which
the first estimates thresholds and regions. Eight real processes over TCP send the same, with all
headers. Bytes do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal

import torch
import torch.distributed as dist
import typer
from pydantic import AwareDatetime, Field, PositiveInt

import compressa
from compressa.aggregators import State, World, build_aggregator
from compressa.compressors import COMPRESSORS
from compressa.machine import now
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testbed import open_testbed
from compressa.testing import LoopbackWorld
from compressa.traffic import busiest_bytes, dense_ring_bytes
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback
from harness import records
from harness.runner import JsonFile, Shown, Update, carry_out
from harness.start import started_ranks
from harness.tables import table_of
from harness.wire import Wire

Gradients = Literal["independent", "alike"]
ALIKE: dict[Gradients, float] = {"independent": 0.0, "alike": 0.9}
"""By name, how much the gradients of two ranks correlate."""

_STEPS = 3
_NAMES = ("oktopk", "gtopk", "topk")
_REAL_RANKS = 8


class Counted(records.Row):
    """Bytes at the busiest port in a step, in the busier direction, without headers of frames.

    `oktopk` is the larger of two steps after the first, `estimating` the first.
    """

    ranks: PositiveInt
    gradients: Gradients
    oktopk: PositiveInt
    estimating: PositiveInt
    gtopk: PositiveInt
    topk: PositiveInt
    dense_ring: PositiveInt

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return self.ranks, self.gradients


class Sent(records.Row):
    """Bytes that the busiest of real processes has sent over TCP, with all headers.

    `step_bytes` is the larger of two steps after the first; gradients are independent.
    """

    ranks: PositiveInt
    method: str
    step_bytes: PositiveInt
    first_bytes: PositiveInt
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return self.ranks, self.method


class Header(records.Header):
    """Where, when and how; bytes are the same on any machine."""

    alike: ClassVar = ("elems",)

    format: Literal["compressa.bench.sparse-sums"] = "compressa.bench.sparse-sums"
    elems: PositiveInt


class SparseSumsMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks sparse-sums"

    header: Header
    counted: list[Counted] = Field(default_factory=list)
    sent: list[Sent] = Field(default_factory=list)


class SparseSumsBench:
    """Counts bytes on ranks in this process, and of real ones.

    Args:
        elems: Of the gradient.
        ranks: In this process, one number after the other.

    Attributes:
        found: What was counted so far.
    """

    def __init__(self, elems: int, ranks: list[int]) -> None:
        self.found = SparseSumsMeasurement(header=Header.here(elems=elems))
        self._elems, self._ranks = elems, ranks

    def run(self) -> Iterator[str]:
        """Count everything; say what comes next, each time that there is a row more.

        Raises:
            TransportError: A rank died or failed.
        """
        for ranks in self._ranks:
            gtopk, topk = (known(name, self._elems, ranks) for name in _NAMES[1:])
            for name, correlation in ALIKE.items():
                yield f"{ranks} ranks, {name}"
                first, *others = counted(self._elems, ranks, correlation)
                self.found.counted.append(
                    Counted(
                        ranks=ranks,
                        gradients=name,
                        oktopk=max(others),
                        estimating=first,
                        gtopk=gtopk,
                        topk=topk,
                        dense_ring=round(dense_ring_bytes(self._elems, ranks)),
                    )
                )
        yield f"starting {_REAL_RANKS} processes"
        with (
            open_testbed(_REAL_RANKS, "unshaped", kind="loopback", self_check=False) as bed,
            started_ranks(bed, "benchmarks.sparse_sums:Sums") as processes,
        ):
            for method in _NAMES:
                yield f"{method} on {_REAL_RANKS} processes"
                first, *others = processes.ask("step", method=method, elems=self._elems)["sent"]
                self.found.sent.append(
                    Sent(
                        ranks=_REAL_RANKS,
                        method=method,
                        step_bytes=max(others),
                        first_bytes=first,
                        timestamp=now(),
                    )
                )


class Sums:
    """What a rank can be asked for; see `harness.rank`."""

    def __init__(self, wire: Wire) -> None:
        pass

    def step(self, method: str, elems: int) -> dict[str, list[int]]:
        """Sum gradients; tell the bytes that this rank has sent in each step."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        tensors, sent = {"w": torch.zeros(elems)}, [0]
        config = {"compressor": method, "exchange": {"transport": "tcp"}}
        with compressa.open_engine(config, tensors) as engine:
            for step in range(_STEPS):
                tensors["w"].copy_(gradients(elems, ranks, step, 0.0)[rank])
                engine.wait([engine.submit(tensors)])
                sent.append(engine.stats().sent_bytes)
        return {"sent": torch.tensor(sent).diff().tolist()}


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


def gradients(elems: int, ranks: int, step: int, correlation: float) -> list[torch.Tensor]:
    """Return a gradient for each rank; any two correlate as much."""
    made = torch.Generator().manual_seed(step)
    shared = correlation**0.5 * torch.randn(elems, generator=made)
    own = (1.0 - correlation) ** 0.5
    return [shared + own * torch.randn(elems, generator=made) for _ in range(ranks)]


def counted(elems: int, ranks: int, correlation: float) -> list[int]:
    """Return the bytes at the busiest port in each step of `oktopk`."""
    ports, parameters = Ports(ranks), [ParameterInfo(0, "w", (elems,))]
    compressor = COMPRESSORS["oktopk"].compressor()
    world = LoopbackWorld(
        ranks, parameters, compressor, unit_bytes=4 * elems, loopback=ports, deadline_s=1e6
    )
    steps = []
    for step in range(_STEPS):
        ports.bytes.zero_()
        world.step([{"w": own} for own in gradients(elems, ranks, step, correlation)])
        steps.append(int(ports.bytes.max()))
    return steps


def known(name: str, elems: int, ranks: int) -> int:
    """Return the bytes at the busiest port of a compressor whose payloads never vary."""
    compressor = COMPRESSORS[name].compressor()
    layout = Layout(0, (Segment(ParameterInfo(0, "w", (elems,)), 0, elems),))
    world = World(0, ranks, 0, "auto", State())
    return busiest_bytes(build_aggregator(compressor, layout, world).rounds, ranks)


def shown(measured: SparseSumsMeasurement) -> Shown:
    """Yield both tables, in kB."""
    columns: dict[str, Callable[[Counted], str]] = {
        "ranks": lambda row: str(row.ranks),
        "gradients": lambda row: row.gradients,
        "oktopk": lambda row: kilobytes(row.oktopk),
        "when it estimates": lambda row: kilobytes(row.estimating),
        "gtopk": lambda row: kilobytes(row.gtopk),
        "topk": lambda row: kilobytes(row.topk),
        "dense ring": lambda row: kilobytes(row.dense_ring),
    }
    yield table_of("kB at the busiest port", measured.counted, columns)
    real: dict[str, Callable[[Sent], str]] = {
        "ranks": lambda row: str(row.ranks),
        "method": lambda row: row.method,
        "a step": lambda row: kilobytes(row.step_bytes),
        "the first": lambda row: kilobytes(row.first_bytes),
    }
    yield table_of("kB that the busiest process has sent", measured.sent, real)


def kilobytes(size: int) -> str:
    """Return bytes in thousands."""
    return f"{size / 1e3:,.0f}"


Elems = Annotated[int, typer.Option(min=1000, help="Of the gradient.")]
RanksList = Annotated[list[int] | None, typer.Option("--ranks", help="Several times.")]


def sparse_sums(
    elems: Elems = 1_000_000,
    ranks: RanksList = None,
    json_file: JsonFile = None,
    update: Update = None,
) -> None:
    """Count what oktopk, gtopk and topk send, on 4 to 64 ranks and on 8 real processes.

    Takes some minutes.
    """
    carry_out(SparseSumsBench(elems, ranks or [4, 8, 16, 32, 64]), shown, json_file, update)
