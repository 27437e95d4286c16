"""Every CUDA source compiles for the GPUs that are meant, and spills no register to speak of."""

from __future__ import annotations

import re

import nvrtc
import pytest
from compressa.kernels.cuda._device import HOME, OPTIONS, source_text
from cuda_registers import ARCHITECTURES, SOURCES, TABLE, needs
from emulated_cuda import HEADER

MOST_SPILLED_BYTES = 32

needs_nvrtc = pytest.mark.skipif(
    nvrtc.library() is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


@needs_nvrtc
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles_and_spills_next_to_nothing(source: str, architecture: str) -> None:
    found = list(needs(source, architecture))
    page = TABLE.read_text(encoding="utf-8")
    missing = [one.name for one in found if f"| {source} | {one.name} |" not in page]
    assert found
    assert not missing, "run python tests/cuda_registers.py"
    assert not [one for one in found if one.spilled_bytes > MOST_SPILLED_BYTES]


@needs_nvrtc
def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(SyntaxError, match=r"identifier .nothing. is undefined"):
        nvrtc.compiled("__global__ void f() { nothing; }", "sm_90", ())


def test_every_source_is_in_the_table_of_registers() -> None:
    page = TABLE.read_text(encoding="utf-8")
    for source in SOURCES:
        assert f"| {source} |" in page, "run python tests/cuda_registers.py"


def test_kernels_have_no_assembly_and_no_contraction() -> None:
    assert "--fmad=false" in OPTIONS
    for path in HOME.glob("*.cu*"):
        assert not re.search(r"\basm\b|\b__?f(ma|mul|add)\w*\(", path.read_text()), path.name


def test_a_source_holds_each_of_its_headers_once() -> None:
    for source in SOURCES:
        text = source_text(source)
        assert "#include" not in text
        assert text.count("constexpr int WARP ") <= 1


def test_sources_stay_readable() -> None:
    for path in [*HOME.glob("*.cu*"), HEADER]:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400, path.name
        assert lines[0].startswith("// "), path.name
        assert [line for line in lines if len(line) > 100] == [], path.name
