# torchrun --nproc-per-node 2 examples/accelerate_trainer.py
"""Accelerate with int8 gradients: one line after `prepare`; residuals go with its checkpoints."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from compressa.integrations.accelerate import register


def data() -> TensorDataset:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(4096, 2)
    return TensorDataset(points, (points.square().sum(dim=1) < 1).long())


def main() -> None:
    """Train a small classifier, save it half-way, and go back to that."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    net = nn.Sequential(
        nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    loader = DataLoader(data(), batch_size=32)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    handle = register(accelerator, model, {"compressor": "int8"})  # the line

    def train() -> float:
        for points, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(points), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return sum(p.double().sum().item() for p in net.parameters())

    train()
    with tempfile.TemporaryDirectory() as own:
        (folder,) = broadcast_object_list([own])  # rank 0's, for all
        accelerator.save_state(folder)  # on every process
        sums = [train()]
        accelerator.load_state(folder)
        sums.append(train())
        accelerator.wait_for_everyone()

    points, labels = data().tensors
    right = (model(points).argmax(dim=1) == labels).float().mean()
    again = "repeats its bits" if sums[0] == sums[1] else "differs"
    accelerator.print(
        f"{right:.0%} right; {handle.stats().ratio:.1f} times fewer bytes; it {again}"
    )
    handle.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
