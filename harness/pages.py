"""Pages of which blocks are written from what was measured; all else is written by hand."""

from __future__ import annotations


def with_block(page: str, name: str, block: str) -> str:
    r"""Return the page's text with a block between the two comments of its name.

    Raises:
        ValueError: It does not have each comment once, in order.

    Example:
        >>> with_block("<!-- figures:begin --> older <!-- figures:end -->.", "figures", "newer")
        '<!-- figures:begin -->\n\nnewer\n<!-- figures:end -->.'
    """
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in rest or last in after:
        raise ValueError(f"the page must hold {first} and {last} once each, in this order")
    return f"{before}{first}\n\n{block}\n{last}{after}"
