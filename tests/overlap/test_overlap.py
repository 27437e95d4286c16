"""Overlap in a world of one whose gradients come late, in any order: nothing is read too early."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from _held_gradients import FACTOR, alone, held, train_plain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from compressa import OverlappedDataParallel, StateError
from compressa.hooks.first_bucket import FirstBucket

Loss = Callable[[nn.Module], torch.Tensor]
INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


class Muonish(torch.optim.Optimizer):
    """As a user would write it: matrices are orthonormalised, vectors follow their sign."""

    def __init__(self, params: Any, lr: float = 0.02, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                velocity = state.setdefault("velocity", torch.zeros_like(p))
                state["steps"] = state.get("steps", 0) + 1
                velocity.mul_(group["beta"]).add_(p.grad)
                change = velocity.sign()
                if p.ndim == 2:
                    x = velocity / (velocity.norm() + 1e-7)
                    for _ in range(3):
                        x = 1.5 * x - 0.5 * x @ x.T @ x
                    change = x
                p.add_(change, alpha=-group["lr"])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "adamw foreach": lambda ps: torch.optim.AdamW(ps, lr=0.01, foreach=True),
    "adamw fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "adam with lr in a tensor": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.01)),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.05),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.01),
    "muonish": Muonish,
}


class Winding(nn.Module):
    """Reads parameters that other modules own, one twice, one by a branch, one in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.output = nn.Linear(5, 7)
        self.output.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.turns = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turns += 1
        h = self.embedding((x.abs() * 3).long().sum(1) % 7) + x
        layers = [self.first, self.second]
        if self.turns % 2:
            layers.reverse()
        for layer in layers:
            h = checkpoint(layer, h, use_reentrant=False).relu()
        h = h + functional.linear(h, self.first.weight, self.second.bias)
        result: torch.Tensor = self.output(h) * self.scale
        return result


def plain_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make()


def losses(steps: int) -> list[Loss]:
    """One loss per step, on inputs of its own."""
    return [lambda model, i=i: model(INPUTS * (1 + i)).pow(2).mean() for i in range(steps)]


def bits(module: nn.Module) -> list[bytes]:
    return [v.detach().contiguous().numpy().tobytes() for v in module.state_dict().values()]


