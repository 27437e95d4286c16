# python tests/gpu.py [FOLDER [PART ...]]
"""Check and measure everything that runs on a GPU; write down what was found.

Parts: `compilation` of all kernels, each in a process of its own; `checks`: the kernels are
compared with the reference on the GPU itself, codecs on its tensors with those of the CPU, the hook
runs over NCCL in a world of one, and over Gloo and TCP with two ranks that share the GPU;
`training` of the demo's tasks by two ranks; `measurement`: `compressa bench kernels --device cuda`.
The result is gpu-NAME-DATE.json in FOLDER, experiments/results if not given, and grows with each
part. All together take less than eight minutes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from compressa.kernels import KernelUnavailable, cuda
from compressa.kernels import compile as cpu_kernels

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
PACKAGES = (
    *("compressa", "torch", "triton", "numpy", "cupy-cuda12x", "cupy-cuda13x", "bitsandbytes"),
    *("nvidia-cuda-nvrtc", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
COMPILATION_S, CHECKS_S, TRAINING_S, MEASUREMENT_S = 90.0, 150.0, 60.0, 170.0
GRACE_S = 20.0  # for what is told to end
PROCESSES = 8
NOT_ON_A_GPU = ("test_cuda_builds.py", "test_cuda_emulation.py")


def main() -> int:
    """Return 0 if all checks have passed."""
    if not torch.cuda.is_available():
        print(
            "There is no GPU here: torch sees none. Run this on a machine with an NVIDIA GPU, "
            "torch for its CUDA, and compressa[cuda12] or compressa[cuda13].",
            file=sys.stderr,
        )
        return 1
    try:
        cuda.check_available()
    except KernelUnavailable as error:
        print(f"There is a GPU, but {error}", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(torch.cuda.get_device_name(), datetime.now(UTC))
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found["machine"] = machine()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "compilation": compilation,
        "checks": checks,
        "training": training,
        "measurement": partial(measurement, path.with_suffix(".kernels.json")),
    }
    wanted = sys.argv[2:] or list(parts)
    for name in wanted:  # what is known is kept, whatever comes
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        found[name] = parts[name]()
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    codes = {name: int(found[name]["code"]) for name in wanted}
    print(f"{path}: {', '.join(f'{name} {code}' for name, code in codes.items())}")
    return max(codes.values())


def file_name(gpu: str, when: datetime) -> str:
    """Return "gpu-nvidia-h200-2026-01-31.json"."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return f"gpu-{name}-{when.date()}.json"


def machine() -> dict[str, Any]:
    """Return the GPU, its driver, and versions."""
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


def compilation() -> dict[str, Any]:
    """Compile all kernels, for the GPU and for the CPU, so that no other part waits for it."""
    code = "from compressa.kernels.cuda._gpu import current; current().prepare({!r})"
    codes = [code.format(path.stem) for path in sorted((ROOT / "kernels" / "cuda").glob("*.cu"))]
    code = "import compressa.kernels.compile as c; c.compile_one({!r}, half=True)"
    codes += [code.format(work.__name__) for work in cpu_kernels.WORKS]
    done = side_by_side([[sys.executable, "-c", code] for code in codes], COMPILATION_S)
    failed = [one["output"][-2000:] for one in done if one["code"]]
    return {"code": max(one["code"] for one in done), "failed": failed}


def checks() -> dict[str, Any]:
    """Run the tests that belong on a GPU, each file in a process: a fault ends one of them only."""
    tests = ROOT / "tests"
    files = [tests / "test_gpu.py", tests / "test_codecs_cuda.py"]
    files += sorted(f for f in tests.glob("test_cuda_*.py") if f.name not in NOT_ON_A_GPU)
    # Warnings of other versions than those that are pinned are no faults here.
    options = ["--gpu", "-q", "-p", "no:cacheprovider", "-W", "default", "--maxfail=15"]
    options += ["-o", "timeout=120", "-o", "timeout_method=thread", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options]
    done = side_by_side([[*command, str(file)] for file in files], CHECKS_S)
    return {
        "code": max(one["code"] for one in done),
        "files": {f.name: outcome(one) for f, one in zip(files, done, strict=True)},
    }


def outcome(done: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a file's tests."""
    lines = done["output"].strip().splitlines()
    kept = {"code": done["code"], "summary": lines[-1] if lines else ""}
    return kept if not done["code"] else {**kept, "output": done["output"][-3000:]}


def measurement(path: Path) -> dict[str, Any]:
    """Run the benchmark; return its rows."""
    code = "from compressa.cli import main; main()"
    options = ["bench", "kernels", "--device", "cuda", "--json", str(path)]
    done = said([sys.executable, "-c", code, *options], MEASUREMENT_S)
    if not path.exists():
        return {"code": done["code"], "output": done["output"][-2000:]}
    rows = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return {"code": done["code"], **rows}


def training() -> dict[str, Any]:
    """Train the demo's tasks on two ranks; return what each compressor reached."""
    with tempfile.TemporaryDirectory() as folder:
        script = ROOT / "experiments" / "accuracy_vs_bandwidth.py"
        options = ["--plan", "gpu", "--testbed", "loopback", "--out", folder]
        done = said([sys.executable, str(script), *options], TRAINING_S)
        cells = Path(folder) / "cells.jsonl"
        lines = cells.read_text(encoding="utf-8").splitlines() if cells.exists() else []
    reached = []
    for cell in map(json.loads, lines):
        kept = ("task", "compressor", "steps", "metrics", "elapsed_s", "error")
        reached.append({key: cell[key] for key in kept if key in cell})
    return {"code": done["code"], "reached": reached, "output": done["output"][-1000:]}


def side_by_side(commands: list[list[str]], limit_s: float) -> list[dict[str, Any]]:
    """Run commands, several at a time, all within a limit; return what each says."""
    end_s = time.monotonic() + limit_s
    with ThreadPoolExecutor(PROCESSES) as pool:
        return list(pool.map(lambda one: said(one, end_s - time.monotonic()), commands))


def said(command: list[str], limit_s: float) -> dict[str, Any]:
    """Run a command for so long at most; show and return what it says."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
    ) as process:
        try:
            output, ended = process.communicate(timeout=max(limit_s, 0.1))[0], ""
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it says what it knows, and ends its own processes
            ended = f"\nended after {limit_s:.0f} s"
            try:
                output = process.communicate(timeout=GRACE_S)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0]
    text = output.decode(errors="replace") + ended
    print(text, flush=True)
    return {"code": 124 if ended else process.returncode, "output": text}


if __name__ == "__main__":
    sys.exit(main())
