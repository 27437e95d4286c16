"""Plots: curves and points between two logarithmic axes, and horizontal bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from website.svg import element, figure, text, title

WIDTH = 480.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 22.0, 12.0, 54.0
_PLOT_HEIGHT = 250.0
_LINE = 16.0
_BAR = 15.0
_CHARACTER = 7.0
COLOURS = 8
"""Classes s0 to s7 of docs/assets/site.css."""


@dataclass(frozen=True)
class Curve:
    """Points that belong together.

    Attributes:
        name: For the legend; empty for none.
        points: x and y, above zero.
        style: Classes: s0 to s7 for a colour, "context" for grey, "dashed".
        joined: Whether there is a line between them.
        labels: Of the points, or none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    joined: bool = True
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """One bar, of one part or several.

    Attributes:
        name: What it is of.
        parts: Lengths and classes, from left to right.
        shown: The value, as it is written.
    """

    name: str
    parts: Sequence[tuple[float, str]]
    shown: str

    @property
    def value(self) -> float:
        """Its length."""
        return sum(length for length, _ in self.parts)


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from one pixel to another, or a linear one."""

    low: float
    high: float
    begin: float
    end: float
    linear: bool = False

    def __call__(self, value: float) -> float:
        if self.linear:
            share = (value - self.low) / (self.high - self.low)
        else:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten, and 2 and 5 times these where there are few of them; or equal steps."""
        if self.linear:
            return self._steps()
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        few = self.high / self.low < 100
        every = 1 if self.high / self.low < 1e7 else 2
        steps = (1, 2, 5) if few else (1,)
        all_ = [s * 10.0**e for e in exponents if e % every == 0 for s in steps]
        return [tick for tick in all_ if self.low <= tick * 1.0001 and tick <= self.high * 1.0001]

    def _steps(self) -> list[float]:
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [step * i for i in range(first, last + 1)]


def _axis(values: Iterable[float], begin: float, end: float, linear: bool = False) -> _Axis:
    known = list(values)
    low, high = min(known), max(known)
    if linear:
        room = 0.05 * (high - low)
        return _Axis(low - room, high + room, begin, end, linear)
    margin = max((high / low) ** 0.06, 1.15)
    return _Axis(low / margin, high * margin, begin, end)


def plot(
    curves: Sequence[Curve], x: str, y: str, alt: str, caption: str = "", linear: bool = False
) -> str:
    """Draw curves between logarithmic axes.

    Args:
        curves: They; those that come later lie above.
        x: What the horizontal axis says.
        y: What the vertical one says.
        alt: As `figure` has it.
        caption: As `figure` has it.
        linear: Whether the vertical axis is a linear one.
    """
    named = [curve for curve in curves if curve.name]
    bottom = _TOP + _PLOT_HEIGHT
    points = [point for curve in curves for point in curve.points]
    across = _axis((p[0] for p in points), _LEFT, WIDTH - _RIGHT)
    up = _axis((p[1] for p in points), bottom, _TOP, linear)
    parts = [*_frame(across, up, bottom), *_axis_titles(x, y, bottom)]
    for curve in curves:
        parts += _curve(curve, across, up)
    parts += _legend(named, bottom + _BOTTOM)
    rows = math.ceil(len(named) / 2)
    return figure(parts, WIDTH, bottom + _BOTTOM + rows * _LINE, alt, caption)


def _frame(across: _Axis, up: _Axis, bottom: float) -> Iterable[str]:
    for tick in across.ticks:
        at = across(tick)
        yield element("line", x1=at, x2=at, y1=_TOP, y2=bottom, class_="grid")
        yield text(at, bottom + 14, short(tick), text_anchor="middle")
    for tick in up.ticks:
        at = up(tick)
        yield element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at, class_="grid")
        yield text(_LEFT - 5, at + 4, short(tick), text_anchor="end")


def _axis_titles(x: str, y: str, bottom: float) -> list[str]:
    middle = (_TOP + bottom) / 2
    turned = f"rotate(-90 11 {middle:g})"
    return [
        text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 31, x, text_anchor="middle"),
        text(11, middle, y, text_anchor="middle", transform=turned),
    ]


def _curve(curve: Curve, across: _Axis, up: _Axis) -> Iterable[str]:
    points = [(across(x), up(y)) for x, y in curve.points]
    if curve.joined and len(points) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield element("polyline", points=path, class_=f"curve {curve.style}")
    for i, (at_x, at_y) in enumerate(points):
        label = curve.labels[i] if curve.labels else curve.name
        point = element("circle", title(label), cx=at_x, cy=at_y, r=3, class_=curve.style)
        yield point if label else point.replace("<title></title>", "")


def _legend(named: Sequence[Curve], top: float) -> Iterable[str]:
    for i, curve in enumerate(named):
        x, y = _LEFT + (i % 2) * (WIDTH - _LEFT) / 2, top + (i // 2) * _LINE
        yield element("line", x1=x, x2=x + 16, y1=y - 4, y2=y - 4, class_=f"curve {curve.style}")
        yield text(x + 22, y, curve.name)


def bars(
    rows: Sequence[Bar],
    alt: str,
    caption: str = "",
    bound: float | None = None,
    legend: Sequence[tuple[str, str]] = (),
) -> str:
    """Draw horizontal bars from zero.

    Args:
        rows: From top to bottom.
        alt: As `figure` has it.
        caption: As `figure` has it.
        bound: Where a line across all of them stands.
        legend: Names and classes of parts.
    """
    left = min(230.0, 10 + _CHARACTER * max(len(row.name) for row in rows))
    room = WIDTH - left - 14 - _CHARACTER * max(len(row.shown) for row in rows)
    scale = room / max([row.value for row in rows] + ([bound] if bound else []))
    height = 8 + len(rows) * (_BAR + 5)
    drawn: list[str] = []
    if bound:
        at = left + scale * bound
        drawn.append(element("line", x1=at, x2=at, y1=0, y2=height, class_="bound"))
    for i, row in enumerate(rows):
        drawn += _bar(row, left, 6 + i * (_BAR + 5), scale)
    drawn += _keys(legend, height + 14)
    return figure(drawn, WIDTH, height + (20 if legend else 0), alt, caption)


def _bar(row: Bar, left: float, y: float, scale: float) -> Iterable[str]:
    yield text(left - 6, y + 12, row.name, text_anchor="end")
    for length, style in row.parts:
        width = max(0.5, scale * length)
        yield element("rect", x=left, y=y, width=width, height=_BAR, class_=style)
        left += width
    yield text(left + 5, y + 12, row.shown)


def _keys(legend: Sequence[tuple[str, str]], y: float) -> Iterable[str]:
    x = 10.0
    for name, style in legend:
        yield element("rect", x=x, y=y - 9, width=10.0, height=10.0, class_=style)
        yield text(x + 14, y, name)
        x += 34 + _CHARACTER * len(name)


def short(value: float) -> str:
    """Write a number of an axis in few characters.

    Example:
        >>> [short(v) for v in (0.001, 0.05, 20.0, 1e6)]
        ['0.001', '0.05', '20', '1e6']
    """
    if value * 1.0001 >= 1e-3 and value < 1e5:
        return f"{value:.10g}" if value >= 1 else f"{value:.6f}".rstrip("0")
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def colour(number: int) -> str:
    """Return the class of the n-th colour."""
    return f"s{number % COLOURS}"


def style(number: int) -> str:
    """Return the classes of the n-th curve: colours, then the same ones dashed.

    Example:
        >>> style(1), style(9)
        ('s1', 's1 dashed')
    """
    return colour(number) + (" dashed" if number // COLOURS % 2 else "")
