"""SVG as text, to stand within a page: its colours are classes, which docs/assets/site.css defines.

So pictures follow the page from light to dark, and need neither scripts nor files of their own.
"""

from __future__ import annotations

from html import escape


def element(tag: str, content: str = "", **attributes: object) -> str:
    """Return an element; `class_` stands for class, and other underscores for hyphens.

    Example:
        >>> element("rect", x=1, stroke_width=2.5, class_="s0")
        '<rect x="1" stroke-width="2.5" class="s0"/>'
    """
    written = "".join(
        f' {"class" if name == "class_" else name.replace("_", "-")}="{_number(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else escape(str(value))


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Return words at a point."""
    return element("text", escape(words), x=float(x), y=float(y), **attributes)


def title(words: str) -> str:
    """Return what a browser shows where the pointer rests on the element around it."""
    return element("title", escape(words))


def figure(parts: list[str], width: float, height: float, alt: str, caption: str = "") -> str:
    """Return a figure of a page: one block of HTML, without an empty line.

    Args:
        parts: Elements.
        width: Of the picture, in its own units.
        height: As `width`.
        alt: What it shows, for those who do not see it.
        caption: Stands below it; may hold HTML.
    """
    picture = element(
        "svg",
        title(alt) + "".join(parts),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )
    below = element("figcaption", caption) if caption else ""
    return element("figure", picture + below, class_="drawn")
