# python tests/gpu.py
"""Check and measure everything that runs on a GPU; write down what was found.

The kernels are compared with the reference on the GPU itself, codecs on its tensors with those of
the CPU; the hook runs over NCCL in a world of one, and over Gloo and TCP with two ranks that share
the GPU, which also train the demo's tasks; `compressa bench kernels --device cuda` measures. The
result is experiments/results/gpu-NAME-DATE.json. All together take less than eight minutes.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
PACKAGES = (
    *("compressa", "torch", "triton", "numpy", "cupy-cuda12x", "cupy-cuda13x", "bitsandbytes"),
    *("nvidia-cuda-nvrtc", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
CHECKS_S, TRAINING_S, MEASUREMENT_S = 180.0, 90.0, 200.0


def main() -> int:
    """Return 0 if all checks have passed."""
    if not torch.cuda.is_available():
        print(
            "There is no GPU here: torch sees none. Run this on a machine with an NVIDIA GPU, "
            "torch for its CUDA, and compressa[cuda12] or compressa[cuda13].",
            file=sys.stderr,
        )
        return 1
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / file_name(torch.cuda.get_device_name(), datetime.now(UTC))
    found: dict[str, Any] = {"machine": machine()}
    parts = {
        "checks": checks,
        "measurement": partial(measurement, path.with_suffix(".kernels.json")),
        "training": training,
    }
    for name, part in parts.items():  # what is known is kept, whatever comes
        found[name] = part()
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {found['checks']['summary']}")
    return max(int(found[name]["code"]) for name in parts)


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


def checks() -> dict[str, Any]:
    """Run the tests that belong on a GPU."""
    tests = sorted(str(path) for path in (ROOT / "tests").glob("test_cuda_*.py"))
    tests += [str(ROOT / "tests" / name) for name in ("test_codecs_cuda.py", "test_gpu.py")]
    command = [sys.executable, "-m", "pytest", "--gpu", "-q", "-p", "no:cacheprovider", *tests]
    done = said(command, CHECKS_S)
    lines = done["output"].strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"code": done["code"], "summary": lines[-1] if lines else "", "failed": failed}


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


def said(command: list[str], limit_s: float) -> dict[str, Any]:
    """Run a command for so long at most; show and return what it says."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=limit_s, check=False
        )
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        kept = error.stdout if isinstance(error.stdout, bytes) else b""
        code, output = 124, kept.decode(errors="replace") + f"\nended after {limit_s:.0f} s"
    print(output)
    return {"code": code, "output": output}


if __name__ == "__main__":
    sys.exit(main())
