"""ad_psgd: ranks average with one neighbour at a time, whenever it suits them; see `pairs`.

What is averaged lies beside the parameters, so that those do not change within a step: what comes
meanwhile is taken over after it. The strategy guarantees that the sum of all ranks' values changes
by their optimizers' steps only, and that no rank waits for another's step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from compressa.aggregators.base import State
from compressa.collectives.graphs import GRAPHS
from compressa.config.strategy_sections import ADPSGD
from compressa.engine.measuring.stats import Overlap, Stats
from compressa.engine.opening import open_session
from compressa.engine.session import GIVE_UP_S, Session
from compressa.engine.start import process_groups
from compressa.errors import CompressaError, StateError, TransportError
from compressa.hooks import broadcast, saving
from compressa.parameter_server.job import check_meets_in_pairs
from compressa.parameter_server.programs import Programs
from compressa.parameters import ParameterInfo
from compressa.schedulers import Transfer
from compressa.strategies.base import Strategy, Training
from compressa.strategies.local import average
from compressa.strategies.packing import FlatCopies, Packed, check_alike, pack
from compressa.strategies.pairs import Pairs, pairs_of
from compressa.strategies.refusals import check_host, check_local, check_memory
from compressa.strategies.surviving import Surviving

Open = Callable[[dist.ProcessGroup, bool], Session]
"""(who takes part, whether the model is to be brought to all) -> what is open between them."""


class PairAveraging(Surviving, Strategy):
    """See the module.

    Args:
        training: What is trained.
        session: Open between the ranks; closed with the strategy.
        keys: What is averaged.
        again: Opens another session, for those who are left when a rank is lost.
    """

    def __init__(
        self, training: Training, session: Session, keys: Sequence[Packed], again: Open
    ) -> None:
        Strategy.__init__(self, training.model, training.optimizer, training.scaler)
        Surviving.__init__(self, training)
        settings = training.config.strategy
        assert isinstance(settings, ADPSGD), "the configuration names it"
        self.state, self._keys, self._again = State(), keys, again
        self.parameters: tuple[ParameterInfo, ...] = tuple(key.info for key in keys)
        self._group, self._every, self._graph = training.group, settings.every, settings.graph
        self._flat, self._taken, self._steps = FlatCopies(training.model, keys), 0, 0
        self._flat.keep(self.state)
        self._values = [vector.clone() for vector in self._flat.vectors]
        self._began = [vector.clone() for vector in self._flat.vectors]
        self._closed = False
        self._pair_up(session)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""
        if error is None:
            self.close()
        else:
            super().close()
            self._closed = True
            self.session.close()

    @torch.no_grad()
    def step(self) -> None:
        """Take a step of the optimizer; take over averages, and ask for the next one."""
        self._step_optimizer()
        check_memory(self.model, self._flat.parameters)
        self._united = False
        self._steps += 1
        self._taken += 1
        self._surviving(self._exchange)

    @torch.no_grad()
    def sync(self) -> None:
        """Have all ranks go on from the mean of all, which is brought uncompressed.

        Collective, each after its own last step; see `Strategy.sync`. A lost rank is left out where
        the configuration recovers, else it is the PeerLost that all raise.
        """
        self._surviving(self._meet, again=True)  # others may have taken steps since the last one

    def _exchange(self) -> None:
        self._programs.check()
        self._take_over()
        if self._taken >= self._every and self._pairs.answered:
            self._taken = 0
            self._pairs.ask()

    def _meet(self) -> None:
        self._pairs.wait()
        self._call_on_all("strategy.sync")  # nobody asks any more
        self._take_over()
        self._go_on_from_mean(self._values)
        self._call_on_all("strategy.sync, its end")  # before anybody asks again

    def _go_on_without_the_lost(self) -> None:
        """From the mean of what ranks train."""
        self.session.close(GIVE_UP_S)
        config = self.session.config
        self._group = process_groups.new_group_of(config, self._ranks, "strategy.step")
        self._flat.gather()
        session = self._again(self._group, False)
        session.keep(self._group)
        self._pair_up(session)
        self._go_on_from_mean(self._flat.vectors)
        self._call_on_all("strategy.step, values")

    def _call_on_all(self, what: str) -> None:
        self._programs.check()
        try:
            self.session.call_on_all(what, str)
        except TransportError:
            self._programs.check()  # who is lost, where that is known
            raise

    def save(self, path: str | Path) -> None:
        """Write that ranks hold the same after so many steps; see `Strategy.save`."""
        if not self._united:
            raise StateError(
                "strategy.save: ranks hold different parameters; call strategy.sync() first, on "
                "all ranks"
            )
        self._flat.write_digits()
        saving.save(self, Path(path), self._steps, self.session.link)

    @torch.no_grad()
    def load(self, path: str | Path) -> None:
        """Begin with the model's parameters as they are now, after as many steps as were saved."""
        self._pairs.wait()
        self._flat.take()
        check_alike(self.session, self._flat.vectors)
        self._steps = saving.load(self, Path(path))[0]
        self._flat.take_digits()
        self._go_on_from(self._flat.vectors)
        self._call_on_all("strategy.load, values")

    def stats(self) -> Stats:
        """Return what was measured on this rank; a step in it is an average of two."""
        traffic, ledger = self.session.transport.traffic, self._programs.ledger
        return ledger.snapshot(traffic.sent_bytes, traffic.messages, Overlap())

    def close(self) -> None:
        """Answer until all ranks close, for `exchange.deadline_s` at most, and end all threads."""
        super().close()
        try:
            self._surviving(self._say_goodbye, again=True)
        finally:
            self._closed = True
            self.session.close()

    def _say_goodbye(self) -> None:
        if not self._closed and (self._programs.error is None or self._recovers):
            self._pairs.wait()
            self._call_on_all("strategy.close")

    def _take_over(self) -> None:
        self._flat.gather()
        self._pairs.exchange(self._flat.vectors, self._began)
        self._flat.scatter()

    def _go_on_from_mean(self, vectors: Sequence[torch.Tensor]) -> None:
        named = dict(zip((key.info.name for key in self._keys), vectors, strict=True))
        average(named, self.session.config, self._group, self._programs.check)
        self._go_on_from(vectors)

    def _go_on_from(self, vectors: Sequence[torch.Tensor]) -> None:
        """All ranks hold these, and no question is under way."""
        for given, own, began, values in zip(
            vectors, self._flat.vectors, self._began, self._values, strict=True
        ):
            for held in (own, began, values):
                held.copy_(given)
        self._flat.scatter()
        self._pairs.agree()
        self._taken, self._united = 0, True

    def _pair_up(self, session: Session) -> None:
        """Begin among the ranks of a session, who all hold the same."""
        self.session, self._programs, self._united = session, Programs(session), True
        self._pairs = Pairs(
            self._programs,
            GRAPHS[self._graph](session.size),
            [(key.info, key.coding.codec) for key in self._keys],
            self._values,
            session.config.engine.seed,
            session.transport.epoch,
        )


def open_ad_psgd(training: Training) -> Strategy:
    """Open what the section `ADPSGD` says."""
    config, settings, model = training.config, training.config.strategy, training.model
    assert isinstance(settings, ADPSGD)
    keys: list[Packed] = []

    def again(group: dist.ProcessGroup, brings: bool) -> Session:
        failure: CompressaError | None = None
        try:
            check_local(training)
            check_host(training)
            check_meets_in_pairs(config, "two ranks")
            keys[:] = pack(config, model)
        except CompressaError as error:
            failure = error
        elems = sum(key.info.elems for key in keys) or 1
        session = open_session(config, group, elems, None, failure=failure, caller=training.caller)
        with session.closed_on_error():
            session.agree({key.info.name: list(key.info.shape) for key in keys})
            if brings:
                broadcast(model, group=group, config=config)
            messages = len(pairs_of(GRAPHS[settings.graph](session.size))) * len(keys)
            session.follow([Transfer(number, 0, 0) for number in range(messages)], [])
            return session

    return PairAveraging(training, again(training.group, True), keys, again)
