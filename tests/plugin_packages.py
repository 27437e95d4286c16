"""Packages of somebody else, laid out as an installer leaves them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "compressors.md").read_text(encoding="utf-8")


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
        lines = [f"{name} = {place}" for name, place in points.items()]
        points = "\n".join(["[compressa.compressors]", *lines, ""])
    (info / "entry_points.txt").write_text(points, encoding="utf-8")


def page_blocks(language: str) -> list[str]:
    """Return the code blocks of docs/compressors.md in some language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    assert found
    return found


def page_block(language: str, text: str) -> str:
    """Return the one block that has some text."""
    (found,) = (block for block in page_blocks(language) if text in block)
    return found


def install_page_example(site: Path) -> None:
    """Install the compressor that docs/compressors.md shows, as its pyproject.toml says."""
    project = tomllib.loads(page_block("toml", "[project]"))["project"]
    points = project["entry-points"]["compressa.compressors"]
    code = page_block("python", "class Fixed16")
    install(site, project["name"], points, code, project["version"])
