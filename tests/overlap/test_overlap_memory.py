"""Gradients have memory of their own, the same in every step, and nobody else's."""

from __future__ import annotations

import pytest
import torch
from _held_gradients import alone, held
from test_overlap import INPUTS, OPTIMIZERS, build, losses, plain_mlp, train
from torch import nn

from compressa import OverlappedDataParallel
from compressa.overlap.memory import Memory


def network() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(3)
    net = nn.Linear(5, 4)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def gradient_of(net: nn.Linear) -> torch.Tensor:
    return net.weight.grad


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_in_the_same_memory_in_every_step(set_to_none: bool) -> None:
    net, optimizer = network()
    addresses = set()
    with held(net, optimizer) as (model, _):
        for _ in range(4):
            optimizer.zero_grad(set_to_none)
            model(INPUTS).square().mean().backward()
            addresses.add(gradient_of(net).data_ptr())
            optimizer.step()
    assert len(addresses) == 1


def test_a_gradient_that_somebody_keeps_stays_as_it_was() -> None:
    net, optimizer = network()
    model = OverlappedDataParallel(net, optimizer, {"compressor": "none"}, process_group=alone())
    kept, was = [], []
    for step in range(4):
        optimizer.zero_grad()
        model(INPUTS * (1 + step)).square().mean().backward()
        kept.append(gradient_of(net))
        was.append(kept[-1].clone())
        optimizer.step()
    model.close()
    assert all(torch.equal(now, before) for now, before in zip(kept, was, strict=True))
    assert len({gradient.data_ptr() for gradient in kept}) == len(kept)


def test_where_updates_do_not_wait_gradients_stay_where_backward_puts_them() -> None:
    net, optimizer = network()
    addresses = []
    net.weight.register_hook(lambda gradient: addresses.append(gradient.data_ptr()))
    with held(net, optimizer, overlap=False) as (model, _):
        for _ in range(3):
            optimizer.zero_grad()
            model(INPUTS).square().mean().backward()
            assert gradient_of(net).data_ptr() == addresses[-1]
            optimizer.step()


def test_a_gradient_whose_memory_backward_shares_is_moved() -> None:
    net, optimizer = network()
    kept: list[torch.Tensor] = []
    net.weight.register_hook(lambda gradient: kept.append(gradient.view(-1)))
    with held(net, optimizer, overlap=False) as (model, _):
        model(INPUTS).square().mean().backward()
        assert gradient_of(net).data_ptr() != kept[0].data_ptr()
        optimizer.step()


@pytest.mark.parametrize("layout", ["transposed", "half", "expanded"])
def test_a_gradient_of_another_layout_is_moved_as_it_is(layout: str) -> None:
    memory = Memory({"w": nn.Parameter(torch.zeros(3, 4))})
    values = torch.arange(12.0)
    gradient = {
        "transposed": values.view(4, 3).t(),
        "half": values.view(3, 4).bfloat16(),
        "expanded": values[:3, None].expand(3, 4),
    }[layout]
    moved = memory.moved("w", gradient)
    assert torch.equal(moved, gradient)
    assert moved.dtype is gradient.dtype
    assert moved.data_ptr() != gradient.data_ptr()
    assert layout != "transposed" or moved.stride() == gradient.stride()


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_that_were_used_are_let_go(overlap: bool) -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    with held(net, optimizer, overlap=overlap) as (model, gradients):
        for loss in losses(4):
            train(model, optimizer, [loss])
            while gradients.coming:
                gradients.let_come(0)
        model(INPUTS)
        kept = [*model._reducer.arrivals._come, *model._reducer.arrivals._seen]
        assert kept == []
