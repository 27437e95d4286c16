"""Every CUDA source compiles for the GPUs that are meant, and spills no register to speak of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from compressa.kernels.cuda._device import HOME, OPTIONS, source_text

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCES = sorted(path.stem for path in HOME.glob("*.cu"))
MOST_SPILLED_BYTES = 64

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def report(source: str, architecture: str, folder: Path) -> str:
    """Compile, and return what the assembler says of registers and spills."""
    text = folder / f"{source}.cu"
    text.write_text(source_text(source))
    options = [
        *OPTIONS,
        "-cubin",
        f"-arch={architecture}",
        "-Xptxas",
        "-v",
        "--Werror=all-warnings",
    ]
    done = subprocess.run(
        ["nvcc", *options, str(text), "-o", str(folder / f"{source}.cubin")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@needs_nvcc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_compiles_without_spills(source: str, architecture: str, tmp_path: Path) -> None:
    said = report(source, architecture, tmp_path)
    spilled = [int(found) for found in re.findall(r"(\d+) bytes spill stores", said)]
    assert spilled, said
    assert max(spilled) <= MOST_SPILLED_BYTES, said


def test_kernels_have_no_assembly_and_no_contraction() -> None:
    assert "--fmad=false" in OPTIONS
    for path in HOME.glob("*.cu*"):
        assert not re.search(r"\basm\b|\b__?f(ma|mul|add)\w*\(", path.read_text()), path.name


def test_a_source_holds_each_of_its_headers_once() -> None:
    for source in SOURCES:
        text = source_text(source)
        assert "#include" not in text
        assert text.count("constexpr int WARP") == 1
