"""The section `[strategy]`, one model for each: when ranks meet, and what becomes of it.

`compressa.strategies` does what they say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field, model_validator

from compressa.collectives.digraphs import DIGRAPHS, weighted
from compressa.collectives.graphs import GRAPHS, Graph
from compressa.config.base import Listed, OneOf, Section
from compressa.config.mistakes import Mistake, refuse

Every = Annotated[int, Ge(1), Le(1 << 20)]
"""Steps of the optimizer from one meeting to the next."""

_LEAST_GAP = 1e-9

Matrix = Annotated[tuple[Annotated[tuple[float, ...], Listed()], ...], Listed()]
Weight = Annotated[float, Ge(0), Lt(1)]
Rate = Annotated[float, Gt(0), Le(1e3)]


class Hook(Section):
    """Gradients are averaged in each step, in DistributedDataParallel's backward pass."""

    name: Literal["hook"] = Field(description="Which strategy.")


class Overlapped(Section):
    """Gradients are averaged in each step, which goes on in the next forward pass."""

    name: Literal["overlapped"] = Field(description="Which strategy.")


class LocalSGD(Section):
    """Ranks train by themselves, and average their parameters every so many steps (Stich 2019)."""

    name: Literal["local_sgd"] = Field(description="Which strategy.")
    every: Every = Field(
        default=8, description="Steps of the optimizer from one meeting to the next (H)."
    )
    adapt: Literal["none", "rate", "link"] = Field(
        default="none",
        description="What changes H. rate: max(every, floor((rate_scale / learning rate)^2)), the "
        "quadratic rule (Gu et al. 2024); link: as many steps as it takes for a meeting to last "
        "link_share of them, as measured; every is the first H.",
    )
    rate_scale: Rate = Field(
        default=0.02, description="Of adapt = rate: the learning rate at which H would be 1."
    )
    link_share: Annotated[float, Gt(0), Le(10)] = Field(
        default=0.1, description="Of adapt = link: a meeting's time over that of H steps."
    )
    longest: Every = Field(default=1024, description="The largest H that adapt may choose.")

    @model_validator(mode="after")
    def _check(self) -> LocalSGD:
        if self.adapt != "none" and self.longest < self.every:
            text = f"is {self.longest}, less than every = {self.every}"
            refuse([Mistake(("longest",), text, (("every",),))])
        return self


class PostLocalSGD(Section):
    """As local_sgd, but ranks meet in each step at first (Lin et al. 2020)."""

    name: Literal["post_local_sgd"] = Field(description="Which strategy.")
    every: Every = Field(
        default=8, description="Steps from one meeting to the next, after the switch (H)."
    )
    after_steps: Annotated[int, Ge(1), Le(1 << 53)] | None = Field(
        default=None,
        description="After how many steps the switch is. Not given: when the learning rate is at "
        "most half of the largest there was.",
    )


