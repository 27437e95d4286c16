"""Pipelines of two stages whose edges are compressed: bits, losses, bytes and refusals."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, same
from lab.tasks.char_gpt import Block, Size
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

import compressa
from compressa.codecs import Draw
from compressa.codecs.int4 import Int4
from compressa.errors import ConfigError, StateError
from compressa.integrations.pipelining.differences import Differences
from compressa.integrations.pipelining.edges import check_neighbours

WIDTH, CONTEXT, ROWS, SYMBOLS, MICROBATCHES = 32, 16, 8, 23, 4
SIZE = Size(width=WIDTH, layers=4, heads=2, context=CONTEXT)
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
CPU = torch.device("cpu")


def parts(count: int) -> list[nn.Module]:
    """A small GPT, cut into stages."""
    torch.manual_seed(1)
    whole = [nn.Embedding(SYMBOLS, WIDTH), *(Block(SIZE) for _ in range(4))]
    whole += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS)]
    cuts = [0, 3, 7] if count == 2 else [0, 2, 3, 4, 7]
    return [nn.Sequential(*whole[a:b]) for a, b in pairwise(cuts)]


def numbers(step: int) -> torch.Tensor:
    """Which of 64 sequences a step is of."""
    return step % 8 * ROWS + torch.arange(ROWS)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences in which each symbol leads to one of three others, by chance."""
    chance = torch.Generator().manual_seed(0)
    jumps = torch.tensor([1, 4, 9])[torch.randint(3, (64, CONTEXT), generator=chance)]
    first = torch.randint(SYMBOLS, (64, 1), generator=chance)
    text = torch.cat([first, first + jumps.cumsum(1)], dim=1)[numbers(step)] % SYMBOLS
    return text[:, :-1], text[:, 1:]


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def train(
    config: dict[str, Any] | None, schedule: str = "gpipe", steps: int = 3, dtype: str = "float32"
) -> dict[str, Any]:
    """Train both stages; return a digest of the parameters, losses on the last rank, and bytes."""
    rank = dist.get_rank()
    interleaved = schedule == "interleaved"
    mine = [rank, rank + 2] if interleaved else [rank]
    modules = parts(4 if interleaved else 2)
    stages, edges = [], []
    for index in mine:
        module = modules[index].to(getattr(torch, dtype))
        stages.append(PipelineStage(module, index, len(modules), CPU))
        if config is not None:
            edges.append(compressa.compress_edge(stages[-1], config))
    made: Any
    if interleaved:
        made = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_of)
    else:
        made = SCHEDULES[schedule](stages[0], MICROBATCHES, loss_of)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    losses = []
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        if config is not None and config["pipeline"].get("differences"):
            edges[0].samples(numbers(step))
        found: list[torch.Tensor] = []
        if rank == 0:
            made.step(inputs)
        else:
            made.step(target=targets, losses=found)
        losses.append(torch.stack(found).mean().item() if found else math.nan)
        optimizer.step()
    bits = hashlib.sha256(
        b"".join(p.detach().view(torch.uint8).numpy().tobytes() for p in parameters)
    )
    sent = [
        [[t.dense_bytes, t.sent_bytes] for t in (edge.activations, edge.gradients)]
        for edge in edges
    ]
    return {"bits": bits.hexdigest(), "losses": losses if rank else [], "sent": sent}


@pytest.mark.ranks
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_none_gives_the_bits_of_a_pipeline_without_compressa(two: Group, schedule: str) -> None:
    plain = two.run(train, config=None, schedule=schedule)
    ours = two.run(train, config={"pipeline": {}}, schedule=schedule)
    for one, other in zip(plain, ours, strict=True):
        assert (one["bits"], one["losses"]) == (other["bits"], other["losses"])
    assert all(dense == sent for edge in ours[0]["sent"] for dense, sent in edge)


