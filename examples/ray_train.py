# python examples/ray_train.py
"""Ray Train with int4 gradients: a worker is lost, and the run goes on from its checkpoint."""

import os
import tempfile
from pathlib import Path

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from torch import nn

import compressa

STEPS, EVERY, LOST_AT = 60, 20, 50


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=torch.Generator().manual_seed(2 * step + rank))
    return points, (points.square().sum(dim=1) < 1).long()


def network() -> nn.Module:
    """A small classifier, with the same values wherever it is built."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 2))


def train(config: dict[str, Path]) -> None:
    """Train on one worker; rank 1 dies once."""
    rank = ray.train.get_context().get_world_rank()
    model = ray.train.torch.prepare_model(network())
    handle = compressa.register_comm_hook(model, {"compressor": "int4"})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mine, first = f"residuals-{rank}.pt", 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "model.pt"), weights_only=True)
            model.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["step"]
            handle.load_state_dict(torch.load(Path(folder, mine), weights_only=True))  # one line
    for step in range(first, STEPS):
        if step == LOST_AT and rank == 1 and not config["lost"].exists():
            config["lost"].touch()
            os._exit(1)
        points, labels = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                torch.save(handle.state_dict(), Path(folder, mine))  # and one line, on every rank
                if rank == 0:
                    state = {"model": model.module.state_dict(), "step": step + 1}
                    state["optimizer"] = optimizer.state_dict()
                    torch.save(state, Path(folder, "model.pt"))
                metrics = {"loss": loss.item(), "ratio": handle.stats().ratio, "began": first}
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
    handle.close()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as storage:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"lost": Path(storage, "lost")},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=storage, failure_config=FailureConfig(max_failures=1)
            ),
        )
        found = trainer.fit().metrics
        print(f"began at {found['began']}, loss {found['loss']!r}, ratio {found['ratio']:.1f}")
    ray.shutdown()
