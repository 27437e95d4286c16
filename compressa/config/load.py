"""Reading a configuration, whole: every mistake is reported at once."""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from compressa import files
from compressa.config.describe import describe
from compressa.config.mistakes import MISTAKES, Mistake, Path, report
from compressa.config.model import Config
from compressa.config.not_toml import likely_slip
from compressa.config.positions import key_lines
from compressa.errors import ConfigError, escaped

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_NOTHING: Mapping[str, Any] = {"match": {"name": "*"}, "compressor": {"name": "none"}}
"""A rule that cannot be in conflict with anything."""


_MOST_BYTES = 32 << 20
_MOST_DEPTH = 32
_MOST_MISTAKES = 100
_TOO_DEEP = (
    f"tables and lists lie in each other more than {_MOST_DEPTH} deep; no setting is so deep down"
)
_KEY = r"""(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(rf"(?:{_KEY}[ \t]*\.[ \t]*){{{_MOST_DEPTH}}}")

Source = str | os.PathLike[str] | Mapping[str, Any] | Config
"""Where a configuration comes from."""

# The sections that say how gradients are compressed, and can change in mid-run.
_COMPRESSION = {"compressor", "rules", "feedback", "momentum", "warmup", "dense_below"}


def load_config(source: Source, *, policy: str | None = None) -> Config:
    """Read and check a configuration.

    Args:
        source: A TOML file's path, a mapping with the same keys, or a configuration, which
            is returned as it is.
        policy: `schedule.policy` where the source does not say it; None for the usual one.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or holds mistakes. The message
            lists all of them, one per line, each with its key path, its line in the file
            where there is one, and what would be right.

    Example:
        >>> load_config({"compressor": {"name": "topk", "density": 0.05}}).compressor.name
        'topk'
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return _validate(_with_policy(source, policy), "configuration", "")
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"a configuration is a path, a mapping or a Config, not {type(source).__name__}"
        )
    where = escaped(os.fspath(source))
    text = _read(source, where)
    return _validate(_with_policy(_parse(text, where), policy), where, text)


def recompressed(config: Config, wanted: Config) -> Config:
    """Return a configuration with the compression of another, and all else as it is.

    Args:
        config: What is in force.
        wanted: What else it sets must be as in `config`.

    Raises:
        ConfigError: It sets something else that can not change, or its compression does not fit.
    """
    for name in sorted(wanted.model_fields_set - _COMPRESSION):
        if getattr(wanted, name) != getattr(config, name):
            raise ConfigError(
                f"{name}: can not change in mid-run; only {', '.join(sorted(_COMPRESSION))} can. "
                "Leave it out, or register a new model"
            )
    changed = wanted.model_dump(mode="json", include=_COMPRESSION)
    return load_config({**config.model_dump(mode="json", exclude=_COMPRESSION), **changed})


def _with_policy(raw: Mapping[str, Any], policy: str | None) -> dict[str, Any]:
    schedule = raw.get("schedule", {})
    if policy is None or not isinstance(schedule, Mapping):
        return dict(raw)
    return {**raw, "schedule": {"policy": policy, **schedule}}


def _read(path: str | os.PathLike[str], where: str) -> str:
    try:
        return files.read(path, _MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no such file; give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: is not UTF-8 text, as TOML must be ({error})") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot be read: {files.reason(error)}") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    if _DEEP_KEY.search(text):  # tomllib takes as long for it as the square of its length
        raise ConfigError(f"{where}: {_TOO_DEEP}")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{where}: {_TOO_DEEP}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {_not_toml(text, str(error))}") from error
    except ValueError as error:  # Python reads no number of so many digits
        raise ConfigError(f"{where}: holds a number that is too long: {error}") from error


def _not_toml(text: str, message: str) -> str:
    """Say where text is not TOML, and what to write instead, or else what tomllib says."""
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if at is None or at[1] is None:
        what = message[: at.start()] if at else message
        return f"end of the file: is not valid TOML: {what}"
    what = likely_slip(text, int(at[1]), int(at[2])) or message[: at.start()]
    return f"line {at[1]}, column {at[2]}: is not valid TOML: {what}"


def _validate(raw: dict[str, Any], where: str, text: str) -> Config:
    if _depth(raw) > _MOST_DEPTH:
        raise ConfigError(f"{where}: {_TOO_DEEP}")
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        found = [one for one in error.errors(include_url=False) if not _miscounted(one)]
    mistakes = [mistake for one in found[:_MOST_MISTAKES] for mistake in describe(one, raw)]
    if len(found) <= _MOST_MISTAKES:
        mistakes += _hidden(raw, mistakes)
    more = max(0, len(found) - _MOST_MISTAKES) + max(0, len(mistakes) - _MOST_MISTAKES)
    lines = key_lines(text, raw) if text else {}
    raise ConfigError(report(where, mistakes[:_MOST_MISTAKES], lines, more))


def _miscounted(error: ErrorDetails) -> bool:
    """Tell whether a list is called too short only since pydantic counts no wrong items."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _depth(raw: object) -> int:
    """Return how deep tables and lists lie in each other; no more than is told of is looked at."""
    inside: list[object] = [raw]
    for depth in range(_MOST_DEPTH + 1):
        if not inside:
            return depth
        inside = [part for value in inside for part in _parts(value)]
    return _MOST_DEPTH + 1


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _hidden(raw: dict[str, Any], mistakes: list[Mistake]) -> list[Mistake]:
    """Return the impossible combinations that plain mistakes keep from being looked for.

    The settings at fault are taken out, and the rest is looked at again. What rests on one
    of those settings is not reported, since it may vanish with the mistake.
    """
    rest = copy.deepcopy(raw)
    for mistake in mistakes:
        _take_out(rest, mistake.path)
    try:
        Config.model_validate(rest)
    except ValidationError as error:
        only = [one for one in error.errors() if one["type"] == MISTAKES and not one["loc"]]
        found = [mistake for one in only for mistake in describe(one, rest)]
        return [mistake for mistake in found if not _rests_on(mistake, mistakes)]
    return []


def _take_out(raw: dict[str, Any], path: Path) -> None:
    if len(path) > 1 and path[0] == "rules":
        _take_out_of_rule(raw["rules"], path[1:])
        return
    inner: Any = raw
    for part in path[:-1]:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if path and isinstance(inner, dict):
        inner.pop(path[-1], None)


def _take_out_of_rule(rules: list[Any], path: Path) -> None:
    """Keep the number of rules, by which conflicts are placed."""
    index, *keys = path
    assert isinstance(index, int)
    rule = rules[index]
    if not keys or not isinstance(rule, dict):
        rules[index] = dict(_NOTHING)
    elif keys[0] in _NOTHING and (keys[0] == "match" or len(keys) == 1):
        rule[keys[0]] = _NOTHING[str(keys[0])]
    else:
        _take_out(rule, tuple(keys))


def _rests_on(mistake: Mistake, others: Iterable[Mistake]) -> bool:
    return any(
        one[: len(other.path)] == other.path or other.path[: len(one)] == one
        for one in (mistake.path, *mistake.involves)
        for other in others
    )
