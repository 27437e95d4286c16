"""From a configuration and a model's parameters to the compressor of each parameter."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase

from compressa.codecs.base import Codec, Contraction
from compressa.codecs.entropy import Entropy, can_shorten
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor
from compressa.config.choices import CompressorChoice
from compressa.config.match import Match, Rule
from compressa.config.model import Config
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
    deciding = [_deciding(config.rules, parameter) for parameter in parameters]
    for index, rule in enumerate(config.rules):
        if index not in deciding:
            warnings.warn(_no_effect(index, rule, parameters), ConfigWarning, stacklevel=2)
    built = {index: _build(config, index) for index in set(deciding)}
    return {p.name: built[index] for p, index in zip(parameters, deciding, strict=True)}


def matches(match: Match, parameter: ParameterInfo) -> bool:
    """Return whether all conditions hold for a parameter."""
    elems, shape = parameter.elems, parameter.shape
    return (
        (match.name is None or any(fnmatchcase(parameter.name, glob) for glob in match.name))
        and (match.role is None or parameter.role in match.role)
        and (match.shape is None or _shape_matches(match.shape, shape))
        and (match.ndim is None or match.ndim == len(shape))
        and (match.min_elems is None or elems >= match.min_elems)
        and (match.max_elems is None or elems <= match.max_elems)
    )


def _shape_matches(pattern: tuple[int | str, ...], shape: tuple[int, ...]) -> bool:
    same_ndim = len(pattern) == len(shape)
    return same_ndim and all(want in ("*", have) for want, have in zip(pattern, shape, strict=True))


def _deciding(rules: tuple[Rule, ...], parameter: ParameterInfo) -> int | None:
    """Return the index of the first rule that matches; None for the default."""
    return next((i for i, rule in enumerate(rules) if matches(rule.match, parameter)), None)


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
    if not wanted or compressor.bias(1) == Contraction(1.0) == compressor.bias(1 << 20):
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
    if any(matches(rule.match, parameter) for parameter in parameters):
        return start + "earlier rules take every parameter that it matches; move it up"
    return start + f"it matches no parameter; {_nearest_parameters(rule.match, parameters)}"


def _bare(value: object) -> str:
    alone = isinstance(value, list) and len(value) == 1
    return repr(value[0] if alone else value)  # type: ignore[index]


def _nearest_parameters(match: Match, parameters: Sequence[ParameterInfo]) -> str:
    names = [parameter.name for parameter in parameters]
    if match.name is None or any(fnmatchcase(n, glob) for n in names for glob in match.name):
        roles = [role for role in Role if any(p.role is role for p in parameters)]
        sizes = [parameter.elems for parameter in parameters]
        listed = ", ".join(roles)
        return f"the roles here are {listed}, the sizes {min(sizes)} to {max(sizes)} elements"
    near = [
        name
        for glob in match.name
        for name in difflib.get_close_matches(glob.replace("*", ""), names, n=3, cutoff=0.3)
    ]
    return f"the nearest names are {', '.join(map(escaped, dict.fromkeys(near or names[:3])))}"
