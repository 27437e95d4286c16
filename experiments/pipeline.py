# torchrun --nproc-per-node 2 experiments/pipeline.py --out docs/measurements/pipeline.json
"""The character GPT cut in two, its edge compressed in several ways: losses and bytes.

All runs start from the same parameters and see the same batches: 8 windows of 64 characters, two
microbatches of four, drawn in epochs from 256 windows of the standard library's source text, since
differences need samples that come again. Rank 1 writes one JSON row for each way.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, cast

import torch
import torch.distributed as dist
import typer
from lab.tasks.char_gpt import GPT, SIZES
from lab.tasks.corpus import standard_library
from lab.tasks.task import EpochOrder, seeded, warmup_then_cosine
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import compressa
from harness.records import Provenance

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


class First(nn.Module):
    """Embeddings and the first two of five blocks."""

    def __init__(self, whole: GPT) -> None:
        super().__init__()
        self.embedding, self.position = whole.embedding, whole.position
        self.blocks = whole.blocks[:2]

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, context) to (batch, context, width)."""
        places = torch.arange(characters.shape[1])
        hidden: Tensor = self.blocks(self.embedding(characters) + self.position(places))
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


def main(
    out: Annotated[Path, typer.Option(help="A JSON file, which is written anew.")],
    steps: Annotated[int, typer.Option(min=32, help="Steps of each way; 32 are an epoch.")] = 192,
) -> None:
    """Train all ways one after the other, and write what came of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    for way, pipeline in WAYS.items():
        rows.append({"way": way, "steps": steps, **train(pipeline, steps)})
        if dist.get_rank() == 1:
            print(json.dumps(rows[-1]), flush=True)
            text = {"provenance": Provenance.now().model_dump(), "rows": rows}
            out.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)
