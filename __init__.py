"""Not the package, which is in the folder compressa: a guard for clones that are called so, too.

A script beside such a clone finds the clone's folder before the package that is installed editable,
and without this file takes it for a namespace package, which is empty. With it, the script gets the
package that is installed.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path


def _installed(name: str) -> ModuleSpec:
    """Return where the package is that pip has installed, from a wheel or editable."""
    clone = Path(__file__).parent
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != clone.parent.resolve()]
    for finder in sys.meta_path:
        spec = finder.find_spec(name, elsewhere)
        if spec is not None and spec.loader is not None:
            return spec
    raise ImportError(f"{name} is not installed, only cloned: python -m pip install -e '{clone}'")


if __name__ == "compressa":  # pytest imports this file by the folder's name, whatever that is
    _spec = _installed(__name__)
    sys.modules[__name__] = importlib.util.module_from_spec(_spec)
    assert _spec.loader is not None
    _spec.loader.exec_module(sys.modules[__name__])
