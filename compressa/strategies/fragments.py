"""Fragments: the parts of a model that meet one after the other, and when they do."""

from __future__ import annotations

from collections.abc import Mapping


def cut(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Cut parameters, in their order, into fragments of about as many elements each.

    Args:
        sizes: Elements by name.
        count: How many fragments there are at most; none is empty.

    Returns:
        The number of its fragment for each name.

    Example:
        >>> cut({"a": 3, "b": 1, "c": 4}, 2)
        {'a': 0, 'b': 0, 'c': 1}
    """
    total, before = sum(sizes.values()), 0
    wanted = {}
    for name, size in sizes.items():
        wanted[name] = int((before + size / 2) * count / max(total, 1))
        before += size
    numbers = {number: i for i, number in enumerate(sorted(set(wanted.values())))}
    return {name: numbers[number] for name, number in wanted.items()}


def begins_after(fragment: int, fragments: int, every: int) -> int:
    """Return after which of the `every` steps of a round a fragment meets; the last after all.

    Args:
        fragment: Its number, from 0.
        fragments: How many there are.
        every: Steps of a round; they count from 1.

    Example:
        >>> [begins_after(p, 3, 100) for p in range(3)]
        [34, 67, 100]
    """
    return -(-(fragment + 1) * every // fragments)
