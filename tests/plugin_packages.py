"""Packages of somebody else, laid out as an installer leaves them."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from _documents import DOCS, block_with

from compressa import plugins
from compressa.config.choices import CHOICES

PAGE = DOCS / "extending.md"


def install(
    site: Path,
    distribution: str,
    points: Mapping[str, str] | str,
    code: str = "",
    version: str = "1.0",
) -> None:
    """Write a distribution with one module of the same name, and its entry points."""
    (site / f"{distribution}.py").write_text(code, encoding="utf-8")
    info = site / f"{distribution}-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    if not isinstance(points, str):
        lines = [f"{name} = {target}" for name, target in points.items()]
        points = "\n".join(["[compressa.compressors]", *lines, ""])
    (info / "entry_points.txt").write_text(points, encoding="utf-8")


@contextmanager
def on_the_path(site: Path) -> Iterator[None]:
    """Have Python find the packages of a folder for a while, and the library look for them anew.

    A configuration knows those only that were there when the first one was read.
    """
    before = set(sys.modules)
    with mock.patch.object(sys, "path", [str(site), *sys.path]):
        importlib.invalidate_caches()
        _forget()
        yield
        for name in plugins.plugins():
            CHOICES._models.pop(name, None)
    _forget()
    for name in {file.stem for file in site.glob("*.py")} - before:
        sys.modules.pop(name, None)


def _forget() -> None:
    for known in (plugins.plugins, plugins.load, plugins._claims):
        known.cache_clear()


def page_block(language: str, text: str) -> str:
    """Return the one block of docs/extending.md in some language that has some text."""
    return block_with(PAGE, language, text).code


def install_page_example(site: Path) -> None:
    """Install the compressor that docs/extending.md shows, as its pyproject.toml says."""
    project = tomllib.loads(page_block("toml", "[project]"))["project"]
    points = project["entry-points"]["compressa.compressors"]
    code = page_block("python", "class Fixed16")
    install(site, project["name"], points, code, project["version"])
