"""Integrations: where residuals lie, what they go with, and what is said where they are missing."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _frameworks import Run, as_launched, made
from _rank_models import batch
from _ranks import Group, same, settings
from _training import digest, lasting_threads, state_digest
from torch import nn

import compressa
from compressa.integrations import _residuals as residuals

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]


def step(model: nn.Module, optimizer: Any, number: int, backward: Any) -> None:
    """Train one step."""
    x, labels = batch(dist.get_rank(), number, torch.float32)
    optimizer.zero_grad()
    backward(nn.functional.cross_entropy(model(x), labels))
    optimizer.step()


def keep_two_models(*, folder: str, config: Any) -> dict[str, Any]:
    """Train two models by one accelerator, one of them compiled and scaled; go back, and on."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from compressa.integrations.accelerate import register

    as_launched()
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    (one, by_one), (other, by_other) = made(), made()
    first, by_one, second, by_other = accelerator.prepare(one, by_one, other, by_other)
    compiled: Any = torch.compile(second, backend="eager")
    handles = [register(accelerator, model, config) for model in (first, compiled)]

    def train(number: int) -> list[str]:
        step(first, by_one, number, accelerator.backward)
        step(compiled, by_other, number + 1, accelerator.backward)
        return [digest(one), digest(other), *map(state_digest, handles)]

    train(0)
    accelerator.save_state(folder)
    dist.barrier()
    ends = [train(1)]
    accelerator.load_state(folder)
    ends.append(train(1))
    for handle in handles:
        handle.close()
    return {"ends": ends, "scale": accelerator.scaler.get_scale()}


def load_where_one_rank_sees_nothing(*, folder: str, config: Any) -> str:
    """Load from a folder that is rank 0's own; return what is said."""
    as_launched()
    net, _ = made()
    model = nn.parallel.DistributedDataParallel(net)
    with compressa.register_comm_hook(model, config) as handle:
        handle.save(folder)
        seen = folder if dist.get_rank() == 0 else f"{folder}-elsewhere"
        try:
            residuals.load(handle, seen)
        except compressa.StateError as error:
            return str(error)
    return ""


def put_into_slot_of_accelerate(*, config: Any) -> list[str]:
    """Hand the pair to Accelerate's own slot, which knows torch's hooks only."""
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    as_launched()
    AcceleratorState._reset_state(True)
    _, hook = compressa.comm_hook(config)
    slot = DistributedDataParallelKwargs(comm_hook=hook)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[slot])
    model, optimizer = accelerator.prepare(*made())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(2):
            step(model, optimizer, number, accelerator.backward)
    return [str(w.message) for w in said if "compressa" in str(w.message)]


