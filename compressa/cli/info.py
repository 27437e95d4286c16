"""`compressa info`: what this machine and installation can do, for bug reports and choices."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

info_app = typer.Typer()

_PACKAGES = ("compressa", "torch", "numpy", "numba", "pydantic", "cupy", "mpi4py")
_FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "asimd")
_NAMESPACE_TOOLS = ("ip", "tc", "unshare")


@info_app.command(epilog="Example: compressa info --json")
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print versions, devices, backends and privileges."""
    facts = collect()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def collect() -> dict[str, dict[str, Any]]:
    """Return all facts, by group, as plain JSON values."""
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "cpu": _cpu(),
        "gpu": _gpu(),
        "backends": _backends(),
        "testbed": _testbed(),
        "caches": {"compiled kernels": _kernel_cache()},
    }


def _versions() -> dict[str, str | None]:
    """Return installed versions; None for what is not installed."""
    return {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str | None:
    # CuPy's distributions are named by CUDA version; they all hold the module cupy.
    names = ["cupy-cuda12x", "cupy-cuda13x", "cupy"] if package == "cupy" else [package]
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _cpu() -> dict[str, Any]:
    import torch

    flags = _cpu_flags()
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "torch threads": torch.get_num_threads(),
        "features": [feature for feature in _FEATURES if feature in flags],
        "torch capability": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu_flags() -> set[str]:
    """Return the flags that Linux lists; none on other systems."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    listed = (line for line in lines if line.startswith(("flags", "Features")))
    return set(next(listed, "").partition(":")[2].split())


def _gpu() -> dict[str, Any]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cuda of torch": torch.version.cuda, "devices": names}


def _backends() -> dict[str, bool]:
    from compressa.transports.table import TRANSPORTS

    return {
        **{name: not row.missing() for name, row in TRANSPORTS.items()},
        "kernels: numba": importlib.util.find_spec("numba") is not None,
        "kernels: cupy": importlib.util.find_spec("cupy") is not None,
    }


def _testbed() -> dict[str, Any]:
    """Return what the shaped network of one machine needs."""
    missing = [tool for tool in _NAMESPACE_TOOLS if shutil.which(tool) is None]
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return {"root": root, "network namespaces": root and not missing, "missing tools": missing}


def _kernel_cache() -> str:
    """Return where numba keeps compiled kernels; it puts them beside the source by default."""
    import compressa.kernels

    beside = Path(compressa.kernels.__file__ or ".").resolve().parent / "cpu" / "__pycache__"
    return os.environ.get("NUMBA_CACHE_DIR") or str(beside)


def _print(facts: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for group, pairs in facts.items():
        table.add_row(f"[bold]{group}[/bold]")
        for name, value in pairs.items():
            table.add_row(f"  {name}", _words(value))
    Console().print(table)


def _words(value: Any) -> str:
    if value is None:
        return "not installed or not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value)
