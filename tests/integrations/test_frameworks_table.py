"""The table of frameworks in the guide: each cell is a test on two ranks."""

from __future__ import annotations

import importlib
import re
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _frameworks import Run, as_launched
from _rank_models import build
from _ranks import Group, same, settings

import compressa

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides/frameworks.md"


@dataclass(frozen=True)
class Framework:
    """One row.

    Attributes:
        lines: What a user adds, besides imports; the guide shows each.
        trains: Module and function of tests that do a `Run` with it.
        misplaced: Function of this module that puts it where it can not be; returns what is said.
        says: What that says.
    """

    lines: tuple[str, ...]
    trains: tuple[str, str]
    misplaced: str
    says: str


FRAMEWORKS = {
    "DDP": Framework(
        ('handle = compressa.register_comm_hook(model, "compressa.toml")',),
        ("_frameworks", "by_ddp"),
        "register_bare",
        "wrap the network first",
    ),
    "overlapped": Framework(
        ('model = compressa.OverlappedDataParallel(net, optimizer, "compressa.toml")',),
        ("_frameworks", "by_overlapped"),
        "overlap_twice",
        "close that first",
    ),
    "`comm_hook` pair": Framework(
        (
            'state, hook = compressa.comm_hook("compressa.toml")',
            "model.register_comm_hook(state, hook)",
        ),
        ("_frameworks", "by_pair"),
        "pair_in_lightning",
        "compressa.integrations",
    ),
    "Accelerate": Framework(
        ('handle = register(accelerator, model, "compressa.toml")',),
        ("_frameworks", "by_accelerate"),
        "register_unprepared",
        "what accelerator.prepare returned",
    ),
    "Lightning": Framework(
        ('strategy = CompressaStrategy("compressa.toml")',),
        ("_by_lightning", "by_lightning"),
        "strategy_with_slot",
        "already",
    ),
    "Fabric": Framework(
        ('handle = compressa.register_comm_hook(model, "compressa.toml")',),
        ("_frameworks", "by_fabric"),
        "register_before_setup",
        "wrap the network first",
    ),
    "Trainer": Framework(
        ('trainer.add_callback(CompressaCallback(trainer, "compressa.toml"))',),
        ("_by_trainer", "by_trainer"),
        "callback_of_unwrapped",
        "train without FSDP",
    ),
    "`torch.compile`d DDP": Framework(
        ('handle = compressa.register_comm_hook(model, "compressa.toml")',),
        ("_frameworks", "by_compiled_ddp"),
        "register_compiled_bare",
        "wrap the network first",
    ),
    "FSDP2": Framework(
        ('handle = compressa.apply_to_fsdp(model, "compressa.toml")',),
        ("_by_fsdp", "by_fsdp2"),
        "apply_before_sharding",
        "fully_shard(model) first",
    ),
    "HSDP": Framework(
        ('handle = compressa.apply_to_fsdp(model, "compressa.toml")',),
        ("_by_fsdp", "by_hsdp"),
        "apply_before_sharding",
        "fully_shard(model) first",
    ),
    "FSDP1": Framework(
        (
            'state, hook = compressa.comm_hook("compressa.toml")',
            "model.register_comm_hook(state, hook)",
        ),
        ("_by_fsdp", "by_fsdp1"),
        "register_sharded",
        "*compressa.comm_hook(config)",
    ),
}


# Each property is a function that runs on both ranks; it returns nothing if it holds.

Trains = Callable[[Run], Any]


def none_equals_dense(trains: Trains, folder: str) -> None:
    _equal_without_compression(trains, Run(None))


def int8_trains(trains: Trains, folder: str) -> None:
    end = trains(Run(settings("int8"), last=20))
    assert end.steps == 20
    assert end.ratio > 2
    assert sum(end.losses[-5:]) < sum(end.losses[:5])


def accumulation(trains: Trains, folder: str) -> None:
    end = _equal_without_compression(trains, Run(None, accumulate=2))
    assert end.steps == 3
    assert len(end.losses) == 6


def clipping(trains: Trains, folder: str) -> None:
    end = _equal_without_compression(trains, Run(None, clip=True))
    assert end.parameters != trains(Run(None)).parameters


def bf16(trains: Trains, folder: str) -> None:
    end = _equal_without_compression(trains, Run(None, bf16=True))
    assert end.parameters != trains(Run(None)).parameters


def resume(trains: Trains, folder: str) -> None:
    config = settings("topk")
    whole = trains(Run(config, last=6))
    trains(Run(config, last=3, folder=folder))
    rest = trains(Run(config, first=3, last=6, folder=folder))
    assert rest.steps == 6
    assert rest.losses == whole.losses[3:]
    assert rest.parameters == whole.parameters


def _equal_without_compression(trains: Trains, run: Run) -> Any:
    dense, end = trains(run), trains(replace(run, config=settings("none")))
    assert end.parameters == dense.parameters
    assert end.losses == dense.losses
    return end


PROPERTIES: dict[str, Callable[[Trains, str], None]] = {
    "`none` equals dense": none_equals_dense,
    "int8 trains": int8_trains,
    "accumulation": accumulation,
    "clipping": clipping,
    "bf16": bf16,
    "checkpoint and resume": resume,
}
MISPLACED = "error when put wrong"


