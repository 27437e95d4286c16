"""The page of each compressor: what `compressa compressors NAME` prints, and pictures of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import compressa.wrappers
from compressa.codecs import Codec
from compressa.compressors import COMPRESSORS, Entry
from compressa.facts import BUSIEST_OF, RANKS, Facts, facts, rounds_of
from compressa.page import described, docs, example_toml, hyper_parameters, listed
from harness.tables import Table, markdown
from website import errors, times, wire
from website.charts import Curve, colour, plot
from website.tables import by_family

_RANK_COUNTS = " / ".join(map(str, BUSIEST_OF))
_SOURCE = (
    f"One matrix of {errors.SHAPE[0]} x {errors.SHAPE[1]} on {errors.RANKS} ranks: directions that "
    "all share, and log-normal noise of each rank's own. Worked out by the compressor itself when "
    "this page was made."
)


def page(entry: Entry) -> str:
    """Return a compressor's page in Markdown."""
    own = facts(entry)
    parts = [
        f"# {own.name}",
        own.summary,
        _at_a_glance(own),
        *docs(entry.compressor),
        "## On the wire",
        _wire(entry),
        "## What it loses",
        _error_by_bytes(own.name),
        _error_by_steps(own.name),
        "## What it takes",
        _times(own.name),
        "## In a configuration",
        listed("", hyper_parameters(entry)),
        f"```toml\n{example_toml(entry)}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def wrappers() -> str:
    """Return a section per wrapper."""
    names = compressa.wrappers.__all__
    classes = ((name, getattr(compressa.wrappers, name)) for name in names)
    return "\n".join(f"## {name}\n\n{described(of)}\n" for name, of in classes)


def all_errors() -> str:
    """Return the plot of all compressors: what they lose by what they send."""
    curves = []
    for number, (family, entries) in enumerate(by_family()):
        found = {name: errors.at_defaults(name) for name in (e.compressor.name for e in entries)}
        lossy = {name: at for name, at in found.items() if at.error > 0}
        curves.append(_losses(str(family), list(lossy.values()), colour(number), list(lossy)))
    alt = "Relative error of one step by bytes per element, of all compressors at their defaults"
    return plot(curves, "bytes per element", "relative error of a step", alt, f"{alt}. {_SOURCE}")


def _at_a_glance(own: Facts) -> str:
    timed = times.rows_of(own.name)
    most = " at most" if own.exact_size is False else ""
    rows = [
        (
            "bytes per element",
            f"{4 / own.ratio:.3g}{most}; {own.ratio:.1f} times fewer than float32",
        ),
        (f"a dense ring over the busiest of {_RANK_COUNTS} ranks", own.busiest_text),
        (f"exchange on {RANKS} ranks", own.exchange),
        ("summable", own.summable_text),
        ("bound", ", ".join(filter(None, (own.bias_text, own.range_text)))),
        ("feedback", own.feedback),
        ("state", f"{own.state_bytes:.3g} bytes per element and rank"),
        (
            "time",
            f"{times.element_ns(timed[0]):.2f} ns per element ({timed[0].name})" if timed else "",
        ),
        ("paper", own.paper),
        ("wire id", "" if own.wire_id is None else str(own.wire_id)),
    ]
    return markdown(Table("", ("", own.family), [row for row in rows if row[1]], frozenset()))


def _wire(entry: Entry) -> str:
    compressor = entry.compressor()
    if isinstance(compressor, Codec):
        return wire.payload(compressor)
    return wire.rounds(rounds_of(entry))


def _error_by_bytes(name: str) -> str:
    """Draw its error by its bytes, at several settings, before all others' defaults."""
    own, several = errors.at_defaults(name), errors.swept(name)
    if own.error == 0:
        return "Nothing: what arrives is the mean, to the rounding of float32."
    found = {other: errors.at_defaults(other) for other in COMPRESSORS if other != name}
    lossy = {other: at for other, at in found.items() if at.error > 0}
    drawn = sorted(several or (own,), key=lambda at: (at.element_bytes, at.error))
    curves = [
        _losses("other compressors", list(lossy.values()), "context", list(lossy)),
        _losses(name, drawn, "s0", [at.setting or name for at in drawn], joined=True),
    ]
    among = f", at {several[0].setting} to {several[-1].setting.split()[-1]}" if several else ""
    alt = f"Relative error of one step of {name} by bytes per element{among}"
    return plot(curves, "bytes per element", "relative error of a step", alt, f"{alt}. {_SOURCE}")


def _losses(
    name: str, found: Sequence[errors.Loss], style: str, labels: Sequence[str], joined: bool = False
) -> Curve:
    """Return points of bytes and errors."""
    points = [(at.element_bytes, at.error) for at in found]
    return Curve(name, points, style, joined, labels)


def _error_by_steps(name: str) -> str:
    """Draw the error of the mean over steps of the same gradients."""
    if errors.at_defaults(name).error == 0:
        return ""
    found = [(step + 1.0, error) for step, error in enumerate(errors.over_steps(name))]
    falling = [(step, found[0][1] / step**0.5) for step, _ in found]
    curves = [
        Curve("falling as 1 / sqrt(steps)", [falling[0], falling[-1]], "context dashed"),
        Curve(name, found, "s0"),
    ]
    alt = f"Relative error of the mean of several steps of {name}"
    caption = (
        f"{alt}, all with the same gradients: what feedback keeps arrives later, and what is drawn "
        "at random averages out; what stays is lost."
    )
    return plot(curves, "steps", "relative error of the mean", alt, caption)


def _times(name: str) -> str:
    drawn = times.drawn(name)
    return drawn or "No committed row times its kernels by themselves."


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page."""
    for name, entry in COMPRESSORS.items():
        yield f"compressors/{name}.md", page(entry)
