"""What MkDocs calls while it builds the site: generated pages, tables within pages, navigation."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: an installed package goes first

from website import compressors, measured, navigation, reference, tables, trainings

MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.M)
TERM = re.compile(r"^\| ([a-z][\w -]*?)(?= \*? ?\|)", re.M)

BLOCKS: dict[str, Callable[[], str]] = {
    "overview": tables.overview_block,
    "errors": compressors.all_errors,
    "wrappers": compressors.wrappers,
    **measured.BLOCKS,
    **trainings.BLOCKS,
}
"""By name, what comes in the place of `<!-- generated: NAME -->`."""

_sources: list[tempfile.TemporaryDirectory[str]] = []


@event_priority(100)  # before mkdocstrings looks where sources are
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lay the sources out where mkdocstrings finds them."""
    torch.set_num_threads(1)
    _sources.append(reference.linked())
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_sources[-1].name]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and put all pages in order."""
    for path, text in [*compressors.pages(), *reference.pages()]:
        files.append(File.generated(config, path, content=text))
    for path, source in trainings.downloads():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    config.nav = navigation.of(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put what is generated in its place; `site:` in its links is the site's root.

    Raises:
        KeyError: There is no such block.
    """
    if page.file.src_uri == "glossary.md":  # glossary.md#error-feedback
        markdown = TERM.sub(lambda term: f'| <span id="{slug(term[1])}"></span>{term[1]}', markdown)
    root = "../" * page.file.src_uri.count("/")
    return MARK.sub(lambda match: BLOCKS[match[1]]().replace("](site:", f"]({root}"), markdown)


def slug(term: str) -> str:
    """Return what a link to a word of the glossary ends with.

    Example:
        >>> slug("error feedback")
        'error-feedback'
    """
    return term.replace(" ", "-")


def on_post_build(config: MkDocsConfig) -> None:
    """Take the sources away."""
    while _sources:
        _sources.pop().cleanup()
