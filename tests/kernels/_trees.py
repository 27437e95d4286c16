"""Copies of the library as it is before anything was compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def uncompiled_tree(folder: Path) -> Path:
    """Copy the library, without compiled kernels, into a folder; return it, for `PYTHONPATH`."""
    tree, ignored = folder / "compressa", shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "compressa", tree, ignore=ignored)
    for part in ("kernels", "schedulers"):
        shutil.copytree(ROOT / part, tree / part, ignore=ignored)
    return folder
