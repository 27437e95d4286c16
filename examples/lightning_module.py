# torchrun --nproc-per-node 2 examples/lightning_module.py
"""Lightning with int8 gradients: a strategy in the place of "ddp"."""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from compressa.integrations.lightning import CompressaStrategy


def data() -> TensorDataset:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(4096, 2)
    return TensorDataset(points, (points.square().sum(dim=1) < 1).long())


class Classifier(LightningModule):
    """Says whether points lie within the unit circle."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        points, labels = batch
        return nn.functional.cross_entropy(self.net(points), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def fit(folder: str, epochs: int, resume: str | None = None) -> tuple[Trainer, Classifier]:
    """Train so many epochs in all; save after each."""
    seed_everything(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=CompressaStrategy({"compressor": "int8"}),  # the line
        max_epochs=epochs,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    module = Classifier()
    trainer.fit(module, DataLoader(data(), batch_size=64), ckpt_path=resume)
    return trainer, module


def main() -> None:
    """Train three epochs, and the third once more, from its checkpoint."""
    folder = "checkpoints"  # which all ranks share
    trainer, module = fit(folder, 3)
    _, resumed = fit(folder, 3, f"{folder}/epoch=1.ckpt")
    pairs = zip(module.parameters(), resumed.parameters(), strict=True)
    again = "repeats its bits" if all(torch.equal(a, b) for a, b in pairs) else "differs"

    points, labels = data().tensors
    right = (module.net(points).argmax(dim=1) == labels).float().mean()
    ratio = trainer.strategy.handle.stats().ratio
    if trainer.is_global_zero:
        print(f"{right:.0%} right; {ratio:.1f} times fewer bytes; it {again}")


if __name__ == "__main__":
    main()
