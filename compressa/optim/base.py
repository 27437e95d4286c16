"""CompressedOptimizer: what all optimizers here share, from opening an engine to checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from compressa.aggregators.base import Merge
from compressa.config import Source
from compressa.engine.measuring.stats import Stats
from compressa.engine.start.process_groups import group_or_world
from compressa.errors import StateError
from compressa.hooks import Handle
from compressa.optim.configuration import Wanted
from compressa.optim.lists import Lists, Tensors
from compressa.optim.opening import Replicas, open_optimizer
from compressa.optim.parts import Part, by_name, gradient_of, names_of
from compressa.optim.refusals import check_step
from compressa.parameters import as_real

_MOMENTUM = "optimizer_momentum"

Parameters = Iterable[Any]
"""As torch's optimizers take them: parameters, (name, parameter) pairs, or groups of either."""


class CompressedOptimizer(torch.optim.Optimizer):
    """An optimizer that does its ranks' communication: they exchange compressed momenta.

    Hand over the parameters of a plain network, not of a DistributedDataParallel or
    `OverlappedDataParallel`: those average gradients too, which can not be seen from here, and all
    traffic would be doubled. Each rank computes gradients of its own batch; `step` is collective.

    Making one is collective. All ranks give the same settings, and the parameters become rank 0's;
    buffers stay each rank's own (`compressa.broadcast` brings those, too). Parameters may be of
    float32, float16 or bfloat16, or complex64; what is kept of them is float32. Those that do not
    require a gradient, and those without elements, stay as they are. A gradient that is None on a
    rank counts as zero there, so momentum and weight decay go on. `step` overwrites gradients.

    Parameter groups have learning rates, betas and weight decay of their own, and schedulers work;
    rates must be the same on all ranks. But for LAMB, weight decay is decoupled, as in AdamW: the
    parameters shrink by lr * weight_decay in a step. Groups can not be added later, and losses not
    be scaled: ranks that skip steps alone would part (train in bfloat16 instead).

    Ranks compare their parameters every `integrity.every` steps, and raise StateError if they
    differ. What is the same on all ranks is in `state_dict`; what each rank keeps by itself
    (residuals, local momenta) is written by `save`. Both together repeat a run bit by bit.

    Args:
        params: As `Parameters`; the names are used in errors, rules and checkpoints, else
            "group.index" is.
        defaults: Settings of groups that do not give their own.
        wanted: What is asked of the engine.
        config: Path of a TOML file, a mapping, or a `Config`; None for what the paper does.
        group: Who takes part; all ranks unless given.
        foreach: Whether many tensors are computed on by one call; the results are the same.

    Attributes:
        handle: Combines tensors; for traces.

    Raises:
        ConfigError: A setting is wrong, or the ranks differ; on every rank.
        StateError: There is no process group.
        TransportError: A rank is lost, or does not come.
    """

    _step_supports_amp_scaling = True  # so that a GradScaler's steps come here, and are refused

    def __init__(
        self,
        params: Parameters,
        defaults: dict[str, Any],
        wanted: Wanted,
        *,
        config: Source | None,
        group: dist.ProcessGroup | None,
        foreach: bool,
    ) -> None:
        self._opened = False
        super().__init__(params, {**defaults, "step": 0})
        self._caller = f"compressa.optim.{type(self).__name__}"
        self._lists = Lists(foreach)
        self._names = dict(names_of(self.param_groups))
        self._trained = {n: p for p, n in self._names.items() if p.requires_grad and p.numel()}
        ranks, groups = group_or_world(group, self._caller), self.param_groups
        self.handle = open_optimizer(
            self._caller, groups, self._trained, self._fault, ranks, config, wanted
        )
        self._replicas = Replicas(self._trained, ranks)
        self.handle.attach(self._replicas)
        self._opened = True

    def __enter__(self) -> Self:
        """Return the optimizer."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""
        with ExitStack() as stack:
            for handle in self._handles:
                stack.push(handle)
            if error is not None:
                raise error

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a group that comes late.

        Raises:
            StateError: Ranks have agreed on what they exchange already.
        """
        if self._opened:
            raise StateError(
                f"{self._caller}.add_param_group: ranks have agreed on what they exchange; close "
                "this optimizer, and make one of all groups"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange momenta with the other ranks, and update the parameters. Collective.

        Args:
            closure: Evaluates the loss again, and does the backward pass.

        Returns:
            What it returns.

        Raises:
            StateError: A gradient is sparse or of a parameter that was frozen, or losses are
                scaled.
            PeerLost: A rank is lost; the same error on all ranks.
            Timeout: A rank has not come within `exchange.deadline_s`.
            CompressaError: Ranks could not exchange otherwise.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self.handle.closed_on_error():
            check_step(self._caller, self, self._names, self._trained)
            self._compare()
            frozen = [(p, p.clone()) for p in self._trained.values() if not p.requires_grad]
            self._step([self._part(group) for group in self.param_groups])
            for parameter, before in frozen:
                parameter.copy_(before)
        for group in self.param_groups:
            group["step"] += 1
        return loss

    def save(self, folder: str | Path) -> None:
        """Write what each rank keeps by itself: a file per rank, and a manifest. Collective.

        Args:
            folder: On a file system that all ranks share.

        Raises:
            StateError: Some rank could not write, or replicas differ; on every rank.
        """
        self.handle.save(folder)

    def load(self, folder: str | Path) -> None:
        """Take back what `save` has written, on any number of ranks. Collective.

        The parameters and `state_dict` are loaded besides, on every rank.

        Raises:
            StateError: It can not be read, or is of other parameters or another compressor; on
                every rank.
        """
        self.handle.load(folder)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` gave: float32 stays float32, whatever the parameters are of.

        Raises:
            ValueError: It is of other parameter groups.
        """
        super().load_state_dict(state_dict)
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, parameter in zip(saved, params, strict=True):
            for kind, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][kind] = value.detach().to(parameter.device, copy=True)
        self._go_on()

    def sync(self) -> None:
        """Have all ranks hold the same parameters. Collective; call it after the same step on all.

        Here there is nothing to do: they do so after each step. Optimizers that meet less often
        override it.

        Raises:
            CompressaError: As `step`.
        """

    def stats(self) -> Stats:
        """Return what was exchanged, as measured on this rank."""
        return self.handle.stats()

    def close(self) -> None:
        """End all threads; parameters and state stay."""
        for handle in self._handles:
            handle.close()

    @property
    def _handles(self) -> list[Handle]:
        """All that are open."""
        return [self.handle]

    @abstractmethod
    def _step(self, parts: Sequence[Part]) -> None:
        """Exchange, and update the parameters."""

    def _fault(self, group: Mapping[str, Any]) -> str:
        """Return what is wrong about a group's settings besides what all have; or nothing."""
        return ""

    def _go_on(self) -> None:
        """Follow a state that was loaded."""
        self.handle.next_step = self._taken

    @property
    def _taken(self) -> int:
        """Steps taken so far."""
        return int(self.param_groups[0]["step"])

    def _average(self, parts: Sequence[Part], chosen: Callable[[Part], Tensors]) -> None:
        """Replace tensors by their compressed mean over all ranks.

        Args:
            parts: All.
            chosen: Which tensors of a part, one for each parameter.
        """
        ticket = self.handle.submit(by_name(parts, chosen))
        self.handle.wait([ticket], "momenta")

    @property
    def _united(self) -> bool:
        """Whether all ranks hold the same parameters now."""
        return True

    def _compare(self) -> None:
        """Compare the ranks' parameters, in the steps in which they shall be."""
        integrity = self.handle.integrity
        integrity.settle(self._taken)
        if self._united:
            integrity.begin(self._taken)
            integrity.tell()

    def _shrink(self, part: Part) -> None:
        """Decay the weights."""
        rate = part.group["lr"] * part.group["weight_decay"]
        if rate:
            self._lists("mul_", part.params, 1.0 - rate)

    def _remember(self, part: Part) -> None:
        """Replace gradients by this rank's momenta, if the group has any."""
        if part.group["momentum"]:
            momenta = self._momenta(part.names, part.grads)
            self._lists.decay(momenta, part.group["momentum"], part.grads)
            self._lists("copy_", part.grads, momenta)

    def _begin_momenta(self) -> None:
        """Keep momenta, if groups have any, from the start: a checkpoint may be loaded then."""
        for group in self.param_groups:
            if group["momentum"]:
                params = [p for p in group["params"] if self._names[p] in self._trained]
                self._momenta([self._names[p] for p in params], [as_real(p) for p in params])

    def _momenta(self, names: Sequence[str], alike: Tensors) -> Tensors:
        """Return this rank's own momenta, zero at first, which `save` writes.

        Where the number of ranks changes, their mean over all ranks stays.
        """
        state = self.handle.engine.state
        known = {parameter.name: parameter for parameter in self.handle.engine.parameters}
        found = []
        for name, like in zip(names, alike, strict=True):
            vector = state.vector(_MOMENTUM, known[name], like.numel(), Merge.SUM)
            state.kept.add(f"{_MOMENTUM}/{name}")
            found.append(vector.view(like.shape))
        return found

    def _part(self, group: dict[str, Any]) -> Part:
        params = [p for p in group["params"] if self._names[p] in self._trained]
        return Part(
            group,
            [self._names[p] for p in params],
            [as_real(p.detach()) for p in params],
            [gradient_of(p) for p in params],
            [self.state[p] for p in params],
        )
