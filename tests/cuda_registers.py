# python tests/cuda_registers.py
"""Compile every CUDA kernel for the GPUs that are meant; write what each needs to a table.

Registers and shared memory bound how many warps a multiprocessor holds, and these how many bytes
are under way to it; a spilled register, and an array that lies in a stack frame, cost memory
traffic that no source shows. The tables are docs/measurements/cuda_registers.md.

A kernel's row ends with how many warps it must have for tests to pass: more than half of the most
that it ever had. Where a kernel is to have fewer, edit them there by hand, and run this again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import nvrtc
from compressa.kernels.cuda._device import CTA, HOME, OPTIONS, WARP, source_text
from cuda_occupancy import MULTIPROCESSORS, NEEDED_BYTES, STREAMS, resident_warps, under_way

ARCHITECTURES = tuple(MULTIPROCESSORS)
SOURCES = tuple(sorted(path.stem for path in HOME.glob("*.cu")))
TABLE = Path(__file__).parent.parent / "docs" / "measurements" / "cuda_registers.md"
_ENTRY = re.compile(
    r"entry function '(?P<name>\w+)'.*?"
    r"(?P<frame>\d+) bytes stack frame, (?P<spilled>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_ROW = re.compile(
    r"^\| (?P<source>\w+) \| (?P<name>\w+) \| (?P<cells>\d.*) \| (?P<floors>[\d, ]+) \|$",
    re.MULTILINE,
)

_CALLED_ROW = re.compile(
    r"^\| (?P<source>\w+): (?P<name>\w+) \| (?P<cells>[\d |]*\d) \|$",
    re.MULTILINE,
)


class Needs(NamedTuple):
    """What one kernel needs.

    Attributes:
        name: Of the kernel.
        registers: Of a thread.
        shared_bytes: Shared memory of a block.
        frame_bytes: Of a thread's stack: arrays that are indexed as it goes, spilled registers, and
            what functions that are called take.
        spilled_bytes: Registers of a thread that did not fit, as they are stored.
        warps: That a multiprocessor holds.
    """

    name: str
    registers: int
    shared_bytes: int
    frame_bytes: int
    spilled_bytes: int
    warps: int


@cache
def built(source: str, architecture: str) -> nvrtc.Compiled:
    """Compile a source.

    Raises:
        SyntaxError: It does not compile.
    """
    options = (*OPTIONS, "--ptxas-options=-v")
    return nvrtc.compiled(source_text(source), architecture, options)


def needs(source: str, architecture: str) -> Iterator[Needs]:
    """Compile a source; yield what each of its kernels needs.

    Raises:
        SyntaxError: It does not compile.
    """
    for found in _ENTRY.finditer(built(source, architecture).said):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        registers, spilled = int(found["registers"]), int(found["spilled"])
        shared_bytes = int(shared[1]) if shared else 0
        warps = resident_warps(registers, shared_bytes, architecture)
        yield Needs(found["name"], registers, shared_bytes, int(found["frame"]), spilled, warps)


def called_spills(source: str, architecture: str) -> dict[str, int]:
    """Compile a source; return what functions that its kernels call spill, by kernel.

    They are compiled anew for each kernel that calls them, for it bounds their registers.

    Raises:
        SyntaxError: It does not compile.
    """
    found = {}
    for said in built(source, architecture).said.split("Compiling entry function '")[1:]:
        _, *called = re.findall(r"(\d+) bytes spill stores", said)
        if called:
            found[said.partition("'")[0]] = max(map(int, called))
    return found


def table() -> str:
    """Return the page."""
    heads = "".join(f" {architecture} |" for architecture in ARCHITECTURES)
    lines = [
        "# What the CUDA kernels need",
        "",
        "Registers of a thread, bytes of shared memory of a block of 256, of a thread's stack, and",
        "of spills, and the warps that a multiprocessor holds. A test fails where it holds fewer",
        "than the last column says, GPU by GPU. Written by `python tests/cuda_registers.py` with",
        f"NVRTC {version('nvidia-cuda-nvrtc')}.",
        "",
        f"| source | kernel |{heads} warps, at least |",
        f"| --- | --- |{' --- |' * len(ARCHITECTURES)} --- |",
    ]
    before = TABLE.read_text(encoding="utf-8")
    alike = before.startswith("\n".join(lines[:9]))
    known = {source for source in SOURCES if alike and digest(source, before) in before}
    for source in SOURCES:
        made = known_rows(_ROW, source, before) if source in known else rows(source, floors(before))
        lines += made
    lines += bytes_under_way("\n".join(lines))
    lines += [
        "",
        "## Functions that are called",
        "",
        "Bytes of registers that they spill, which kernels call for what is not whole or not even.",
        "",
        f"| kernel |{heads}",
        f"| --- |{' ---: |' * len(ARCHITECTURES)}",
    ]
    for source in SOURCES:
        made = known_rows(_CALLED_ROW, source, before) if source in known else called_rows(source)
        lines += made
    lines += [
        "",
        "Of these sources, with what they include and their rows above (16 digits of a digest):",
        "",
        "| source | SHA-256 |",
    ]
    page = "\n".join(lines)
    lines += ["| --- | --- |", *(f"| {source} | {digest(source, page)} |" for source in SOURCES)]
    return "\n".join(lines) + "\n"


def known_rows(row: re.Pattern[str], source: str, page: str) -> Iterator[str]:
    """Yield a page's rows of one kind for a source."""
    return (found[0] for found in row.finditer(page) if found["source"] == source)


