# python tests/cuda_registers.py
"""Compile every CUDA kernel for the GPUs that are meant; write what each needs to a table.

Registers and shared memory bound how many threads a multiprocessor holds; a spilled register costs
memory traffic that no source shows. The table is docs/measurements/cuda_registers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import nvrtc
from compressa.kernels.cuda._device import HOME, OPTIONS, source_text

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCES = tuple(sorted(path.stem for path in HOME.glob("*.cu")))
TABLE = Path(__file__).parent.parent / "docs" / "measurements" / "cuda_registers.md"
_ENTRY = re.compile(
    r"entry function '(?P<name>\w+)'.*?(?P<spilled>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_ROW = re.compile(
    r"^\| (?P<source>\w+) \| (?P<name>\w+) \| (?P<cells>\d.*) \|$",
    re.MULTILINE,
)


class Needs(NamedTuple):
    """What one kernel needs.

    Attributes:
        name: Of the kernel.
        registers: Of a thread.
        shared_bytes: Shared memory of a block.
        spilled_bytes: Registers of a thread that did not fit, as they are stored.
    """

    name: str
    registers: int
    shared_bytes: int
    spilled_bytes: int


def needs(source: str, architecture: str) -> Iterator[Needs]:
    """Compile a source; yield what each of its kernels needs.

    Raises:
        SyntaxError: It does not compile.
    """
    options = (*OPTIONS, "--ptxas-options=-v")
    _, said = nvrtc.compiled(source_text(source), architecture, options)
    for found in _ENTRY.finditer(said):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        registers, spilled = int(found["registers"]), int(found["spilled"])
        yield Needs(found["name"], registers, int(shared[1]) if shared else 0, spilled)


def table() -> str:
    """Return the page."""
    heads = "".join(f" {architecture} |" for architecture in ARCHITECTURES)
    lines = [
        "# What the CUDA kernels need",
        "",
        "Registers of a thread, bytes of shared memory of a block of 256, bytes of spills. Written",
        f"by `python tests/cuda_registers.py` with NVRTC {version('nvidia-cuda-nvrtc')}.",
        "",
        f"| source | kernel |{heads}",
        f"| --- | --- |{' --- |' * len(ARCHITECTURES)}",
    ]
    for source in SOURCES:
        found = [{one.name: one for one in needs(source, a)} for a in ARCHITECTURES]
        for name in sorted(found[0]):
            cells = "".join(
                f" {one[name].registers}, {one[name].shared_bytes}, {one[name].spilled_bytes} |"
                for one in found
            )
            lines.append(f"| {source} | {name} |{cells}")
    lines += [
        "",
        "Of these sources, with what they include and their rows above (16 digits of a digest):",
        "",
        "| source | SHA-256 |",
    ]
    page = "\n".join(lines)
    lines += ["| --- | --- |", *(f"| {source} | {digest(source, page)} |" for source in SOURCES)]
    return "\n".join(lines) + "\n"


def digest(source: str, page: str) -> str:
    """Tell a source that was compiled, and its rows on the page, from what has changed since."""
    rows = [row[0] for row in _ROW.finditer(page) if row["source"] == source]
    return sha256("\n".join([*OPTIONS, source_text(source), *rows]).encode()).hexdigest()[:16]


def listed() -> Iterator[tuple[str, Needs]]:
    """Yield what the page says: the architecture, and what a kernel needs there."""
    for row in _ROW.finditer(TABLE.read_text(encoding="utf-8")):
        for architecture, cell in zip(ARCHITECTURES, row["cells"].split(" | "), strict=True):
            yield architecture, Needs(f"{row['source']}: {row['name']}", *map(int, cell.split(",")))


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
