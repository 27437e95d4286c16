# torchrun --nproc-per-node 2 examples/nanogpt.py
"""A small GPT on Python's help: accumulation, clipping, checkpoints. To resume, start it again."""

from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import compressa

STEPS, SAVE_EVERY, ACCUMULATE, ROWS, LENGTH, WIDTH = 60, 20, 2, 8, 64, 64
TEXT = torch.tensor([ord(c) for c in "".join(topics.values()) if ord(c) < 128])


class GPT(nn.Module):
    """Two blocks of attention over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH))
        self.output = nn.Linear(WIDTH, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what may follow each character."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.words(x) + self.positions(torch.arange(LENGTH))
        return self.output(self.blocks(x, mask, is_causal=True))


def batch(micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw this rank's rows of text; always the same for a step."""
    generator = torch.Generator().manual_seed(micro_step * dist.get_world_size() + dist.get_rank())
    starts = torch.randint(len(TEXT) - LENGTH, (ROWS,), generator=generator)
    rows = torch.stack([TEXT[start : start + LENGTH + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:].flatten()


def main() -> None:
    """Train from the last checkpoint, or from the start."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    config = {"compressor": {"name": "topk", "density": 0.02}, "warmup": {"steps": 10}}
    handle = compressa.register_comm_hook(model, config)  # the line
    saved = sorted(Path("checkpoints").glob("*/model.pt"), key=lambda path: int(path.parent.name))
    if saved:
        handle.load(saved[-1].parent / "compressa")  # residuals, and the step
        weights, momenta = torch.load(saved[-1])
        model.load_state_dict(weights)
        optimizer.load_state_dict(momenta)
    for step in range(handle.next_step, STEPS):
        for micro in range(ACCUMULATE):
            x, y = batch(step * ACCUMULATE + micro)
            with model.no_sync() if micro < ACCUMULATE - 1 else nullcontext():
                loss = cross_entropy(model(x).flatten(0, 1), y) / ACCUMULATE
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % SAVE_EVERY == 0:
            folder = Path("checkpoints") / str(step + 1)
            handle.save(folder / "compressa")  # on every rank
            if dist.get_rank() == 0:
                torch.save([model.state_dict(), optimizer.state_dict()], folder / "new")
                (folder / "new").rename(folder / "model.pt")  # now it is whole
                print(f"step {step + 1}: loss {loss * ACCUMULATE:.2f}", flush=True)
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
