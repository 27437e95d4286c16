"""Bad input stops every rank, with one clear sentence, within the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from _failing import register
from _rank_models import build
from _ranks import Group, same, settings
from _training import _optimizer, digest, registered, run_steps
from torch.nn.parallel import DistributedDataParallel

import compressa

pytestmark = pytest.mark.ranks


def register_twice(*, config: Any) -> dict[str, Any]:
    """Register a second time; the first registration must go on working."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        error = ""
        try:
            compressa.register_comm_hook(wrapped, config)
        except compressa.StateError as caught:
            error = str(caught)
        run_steps(wrapped, _optimizer(net), 0, 2)
        return {"error": error, "parameters": digest(net)}


def register_after_another_hook(*, config: Any) -> None:
    """Register on a model that has a hook of somebody else."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = DistributedDataParallel(build("mlp", dist.get_rank()))
    wrapped.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
    compressa.register_comm_hook(wrapped, config)


def register_unwrapped(*, config: Any) -> None:
    """Register on a model that nobody wrapped."""
    compressa.register_comm_hook(build("mlp", 0), config)


def register_alone(*, config: Any) -> None:
    """Register while the other ranks do not; DDP itself is told to compare nothing."""
    wrapped = DistributedDataParallel(build("mlp", 0), init_sync=False)
    compressa.register_comm_hook(wrapped, config)


def messages(
    group: Group, per_rank: Sequence[dict[str, Any]], kind: str = "ConfigError"
) -> list[str]:
    return group.refused(register, kind, per_rank=per_rank, deadline_s=20.0)


@pytest.mark.parametrize(
    ("odd", "change", "path", "values"),
    [
        (1, {"compressor": {"name": "topk", "density": 0.2}}, "compressor.density", ("0.1", "0.2")),
        (0, {"compressor": {"name": "int8"}}, "compressor", ("int8", "topk")),
        (3, {"engine": {"seed": 5}}, "engine.seed", ("0", "5")),
    ],
)
def test_a_configuration_that_differs_on_one_rank_names_the_key(
    odd: int, change: dict[str, Any], path: str, values: tuple[str, str], four: Group
) -> None:
    plain = settings("topk")
    compressor = change.get("compressor", plain["compressor"])
    sections = {key: value for key, value in change.items() if key != "compressor"}
    other = settings(compressor, **sections)
    per_rank = [{"config": other if rank == odd else plain} for rank in range(4)]
    for message in messages(four, per_rank):
        assert path in message
        assert all(value in message for value in values)
        # Rank 0 is what the others are compared with, so it is never called the odd one.
        assert f"rank {odd or 1} has" in message
        assert "rank 0 has" in message


def test_another_transport_on_one_rank_is_named(two: Group) -> None:
    configs = [settings("topk", exchange={"transport": t}) for t in ("tcp", "gloo-group")]
    for message in messages(two, [{"config": config} for config in configs]):
        assert "exchange.transport" in message


def test_a_broken_file_on_one_rank_is_told_to_all(two: Group, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[compressor]\nname = "topk"\n')
    bad.write_text('[compressor]\nname = "topkk"\n')
    told = messages(two, [{"config": str(good)}, {"config": str(bad)}])
    assert "rank 1" in told[0]
    for message in told:
        assert "bad.toml" in message
        assert "topk" in message


@pytest.mark.parametrize("text", ["[compressor\n", ""])
def test_a_file_that_is_not_a_configuration(text: str, two: Group, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[compressor]\nname = "topk"\n')
    bad.write_text(text)
    # An empty file means the defaults, which differ from rank 1's.
    messages(two, [{"config": str(bad)}, {"config": str(good)}])


def test_a_missing_file_on_every_rank(two: Group, tmp_path: Path) -> None:
    missing = {"config": str(tmp_path / "missing.toml")}
    for message in messages(two, [missing, missing]):
        assert "missing.toml" in message


def test_what_is_no_configuration_at_all(two: Group) -> None:
    messages(two, [{"config": 3}] * 2)


@pytest.mark.parametrize(
    ("models", "path"),
    [(("plain_names", "swapped_names"), "parameters"), (("mlp", "float64"), "float")],
)
def test_another_model_on_one_rank_is_named(models: tuple[str, str], path: str, two: Group) -> None:
    per_rank = [{"config": settings("topk"), "model": model} for model in models]
    for message in messages(two, per_rank):
        assert path in message
        assert "rank 1" in message


def test_another_version_of_the_library_on_one_rank_is_named(two: Group) -> None:
    arguments = {"config": settings("topk"), "mutation": "another version on rank 1"}
    for message in messages(two, [arguments] * 2):
        assert "library.compressa" in message
        assert "9.9.9" in message


def test_a_second_registration_is_refused_and_the_first_goes_on(two: Group) -> None:
    results = two.run(register_twice, config=settings("topk"))
    same([result["parameters"] for result in results])
    assert all("already" in result["error"] for result in results)


def test_a_model_with_another_hook_is_refused(two: Group) -> None:
    job, config = register_after_another_hook, settings("topk")
    for message in two.refused(job, "StateError", config=config):
        assert "another hook" in message


def test_a_model_that_is_not_wrapped_is_refused(two: Group) -> None:
    for message in two.refused(register_unwrapped, "StateError", config=settings("topk")):
        assert "DistributedDataParallel" in message


def test_parameters_of_a_dtype_that_cannot_be_combined_are_named(two: Group) -> None:
    unlike = {"model": "float8", "ddp": {"init_sync": False}}  # else Gloo refuses it first
    for message in messages(two, [{"config": settings("none"), **unlike}] * 2):
        assert "'gain'" in message
        assert "float8_e4m3fn" in message
        assert "float16" in message


def test_cuda_on_a_machine_without_it(two: Group) -> None:
    config = settings("topk", engine={"device": "cuda"})
    for message in messages(two, [{"config": config}] * 2, "BackendUnavailable"):
        assert "CUDA" in message
        assert '"cpu"' in message


def test_cuda_on_one_rank_alone_is_told_to_all(two: Group) -> None:
    configs = [settings("topk", engine={"device": device}) for device in ("cpu", "cuda")]
    outcomes = two.errors(register, per_rank=[{"config": config} for config in configs])
    assert [o.error["type"] for o in outcomes] == ["ConfigError", "BackendUnavailable"]


def test_sums_in_16_bits_do_not_go_with_feedback(two: Group) -> None:
    """What a sum rounds away on its way would be in nobody's residual."""
    config = settings("bf16", exchange={"kind": "all_reduce"}, feedback={"kind": "error"})
    for message in messages(two, [{"config": config}] * 2):
        assert "all_reduce" in message


def test_a_rank_that_never_registers_is_waited_for_no_longer_than_the_deadline(
    fresh: Callable[[int], Group],
) -> None:
    group = fresh(2)
    config = settings("topk", exchange={"deadline_s": 0.5})
    started_s = time.monotonic()
    outcome = group.outcomes(register_alone, ranks=[0], config=config)[0]
    assert outcome.error["type"] == "Timeout", outcome.explain()
    assert "register" in outcome.error["message"]
    assert time.monotonic() - started_s < 15.0


def test_a_rank_that_fails_to_register_can_register_again(two: Group) -> None:
    wrong, right = settings("topk", engine={"device": "cuda"}), settings("topk")
    two.errors(register, config=wrong)
    assert two.run(register, config=right) == [[], []]
