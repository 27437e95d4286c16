"""The order of the site's pages; titles are those of the pages themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

Nav = list[str | dict[str, "Nav"]]

ORDER: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "install.md", "quickstart.md", "choosing.md", "versions.md"),
    "Guides": (
        "guides/index.md",
        *(
            f"guides/{name}.md"
            for name in (
                "configuration",
                "frameworks",
                "overlap",
                "strategies",
                "optimizers",
                "parameter-server",
                "fsdp",
                "pipeline",
                "launchers",
                "mpi",
                "gpu",
                "recovery",
                "checkpoints",
                "engine",
                "link",
                "trace",
                "testbed",
            )
        ),
        "guides/*",
    ),
    "Compressors": ("compressors/index.md", "compressors/*"),
    "Concepts": (
        "concepts/index.md",
        *(
            f"concepts/{name}.md"
            for name in ("gradient", "units", "feedback", "rounds", "plans", "faults")
        ),
        "concepts/*",
    ),
    "Benchmarks": (
        "benchmarks/index.md",
        *(f"benchmarks/{name}.md" for name in ("training", "kernels", "exchange", "steps")),
        "benchmarks/*",
        "measurements/*",
    ),
    "Reference": (
        "reference/index.md",
        "reference/compressa.md",
        "reference/*",
        "extending.md",
        "glossary.md",
        "decisions/index.md",
        "decisions/*",
        "from/index.md",
        "from/*",
        "*",
    ),
}
"""By tab, paths of pages and patterns; a page stands where it is first matched."""

_SECTIONS = {"decisions": "Design decisions", "from": "Coming from"}


def of(pages: Iterable[str]) -> Nav:
    """Return what MkDocs takes as `nav`, with every page that there is and no other.

    Args:
        pages: Paths, as compressors/int8.md.

    Example:
        >>> of(["from/horovod.md", "compressors/int8.md"])[1]
        {'Reference': [{'Coming from': ['from/horovod.md']}]}
    """
    left = dict.fromkeys(sorted(pages))
    nav: Nav = []
    for tab, patterns in ORDER.items():
        found = [page for pattern in patterns for page in _taken(pattern, left)]
        if found:
            nav.append({tab: _sectioned(found)})
    return nav


def _taken(pattern: str, left: dict[str, None]) -> list[str]:
    """Take the pages that match out of those that are left."""
    found = [page for page in left if fnmatchcase(page, pattern)]
    for page in found:
        del left[page]
    return found


def _sectioned(pages: Collection[str]) -> Nav:
    """Put pages of a folder that has a title in a section of its own."""
    nav: Nav = []
    sections: dict[str, Nav] = {}
    for page in pages:
        title = _SECTIONS.get(page.partition("/")[0])
        if title is None:
            nav.append(page)
            continue
        if title not in sections:
            sections[title] = []
            nav.append({title: sections[title]})
        sections[title].append(page)
    return nav