def states(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What an optimizer remembers, as plain numbers."""
    return [
        {key: v.tolist() if isinstance(v, torch.Tensor) else v for key, v in state.items()}
        for _, state in sorted(optimizer.state_dict()["state"].items())
    ]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, some: list[Loss]) -> None:
    for loss in some:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def none_lazy(model: OverlappedDataParallel) -> bool:
    return all(type(p) is nn.Parameter for p in model.module.parameters())


@pytest.mark.parametrize("make", [plain_mlp, Winding])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_late_gradients_train_as_prompt_ones_do(name: str, make: Callable[[], nn.Module]) -> None:
    nets = [build(make), build(make)]
    optimizers = [OPTIMIZERS[name](net.parameters()) for net in nets]
    train_plain(nets[0], optimizers[0], losses(5))
    with held(nets[1], optimizers[1], seed=4) as (model, gradients):
        train(model, optimizers[1], losses(5))
        assert gradients.coming, "the last step has waited"
        assert not none_lazy(model)
        model.flush()
        assert none_lazy(model)
        assert not model.overlap_ended
    assert bits(nets[0]) == bits(nets[1])
    assert states(optimizers[0]) == states(optimizers[1])


READS: dict[str, Callable[[OverlappedDataParallel], Any]] = {
    "forward": lambda m: m(INPUTS).tolist(),
    "forward of the module": lambda m: m.module(INPUTS).tolist(),
    "evaluation": lambda m: m.eval()(INPUTS).tolist(),
    "inference": lambda m: torch.inference_mode()(m)(INPUTS).tolist(),
    "no_grad": lambda m: torch.no_grad()(m)(INPUTS).tolist(),
    "state_dict": lambda m: [v.tolist() for v in m.state_dict().values()],
    "state_dict of the module": lambda m: [v.tolist() for v in m.module.state_dict().values()],
    "state_dict of a layer": lambda m: [v.tolist() for v in m.module[2].state_dict().values()],
    "parameters": lambda m: [p.tolist() for p in m.parameters()],
    "parameters of the module": lambda m: [p.tolist() for p in m.module.parameters()],
    "one parameter": lambda m: m.module[4].weight.tolist(),
    "data": lambda m: m.module[0].weight.data.tolist(),
    "text": lambda m: repr(m.module[0].weight),
    "norm of a list": lambda m: torch.stack(
        torch._foreach_norm(list(m.module.parameters()))
    ).tolist(),
    "vector": lambda m: nn.utils.parameters_to_vector(m.module.parameters()).tolist(),
    "deep copy": lambda m: [p.tolist() for p in ordinary(copy.deepcopy(m.module)).parameters()],
    "saved": lambda m: [p.tolist() for p in through_a_file(m.module).parameters()],
    "gradients": lambda m: [p.grad.tolist() for p in m.module.parameters()],
    "optimizer.state_dict": lambda m: states(m.optimizer),
}


def through_a_file(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return ordinary(torch.load(file, weights_only=False))


def ordinary(module: nn.Module) -> nn.Module:
    assert all(type(p) is nn.Parameter for p in module.parameters())
    return module


def seen_while_training(overlap: bool, seed: int, reads: list[str]) -> list[Any]:
    """What is read after the first and the third of four steps, and what comes out."""
    seen: list[Any] = []
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["adam"](net.parameters())
    with held(net, optimizer, seed=seed, overlap=overlap) as (model, _):
        for step, loss in enumerate(losses(4)):
            train(model, optimizer, [loss])
            if step % 2 == 0:
                seen.append([READS[name](model) for name in reads])
                model.train()
    return [*seen, bits(net)]


@pytest.mark.parametrize("name", READS)
def test_whatever_reads_sees_what_it_would_without_overlap(name: str) -> None:
    assert seen_while_training(True, 0, [name]) == seen_while_training(False, 0, [name])


@settings(max_examples=30)
@given(seed=st.integers(0, 99), reads=st.lists(st.sampled_from(sorted(READS)), max_size=3))
def test_reads_in_any_order_see_it_too(seed: int, reads: list[str]) -> None:
    assert seen_while_training(True, seed, reads) == seen_while_training(False, seed, reads)


def test_the_forward_waits_for_a_parameter_where_it_is_used_first() -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    with held(net, optimizer) as (model, gradients):
        train(model, optimizer, losses(1))
        order: list[str] = []
        names = {id(p): name for name, p in net.named_parameters()}
        net[2].register_forward_pre_hook(
            lambda *_: order.extend(
                names[id(p)] for p in net.parameters() if type(p) is not nn.Parameter
            )
        )
        for number in range(len(gradients.coming) - 1, -1, -1):
            if set(gradients.coming[number][0]) & {"0.weight", "0.bias"}:
                gradients.let_come(number)
        model(INPUTS)
    assert order == ["2.weight", "2.bias", "4.weight", "4.bias"]
    assert list(model.need_s) == ["0.weight", "0.bias", *order]


def test_the_engine_is_told_when_the_forward_needs_what() -> None:
    net = build(Winding)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    with held(net, optimizer) as (model, _):
        planning = model.handle.engine.planning
        with mock.patch.object(planning, "forward", wraps=planning.forward) as told:
            train(model, optimizer, losses(5))
    assert 2 <= told.call_count <= 4  # while all parameters are watched
    needs, forward_s = told.call_args.args
    layers = ["second.weight", "second.bias", "first.weight", "first.bias"]  # the third is reversed
    due = ["embedding.weight", *layers, "output.bias", "scale"]
    assert sorted(needs, key=needs.__getitem__) == due
    assert 0.0 < min(needs.values()) < max(needs.values()) < forward_s


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_hyper_parameters_are_those_of_the_step(lr: float | torch.Tensor) -> None:
    ends = []
    for overlap in (False, True):
        net = build(plain_mlp)
        groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2:].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=copy.deepcopy(lr), momentum=0.9)
        with held(net, optimizer, overlap=overlap) as (model, _), warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            for loss in losses(4):
                train(model, optimizer, [loss])
                scheduler.step()
                optimizer.param_groups[1]["momentum"] *= 0.9
        ends.append(bits(net))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_schedulers_do_not_complain(kind: str) -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    make = torch.optim.lr_scheduler.ConstantLR
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = make(optimizer) if kind == "before" else None
        with held(net, optimizer) as (model, _):
            scheduler = scheduler or make(optimizer)
            for loss in losses(3):
                train(model, optimizer, [loss])
                scheduler.step()
        train(net, optimizer, losses(1))
        scheduler.step()


@pytest.mark.parametrize(
    "how", ["optimizer", "model", "module", "to zeros", "module to zeros", "no"]
)
def test_clearing_gradients_leaves_those_that_are_due(how: str) -> None:
    ends = []
    for overlap in (False, True):
        net = build(plain_mlp)
        optimizer = OPTIMIZERS["sgd"](net.parameters())
        clear: dict[str, Callable[[], None]] = {
            "optimizer": lambda o=optimizer: o.zero_grad(),
            "model": lambda: model.zero_grad(),
            "module": lambda n=net: n.zero_grad(),
            "to zeros": lambda o=optimizer: o.zero_grad(set_to_none=False),
            "module to zeros": lambda n=net: n.zero_grad(set_to_none=False),
            "no": lambda: None,
        }
        with held(net, optimizer, overlap=overlap) as (model, gradients):
            for loss in losses(4):
                loss(model).backward()
                optimizer.step()
                clear[how]()
                if overlap and how != "module to zeros":
                    assert gradients.coming, "clearing has waited"
            shown = [None if p.grad is None else p.grad.tolist() for p in net.parameters()]
        ends.append((bits(net), shown))
    assert ends[0] == ends[1]


class Seen(TorchDispatchMode):
    """Notes all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_updates_are_no_part_of_the_forward_pass_that_waits_for_them() -> None:
    ends = []
    for overlap in (False, True):
        net = build(plain_mlp)
        optimizer = Muonish(net.parameters())
        seen = Seen()
        with held(net, optimizer, overlap=overlap) as (model, _):
            for step in range(4):
                optimizer.zero_grad()
                with seen, torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(INPUTS * step).float().pow(2).mean()
                loss.backward()
                optimizer.step()
        ends.append((bits(net), seen.names))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_that_views_share_are_told_apart(overlap: bool) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (3, 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.a.view(6) + self.b.view(6)) * x

    net = Sum()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with held(net, optimizer, overlap=overlap) as (model, _):
        model(torch.arange(6.0)).sum().backward()
        for gradient in (net.a.grad, net.b.grad):
            assert gradient.flatten().tolist() == [FACTOR * i for i in range(6)]


def test_gradients_are_submitted_when_a_unit_has_all_of_its_own() -> None:
    net = nn.Sequential(*(nn.Linear(5, 5) for _ in range(20)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    config = {"compressor": "none", "exchange": {"unit_dense_bytes": 600}}
    model = OverlappedDataParallel(net, optimizer, config, process_group=alone())
    with contextlib.closing(model):
        engine: Any = model.handle.engine
        with mock.patch.object(engine, "submit", wraps=engine.submit) as submit:
            model(INPUTS).sum().backward()
        submitted = [len(call.args[0]) for call in submit.call_args_list]
        assert submitted == [1, 9, 10, 10, 10]  # the first begins a step, which has units
        optimizer.step()


def test_accumulated_gradients_leave_once() -> None:
    nets = [build(plain_mlp), build(plain_mlp)]
    optimizers = [OPTIMIZERS["adam"](net.parameters()) for net in nets]
    some = losses(6)
    train_plain(
        nets[0],
        optimizers[0],
        [lambda m, i=i: some[i](m) + some[i + 1](m) for i in (0, 2, 4)],
    )
    with held(nets[1], optimizers[1]) as (model, gradients):
        for i in (0, 2, 4):
            optimizers[1].zero_grad()
            with model.no_sync():
                some[i](model).backward()
            assert not gradients.coming
            some[i + 1](model).backward()
            assert len(gradients.coming) == 6
            optimizers[1].step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)  # the sums are made in other orders


def test_a_second_backward_adds_to_means_that_have_come() -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    local = [torch.autograd.grad(loss(net), list(net.parameters())) for loss in losses(2)]
    with held(net, optimizer) as (model, _):
        for loss in losses(2):
            loss(model).backward()
        for p, first, second in zip(net.parameters(), *local, strict=True):
            assert torch.equal(p.grad, (first * FACTOR + second) * FACTOR)


def test_what_needs_all_gradients_ends_the_overlap_with_backward() -> None:
    nets = [build(plain_mlp), build(plain_mlp)]
    norms: list[list[float]] = [[], []]
    for overlap in (0, 1):
        optimizer = OPTIMIZERS["sgd"](nets[overlap].parameters())
        with held(nets[overlap], optimizer, overlap=bool(overlap)) as (model, _):
            for loss in losses(3):
                optimizer.zero_grad()
                loss(model).backward()
                norm = nn.utils.clip_grad_norm_(nets[overlap].parameters(), 0.1)
                norms[overlap].append(float(norm))
                optimizer.step()
    assert bits(nets[0]) == bits(nets[1])
    assert norms[0] == norms[1]
    # The first step is deferred, to see how the optimizer works.
    assert model.overlap_ended == {"gradients were read before the optimizer's step": 2}


def test_each_gradient_is_cut_by_itself_at_its_update() -> None:
    net = build(plain_mlp)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with held(net, optimizer, clip_each=1e-3) as (model, _):
        train(model, optimizer, losses(1))
        model.flush()
    for parameter, start in zip(net.parameters(), before, strict=True):
        assert float((parameter.detach() - start).norm()) == pytest.approx(1e-3, rel=1e-2)


def test_updates_wait_though_a_hook_of_another_model_is_watched_for_its_first_bucket() -> None:
    other, net = build(plain_mlp), build(plain_mlp)
    watch = FirstBucket(lambda: [other])
    try:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with held(net, optimizer) as (model, _):
            train(model, optimizer, losses(2))
            assert model.overlap_ended == {}
    finally:
        watch.came()


@pytest.mark.parametrize("what", ["a closure", "hooks of the optimizer's step"])
def test_what_must_be_done_at_once_is(what: str) -> None:
    nets = [build(plain_mlp), build(plain_mlp)]
    seen: list[list[float]] = [[], []]
    for i, net in enumerate(nets):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if what == "hooks of the optimizer's step":
            optimizer.register_step_post_hook(
                lambda *_, i=i, net=net: seen[i].append(net[0].weight.sum().item())
            )
        if i == 0:
            train_plain(net, optimizer, losses(3))
            continue
        with held(net, optimizer) as (model, _):
            for loss in losses(3):

                def closure(loss: Loss = loss) -> torch.Tensor:
                    model.zero_grad()
                    value = loss(model)
                    value.backward()
                    return value

                if what == "a closure":
                    assert optimizer.step(closure) is not None
                else:
                    closure()
                    optimizer.step()
            assert model.overlap_ended == {what: 3}
    assert bits(nets[0]) == bits(nets[1])
    assert seen[0] == seen[1]


class Counting(torch.optim.SGD):
    """Counts its steps for all parameters together."""

    turns = 0

    def step(self, closure: Any = None) -> Any:
        self.turns += 1
        return super().step(closure)


class Scheduled(torch.optim.SGD):
    """Changes its learning rate."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.9
        return result


class Noisy(torch.optim.SGD):
    """Draws random numbers."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.randn_like(p), alpha=1e-3)
        return super().step(closure)


class Normed(torch.optim.SGD):
    """Cuts all gradients by the norm of all of them."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 0.01)
        return super().step(closure)


class Nosy(torch.optim.SGD):
    """Reads a parameter that it was not given."""

    nosy: nn.Parameter

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.nosy.sum()
        return result


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Counting, "changes the attribute 'turns'"),
        (Scheduled, "changes 'lr' of parameter group 0"),
        (Noisy, "changes the state of torch's random numbers"),
        (Nosy, "reads '0.weight' while it updates other parameters"),
    ],
)
def test_a_step_that_is_not_per_parameter_is_refused(
    kind: type[torch.optim.SGD], fault: str
) -> None:
    net = build(plain_mlp)
    optimizer = kind(net.parameters(), lr=0.1)
    vars(optimizer)["turns"] = 0
    vars(optimizer)["nosy"] = net[0].weight
    with held(net, optimizer) as (model, gradients):
        losses(1)[0](model).backward()
        gradients.let_come(0)

        def step() -> None:
            optimizer.step()
            model.flush()

        with pytest.raises(StateError, match=fault):
            step()


def test_debugging_does_the_first_steps_both_ways() -> None:
    net = build(plain_mlp)
    optimizer = Normed(net.parameters(), lr=0.1)
    with held(net, optimizer, debug=True) as (model, _):
        losses(1)[0](model).backward()
        with pytest.raises(StateError, match="one after another"):
            optimizer.step()
    for name, make in OPTIMIZERS.items():
        nets = [build(plain_mlp), build(plain_mlp)]
        train_plain(nets[0], make(nets[0].parameters()), losses(4))
        optimizer_too = make(nets[1].parameters())
        with held(nets[1], optimizer_too, debug=True) as (model, _):
            train(model, optimizer_too, losses(4))
        assert bits(nets[0]) == bits(nets[1]), name


def test_debugging_raises_where_a_parameter_is_read_before_its_update() -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    with held(net, optimizer, debug=True) as (model, _):
        train(model, optimizer, losses(3))
        for read in (
            lambda: net[0].weight.sum(),
            lambda: net(INPUTS),
            lambda: functional.linear(INPUTS, net[0].weight),
        ):
            with pytest.raises(StateError, match=r"'0\.weight' is read before its update"):
                read()
        assert net[0].weight.shape == (8, 5)
        model.flush()
        net(INPUTS)
        train(model, optimizer, losses(1))
        assert model.state_dict()
        assert optimizer.state_dict()


def test_two_backwards_after_one_forward_are_an_error() -> None:
    net = build(plain_mlp)
    with held(net, OPTIMIZERS["sgd"](net.parameters())) as (model, _):
        loss = losses(1)[0](model)
        loss.backward(retain_graph=True)
        with pytest.raises(StateError, match="twice after one forward pass"):
            loss.backward()


def test_a_parameter_that_backward_does_not_reach_is_an_error_unless_it_may_be() -> None:
    def used(model: nn.Module) -> torch.Tensor:
        return (model(INPUTS) + 0.0 * 1).sum()

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.used(x)
            return result

    net = Half()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5)
    with held(net, optimizer) as (model, _):
        used(model).backward()
        with pytest.raises(StateError, match=r"'idle\.weight' and 1 other.*find_unused_parameters"):
            optimizer.step()
    idle = net.idle.weight.detach().clone()
    with held(net, optimizer, find_unused_parameters=True) as (model, _):
        for _ in range(3):
            train(model, optimizer, [used])
            assert all(p.grad is None for p in net.idle.parameters()) or model._updates.due
        model.flush()
        assert all(p.grad is None for p in net.idle.parameters())
    assert torch.equal(idle, net.idle.weight)


def test_what_a_forward_pass_does_not_use_is_updated_when_it_ends() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(5, 2), nn.Linear(5, 2)
            self.both = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.one(x) + (self.other(x) if self.both else 0.0)
            return result

    net = Branch()
    optimizer = OPTIMIZERS["adam"](net.parameters())
    with held(net, optimizer, find_unused_parameters=True) as (model, gradients):
        for net.both in (True, True, True, True, False):
            model(INPUTS)
            assert none_lazy(model)
            assert not model._updates.due
            train(model, optimizer, losses(1))
            assert gradients.coming


def test_what_can_not_work_is_refused() -> None:
    net = build(plain_mlp)
    lbfgs = torch.optim.LBFGS(net.parameters())
    with pytest.raises(StateError, match="LBFGS moves all parameters at once"):
        OverlappedDataParallel(net, lbfgs, {}, process_group=alone())
    sgd = OPTIMIZERS["sgd"](net.parameters())
    recover = {"compressor": "none", "engine": {"recover": True}}
    with pytest.raises(StateError, match=r"engine\.recover"):
        OverlappedDataParallel(net, sgd, recover, process_group=alone())
    with held(net, sgd) as (model, _):
        with pytest.raises(StateError, match="taken over by another"):
            OverlappedDataParallel(net, sgd, {}, process_group=alone())
        with pytest.raises(StateError, match="copy its module"):
            copy.deepcopy(model)
    sparse = nn.Embedding(9, 2, sparse=True)
    adam = torch.optim.SparseAdam(list(sparse.parameters()))
    with pytest.raises(StateError, match="sparse=False"):
        OverlappedDataParallel(sparse, adam, {}, process_group=alone())


def test_closing_leaves_nothing_behind() -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    before = dict(vars(optimizer))
    threads = set(threading.enumerate())
    with held(net, optimizer) as (model, _):
        train(model, optimizer, losses(2))
    after = {key: value for key, value in vars(optimizer).items() if key != "_opt_called"}
    assert after.keys() == before.keys()
    for thread in set(threading.enumerate()) - threads:
        thread.join(5.0)
        assert not thread.is_alive(), thread.name
    assert none_lazy(model)
    assert all(not p._post_accumulate_grad_hooks for p in net.parameters())
    train(net, optimizer, losses(1))


def test_a_parameter_of_a_class_of_its_own_is_updated_with_the_step() -> None:
    class Special(nn.Parameter):
        """Somebody's own."""

    nets = [build(plain_mlp), build(plain_mlp)]
    optimizers = []
    for net in nets:
        net[0].weight = Special(net[0].weight.detach())
        optimizers.append(OPTIMIZERS["adam"](net.parameters()))
    train_plain(nets[0], optimizers[0], losses(3))
    with held(nets[1], optimizers[1]) as (model, _):
        train(model, optimizers[1], losses(3))
        assert type(nets[1][0].weight) is Special
    assert bits(nets[0]) == bits(nets[1])


def test_scripted_modules_are_updated_before_the_forward_pass() -> None:
    nets = [build(plain_mlp), build(plain_mlp)]
    optimizers = [OPTIMIZERS["sgd"](net.parameters()) for net in nets]
    train_plain(nets[0], optimizers[0], losses(4))
    with warnings.catch_warnings(action="ignore"):  # of the end of scripts, in newer versions
        scripted = nn.Sequential(torch.jit.script(nets[1][:2]), nets[1][2:])
    with held(scripted, optimizers[1]) as (model, _):
        train(model, optimizers[1], losses(4))
        assert not any(name.startswith("0.0") for name in model.need_s)
    assert bits(nets[0]) == bits(nets[1])


def test_what_is_compiled_later_is_updated_before_the_forward_pass_from_then_on() -> None:
    net = build(plain_mlp)
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    with held(net, optimizer) as (model, _):
        train(model, optimizer, losses(5))
        assert len(model.need_s) == 6
        lazy: list[bool] = []

        def compiled(x: torch.Tensor) -> torch.Tensor:
            lazy.extend(type(p) is not nn.Parameter for p in layer.parameters())
            return layer._call_impl(x)

        layer: Any = net[2]
        layer._compiled_call_impl = compiled  # as nn.Module.compile does
        train(model, optimizer, losses(2))
        assert lazy == [False] * 4


class OnItsWay:
    """A mark that a GPU has not come to."""

    def query(self) -> bool:
        return False


@pytest.mark.parametrize("last", [0, 2, 5])
def test_on_a_gpu_a_use_waits_for_its_gradient_and_those_before_it(last: int) -> None:
    nets = [build(plain_mlp), build(plain_mlp)]
    optimizers = [OPTIMIZERS["adam"](net.parameters()) for net in nets]
    train_plain(nets[0], optimizers[0], losses(1))
    with held(nets[1], optimizers[1]) as (model, gradients):
        gradients.mark = OnItsWay
        optimizers[1].zero_grad()
        losses(1)[0](model).backward()
        parameters = dict(nets[1].named_parameters())
        first, *rest = parameters
        order = [*rest[:last], first, *rest[last:]]
        optimizers[1].step()
        assert len(model._updates.due) == 6
        for name in order:  # all of it is enqueued, and none of it has come
            held_back = [next(iter(each)) for each, _ in gradients.coming]
            gradients.let_come(held_back.index(name))
        assert gradients.coming == []
        nets[1].get_parameter(first).sum()
        due = {g.name for g in model._updates.due.values()}
        assert due == set(order[last + 1 :])
        model.flush()
    assert gradients.waits == 0, "no thread has waited"
    assert bits(nets[0]) == bits(nets[1])
