"""What a strategy can not have beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compressa.bias import TYPICAL_ELEMS
from compressa.codecs.base import Biased, Codec, Contraction, Unbiased
from compressa.config.mistakes import Mistake
from compressa.config.settings import Settings
from compressa.config.strategy_sections import (
    ADPSGD,
    EASGD,
    SGP,
    Async,
    Bounded,
    Central,
    Gossip,
    Hogwild,
)
from compressa.config.uses import Use

_LOSES_LITTLE = 0.5  # of the square of a vector


def strategy_conflicts(config: Settings, uses: Sequence[Use]) -> Iterator[Mistake]:
    """Yield every impossible combination with the strategy that is named.

    Args:
        config: Its parts are valid.
        uses: Where it names compressors.
    """
    if config.strategy is None:
        return
    yield from _momentum_conflicts(config)
    strategy = config.strategy
    if isinstance(strategy, Gossip | SGP):
        yield from _weights_conflicts(config, strategy)
    if isinstance(strategy, Gossip | SGP | ADPSGD):
        yield from _gossip_conflicts(config, strategy, uses)
    if isinstance(strategy, EASGD):
        yield from _easgd_conflicts(uses)
    if isinstance(strategy, Hogwild):
        yield from _hogwild_conflicts(uses)
    if isinstance(strategy, Async | Bounded) and strategy.dedicated and config.engine.recover:
        text = (
            "is true, but servers that do not train can not go on without a lost rank; leave it out"
        )
        yield Mistake(("engine", "recover"), text, (("strategy", "dedicated"),))
    if isinstance(strategy, Async | Bounded | Central):
        yield from _own_exchange(config, strategy, uses)
    if isinstance(strategy, ADPSGD | Async | Bounded | Central):
        yield from _session_conflicts(config, strategy)


def _momentum_conflicts(config: Settings) -> Iterator[Mistake]:
    """What supposes that gradients are averaged in each step."""
    name, involves = config.strategy and config.strategy.name, (("strategy", "name"),)
    if name in (None, "hook", "overlapped"):
        return
    if config.momentum.factor:
        text = (
            f'is {config.momentum.factor:g}, but strategy.name = "{name}" averages parameters, and '
            "momentum is each rank's optimizer's; leave it out"
        )
        yield Mistake(("momentum", "factor"), text, involves)
    if config.engine.recover and name == "hogwild":
        text = (
            f'is true, but strategy.name = "{name}" can not go on without a lost rank; leave it '
            "out, and go on from a checkpoint"
        )
        yield Mistake(("engine", "recover"), text, involves)


def _weights_conflicts(config: Settings, strategy: Gossip | SGP) -> Iterator[Mistake]:
    """Those of all ranks say nothing of fewer, whose graph may not even be connected."""
    if config.engine.recover and strategy.weights is not None:
        text = (
            "is true, but strategy.weights are those of all ranks, and without a lost one there "
            "would be none; name a strategy.graph, which there is for any number of ranks"
        )
        yield Mistake(("engine", "recover"), text, (("strategy", "weights"),))


def _easgd_conflicts(uses: Sequence[Use]) -> Iterator[Mistake]:
    """Ranks stay away from the centre: a residual would add the distance up, meeting by meeting."""
    involves, again = (("strategy", "name"),), 'strategy.name = "easgd" sends each distance anew'
    for use in uses:
        codec = use.compressor if isinstance(use.compressor, Codec) else None
        bias = None if codec is None else codec.bias(TYPICAL_ELEMS)
        most = isinstance(bias, Contraction) and bias.delta < _LOSES_LITTLE
        if codec is None or isinstance(bias, Biased) or most:
            text = (
                f'is "{use.name}", which loses much of a distance or keeps it for later, but '
                f"{again}; use int8, int4 or an unbiased one"
            )
            yield Mistake((*use.path, "name"), text, involves)
        elif codec.error_feedback and use.feedback != "none":
            text = f'is "{use.feedback}", but {again}, and a residual would add it up; use "none"'
            yield Mistake(use.feedback_path, text, involves)


def _hogwild_conflicts(uses: Sequence[Use]) -> Iterator[Mistake]:
    for use in uses:
        if use.name != "none":
            text = (
                f'is "{use.name}", but strategy.name = "hogwild" sends nothing that it could make '
                "smaller; leave it out"
            )
            yield Mistake((*use.path, "name"), text, (("strategy", "name"),))


def _gossip_conflicts(
    config: Settings, strategy: Gossip | SGP | ADPSGD, uses: Sequence[Use]
) -> Iterator[Mistake]:
    """Who hears of some ranks only, knows no sum over all of them."""
    yield from _own_exchange(config, strategy, uses)
    for use in uses:
        if use.feedback not in ("auto", "none"):
            text = (
                f'is "{use.feedback}", but strategy.name = "{strategy.name}" keeps what was not '
                'sent by itself; use "auto"'
            )
            yield Mistake(use.feedback_path, text, (("strategy", "name"),))


def _session_conflicts(
    config: Settings, strategy: ADPSGD | Async | Bounded | Central
) -> Iterator[Mistake]:
    """What only an engine has, whose steps all ranks take."""
    involves = (("strategy", "name"),)
    if config.warmup.steps:
        text = (
            f"is {config.warmup.steps}, but {strategy.name} keeps one compressor for all steps; "
            "leave it out"
        )
        yield Mistake(("warmup", "steps"), text, involves)
    if config.trace.path is not None:
        text = (
            f"is given, but {strategy.name} has no steps that all ranks take, which a trace is of; "
            "leave it out"
        )
        yield Mistake(("trace", "path"), text, involves)
    if config.schedule.server_bits_per_s is not None:
        text = f"gives slots to workers that push together, and under {strategy.name} they do not"
        yield Mistake(("schedule", "server_bits_per_s"), f"{text}; leave it out", involves)


def _own_exchange(
    config: Settings,
    strategy: Gossip | SGP | ADPSGD | Async | Bounded | Central,
    uses: Sequence[Use],
) -> Iterator[Mistake]:
    """What each rank sends is decoded by itself."""
    name, involves = strategy.name, (("strategy", "name"),)
    for use in uses:
        why = _fault_by_itself(use, shares=isinstance(strategy, SGP))
        if why:
            text = f'is "{use.name}", but strategy.name = "{name}", and {why}; use another one'
            yield Mistake((*use.path, "name"), text, involves)
    for setting in ("kind", "algorithm"):
        value = getattr(config.exchange, setting)
        if value != "auto":
            text = f'is "{value}", but {name} has an exchange of its own; use "auto"'
            yield Mistake(("exchange", setting), text, involves)


def _fault_by_itself(use: Use, *, shares: bool) -> str:
    """Return why what a compressor sends can not be followed; nothing if it can.

    Args:
        use: Names the compressor.
        shares: Whether it is of a share of what a rank has, and not of a difference.
    """
    if not isinstance(use.compressor, Codec):
        return f"{use.name} exchanges in rounds of its own, with all ranks"
    bias = use.compressor.bias(TYPICAL_ELEMS)
    if not shares:
        stays = f"{use.name} is no contraction as configured, and estimates would not follow"
        return stays if isinstance(bias, Biased) else ""
    lost = bias.omega if isinstance(bias, Unbiased) else 1.0
    if isinstance(bias, Contraction):
        lost = 1.0 - bias.delta
    little = f"{use.name} may send little of a share, whose weight is sent whole"
    return little if lost > _LOSES_LITTLE else ""
