"""Bars of step times as a small SVG for pages: its text takes the colour of the page's scheme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

PARTS = {"compute": "#4c78a8", "codec": "#f2a541", "exposed communication": "#c44e52"}
"""What a step's time is spent on, and the colour of it."""

STYLE = (
    "svg{color:#1f2328;font:13px sans-serif}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3}}text{fill:currentColor}"
)
_LEFT, _TOP, _ROW, _BAR, _LONGEST, _WIDTH = 110, 62, 26, 18, 420, 760


class Bar(NamedTuple):
    """One step.

    Attributes:
        name: What stands before it.
        parts_ms: What it is made of, in the order of `PARTS`.
        note: What stands behind it.
    """

    name: str
    parts_ms: Sequence[float]
    note: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Return the SVG of some steps, one below the other.

    Args:
        title: What it shows, also for readers who do not see it.
        rows: From top to bottom; at least one takes time.
    """
    scale = _LONGEST / max(sum(row.parts_ms) for row in rows)
    height = _TOP + _ROW * len(rows) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'width="{_WIDTH}" height="{height}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(title)}</text>',
        *_legend(),
    ]
    for i, row in enumerate(rows):
        lines += _bar(row, _TOP + _ROW * i, scale)
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> list[str]:
    lines, x = [], _LEFT
    for name, colour in PARTS.items():
        lines.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="47">{name}</text>')
        x += 40 + 7 * len(name)
    return lines


def _bar(row: Bar, y: int, scale: float) -> list[str]:
    base, x = y + 14, float(_LEFT)
    lines = [f'<text x="{_LEFT - 8}" y="{base}" text-anchor="end">{escape(row.name)}</text>']
    for part_ms, colour in zip(row.parts_ms, PARTS.values(), strict=True):
        width = part_ms * scale
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        x += width
    return [*lines, f'<text x="{x + 8:.1f}" y="{base}">{escape(row.note)}</text>']
