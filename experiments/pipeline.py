# python experiments/pipeline.py --json docs/measurements/pipeline.json
"""The character GPT cut in two, its edge compressed in several ways: losses and bytes.

All runs start from the same parameters and see the same batches: 8 windows of 64 characters, two
microbatches of four, drawn in epochs from 256 windows of the standard library's source text, since
differences need samples that come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import version
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
import torch.distributed as dist
import typer
from lab.tasks.char_gpt import GPT, SIZES
from lab.tasks.corpus import standard_library
from lab.tasks.task import EpochOrder, seeded, warmup_then_cosine
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import compressa
from compressa.testbed import open_testbed
from harness import records
from harness.records import NotNegative, Positive
from harness.runner import JsonFile, Shown, What, carry_out, refuse_unmatched
from harness.start import started_ranks
from harness.tables import table_of
from harness.wire import Wire

WINDOWS, ROWS, MICROBATCHES = 256, 8, 2
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "bf16": {"activations": "bf16", "gradients": "bf16"},
    "int8": {"activations": "int8", "gradients": "int8"},
    "int4": {"activations": "int4", "gradients": "int8"},
    "int4, differences": {"activations": "int4", "gradients": "int8", "differences": True},
    "int2": {"activations": "int2", "gradients": "int8"},
    "int2, differences": {"activations": "int2", "gradients": "int8", "differences": True},
}

_PATIENCE_S = 3600.0  # for a way


class Row(records.Row):
    """Training by one way: mean losses in nats per character, and what both ranks have sent."""

    way: str
    steps: PositiveInt
    first_loss: Positive
    last_epoch_loss: Positive
    activation_bytes_per_step: NotNegative
    gradient_bytes_per_step: NotNegative


class Header(records.Header):
    """Where and when; the memory is null in the committed file, whose run had not noted it."""

    format: Literal["compressa.experiments.pipeline"] = "compressa.experiments.pipeline"
    memory_bytes: PositiveInt | None  # type: ignore[assignment]


class PipelineMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python experiments/pipeline.py"

    header: Header
    rows: list[Row] = Field(default_factory=list)


class PipelineBench:
    """Trains one way after the other.

    Args:
        steps: Of each way.
        pattern: That names of ways match.

    Attributes:
        found: What was measured so far.

    Raises:
        ConfigError: No name does.
    """

    def __init__(self, steps: int, pattern: str) -> None:
        refuse_unmatched("--what", pattern, WAYS)
        header = Header.here({"torch": version("torch")})
        self.found = PipelineMeasurement(header=header)
        self._steps = steps
        self._ways = {way: WAYS[way] for way in WAYS if fnmatchcase(way, pattern)}

    def run(self) -> Iterator[str]:
        """Train all; say what comes next, each time that there is a row more.

        Raises:
            TransportError: A rank died or failed.
        """
        yield "starting two processes"
        with (
            open_testbed(2, "unshaped", kind="loopback", self_check=False) as bed,
            started_ranks(bed, "pipeline:Training") as ranks,
        ):
            for way, pipeline in self._ways.items():
                yield way
                ranks.tell("train", pipeline=pipeline, steps=self._steps)
                _, told = ranks.answers("train", _PATIENCE_S)
                self.found.rows.append(Row(way=way, steps=self._steps, **told))


class First(nn.Module):
    """Embeddings and the first two of five blocks."""

    def __init__(self, whole: GPT) -> None:
        super().__init__()
        self.embedding, self.position = whole.embedding, whole.position
        self.blocks = whole.blocks[:2]

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, context) to (batch, context, width)."""
        positions = torch.arange(characters.shape[1])
        hidden: Tensor = self.blocks(self.embedding(characters) + self.position(positions))
        return hidden


def windows_of(stream: Tensor) -> Tensor:
    """Cut windows of 65 characters, spread over a stream."""
    length = SIZES["demo"].context + 1
    every = stream[: len(stream) // length * length].view(-1, length)
    return every[:: len(every) // WINDOWS][:WINDOWS].long()


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per character."""
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def train(pipeline: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train one way; return the last rank's losses, and what both ranks have sent in a step."""
    rank, last = dist.get_rank(), dist.get_rank() == 1
    whole = cast(GPT, seeded(0, GPT, SIZES["demo"]))
    blocks = list(whole.blocks)[2:]
    part = nn.Sequential(*blocks, whole.norm, whole.head) if last else First(whole)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    edge = compressa.compress_edge(stage, {"pipeline": pipeline})
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    rate = SIZES["demo"].learning_rate
    optimizer = torch.optim.AdamW(part.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    decay = warmup_then_cosine(optimizer, steps, warmup=max(1, steps // 15))
    windows, order = windows_of(standard_library().train), EpochOrder(WINDOWS, ROWS)
    losses = []
    for step in range(steps):
        chosen = order.indices(0, 1, step, 0)
        if pipeline.get("differences"):
            edge.samples(chosen)
        found: list[Tensor] = []
        optimizer.zero_grad()
        if last:
            schedule.step(target=windows[chosen, 1:], losses=found)
            losses.append(torch.stack(found).mean().item())
        else:
            schedule.step(windows[chosen, :-1])
        optimizer.step()
        decay.step()
    sent = torch.tensor([edge.activations.sent_bytes, edge.gradients.sent_bytes])
    dist.all_reduce(sent)
    activations, gradients = (sent / steps).tolist()
    return {
        "first_loss": losses[0] if last else None,
        "last_epoch_loss": fmean(losses[-(WINDOWS // ROWS) :]) if last else None,
        "activation_bytes_per_step": activations,
        "gradient_bytes_per_step": gradients,
    }


class Training:
    """What a rank can be asked for; see `harness.rank`."""

    def __init__(self, wire: Wire) -> None:
        pass

    def train(self, pipeline: dict[str, Any], steps: int) -> dict[str, Any]:
        """Train one way; the last rank tells the figures of a `Row`."""
        return train(pipeline, steps)


def shown(measured: PipelineMeasurement) -> Shown:
    """Yield a table of all ways."""
    columns: dict[str, Callable[[Row], str]] = {
        "activations": lambda row: row.way,
        "steps": lambda row: str(row.steps),
        "first loss": lambda row: f"{row.first_loss:.3f}",
        "last epoch's": lambda row: f"{row.last_epoch_loss:.3f}",
        "kB forward in a step": lambda row: f"{row.activation_bytes_per_step / 1e3:.1f}",
        "kB back": lambda row: f"{row.gradient_bytes_per_step / 1e3:.1f}",
    }
    yield table_of("Losses in nats per character", measured.rows, columns)


def main(
    json_file: JsonFile = None,
    steps: Annotated[int, typer.Option(min=32, help="Steps of each way; 32 are an epoch.")] = 192,
    what: What = "*",
) -> None:
    """Train all ways one after the other, by two processes."""
    carry_out(PipelineBench(steps, what), shown, json_file)


if __name__ == "__main__":
    typer.run(main)