@pytest.mark.ranks
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_int8_sends_a_quarter_and_repeats_its_bits(two: Group, schedule: str) -> None:
    config = {
        "pipeline": {
            "activations": {"name": "int8", "rounding": "stochastic"},
            "gradients": "int8",
        }
    }
    first, second = (two.run(train, config=config, schedule=schedule) for _ in range(2))
    assert [rank["bits"] for rank in first] == [rank["bits"] for rank in second]
    elems = 3 * ROWS * CONTEXT * WIDTH
    crossing = [4 * elems, elems + 4 * elems // 256]
    (first_stage, *_), (*_, last_stage) = first[0]["sent"], first[1]["sent"]
    assert first_stage == [crossing, [0, 0]]
    assert last_stage == [[0, 0], crossing]


def last(losses: Sequence[float]) -> float:
    """Mean over all 64 sequences."""
    return fmean(losses[-8:])


@pytest.mark.ranks
def test_a_small_gpt_cut_in_two_learns_as_without(two: Group) -> None:
    steps = 48
    dense = two.run(train, config=None, schedule="1f1b", steps=steps)[1]["losses"]
    assert last(dense) < 0.5 * dense[0]
    for codec, differences in (("int8", False), ("int4", True)):
        pipeline = {"activations": codec, "gradients": "int8", "differences": differences}
        config = {"pipeline": pipeline}
        ours = two.run(train, config=config, schedule="1f1b", steps=steps)[1]["losses"]
        assert last(ours) == pytest.approx(last(dense), rel=0.01)


def passed(x: torch.Tensor, there: Differences, here: Differences, step: int = 0) -> torch.Tensor:
    """Carry rows of samples 0, 1, ... over an edge."""
    samples, draw, out = range(len(x)), Draw(0, step, 0, 0, 0), torch.empty(x.numel())
    message = torch.empty(there.wire_bytes(0, samples, x), dtype=torch.uint8)
    there.encode(0, samples, x.view(-1), message, draw)
    assert message.numel() == here.wire_bytes(0, samples, x)
    here.decode(0, samples, message, out, draw)
    return out.view(x.shape)


def test_the_error_goes_with_the_difference_and_not_with_the_activation() -> None:
    there, here = Differences(Int4()), Differences(Int4())
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    assert passed(x, there, here).equal(x)
    moved = x + 1e-3 * x.roll(1, 1)
    assert (passed(moved, there, here) - moved).abs().max() < 1e-3
    assert (passed(moved, there, here) - moved).abs().max() < 1e-4


def test_samples_that_are_new_are_sent_whole_beside_those_that_are_known() -> None:
    there, here = Differences(Int4()), Differences(Int4())
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    passed(x[:2], there, here)
    assert there.wire_bytes(0, range(4), x) == 2 * 256 * 4 + Int4().wire_bytes(512)
    assert passed(x, there, here)[2:].equal(x[2:])


def test_an_estimate_that_is_not_finite_is_forgotten_at_both_ends() -> None:
    there, here = Differences(Int4()), Differences(Int4())
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    passed(x, there, here)
    broken = x.clone()
    broken[0, 3] = math.inf
    assert not passed(broken, there, here)[0].isfinite().all()
    assert passed(x, there, here)[0].equal(x[0])


@pytest.mark.ranks
def test_halves_cross_as_they_are_or_compressed(two: Group) -> None:
    for codec, ratio in (("none", 1.0), ("int8", 128 / 65), ("fp8", 64 / 33)):
        config = {"pipeline": {"activations": codec, "gradients": codec}}
        first, last = two.run(train, config=config, dtype="bfloat16")
        dense, sent = first["sent"][0][0]
        assert dense / sent == pytest.approx(ratio)
        assert all(map(math.isfinite, last["losses"]))


def differing() -> None:
    stage = PipelineStage(nn.Linear(2, 2), dist.get_rank(), 2, CPU)
    block = 64 if dist.get_rank() else 128
    compressa.compress_edge(stage, {"pipeline": {"gradients": {"name": "int8", "block": block}}})


def wrong_on_one() -> None:
    stage = PipelineStage(nn.Linear(2, 2), dist.get_rank(), 2, CPU)
    compressa.compress_edge(
        stage, {"pipeline": {"gradients": "int9" if dist.get_rank() else "int8"}}
    )


def without_samples() -> None:
    stage = PipelineStage(parts(2)[dist.get_rank()], dist.get_rank(), 2, CPU)
    pipeline = {"activations": "int8", "differences": True}
    compressa.compress_edge(stage, {"pipeline": pipeline})
    inputs, targets = batch(0)
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_of)
    schedule.step(target=targets) if dist.get_rank() else schedule.step(inputs)


def twice() -> None:
    stage = PipelineStage(nn.Linear(2, 2), dist.get_rank(), 2, CPU)
    compressa.compress_edge(stage, {})
    compressa.compress_edge(stage, {})


def no_differences() -> None:
    stage = PipelineStage(nn.Linear(2, 2), dist.get_rank(), 2, CPU)
    compressa.compress_edge(stage, {"pipeline": {"activations": "int8"}}).samples([1])


@pytest.mark.ranks
def test_what_is_called_wrong_is_refused_on_all_ranks(two: Group) -> None:
    said = same(two.refused(differing, "ConfigError"))
    assert "pipeline.gradients.block: rank 0 has 128, rank 1 has 64" in said
    bad = [outcome.error for outcome in two.errors(wrong_on_one)]
    assert all(error and "pipeline.gradients" in error["message"] for error in bad)
    assert "compressed already" in two.refused(twice, "StateError")[0]
    assert "before each training step" in two.refused(without_samples, "StateError")[0]
    assert "set pipeline.differences" in two.refused(no_differences, "StateError")[0]


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        ({"activations": "powersgd"}, "exchanges in rounds of all ranks"),
        ({"activations": {"name": "topk", "density": 0.1}}, "span a whole parameter"),
        ({"gradients": {"name": "dgc", "density": 0.1}}, "is not known beforehand"),
        ({"activation": "int8"}, 'did you mean "activations"'),
        ({"differences": True}, "activations are sent as they are"),
    ],
)
def test_what_no_edge_can_carry_is_refused_when_loaded(
    pipeline: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        compressa.load_config({"pipeline": dict(pipeline)})


@pytest.mark.parametrize(("to", "origin"), [(2, 0), (3, 0), (2, None)])
def test_connections_that_skip_a_stage_are_refused(to: int, origin: int | None) -> None:
    received = SimpleNamespace(source=origin, is_root_arg=origin is None)
    stage: Any = SimpleNamespace(
        stage_index=1, act_send_info={0: [to, None]}, args_recv_info={0: (received,)}
    )
    if to == 2:
        check_neighbours(stage)
        stage.args_recv_info[0] += (SimpleNamespace(source=-1, is_root_arg=False),)
    with pytest.raises(StateError, match="cut the model where nothing skips"):
        check_neighbours(stage)


def test_only_a_stage_has_edges() -> None:
    with pytest.raises(StateError, match="not Linear"):
        compressa.compress_edge(nn.Linear(2, 2), {})  # type: ignore[arg-type]
