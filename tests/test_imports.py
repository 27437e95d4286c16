"""Importing compressa asks nothing of a GPU, or else children that are forked could not use it."""

from __future__ import annotations

import json
import subprocess
import sys

from test_architecture import WITH_FRAMEWORKS

SCRIPT = """
import importlib, json, pkgutil, sys, types

calls = []

class Recording(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        calls.append(f"{self.__name__}.{name}")
        raise AttributeError(name)

def recorded(owner, name):
    does = getattr(owner, name)

    def call(*arguments, **options):
        frame = sys._getframe(1)
        while frame is not None and not frame.f_globals["__name__"].startswith("compressa"):
            if frame.f_globals["__name__"].split(".")[0] not in ("torch", "contextlib"):
                return does(*arguments, **options)  # what others do when they are imported
            frame = frame.f_back
        calls.append(f"{owner.__name__}.{name}")
        return does(*arguments, **options)

    setattr(owner, name, call)

sys.modules["cupy"] = Recording("cupy")
import ctypes
import torch

for name in ("_lazy_init", "is_available", "device_count", "current_device", "set_device"):
    recorded(torch.cuda, name)
recorded(ctypes, "CDLL")

import compressa

for module in pkgutil.walk_packages(compressa.__path__, "compressa."):
    if not module.name.endswith("__main__") and module.name not in sys.argv:
        importlib.import_module(module.name)
assert not torch.cuda.is_initialized()
modules = [name for name in sys.modules if name.startswith("compressa")]
found = list(calls)
careless = "import cupy; torch.cuda.is_available(); hasattr(cupy, 'cuda'); ctypes.CDLL(None)"
exec(careless, {"__name__": "compressa.careless", "torch": torch, "ctypes": ctypes})
print(json.dumps([len(modules), found, calls]))
"""


def test_importing_every_module_calls_nothing_of_cuda() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *WITH_FRAMEWORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    modules, found, careless = json.loads(done.stdout.splitlines()[-1])
    assert modules > 200
    assert found == []
    assert careless == ["torch.cuda.is_available", "cupy.cuda", "ctypes.CDLL"]
