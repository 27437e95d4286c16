"""ad_psgd: ranks average with one neighbour at a time, whenever it suits them; see `pairs`.

What is averaged lies beside the parameters, so that those do not change within a step: what comes
meanwhile is taken over after it. The strategy guarantees that the sum of all ranks' values changes
by their optimizers' steps only, and that no rank waits for another's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from compressa.aggregators.base import State
from compressa.collectives.graphs import GRAPHS
from compressa.config.strategy_sections import ADPSGD
from compressa.engine.measuring.stats import Overlap, Stats
from compressa.engine.opening import open_session
from compressa.engine.session import Session
from compressa.errors import CompressaError, StateError, TransportError
from compressa.hooks import broadcast, saving
from compressa.parameter_server.job import check_meets_in_pairs
from compressa.parameter_server.programs import Programs
from compressa.parameters import ParameterInfo
from compressa.schedulers import Transfer
from compressa.strategies.base import Strategy, Training
from compressa.strategies.packing import FlatCopies, Packed, pack
from compressa.strategies.pairs import Pairs, pairs_of
from compressa.strategies.refusals import check_host, check_local, check_memory


class PairAveraging(Strategy):
    """See the module.

    Args:
        training: What is trained.
        session: Open between the ranks; closed with the strategy.
        keys: What is averaged.
        settings: The section.
    """

    def __init__(
        self, training: Training, session: Session, keys: Sequence[Packed], settings: ADPSGD
    ) -> None:
        super().__init__(training.model, training.optimizer, training.scaler)
        self.session, self.state = session, State()
        self.parameters: tuple[ParameterInfo, ...] = tuple(key.info for key in keys)
        self._group, self._every = training.group, settings.every
        self._flat, self._taken, self._steps = FlatCopies(training.model, keys), 0, 0
        self._values = [vector.clone() for vector in self._flat.vectors]
        self._began = [vector.clone() for vector in self._flat.vectors]
        self._programs, self._united = Programs(session), True
        self._pairs = Pairs(
            self._programs,
            GRAPHS[settings.graph](session.size),
            [(key.info, key.coding.codec) for key in keys],
            self._values,
            session.config.engine.seed,
            session.transport.epoch,
        )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""
        if error is None:
            self.close()
        else:
            self.session.close()

    @torch.no_grad()
    def step(self) -> None:
        """Take a step of the optimizer; take over averages, and ask for the next one."""
        self._step_optimizer()
        self._programs.check()
        check_memory(self.model, self._flat.parameters)
        self._united = False
        self._steps += 1
        self._taken += 1
        self._take_over()
        if self._taken >= self._every and self._pairs.answered:
            self._taken = 0
            self._pairs.ask()

    @torch.no_grad()
    def sync(self) -> None:
        """Have all ranks go on from the mean of all, which is brought uncompressed."""
        if self._united:
            return
        self._pairs.wait()
        self.session.call_on_all("strategy.sync", str)  # nobody asks any more
        self._take_over()
        try:
            for values in self._values:
                values.div_(self.session.size)  # a sum of large constants might have no number
                dist.all_reduce(values, group=self._group)
        except RuntimeError as error:
            self._programs.check()
            raise TransportError(f"strategy.sync: ranks could not meet: {error}") from error
        self._go_on_from_values()
        self.session.call_on_all("strategy.sync, its end", str)  # before anybody asks again

    def save(self, path: str | Path) -> None:
        """Write that ranks hold the same after so many steps; see `Strategy.save`."""
        if not self._united:
            raise StateError(
                "strategy.save: ranks hold different parameters; call strategy.sync() first, on "
                "all ranks"
            )
        saving.save(self, Path(path), self._steps, self.session.link)

    @torch.no_grad()
    def load(self, path: str | Path) -> None:
        """Begin with the model's parameters as they are now, after as many steps as were saved."""
        self._pairs.wait()
        self._steps = saving.load(self, Path(path))[0]
        self._flat.gather()
        for values, own in zip(self._values, self._flat.vectors, strict=True):
            values.copy_(own)
        self._go_on_from_values()
        self.session.call_on_all("strategy.load, values", str)

    def stats(self) -> Stats:
        """Return what was measured on this rank; a step in it is an average of two."""
        traffic, ledger = self.session.transport.traffic, self._programs.ledger
        return ledger.snapshot(traffic.sent_bytes, traffic.messages, Overlap(deferring=False))

    def close(self) -> None:
        """Answer until all ranks close, and end all threads; the model and the optimizer stay."""
        try:
            if self._programs.error is None and not self._closed:
                self._pairs.wait()
                self.session.call_on_all("strategy.close", str)
        finally:
            self._closed = True
            self.session.close()

    _closed = False

    def _take_over(self) -> None:
        self._flat.gather()
        self._pairs.exchange(self._flat.vectors, self._began)
        self._flat.scatter()

    def _go_on_from_values(self) -> None:
        pairs = zip(self._flat.vectors, self._began, self._values, strict=True)
        for own, began, values in pairs:
            own.copy_(values)
            began.copy_(values)
        self._flat.scatter()
        self._pairs.agree()
        self._taken, self._united = 0, True


def open_ad_psgd(training: Training) -> Strategy:
    """Open what the section `ADPSGD` says."""
    config, settings, model = training.config, training.config.strategy, training.model
    assert isinstance(settings, ADPSGD)
    keys: list[Packed] = []
    failure: CompressaError | None = None
    try:
        check_local(training)
        check_host(training)
        check_meets_in_pairs(config, "two ranks")
        keys = pack(config, model)
    except CompressaError as error:
        failure = error
    elems = sum(key.info.elems for key in keys) or 1
    session = open_session(
        config, training.group, elems, None, failure=failure, caller=training.caller
    )
    with session.closed_on_error():
        session.agree({key.info.name: list(key.info.shape) for key in keys})
        broadcast(model, group=training.group, config=config)
        messages = len(pairs_of(GRAPHS[settings.graph](session.size))) * len(keys)
        session.follow([Transfer(number, 0, 0) for number in range(messages)], [])
        return PairAveraging(training, session, keys, settings)
