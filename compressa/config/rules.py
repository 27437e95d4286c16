"""From a configuration and a model's parameters to the compressor of each parameter."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Sequence
from fnmatch import translate

from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec
from compressa.codecs.entropy import Entropy, can_shorten
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor
from compressa.config.choices import CompressorChoice
from compressa.config.model import Config
from compressa.config.settings import Match, Rule
from compressa.errors import escaped
from compressa.parameters import ParameterInfo, Role
from compressa.wrappers import (
    EF21,
    DenseBelow,
    DensitySchedule,
    ErrorFeedback,
    FeedbackRule,
    MomentumCorrection,
    Warmup,
)
from compressa.wrappers.density_schedule import has_density

_MOST_WARNINGS = 10


class ConfigWarning(UserWarning):
    """The configuration is valid, but part of it has no effect on this model."""


def assign(config: Config, parameters: Sequence[ParameterInfo]) -> dict[str, Compressor]:
    """Return the compressor of each parameter, with all its wrappers.

    Parameters with equal settings get equal compressors, so that they can share a unit. From
    the outside in: `Warmup` or `DensitySchedule`, `DenseBelow`, `MomentumCorrection`,
    `ErrorFeedback` or `EF21`, `Entropy`, the compressor itself; each only where it has an effect.

    Args:
        config: The configuration.
        parameters: The model's trainable parameters.

    Returns:
        Compressors by parameter name, in the parameters' order.

    Warns:
        ConfigWarning: A rule matches no parameter, or earlier rules take all that it does.
    """
    ruled = [parameter for parameter in parameters if not parameter.exact]
    chosen, idle = _deciding(config.rules, ruled)
    for index in idle[:_MOST_WARNINGS]:
        text = _no_effect(index, config.rules[index], ruled)
        warnings.warn(text, ConfigWarning, stacklevel=2)
    if idle[_MOST_WARNINGS:]:
        text = f"{len(idle[_MOST_WARNINGS:])} more rules have no effect"
        warnings.warn(text, ConfigWarning, stacklevel=2)
    built = {index: _build(config, index) for index in set(chosen.values())}
    plain = NoCompression()
    return {p.name: plain if p.exact else built[chosen[p.name]] for p in parameters}


def assign_weights(config: Config, parameters: Sequence[ParameterInfo]) -> dict[str, Codec]:
    """Return what brings each parameter's values from the owner of a shard to all.

    That is `fsdp.weights`; values are brought as they are of parameters that a rule, or their size,
    exempts from compression.

    Args:
        config: The configuration; `conflicts` has seen to it that weights have a codec.
        parameters: The model's.

    Returns:
        Codecs by parameter name.
    """
    chosen, _ = _deciding(config.rules, parameters)
    codec, plain = config.fsdp.weights.build(), NoCompression()
    assert isinstance(codec, Codec)

    def exempt(parameter: ParameterInfo) -> bool:
        index = chosen[parameter.name]
        ruled = index is not None and config.rules[index].compressor.name == "none"
        return ruled or parameter.elems < config.dense_below.elems

    return {p.name: plain if exempt(p) else codec for p in parameters}


Test = Callable[[ParameterInfo], bool]


def matcher(match: Match) -> Test:
    """Return what tells whether all conditions hold for a parameter."""
    tests: list[Test] = []
    if match.name is not None:
        tests.append(_name_test(match.name))
    if match.role is not None:
        roles = frozenset(match.role)
        tests.append(lambda p: p.role in roles)
    if match.shape is not None:
        pattern = match.shape
        tests.append(lambda p: _shape_matches(pattern, p.shape))
    if match.ndim is not None:
        tests.append(lambda p: match.ndim == len(p.shape))
    if match.min_elems is not None or match.max_elems is not None:
        least, most = match.min_elems or 0, match.max_elems
        tests.append(lambda p: least <= p.elems and (most is None or p.elems <= most))
    return lambda parameter: all(test(parameter) for test in tests)


def _name_test(globs: Sequence[str]) -> Test:
    """Return what tells whether a parameter has one of the names; each pattern is read once."""
    names = frozenset(globs)
    patterns = [glob for glob in names if any(mark in glob for mark in "*?[")]
    if not patterns:
        return lambda parameter: parameter.name in names
    pattern = re.compile("|".join(map(translate, patterns)))
    return lambda p: p.name in names or pattern.match(p.name) is not None


def _shape_matches(pattern: tuple[int | str, ...], shape: tuple[int, ...]) -> bool:
    same_ndim = len(pattern) == len(shape)
    return same_ndim and all(want in ("*", have) for want, have in zip(pattern, shape, strict=True))


def _deciding(
    rules: Sequence[Rule], parameters: Sequence[ParameterInfo]
) -> tuple[dict[str, int | None], list[int]]:
    """Return, by parameter name, the index of the first rule that matches; and the other rules'."""
    chosen: dict[str, int | None] = {parameter.name: None for parameter in parameters}
    open_to, idle = list(parameters), []
    for index, rule in enumerate(rules):
        taken = {p.name for p in filter(matcher(rule.match), open_to)}
        chosen |= dict.fromkeys(taken, index)
        open_to = [p for p in open_to if p.name not in taken]
        if not taken:
            idle.append(index)
    return chosen, idle


