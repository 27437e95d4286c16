"""What backward does not reach: `p.grad` is there when it ends, as the other ranks have it."""

from __future__ import annotations

import torch
from _held_gradients import FACTOR, held
from torch import nn
from torch.utils.checkpoint import checkpoint

INPUTS = torch.linspace(-1.0, 1.0, 15).view(3, 5)


class Two(nn.Module):
    """Two branches with an output each, and a stem that both use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.stem(x).tanh()
        return self.one(h).sum(), self.other(h.detach()).sum()


def made(*, deferring: bool = True) -> tuple[Two, torch.optim.Optimizer, dict[str, bool]]:
    net = Two()
    options = {"find_unused_parameters": True, "overlap": deferring}
    return net, torch.optim.SGD(net.parameters(), lr=0.1), options


def test_gradients_that_were_collected_before_one_is_read_are_all_there() -> None:
    for deferring in (True, False):
        net, optimizer, options = made(deferring=deferring)
        with held(net, optimizer, **options) as (model, _):
            model(INPUTS)[0].backward()
            gradients = [p.grad for p in net.parameters()]
            assert all(gradient is not None for gradient in gradients)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1e9)
            assert norm > 0
            for gradient in gradients:
                assert type(gradient) is torch.Tensor
            assert all(torch.count_nonzero(g) == 0 for g in gradients[4:] if g is not None)
            assert net.other.weight.grad is None  # no rank has it
            optimizer.step()
            model.flush()


def test_a_second_backward_that_reaches_the_rest_adds_to_what_was_there() -> None:
    plain = Two()
    for output in plain(INPUTS):
        output.backward()
    for deferring in (True, False):
        for before in (None, 2.0):
            net, optimizer, options = made(deferring=deferring)
            with held(net, optimizer, **options) as (model, _):
                if before is not None:
                    for p in net.parameters():
                        p.grad = torch.full_like(p, before)
                one, other = model(INPUTS)
                one.backward()
                other.backward()
                for found, expected in zip(net.parameters(), plain.parameters(), strict=True):
                    assert found.grad is not None
                    assert expected.grad is not None
                    whole = FACTOR * (expected.grad + (before or 0.0))
                    torch.testing.assert_close(found.grad + 0.0, whole)
                optimizer.step()
                model.flush()


def test_to_clear_what_no_rank_has_leaves_nothing_whenever_it_is_done() -> None:
    for flushed in (False, True):
        net, optimizer, options = made()
        with held(net, optimizer, **options) as (model, _):
            for _ in range(2):
                optimizer.zero_grad(set_to_none=True)
                model(INPUTS)[0].backward()
                optimizer.step()
                if flushed:
                    model.flush()
                optimizer.zero_grad(set_to_none=False)
                model.flush()
                assert net.other.weight.grad is None
                assert torch.count_nonzero(net.one.weight.grad) == 0


def test_what_a_checkpoint_enters_again_is_not_taken_for_unused() -> None:
    class Entering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.first, self.inner, self.idle = (nn.Linear(5, 5) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(self.inner, self.first(x), use_reentrant=True)
            return result.square().sum()

    plain, net = Entering(), Entering()
    plain(INPUTS).backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with held(net, optimizer, find_unused_parameters=True) as (model, _):
        model(INPUTS).backward()
        for found, expected in zip(net.parameters(), plain.parameters(), strict=True):
            grad = None if found.grad is None else found.grad + 0.0
            if expected.grad is not None:
                assert grad is not None
                torch.testing.assert_close(grad, FACTOR * expected.grad)
        assert net.idle.weight.grad is None
        optimizer.step()
        model.flush()
