"""Starts modules of this package as small programs of their own.

`python -m compressa.testbed._keeper` would run `compressa/__init__.py` first, and whatever that
imports. These programs run on every host for every rank, so they see empty stand-ins for both
packages instead, and start in some 20 ms.
"""

from __future__ import annotations

import sys
from pathlib import Path

_BOOTSTRAP = """
import runpy, sys, types
folder, module = sys.argv[1:3]
for name, path in (("compressa", folder), ("compressa.testbed", folder + "/testbed")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
del sys.argv[1:3]
runpy.run_module("compressa.testbed." + module, run_name="__main__", alter_sys=True)
"""


def script_argv(module: str, *arguments: str) -> list[str]:
    """Give the command line that runs `compressa.testbed.<module>` with the arguments.

    The module may import only the standard library, `compressa.errors` and its neighbours here.
    """
    folder = str(Path(__file__).resolve().parent.parent)
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, folder, module, *arguments]