def fit_by_lightning(*, folder: str, config: Any) -> dict[str, Any]:
    """Save, remove one checkpoint, and go on from one that was copied without its residuals."""
    from _by_lightning import Module, ticks, trainer_of

    from compressa.integrations.lightning import CompressaStrategy

    as_launched()
    strategy = CompressaStrategy(config)
    trainer = trainer_of(Run(None), strategy)
    trainer.fit(Module(), ticks())
    for name, weights_only in (("kept", False), ("gone", False), ("bare", True)):
        trainer.save_checkpoint(f"{folder}/{name}.ckpt", weights_only=weights_only)
    strategy.remove_checkpoint(f"{folder}/gone.ckpt")
    if dist.get_rank() == 0:
        shutil.copy(f"{folder}/kept.ckpt", f"{folder}/copied.ckpt")
        Path(f"{folder}/link.ckpt").symlink_to(f"{folder}/kept.ckpt")
    dist.barrier()
    ends: dict[str, Any] = {"found": sorted(path.name for path in Path(folder).iterdir())}
    for name in ("link", "copied"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer.fit_loop.epoch_loop.max_steps = 4
            trainer.fit(Module(3), ticks(), ckpt_path=f"{folder}/{name}.ckpt")
        ends[name] = [strategy.handle.next_step, sum("residuals" in str(w.message) for w in said)]
    strategy.handle.close()
    return ends | {"threads": lasting_threads()}


def fit_by_pytorch_lightning(*, folder: str, config: Any) -> list[Any]:
    """Train with the package's older name."""
    from pytorch_lightning import LightningModule, Trainer

    from compressa.integrations.pytorch_lightning import CompressaStrategy

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self._optimizer = made()

        def training_step(self, tick: torch.Tensor, number: int) -> torch.Tensor:
            x, labels = batch(dist.get_rank(), number, torch.float32)
            return nn.functional.cross_entropy(self.net(x), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

    as_launched()
    strategy = CompressaStrategy(config)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=3,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader([0.0] * 9, batch_size=None))
    trainer.save_checkpoint(f"{folder}/older.ckpt")
    end = [
        strategy.handle.next_step,
        digest(module.net),
        Path(f"{folder}/older.ckpt.compressa").is_dir(),
    ]
    strategy.handle.close()
    return end


def train_by_trainer_twice(*, folder: str, config: Any) -> dict[str, Any]:
    """Train twice by one Trainer, and go on elsewhere, with residuals and without."""
    from _by_trainer import Net, trainer_of
    from accelerate.state import AcceleratorState

    from compressa.integrations.transformers import CompressaCallback

    as_launched()
    AcceleratorState._reset_state(True)
    trainer = trainer_of(Run(None, folder=folder), Net(), folder)
    callback = CompressaCallback(trainer, config)
    trainer.add_callback(callback)
    ends: dict[str, Any] = {"steps": []}
    for _ in range(2):
        trainer.train()
        ends["steps"].append(callback.handle.stats().steps)
    callback.handle.close()
    for name, resume_from in (("told", f"{folder}/checkpoint-3"), ("untold", None)):
        AcceleratorState._reset_state(True)
        with warnings.catch_warnings(record=True) as said, tempfile.TemporaryDirectory() as own:
            warnings.simplefilter("always")
            trainer = trainer_of(Run(None, last=5), Net(), own)
            callback = CompressaCallback(trainer, config, resume_from)
            trainer.add_callback(callback)
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-3")
            dist.barrier()
        about = [w for w in said if "there are no residuals" in str(w.message)]
        ends[name] = [callback.handle.next_step, len(about)]
        callback.handle.close()
    alone = CompressaCallback(trainer, config)
    alone.on_train_begin(SimpleNamespace(world_size=1), trainer.state, trainer.control)
    return ends | {"threads": lasting_threads(), "alone": alone.handle}


def save_elsewhere(*, config: Any) -> str:
    """Save to what is no file system."""
    wrapped = nn.parallel.DistributedDataParallel(made()[0])
    with compressa.register_comm_hook(wrapped, config) as handle:
        residuals.save(handle, "s3://bucket/checkpoint")
    return ""


def test_an_accelerator_keeps_the_residuals_of_each_model(
    framework_ranks: Group, tmp_path: Path
) -> None:
    config = settings("topk")
    ends = framework_ranks.run(keep_two_models, folder=str(tmp_path), config=config)
    for end in ends:
        once, again = end["ends"]
        assert once == again
    assert {"compressa", "compressa_1"} <= {path.name for path in tmp_path.iterdir()}


def test_the_slot_that_accelerate_ignores_is_found_out(framework_ranks: Group) -> None:
    for said in framework_ranks.run(put_into_slot_of_accelerate, config=settings("topk")):
        (text,) = said
        assert "nothing is compressed" in text


def test_lightning_keeps_residuals_beside_each_checkpoint(
    framework_ranks: Group, tmp_path: Path
) -> None:
    config = settings("topk")
    for end in framework_ranks.run(fit_by_lightning, folder=str(tmp_path), config=config):
        names = ["bare.ckpt", "copied.ckpt", "kept.ckpt", "kept.ckpt.compressa", "link.ckpt"]
        assert end["found"] == names
        assert end["link"] == [4, 0]
        assert end["copied"] == [1, 1]
        assert end["threads"] == []


def test_lightning_by_its_older_name_trains_and_saves(
    framework_ranks: Group, tmp_path: Path
) -> None:
    how = {"folder": str(tmp_path), "config": settings("topk")}
    steps, _, saved = same(framework_ranks.run(fit_by_pytorch_lightning, **how))
    assert (steps, saved) == (3, True)


def test_a_trainer_trains_again_and_goes_on_from_elsewhere_if_told(
    framework_ranks: Group, tmp_path: Path
) -> None:
    how = {"folder": str(tmp_path), "config": settings("topk")}
    for end in framework_ranks.run(train_by_trainer_twice, **how):
        assert end["steps"] == [3, 6]
        assert end["told"] == [8, 0]  # of the second training's checkpoint
        assert end["untold"] == [2, 1]
        assert end["alone"] is None
        assert end["threads"] == []


def test_residuals_are_not_saved_to_what_is_no_file_system(framework_ranks: Group) -> None:
    for message in framework_ranks.refused(save_elsewhere, "StateError", config=settings("topk")):
        assert "s3://bucket" in message


def test_a_folder_that_not_all_ranks_see_is_told_to_all(
    framework_ranks: Group, tmp_path: Path
) -> None:
    config = settings("topk")
    for said in framework_ranks.run(
        load_where_one_rank_sees_nothing, folder=str(tmp_path / "own"), config=config
    ):
        assert "rank 1 sees no residuals" in said
