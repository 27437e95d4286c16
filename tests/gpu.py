# python tests/gpu.py [--wheels FOLDER] [--minutes N] [--out FOLDER] [PART ...]
"""Check and measure everything that runs on a GPU; write down what was found.

Parts, in order of worth: `imports` of all that the others need; `compilation` of all kernels, each
in a process of its own; `first`: versions, denormal numbers, and a fork after all imports;
`interplay`: kernels whose threads wait for each other most, against the reference; `checks`: an
engine exchanges with itself over NCCL, the hook runs over Gloo and TCP with two ranks that share
the GPU, codecs on its tensors are compared with those of the CPU, and kernels with the reference;
`measurement`: `python -m benchmarks kernels --device cuda`; `hook`: training steps with the hook
against those of DDP alone; `selection` from 10^8 elements beside other work, against `torch.topk`;
`graphs`: units by CUDA graphs against single launches, and the host's time; `training` of the
demo's tasks by two ranks; `sanitizer`: compute-sanitizer's memcheck and racecheck of `interplay`,
if it is installed. All end after ten minutes, or what --minutes says. Each part has a share of
that, and what those before it have left; what was not reached is listed.

The result is gpu-NAME-DATE.json in FOLDER, experiments/results if not given. It is written anew
whenever something is known, and a part that is run later is added.

Nothing has to be installed but torch for CUDA, CuPy, numba, pytest and hypothesis, if the folder
that `make gpu-bundle` fills is given with --wheels.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_bundle
from gpu_commands import LATE, ROOT, State, alone, said, side_by_side

RESULTS = ROOT / "experiments" / "results"
PACKAGES = (
    *("compressa", "torch", "triton", "numpy", "cupy-cuda12x", "cupy-cuda13x", "bitsandbytes"),
    *("nvidia-cuda-nvrtc", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
IMPORTS_SHARE = 0.4
"""Of all time, at most: nothing else can go on without."""

SHARES = {
    "compilation": 17,
    "first": 8,
    "interplay": 7,
    "checks": 16,
    "measurement": 16,
    "hook": 6,
    "selection": 5,
    "graphs": 3,
    "training": 7,
    "sanitizer": 15,
}
"""Parts of a hundred of what the imports leave; what a part leaves is shared by those after it."""

FIRST = Path(__file__).with_name("gpu_first.py")
HOOK = Path(__file__).with_name("gpu_hook.py")
INTERPLAY = tuple(
    ROOT / "tests" / "kernels" / f"test_kernels_{name}.py"
    for name in ("select", "blockwise", "multi_tensor", "hadamard", "lowrank", "adaptive")
)
"""Of `adaptive` are SIDCo and DGC."""
SANITIZERS = ("memcheck", "racecheck")
TRAINING = ROOT / "experiments" / "accuracy_vs_bandwidth.py"
WITHOUT_DIGITS = ("--task", "gpt-demo", "--steps", "60")
# Warnings of other versions than those that are pinned are no faults here.
PYTEST = (
    *(sys.executable, "-m", "pytest", "--gpu", "-q", "-p", "no:cacheprovider", "-W", "default"),
    *("-o", "timeout=120", "-o", "timeout_method=thread"),
)
IMPORT_ALL = """
import importlib, pkgutil, compressa
for module in pkgutil.walk_packages(compressa.__path__, "compressa."):
    importlib.import_module(module.name)