def rows(source: str, held_to: dict[tuple[str, str], int]) -> Iterator[str]:
    """Compile a source for all; yield a row for each of its kernels."""
    found = [{one.name: one for one in needs(source, a)} for a in ARCHITECTURES]
    for name in sorted(found[0]):
        cells = "".join(f" {', '.join(map(str, one[name][1:]))} |" for one in found)
        least = [
            max(floor_of(one[name].warps), held_to.get((a, f"{source}: {name}"), 0))
            for a, one in zip(ARCHITECTURES, found, strict=True)
        ]
        yield f"| {source} | {name} |{cells} {', '.join(map(str, least))} |"


def called_rows(source: str) -> Iterator[str]:
    """Compile a source for all; yield a row for each of its kernels that calls functions."""
    found = [called_spills(source, a) for a in ARCHITECTURES]
    for name in sorted(found[0]):
        yield f"| {source}: {name} |{''.join(f' {one[name]} |' for one in found)}"


def floor_of(warps: int) -> int:
    """Return the fewest warps that are more than half as many; a CTA has eight."""
    each = CTA // WARP
    return (warps // 2 // each + 1) * each


def floors(page: str) -> dict[tuple[str, str], int]:
    """Return the warps that a page holds each kernel to, by its architecture and its name."""
    return {
        (architecture, f"{row['source']}: {row['name']}"): int(floor)
        for row in _ROW.finditer(page)
        for architecture, floor in zip(ARCHITECTURES, row["floors"].split(", "), strict=True)
    }


def bytes_under_way(page: str) -> Iterator[str]:
    """Yield the lines that tell how much the warps of a multiprocessor wait for at once."""
    found = {(architecture, one.name): one.warps for architecture, one in listed(page)}
    yield from (
        "",
        "## Bytes under way",
        "",
        "What a thread asks for before it uses the first of it, what must be under way in a",
        "multiprocessor, and what is, in KiB. By Little's law memory runs at full speed while",
        "bandwidth times latency is under way: 3.35 TB/s for the 132 multiprocessors of an H100",
        f"times some 1000 ns are {NEEDED_BYTES >> 10} KiB, of which a kernel needs what its reads",
        "have of its traffic. GPUs of twice the bandwidth need twice as much.",
        "",
        f"| stream | bytes of a thread | needs |{''.join(f' {a} |' for a in ARCHITECTURES)}",
        f"| --- | ---: | ---: |{' ---: |' * len(ARCHITECTURES)}",
    )
    for stream in STREAMS:
        name = f"{stream.source}: {stream.name}"
        there = [under_way(stream, found[a, name]) / 1024 for a in ARCHITECTURES]
        cells = "".join(f" {kib:.0f} |" for kib in there)
        yield f"| {name} | {stream.asked_bytes} | {stream.needed_bytes / 1024:.1f} |{cells}"


def digest(source: str, page: str) -> str:
    """Tell a source that was compiled, and its rows on the page, from what has changed since."""
    rows = [*known_rows(_ROW, source, page), *known_rows(_CALLED_ROW, source, page)]
    return sha256("\n".join([*OPTIONS, source_text(source), *rows]).encode()).hexdigest()[:16]


def listed(page: str) -> Iterator[tuple[str, Needs]]:
    """Yield what a page says: the architecture, and what a kernel needs there."""
    for row in _ROW.finditer(page):
        for architecture, cell in zip(ARCHITECTURES, row["cells"].split(" | "), strict=True):
            yield architecture, Needs(f"{row['source']}: {row['name']}", *map(int, cell.split(",")))


def listed_spills(page: str) -> Iterator[tuple[str, str, int]]:
    """Yield what a page says: the architecture, a kernel, and what is spilled when it calls."""
    for row in _CALLED_ROW.finditer(page):
        for architecture, cell in zip(ARCHITECTURES, row["cells"].split(" | "), strict=True):
            yield architecture, f"{row['source']}: {row['name']}", int(cell)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
