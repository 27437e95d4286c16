"""What is installed: compressa, torch and its build, what they need, GPUs, kernels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from compressa.cli._finding import Finding, fault, noted

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_NEEDED = [
    "numpy",
    "numba",
    "annotated-types",
    "pydantic",
    "safetensors",
    "tomli-w",
    "typer",
    "rich",
]
_DRIVER = Path("/proc/driver/nvidia/version")


def packages() -> Iterator[Finding]:
    """Yield what is found of packages."""
    yield _compressa()
    yield _torch()
    yield _needed()
    yield _optional()


def backends() -> Iterator[Finding]:
    """Yield what can be done with torch, which must be there, and with kernels."""
    yield _gpu()
    yield _transports()
    yield _kernels()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compressa() -> Finding:
    import compressa

    folder = Path(compressa.__file__ or ".").parent
    version, python = _version("compressa"), platform.python_version()
    if version is None:
        advice = f"python -m pip install -e {folder.parent}"
        return fault("compressa", f"{folder} is imported, but was not installed", advice)
    return Finding("compressa", f"{version} in {folder}, Python {python}")


def _torch() -> Finding:
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        advice = f"pip install torch, or for the CPU: pip install torch --index-url {_CPU_INDEX}"
        return fault("torch", f"cannot be imported: {error}", advice)
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
    if not dist.is_available() or not dist.is_gloo_available():
        advice = "install torch's own build, from PyPI or download.pytorch.org"
        return fault("torch", f"{torch.__version__}, {build}, without Gloo", advice)
    return Finding("torch", f"{torch.__version__}, {build}, with Gloo")


def _needed() -> Finding:
    versions = {package: _version(package) for package in _NEEDED}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        return fault("packages", f"{', '.join(missing)} not installed", "pip install compressa")
    return Finding("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _optional() -> Finding:
    from compressa.transports.table import TRANSPORTS

    found, advice = [], []
    optional = {"zstandard": ("entropy", "exchange.entropy_level")}
    for name, row in TRANSPORTS.items():
        if row.package:
            optional[row.package] = (name, f'exchange.transport = "{name}"')
    for package, (extra, what_for) in optional.items():
        version = _version(package)
        if version is None:
            advice.append(f"for {what_for}: pip install 'compressa[{extra}]'")
        found.append(f"{package} {version or 'not installed'}")
    if _version("mpi4py") and shutil.which("mpiexec") is None:
        advice.append("mpi4py finds no mpiexec on the PATH: pip install mpich, or load your MPI")
    # None of them is needed, so that nothing is amiss.
    return Finding("optional packages", ", ".join(found), "; ".join(advice))


def _gpu() -> Finding:
    import torch

    count = torch.cuda.device_count()
    driver = _driver()
    if count:
        return _gpus([torch.cuda.get_device_name(i) for i in range(count)], driver)
    if driver is None and torch.version.cuda:
        return _cuda_for_nothing()
    if driver is not None and not torch.version.cuda:
        advice = "install torch's build for CUDA: https://pytorch.org/get-started/locally/"
        return noted("GPU", f"driver {driver}, but torch is built for the CPU", advice)
    if driver is not None:
        advice = "look at CUDA_VISIBLE_DEVICES, and whether the driver is new enough for torch"
        return noted("GPU", f"driver {driver}, but torch sees no GPU", advice)
    return Finding("GPU", "none")


def _driver() -> str | None:
    """Return the version of NVIDIA's driver; None where there is none."""
    text = _DRIVER.read_text(encoding="utf-8") if _DRIVER.exists() else ""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None


def _gpus(names: list[str], driver: str | None) -> Finding:
    import torch
    import torch.distributed as dist

    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none"
    found = f"{', '.join(names)}; driver {driver or 'not known'}, NCCL {nccl}"
    if importlib.util.find_spec("cupy") is None:
        extra = f"cuda{(torch.version.cuda or '12').partition('.')[0]}"
        advice = f"to compress gradients on GPUs: pip install 'compressa[{extra}]'"
        return noted("GPU", f"{found}; CuPy is not installed", advice)
    return Finding("GPU", f"{found}, CuPy")


def _cuda_for_nothing() -> Finding:
    import torch

    site = Path(torch.__file__).parents[1]
    taken = sum(map(_size, (site / name for name in ("torch", "nvidia", "triton"))))
    found = f"none, but torch is built for CUDA, and takes {taken / 1e9:.1f} GB with its libraries"
    advice = f"to make room: pip uninstall torch and nvidia-*, pip install torch -i {_CPU_INDEX}"
    return noted("GPU", found, advice)


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder; nothing if it is not there."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _transports() -> Finding:
    import torch

    from compressa.transports.table import TRANSPORTS

    missing = {name: row.missing() for name, row in TRANSPORTS.items()}
    usable = ", ".join(name for name, lack in missing.items() if not lack)
    wanted = [lack for name, lack in missing.items() if lack and TRANSPORTS[name].device]
    if wanted and torch.cuda.device_count():
        return noted("transports", usable, "; ".join(wanted))
    return Finding("transports", usable)


def _kernels() -> Finding:
    try:
        from compressa.kernels import compiled

        folder = compiled._folder()
        kept = 0 if folder is None else len([*folder.glob(f"*-{compiled._identity()}.compiled")])
    except ImportError as error:
        return fault("kernels", f"numba cannot be imported: {error}", "pip install compressa")
    if folder is None or not os.access(folder, os.W_OK):
        advice = "set NUMBA_CACHE_DIR to a folder that can be written"
        return noted("kernels", "every process compiles them again: no folder keeps them", advice)
    if not kept:
        found = f"none is compiled yet; the first registration does it, and keeps them in {folder}"
        advice = "to do it now: python -m compressa.kernels.compile"
        return noted("kernels", found, advice)
    return Finding("kernels", f"compiled: {kept} sets in {folder}")