"""
ON_A_GPU = ("@on_every_backend", "on_emulated_cuda")  # marks of tests of kernels


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all checks have passed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that children heed it, too
    chosen = options().parse_args(arguments)
    try:
        with gpu_bundle.importable(chosen.wheels) as site:
            return run(chosen, site)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


def options() -> argparse.ArgumentParser:
    """Return what can be chosen."""
    parser = argparse.ArgumentParser(description="Check and measure what runs on a GPU.")
    parser.add_argument("--wheels", type=Path, help="a folder that `make gpu-bundle` has filled")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the result")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    return parser


def run(chosen: argparse.Namespace, site: Path) -> int:
    """Run the chosen parts, as far as time goes."""
    end_s = time.monotonic() + 60.0 * chosen.minutes
    can_import = next(imports(site, IMPORTS_SHARE * 60.0 * chosen.minutes))
    if can_import["code"]:
        print(
            "What the parts need can not be imported; see above. Install what is missing, or fill "
            "a folder with `make gpu-bundle` where there is an index, and name it with --wheels.",
            file=sys.stderr,
        )
        return 1
    missing = missing_gpu()
    if missing:
        print(missing, file=sys.stderr)
        return 1
    import torch

    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out.resolve() / file_name(torch.cuda.get_device_name(), datetime.now(UTC))
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found |= {"machine": machine(), "imports": can_import}
    wanted = [name for name in PARTS if name in (chosen.parts or PARTS)]
    found["not_reached"] = list(wanted)
    for number, name in enumerate(wanted):
        limit_s = share(wanted[number:], end_s - time.monotonic())
        if limit_s <= 0:
            break
        for state in PARTS[name](site, limit_s):  # what is known is kept, whatever comes
            found[name] = state
            keep(found, path, site)
        found["not_reached"].remove(name)
        keep(found, path, site)
    return told(path, found, wanted)


def keep(found: dict[str, Any], path: Path, site: Path) -> None:
    """Write what was found, which names no folder of this machine."""
    text = json.dumps(found, indent=1) + "\n"
    for home in (ROOT, site):
        text = text.replace(f"{home}/", "")
    path.write_text(text, encoding="utf-8")


def share(parts: Sequence[str], left_s: float) -> float:
    """Return how long the first of some parts may take, so that all have their shares."""
    return left_s * SHARES[parts[0]] / sum(SHARES[part] for part in parts)


def told(path: Path, found: dict[str, Any], wanted: Sequence[str]) -> int:
    """Say what came of the parts; return 0 if all have passed."""
    missed = found["not_reached"]
    reached = {name: found[name] for name in wanted if name not in missed}
    codes = {name: int(state["code"]) for name, state in reached.items()}
    print(f"{path}: {', '.join(f'{name} {code}' for name, code in codes.items())}")
    within = [f"{name}: {one}" for name in reached for one in reached[name].get("not_reached", ())]
    if missed or within:
        print(f"not reached: {', '.join([*missed, *within])}")
    return max([1 if missed else 0, *codes.values()])


def missing_gpu() -> str:
    """Say what is missing to run anything on a GPU; nothing if all is there."""
    import torch
    from compressa.kernels import KernelUnavailable, cuda

    if not torch.cuda.is_available():
        return (
            "There is no GPU here: torch sees none. Run this on a machine with an NVIDIA GPU, "
            "torch for its CUDA, and compressa[cuda12] or compressa[cuda13]."
        )
    try:
        cuda.check_available()
    except KernelUnavailable as error:
        return f"There is a GPU, but {error}"
    return ""


def file_name(gpu: str, when: datetime) -> str:
    """Return "gpu-nvidia-h200-2026-01-31.json"."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return f"gpu-{name}-{when.date()}.json"


def machine() -> dict[str, Any]:
    """Return the GPU, its driver, and versions."""
    import torch

    facts = torch.cuda.get_device_properties()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "gpu": facts.name,
        "compute_capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_bytes": facts.total_memory,
        "driver": driver,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: known for name in PACKAGES if (known := version_of(name))},
        "timestamp": datetime.now(UTC).replace(microsecond=0).isoformat(),
    }


