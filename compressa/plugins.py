"""Compressors of other packages, found by the entry-point group `compressa.compressors`.

A package that says in its pyproject.toml

    [project.entry-points."compressa.compressors"]
    fixed16 = "fixed16:Fixed16"

adds a compressor to every configuration on machines where it is installed. The entry point has
the compressor's name, and names a subclass of `Codec` or `AggregatingCompressor`, or a
`compressa.compressors.Entry` with a summary and a paper.

Names are read from what the installer wrote down; nothing is imported. A package is imported
when its compressor is first asked for, so that one that is broken is an error where its name is
used, a row in `compressa compressors`, and nothing to anybody else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata

from compressa.aggregators.base import AggregatingCompressor
from compressa.codecs.base import Codec
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS, Entry
from compressa.errors import ConfigError

GROUP = "compressa.compressors"
WIRE_IDS = range(128, 256)
"""Numbers in payload headers that are left to other packages."""


class PluginWarning(UserWarning):
    """An installed package wants to provide a compressor, and is not heard."""


@dataclass(frozen=True)
class Plugin:
    """A name that an installed distribution claims.

    Attributes:
        name: Of the compressor.
        distribution: Who claims it.
        version: The distribution's.
        point: The entry point.
        problem: Why it can not be used, as far as that is known before anything is imported.
    """

    name: str
    distribution: str
    version: str
    point: metadata.EntryPoint
    problem: str = ""

    @property
    def source(self) -> str:
        """Distribution and version, for people: "NAME VERSION"."""
        return f"{self.distribution} {self.version}"

    @property
    def title(self) -> str:
        """What messages begin with: the compressor, and who provides it."""
        return f'compressor "{self.name}" of {self.source}'


@functools.cache
def plugins() -> dict[str, Plugin]:
    """Return the names that are not the library's own, in alphabetical order.

    A name that two distributions claim belongs to neither; it is here with its problem.
    """
    found: dict[str, Plugin] = {}
    for plugin in _claims():
        first = found.get(plugin.name)
        problem = first and (
            f'compressor "{plugin.name}" is claimed by {first.source} and by {plugin.source}; '
            "uninstall one of them"
        )
        found[plugin.name] = replace(plugin, problem=problem or plugin.problem)
    return {name: found[name] for name in sorted(found) if name not in COMPRESSORS}


def shadowed() -> dict[str, Plugin]:
    """Return the claims on names that are the library's own; none of them is heard."""
    return {
        plugin.name: replace(
            plugin,
            problem=f"{plugin.title} is not used: the name is that of one of compressa's own; "
            f"give it another name, or uninstall {plugin.distribution}",
        )
        for plugin in _claims()
        if plugin.name in COMPRESSORS
    }


@functools.cache
def load(name: str) -> Entry:
    """Import a plug-in and check it.

    Args:
        name: One of `plugins()`.

    Raises:
        ConfigError: It can not be used; the message names the distribution and the fix.
    """
    plugin = plugins()[name]
    if plugin.problem:
        raise ConfigError(plugin.problem)
    entry = _entry(plugin, _import(plugin))
    problem = next(_faults(plugin, entry.compressor), "")
    if problem:
        raise ConfigError(f"{plugin.title} {problem}")
    return entry


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions that provide some compressors.

    Args:
        names: Compressors; the library's own count for nothing.
    """
    used = (plugins()[name] for name in names if name in plugins())
    return {plugin.distribution: plugin.version for plugin in used}


@functools.cache
def _claims() -> tuple[Plugin, ...]:
    """Return all claims; of a distribution that is installed twice, those of the first."""
    found: dict[str, list[Plugin]] = {}
    for distribution in metadata.distributions():
        # Parsing takes most of the time, and nearly no distribution is meant.
        if GROUP in _entry_points_text(distribution):
            found.setdefault(distribution.name, _claims_of(distribution))
    return tuple(plugin for claims in found.values() for plugin in claims)


def _claims_of(distribution: metadata.Distribution) -> list[Plugin]:
    name, version = distribution.name, distribution.version
    try:
        points = distribution.entry_points.select(group=GROUP)
    except Exception as error:  # a file that is not in the format
        problem = f"the entry_points.txt of {name} {version} can not be read ({error}); reinstall"
        return [Plugin(name, name, version, metadata.EntryPoint(name, "", GROUP), problem)]
    return [Plugin(point.name, name, version, point) for point in points]


def _entry_points_text(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        return ""  # a damaged installation of something else


def _import(plugin: Plugin) -> object:
    try:
        return plugin.point.load()
    except (Exception, SystemExit) as error:  # whatever another package does when imported
        raise ConfigError(
            f"{plugin.title} can not be imported from {plugin.point.value}: "
            f"{type(error).__name__}: {error}; repair, update or uninstall {plugin.distribution}"
        ) from error


def _entry(plugin: Plugin, named: object) -> Entry:
    """Return a row for what the entry point names: a row, or a class with a docstring."""
    of: object = named.compressor if isinstance(named, Entry) else named
    if not (isinstance(of, type) and issubclass(of, Codec | AggregatingCompressor)):
        what = of.__name__ if isinstance(of, type) else type(of).__name__
        raise ConfigError(
            f"{plugin.title} is no compressor: {plugin.point.value} is {what}; the entry point "
            "must name a subclass of Codec or AggregatingCompressor, or an Entry with one"
        )
    if isinstance(named, Entry):
        return named
    summary, _, _ = (of.__doc__ or "").strip().partition("\n")
    return Entry(of, summary)


def _faults(plugin: Plugin, compressor: type[Compressor]) -> Iterator[str]:
    """Yield what keeps a class from being used; later questions rest on earlier ones."""
    if inspect.isabstract(compressor):
        missing = ", ".join(sorted(compressor.__abstractmethods__))
        yield f"is not complete: {compressor.__name__} must define {missing}"
    name = getattr(compressor, "name", None)
    if name != plugin.name:
        yield (
            f"calls itself {name!r}: the entry point and {compressor.__name__}.name must be the "
            "same"
        )
    wire_id = getattr(compressor, "wire_id", WIRE_IDS.start)
    if wire_id not in WIRE_IDS:
        yield (
            f"has the wire id {wire_id}: smaller ones are compressa's own; choose one from "
            f"{WIRE_IDS.start} to {WIRE_IDS.stop - 1}"
        )
    try:
        compressor()
    except Exception as error:
        yield (
            f"has no defaults: {type(error).__name__}: {error}; give every hyper-parameter a "
            "default that fits the others"
        )