class DiLoCo(Section):
    """Ranks train by themselves; an outer optimizer takes what they did as a gradient.

    Douillard et al. 2023; with fragments, overlap_steps and mixing streaming DiLoCo (2025).
    """

    name: Literal["diloco"] = Field(description="Which strategy.")
    every: Every = Field(
        default=100, description="Steps of the inner optimizer from one outer step to the next (H)."
    )
    outer_rate: Rate = Field(default=0.7, description="The outer optimizer's learning rate.")
    outer_momentum: Weight = Field(default=0.9, description="The outer optimizer's momentum.")
    nesterov: bool = Field(default=True, description="Whether the outer momentum is Nesterov's.")
    fragments: Annotated[int, Ge(1), Le(1 << 16)] = Field(
        default=1,
        description="Into how many parts of about equal size the parameters are cut, which meet "
        "one after the other, every / fragments steps apart.",
    )
    overlap_steps: Annotated[int, Ge(0), Le(1 << 20)] = Field(
        default=0,
        description="How many steps go on while a fragment is on its way (tau); at most "
        "every / fragments, and less than every. Of what they did to the fragment, mixing is kept.",
    )
    mixing: Weight = Field(
        default=0.0,
        description="Share of a rank's own values when an outer step's come back (alpha).",
    )

    @property
    def _most_overlap(self) -> int:
        return min(self.every // self.fragments, self.every - 1)

    @model_validator(mode="after")
    def _check(self) -> DiLoCo:
        found = []
        if self.fragments > self.every:
            text = f"is {self.fragments}, but every = {self.every} steps have room for no more"
            found.append(Mistake(("fragments",), text, (("every",),)))
        elif self.overlap_steps > self._most_overlap:
            apart, most = self.every // self.fragments, self._most_overlap
            text = (
                f"is {self.overlap_steps}, but fragments meet {apart} steps apart, only one is on "
                "its way at a time, and steps taken meanwhile count for little; use at most "
                f"{most}, or fewer fragments"
            )
            found.append(Mistake(("overlap_steps",), text, (("every",), ("fragments",))))
        if self.nesterov and not self.outer_momentum:
            text = "is true, but outer_momentum = 0; set that, or nesterov = false"
            found.append(Mistake(("nesterov",), text, (("outer_momentum",),)))
        if found:
            refuse(found)
        return self


class EASGD(Section):
    """Ranks train by themselves, drawn to a centre that is drawn to them (Zhang et al. 2015)."""

    name: Literal["easgd"] = Field(description="Which strategy.")
    every: Every = Field(
        default=8, description="Steps of the optimizer from one meeting to the next (tau)."
    )
    pull: Annotated[float, Gt(0), Le(1)] = Field(
        default=0.9,
        description="How far the centre moves to the mean of all ranks in a meeting (beta); each "
        "of P ranks moves pull / P of the way to the centre (alpha), as in the paper.",
    )


class Gossip(Section):
    """Ranks average parameters with their neighbours only.

    D-PSGD (Lian et al. 2017); where something compresses, CHOCO-SGD (Koloskova et al. 2019).
    """

    name: Literal["gossip"] = Field(description="Which strategy.")
    every: Every = Field(
        default=1, description="Steps of the optimizer from one meeting to the next."
    )
    graph: Annotated[str, OneOf(GRAPHS)] = Field(
        default="ring",
        description="Who are neighbours: ring: two; torus: four at most, on a grid; exponential: "
        "those 1, 2, 4, ... away; complete: all.",
    )
    weights: Matrix | None = Field(
        default=None,
        description="In place of graph: w_ij, a row for each rank; symmetric, and each row sums to "
        "1.",
    )
    consensus: Annotated[float, Gt(0), Le(1)] = Field(
        default=1.0,
        description="How far a rank moves to the mean of its neighbourhood (gamma). Below 1 where "
        "compressors lose much: about the share of a vector that they keep.",
    )

    @model_validator(mode="after")
    def _check(self) -> Gossip:
        if self.weights is not None:
            try:
                gap = Graph(self.weights).lazy(self.consensus).gap
            except ValueError as error:
                refuse([Mistake(("weights",), str(error))])
            if gap < _LEAST_GAP:
                text = (
                    "lets ranks swap parameters forever without coming nearer; give each rank a "
                    "weight of its own, or set consensus below 1"
                )
                refuse([Mistake(("weights",), text, (("consensus",),))])
        return self


class SGP(Section):
    """Stochastic gradient push: ranks push shares of parameters along a directed graph.

    Assran et al. 2019.
    """

    name: Literal["sgp"] = Field(description="Which strategy.")
    every: Every = Field(
        default=1, description="Steps of the optimizer from one meeting to the next."
    )
    graph: Annotated[str, OneOf(DIGRAPHS)] = Field(
        default="exponential",
        description="To whom a rank sends half of what it has: exponential: to the one 1, 2, 4, "
        "... ahead, in one meeting after the other; ring: to the next one.",
    )
    weights: Matrix | None = Field(
        default=None,
        description="In place of graph: p_ji, the share that rank i sends to rank j, or keeps; a "
        "row for each rank j, and each column sums to 1.",
    )

    @model_validator(mode="after")
    def _check(self) -> SGP:
        if self.weights is not None:
            try:
                weighted(self.weights)
            except ValueError as error:
                refuse([Mistake(("weights",), str(error))])
        return self


class Hogwild(Section):
    """Ranks of one host update parameters in shared memory, without locks (Niu et al. 2011)."""

    name: Literal["hogwild"] = Field(description="Which strategy.")


class ADPSGD(Section):
    """Ranks average parameters with one neighbour at a time, and nobody waits for a step.

    AD-PSGD (Lian et al. 2018): ranks of even numbers ask those of odd ones.
    """

    name: Literal["ad_psgd"] = Field(description="Which strategy.")
    every: Every = Field(
        default=1,
        description="Steps of the optimizer from one question to the next; later where the last "
        "one is not answered.",
    )
    graph: Annotated[str, OneOf(GRAPHS)] = Field(
        default="complete", description="As of gossip; edges between even and odd ranks count."
    )


Servers = Annotated[int, Ge(1), Le(1 << 20)]


Weighting = Literal["mean", "sum", "staleness"]


class _Served(Section):
    """What all strategies have whose values lie on servers."""

    name: str
    servers: Servers | None = Field(
        default=None,
        description="How many ranks keep values, which then are the last ones; all, or the last "
        "one if dedicated, unless given.",
    )
    dedicated: bool = Field(
        default=False,
        description="Whether these ranks train not: they call strategy.serve() in place of a "
        "training loop.",
    )


class Async(_Served):
    """Ranks send updates to servers and take values from them without waiting for each other.

    Recht et al. 2011. Nothing bounds how old the values are that a rank trains with.
    """

    name: Literal["async"] = Field(description="Which strategy.")
    weighting: Weighting = Field(
        default="mean",
        description="What an update is multiplied by. mean: 1 / P; sum: 1; staleness: 1 / (1 + how "
        "many updates of others came since its rank was answered; Zhang et al. 2016).",
    )
    delay_compensation: Annotated[float, Ge(0), Le(1_000_000)] = Field(
        default=0.0,
        description="lambda of DC-ASGD (Zheng et al. 2017): updates are corrected for how far "
        "values have moved since; for SGD without momentum.",
    )


class Bounded(_Served):
    """As async, but no rank trains with values that lack updates older than so many steps.

    Ho et al. 2013. With staleness = 0 all ranks take each step together.
    """

    name: Literal["bounded"] = Field(description="Which strategy.")
    staleness: Annotated[int, Ge(0), Le(1 << 20)] = Field(
        default=4, description="How many steps a rank may be ahead of the slowest (s)."
    )
    weighting: Weighting = Field(
        default="mean", description="As of async; only mean with staleness = 0."
    )
    delay_compensation: Annotated[float, Ge(0), Le(1_000_000)] = Field(
        default=0.0, description="As of async; not with staleness = 0."
    )
    backup_workers: Annotated[int, Ge(0), Le(1 << 20)] = Field(
        default=0,
        description="With staleness = 0: how many ranks no step waits for, whose late updates are "
        "dropped (Chen et al. 2016).",
    )

    @model_validator(mode="after")
    def _check(self) -> Bounded:
        found, involves = [], (("staleness",),)
        if self.staleness and self.backup_workers:
            text = (
                f"is {self.backup_workers}, but with staleness = {self.staleness} nobody can tell "
                "whose update is too late; use staleness = 0, or leave it out"
            )
            found.append(Mistake(("backup_workers",), text, involves))
        if not self.staleness and self.weighting != "mean":
            text = (
                f'is "{self.weighting}", but with staleness = 0 all updates are alike; use "mean"'
            )
            found.append(Mistake(("weighting",), text, involves))
        if not self.staleness and self.delay_compensation:
            text = (
                f"is {self.delay_compensation:g}, but with staleness = 0 nothing is delayed; "
                "leave it out"
            )
            found.append(Mistake(("delay_compensation",), text, involves))
        if found:
            refuse(found)
        return self


class Central(Section):
    """One rank, which trains as well, keeps the values, and all take each step together.

    TensorFlow's CentralStorageStrategy; each rank keeps its own optimizer's state, though.
    """

    name: Literal["central"] = Field(description="Which strategy.")