def version_of(package: str) -> str | None:
    """Return an installed package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def imports(site: Path, limit_s: float) -> Iterator[State]:
    """Import every module, and what collects tests or begins a training."""
    commands = [
        [sys.executable, "-c", IMPORT_ALL],
        [*PYTEST, "--collect-only", *map(str, test_files())],
        [sys.executable, str(TRAINING), "--help"],
        [sys.executable, str(HOOK), "--help"],
    ]
    done = [one for _, one in side_by_side(commands, limit_s, site, heard=False)]
    failed = [one["output"][-4000:] for one in done if one["code"]]
    print("\n".join(failed), end="", flush=True)
    yield {"code": max(one["code"] for one in done), "failed": failed}


def compilation(site: Path, limit_s: float) -> Iterator[State]:
    """Compile all kernels, for the GPU and for the CPU, so that no other part waits for it."""
    from compressa.kernels import compile as cpu_kernels

    on_gpu = "from compressa.kernels.cuda._gpu import current; current().prepare({!r})"
    on_cpu = "import compressa.kernels.compile as c; c.compile_one({!r}, half=True)"
    sources = [path.stem for path in sorted((ROOT / "kernels" / "cuda").glob("*.cu"))]
    works = [work.__name__ for work in cpu_kernels.WORKS]
    codes = {f"{name}.cu": on_gpu.format(name) for name in sources}
    codes |= {name: on_cpu.format(name) for name in works}
    names, state = list(codes), State(code=0, failed=[], not_reached=list(codes))
    commands = [[sys.executable, "-c", code] for code in codes.values()]
    for number, one in side_by_side(commands, limit_s, site):
        state["code"] = max(state["code"], one["code"])
        state["failed"] += [one["output"][-2000:]] if one["code"] else []
        if one["code"] != LATE:
            state["not_reached"].remove(names[number])
    yield state


def first(site: Path, limit_s: float) -> Iterator[State]:
    """Try what everything else rests on."""
    yield from tried(("basics", "fork"), site, limit_s)


def selection(site: Path, limit_s: float) -> Iterator[State]:
    """Select from as much as a large model has, beside other work."""
    yield from tried(("selection",), site, limit_s)


def graphs(site: Path, limit_s: float) -> Iterator[State]:
    """Compare units by CUDA graphs with units by single launches."""
    yield from tried(("graphs",), site, limit_s)


def tried(names: Sequence[str], site: Path, limit_s: float) -> Iterator[State]:
    """Run some of what a new GPU is tried with first."""
    commands = {name: [sys.executable, str(FIRST), name] for name in names}
    yield from alone(commands, limit_s, site)


def interplay(site: Path, limit_s: float) -> Iterator[State]:
    """Compare the kernels that wait for each other most with the reference."""
    yield from alone({"tests": [*PYTEST, "--tb=short", *map(str, INTERPLAY)]}, limit_s, site)


def sanitizer(site: Path, limit_s: float) -> Iterator[State]:
    """Run `interplay` under compute-sanitizer, with every array in memory of its own.

    Each of its tools has half of the time, and what the first leaves.
    """
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        yield {"code": 0, "left_out": "compute-sanitizer is not on the PATH"}
        return
    options = ("--error-exitcode", "9", "--target-processes", "all")
    commands = {
        name: [tool, "--tool", name, *options, *PYTEST, "-x", *map(str, INTERPLAY)]
        for name in SANITIZERS
    }
    yield from alone(commands, limit_s, site, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def checks(site: Path, limit_s: float) -> Iterator[State]:
    """Run the tests that belong on a GPU, each file in a process: a fault ends one of them only."""
    files = test_files()
    state = State(code=0, files={}, not_reached=[file.name for file in files])
    commands = [[*PYTEST, "--maxfail=15", "--tb=short", str(file)] for file in files]
    for number, one in side_by_side(commands, limit_s, site):
        state["code"] = max(state["code"], one["code"])
        state["files"][files[number].name] = outcome(one)
        if one["code"] != LATE:
            state["not_reached"].remove(files[number].name)
        yield state


def test_files() -> list[Path]:
    """Return the tests that belong on a GPU, those of most at once first."""
    tests = ROOT / "tests"
    names = "test_gpu.py", "test_gpu_full_grids.py", "codecs/test_codecs_cuda.py"
    files = [tests / name for name in names]
    kernels = sorted((tests / "kernels").glob("test_*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in kernels}
    return files + [file for file, text in texts.items() if any(mark in text for mark in ON_A_GPU)]


def outcome(done: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a file's tests."""
    lines = done["output"].strip().splitlines()
    kept = {"code": done["code"], "summary": lines[-1] if lines else ""}
    return kept if not done["code"] else {**kept, "output": done["output"][-3000:]}


def measurement(site: Path, limit_s: float) -> Iterator[State]:
    """Run the benchmark; return its rows."""
    path = site / "kernels.json"
    options = ["kernels", "--device", "cuda", "--json", str(path)]
    yield measured([sys.executable, "-m", "benchmarks", *options], path, site, limit_s)


def hook(site: Path, limit_s: float) -> Iterator[State]:
    """Compare training steps of DDP with those of its hook; return them, and what is met."""
    path = site / "hook.json"
    yield measured([sys.executable, str(HOOK), str(path)], path, site, limit_s)


def measured(command: list[str], path: Path, site: Path, limit_s: float) -> State:
    """Run what writes its rows to a file; return them, or what it says if there are none."""
    done = said(command, limit_s, site)
    if path.exists():
        return {"code": done["code"], **json.loads(path.read_text(encoding="utf-8"))}
    return {"code": done["code"], "output": done["output"][-2000:]}


def training(site: Path, limit_s: float) -> Iterator[State]:
    """Train the demo's tasks on two ranks; return what each compressor reached."""
    folder, left_out = site / "training", []
    options = ["--plan", "gpu", "--testbed", "loopback", "--no-report", "--out", str(folder)]
    if find_spec("sklearn") is None:
        left_out, options = ["digits, which needs scikit-learn"], [*options, *WITHOUT_DIGITS]
    done = said([sys.executable, str(TRAINING), *options], limit_s, site)
    cells = folder / "cells.jsonl"
    lines = cells.read_text(encoding="utf-8").splitlines() if cells.exists() else []
    kept = ("task", "compressor", "steps", "metrics", "elapsed_s", "error")
    reached = [{key: cell[key] for key in kept if key in cell} for cell in map(json.loads, lines)]
    output = done["output"][-1000:]
    yield {"code": done["code"], "reached": reached, "left_out": left_out, "output": output}


PARTS: dict[str, Callable[[Path, float], Iterator[State]]] = {
    "compilation": compilation,
    "first": first,
    "interplay": interplay,
    "checks": checks,
    "measurement": measurement,
    "hook": hook,
    "selection": selection,
    "graphs": graphs,
    "training": training,
    "sanitizer": sanitizer,
}


if __name__ == "__main__":
    sys.exit(main())