# Where a line is put wrong


def register_bare(config: Any) -> str:
    """Before the network is wrapped."""
    return _raised(lambda: compressa.register_comm_hook(build("mlp", 0), config))


def register_compiled_bare(config: Any) -> str:
    """Compiled, and not wrapped."""
    net: Any = torch.compile(build("mlp", 0), backend="eager")
    return _raised(lambda: compressa.register_comm_hook(net, config))


def overlap_twice(config: Any) -> str:
    """A second wrapper that takes the same optimizer."""
    net = build("mlp", 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    first = compressa.OverlappedDataParallel(net, optimizer, config)
    said = _raised(lambda: compressa.OverlappedDataParallel(net, optimizer, config))
    first.close()
    return said


def pair_in_lightning(config: Any) -> str:
    """Lightning's slot, which is not called on CPUs."""
    from _by_lightning import DDPStrategy, Module, ticks, trainer_of

    state, hook = compressa.comm_hook(config)
    trainer = trainer_of(Run(None), DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(Module(), ticks())
    return " | ".join(str(w.message) for w in said if "compressa" in str(w.message))


def apply_before_sharding(config: Any) -> str:
    """Before `fully_shard`."""
    return _raised(lambda: compressa.apply_to_fsdp(build("mlp", 0), config))


def register_sharded(config: Any) -> str:
    """What is for DDP, with a model of FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(build("mlp", 0), device_id=torch.device("cpu"))
    return _raised(lambda: compressa.register_comm_hook(model, config))


def register_unprepared(config: Any) -> str:
    """Before `prepare`."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from compressa.integrations.accelerate import register

    AcceleratorState._reset_state(True)
    return _raised(lambda: register(Accelerator(cpu=True), build("mlp", 0), config))


def strategy_with_slot(config: Any) -> str:
    """A strategy beside a callback that registers, too."""
    from _by_lightning import CompressaStrategy, Module, ticks, trainer_of
    from lightning.pytorch import Callback

    class Second(Callback):  # type: ignore[misc]
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            compressa.register_comm_hook(trainer.strategy.model, config)

    strategy = CompressaStrategy(config)
    trainer = trainer_of(Run(None), strategy)
    trainer.callbacks.append(Second())
    said = _raised(lambda: trainer.fit(Module(), ticks()))
    strategy.handle.close()
    return said


def register_before_setup(config: Any) -> str:
    """With what Fabric has not set up."""
    return register_bare(config)


def callback_of_unwrapped(config: Any) -> str:
    """Where Trainer has wrapped nothing."""
    from _by_trainer import Net, trainer_of

    from compressa.integrations.transformers import CompressaCallback

    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(Run(None), Net(), folder)
    callback = CompressaCallback(trainer, config)
    said = _raised(lambda: callback.on_train_begin(trainer.args, trainer.state, trainer.control))
    return said


def _raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except compressa.CompressaError as error:
        return str(error)
    return ""


# Running them


def try_all(*, name: str, folder: str) -> dict[str, str]:
    """On a rank: try all properties of one framework; return by property what is wrong."""
    as_launched()
    framework = FRAMEWORKS[name]
    module, function = framework.trains
    trains = getattr(importlib.import_module(module), function)
    wrong = {}
    for title, holds in PROPERTIES.items():
        inner = f"{folder}/{holds.__name__}"
        Path(inner).mkdir(exist_ok=True)
        wrong[title] = _failure(lambda holds=holds, inner=inner: holds(trains, inner))
    said = globals()[framework.misplaced](settings("int8"))
    wrong[MISPLACED] = "" if framework.says in said else f"it says {said!r}"
    return wrong


def _failure(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception:
        return traceback.format_exc()[-1500:]
    return ""


@pytest.fixture(scope="module")
def tried(framework_ranks: Group, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return what each rank has found wrong with a framework, all of which is tried at once."""
    found: dict[str, list[dict[str, str]]] = {}

    def of(name: str) -> list[dict[str, str]]:
        if name not in found:
            folder = str(tmp_path_factory.mktemp("checkpoints"))
            found[name] = framework_ranks.run(try_all, name=name, folder=folder, deadline_s=200.0)
            shutil.rmtree(folder)
        return found[name]

    return of


@pytest.mark.ranks
@pytest.mark.timeout(240)
@pytest.mark.parametrize("title", [*PROPERTIES, MISPLACED])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_cell(name: str, title: str, tried: Callable[[str], list[dict[str, str]]]) -> None:
    assert not same([wrong[title] for wrong in tried(name)])


def test_the_guide_has_these_cells_and_shows_these_lines() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    assert head == ["", "lines to add", *PROPERTIES, MISPLACED]
    told = {row[0]: row[1:] for row in rows}
    assert list(told) == list(FRAMEWORKS)
    for name, framework in FRAMEWORKS.items():
        lines, *cells = told[name]
        assert lines == str(len(framework.lines))
        assert cells == ["yes"] * (len(PROPERTIES) + 1)
        for line in framework.lines:
            assert re.search(rf"^\s*{re.escape(line)}", text, re.MULTILINE), line