def _build(config: Config, index: int | None) -> Compressor:
    rule = None if index is None else config.rules[index]
    choice = rule.compressor if rule else config.compressor
    kind = (rule and rule.feedback) or config.feedback.kind
    compressor = _wrapped(config, choice, kind)
    if config.dense_below.elems and choice.name != "none":
        dense = _with_momentum(config, NoCompression())
        compressor = DenseBelow(compressor=compressor, elems=config.dense_below.elems, dense=dense)
    return _with_warmup(config, compressor, choice)


def _wrapped(config: Config, choice: CompressorChoice, kind: str) -> Compressor:
    return _with_momentum(config, _with_feedback(config, choice, kind))


def _with_feedback(config: Config, choice: CompressorChoice, kind: str) -> Compressor:
    compressor = choice.build()
    if not isinstance(compressor, Codec):
        return compressor  # has its own feedback built in
    level = config.exchange.entropy_level
    if level and can_shorten(compressor, config.exchange.kind):
        compressor = Entropy(codec=compressor, level=level)
    wanted = kind not in ("auto", "none") or (kind == "auto" and compressor.error_feedback)
    if not wanted or compressor.bias(1) == LOSSLESS == compressor.bias(1 << 20):
        return compressor  # nothing is ever left to feed back
    if kind == "ef21":
        return EF21(codec=compressor)
    own = config.feedback
    rule = FeedbackRule(
        owner=own.owner,
        dtype=own.dtype,
        decay=own.decay,
        beta=own.beta,
        reset_steps=own.reset_steps,
    )
    return ErrorFeedback(codec=compressor, rule=rule, scaled=kind == "scaled")


def _with_momentum(config: Config, compressor: Compressor) -> Compressor:
    own = config.momentum
    if not own.factor:
        return compressor
    return MomentumCorrection(
        compressor=compressor, factor=own.factor, masking=own.masking, clip_norm=own.clip_norm
    )


def _with_warmup(config: Config, compressor: Compressor, choice: CompressorChoice) -> Compressor:
    warm = config.warmup
    if warm.densities:
        if not has_density(compressor):
            return compressor
        return DensitySchedule(compressor=compressor, steps=warm.steps, densities=warm.densities)
    if warm.steps and warm.compressor != choice:
        dense = _wrapped(config, warm.compressor, config.feedback.kind)
        return Warmup(compressor=compressor, steps=warm.steps, dense=dense)
    return compressor


def _no_effect(index: int, rule: Rule, parameters: Sequence[ParameterInfo]) -> str:
    written = rule.match.model_dump(mode="json", exclude_none=True)
    conditions = ", ".join(f"{key} = {_bare(value)}" for key, value in written.items())
    start = f"rules[{index}] ({conditions}) has no effect: "
    if any(map(matcher(rule.match), parameters)):
        return start + "earlier rules take every parameter that it matches; move it up"
    return start + f"it matches no parameter; {_nearest_parameters(rule.match, parameters)}"


def _bare(value: object) -> str:
    alone = isinstance(value, list) and len(value) == 1
    return repr(value[0] if alone else value)  # type: ignore[index]


def _nearest_parameters(match: Match, parameters: Sequence[ParameterInfo]) -> str:
    names = [parameter.name for parameter in parameters]
    if match.name is None or any(map(_name_test(match.name), parameters)):
        roles = [role for role in Role if any(p.role is role for p in parameters)]
        sizes = [parameter.elems for parameter in parameters]
        listed = ", ".join(roles)
        return f"the roles here are {listed}, the sizes {min(sizes)} to {max(sizes)} elements"
    near = [
        name
        for glob in match.name[:_MOST_WARNINGS]
        for name in difflib.get_close_matches(glob.replace("*", ""), names, n=3, cutoff=0.3)
    ]
    return f"the nearest names are {', '.join(map(escaped, dict.fromkeys(near or names[:3])))}"
