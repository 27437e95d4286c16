"""How many warps of a kernel a multiprocessor holds, and for how many bytes they wait at once.

By Little's law memory runs at full speed while bandwidth times latency is under way. An H100 moves
3.35 TB/s for 132 multiprocessors, 25 bytes a nanosecond each, and busy memory answers in some 1000
nanoseconds: 25 KiB. Of a kernel that writes as well, it is the part that its reads have of the
traffic; nothing waits for writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from compressa.kernels.cuda._device import CTA, WARP
from compressa.kernels.cuda._work import HELD, quantizer_for

NEEDED_BYTES = 25 << 10
REGISTERS = 1 << 16
_REGISTER_UNIT, _SHARED_UNIT = 8 * WARP, 128  # what a warp gets registers by, and a CTA memory
_RESERVED_BYTES = 1 << 10  # of shared memory, for each CTA


class Multiprocessor(NamedTuple):
    """What it holds at most: see "Compute Capabilities" in the CUDA programming guide."""

    warps: int
    ctas: int
    shared_bytes: int


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 << 10),
    "sm_90": Multiprocessor(64, 32, 228 << 10),
    "sm_100": Multiprocessor(64, 32, 228 << 10),
    "sm_120": Multiprocessor(48, 24, 100 << 10),
}


def resident_warps(registers: int, shared_bytes: int, architecture: str) -> int:
    """Return how many warps a multiprocessor holds of a kernel.

    Args:
        registers: Of a thread.
        shared_bytes: Of a CTA of 256 threads.
        architecture: Such as "sm_90".
    """
    most, warps = MULTIPROCESSORS[architecture], CTA // WARP
    each = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    shared = -(-shared_bytes // _SHARED_UNIT) * _SHARED_UNIT + _RESERVED_BYTES
    by_registers = REGISTERS // each // warps
    return warps * min(most.ctas, most.warps // warps, by_registers, most.shared_bytes // shared)


class Stream(NamedTuple):
    """A kernel that goes through memory once.

    Attributes:
        source: Its source.
        name: Its own.
        asked_bytes: What a thread has asked for before it uses the first of it: of a float32
            gradient with a residual, or of what is added to; of four payloads in a sum.
        read: Bytes that it reads of an element.
        written: Bytes that it writes of one.
    """

    source: str
    name: str
    asked_bytes: int
    read: float
    written: float

    @property
    def needed_bytes(self) -> float:
        """What must be under way in a multiprocessor."""
        return NEEDED_BYTES * self.read / (self.read + self.written)


def under_way(stream: Stream, warps: int) -> int:
    """Return the bytes that so many warps of a stream wait for."""
    return warps * WARP * stream.asked_bytes


def _asked_of_held(bits: int, block: int, *, at_random: bool = False) -> int:
    return 8 * block // quantizer_for(bits, block, at_random=at_random)[1]


def _held() -> Iterator[Stream]:
    for bits, block in [(bits, block) for bits, blocks in HELD.items() for block in blocks]:
        asked, written = _asked_of_held(bits, block), 4 + bits / 8
        for random in ("",) if bits == 1 else ("", "_at_random"):
            some = _asked_of_held(bits, block, at_random=bool(random))
            name = "onebit" if bits == 1 else "blockwise"
            code = "" if bits == 1 else f"_{bits}"
            yield Stream(name, f"quantize{code}{random}_of_{block}", some, 8, written)
            name = f"quantize_many{random}_{bits}_of_{block}"
            yield Stream("multi_tensor", name, some, 8, written)
        if bits == 8:
            yield Stream("fp8", f"quantize_of_{block}", asked, 8, written)
        if bits == 1:  # of three levels, whose codes have three bits
            yield Stream("natural_dithering", f"dither_of_{block}", asked, 8, 4.375)


IN_REGISTERS = (
    *_held(),
    Stream("natural", "quantize", 8 * (16 + 16), 8, 5.125),
    Stream("chunks", "absorb_by_warps", 8 * (16 + 16), 8, 8),
)
VECTORS = (
    Stream("casts", "narrow", 2 * (16 + 16), 8, 6),
    Stream("feedback", "absorb_residual", 2 * (16 + 16), 8, 8),
    Stream("feedback", "find_nonfinite_32", 2 * 16, 4, 0),
    Stream("select", "survey_once", 2 * (16 + 16), 8, 4.125),
    Stream("select", "keep_all", 2 * (16 + 16), 8, 4),
    Stream("dgc", "survey_dgc", 2 * (16 + 16), 8, 4.125),
    Stream("sidco", "survey_sidco", 2 * (16 + 16), 8, 4.125),
    Stream("adacomp", "mark_bins", 2 * (16 + 16), 8, 4.125),
    Stream("integers", "scale_32", 2 * 16, 4, 4),
)
"""Of these and those in registers, a test finds the loads in the compiler's output."""


def _asks_ahead(stream: Stream) -> bool:
    if "at_random" in stream.name:  # numbers are drawn while a block comes
        return False
    if stream.source == "multi_tensor":  # where a vector lies takes registers
        return "many_1_" in stream.name or stream.asked_bytes <= 2 * (16 + 16)
    if stream.name == "quantize_2_of_1024":  # its registers hold one block
        return False
    return stream.source in ("blockwise", "chunks", "fp8", "natural", "onebit")


ASKED_AHEAD = tuple(filter(_asks_ahead, IN_REGISTERS))
"""Those that ask for the next block before they write one."""

DECODERS = (
    *(
        Stream("blockwise", f"dequantize_{bits}_by_warps", 4 + 16 * 8 // bits, 4 + bits / 8, 4)
        for bits in (8, 4, 2)
    ),
    Stream("fp8", "dequantize_by_warps", 4 + 16, 5, 4),
    Stream("natural", "dequantize", 4 + 4 + 16, 5.125, 4),
    Stream("onebit", "dequantize_by_warps", 4 + 16, 4.125, 4),
)
"""Words of codes, and what they are added to."""
SUMS = {
    # Of two fours in each plane.
    Stream("blockwise", "sum_8_by_warps", 2 * 4 * 4, 4, 4): 2 * (16 + 4 * 4),
    Stream("blockwise", "sum_4_by_warps", 2 * 4 * 4, 2, 4): 2 * (2 * 16 + 4 * 4),
    Stream("fp8", "sum_by_warps", 2 * 4 * 4, 4, 4): 2 * (16 + 4 * 4),
    Stream("blockwise", "sum_2_by_warps", 4 * 4, 1, 4): 16 + 4 * 4,
    # The code has loads for eight payloads.
    Stream("natural", "sums", 4 * (4 + 4), 4.5, 4): 16 + 8 * (4 + 4),
    Stream("onebit", "sum_by_warps", 4 * 4, 0.5, 4): 16 + 8 * 4,
}
"""Words of codes of four payloads, and of each the bytes of loads that lie beside each other in the
code: with those of the sums so far."""
CASTS = (
    Stream("casts", "widened", 2 * (8 + 16), 6, 4),
    Stream("casts", "sums", 4 * 8, 8, 4),
)
"""The loads of 16-bit values and of float32 lie beside each other there: no run is of one kind."""

STREAMS = (*IN_REGISTERS, *VECTORS, *DECODERS, *SUMS, *CASTS)


class Vectors(NamedTuple):
    """What a kernel reads and writes by vectors where all addresses allow it.

    Attributes:
        source: Its source.
        name: Its own.
        loads: Of four values, or two, in its instantiation for such addresses.
        stores: Likewise.
    """

    source: str
    name: str
    loads: int
    stores: int


ALIGNED = (
    Vectors("bitpack", "unpack_bits", 0, 1),
    Vectors("bitpack", "find_too_large", 1, 0),
    Vectors("bitpack", "find_disorder", 1, 0),
    *(Vectors("dct", f"keep_{n}", 3, 1) for n in (16, 32, 64)),
    *(Vectors("dct", f"add_{n}", 1, 1) for n in (16, 32, 64)),
    Vectors("elias_fano", "join", 3, 2),
    Vectors("hadamard", "rotate_quantize", 12, 0),
    Vectors("hadamard", "sum_codes_16", 2, 2),
    Vectors("hadamard", "rotate_back", 12, 16),
    Vectors("hadamard", "rotate_tiles", 12, 8),
    Vectors("hadamard", "rotate_tiles_back", 4, 8),
    Vectors("philox", "random_words", 0, 1),
    Vectors("philox", "random_fractions", 0, 1),
    Vectors("strata", "stratified_u32", 1, 1),
    Vectors("strata", "stratified_i64", 1, 2),
    Vectors("strata", "multiply_by_strata", 1, 1),
    Vectors("casts", "narrow", 4, 4),
    *(
        Vectors(source, f"sum{bits}_by_{team}", fours, 2 * fours)  # of 32 bits, or of 16
        for source, bits, fours in (
            ("blockwise", "_8", 2),
            ("blockwise", "_4", 4),
            ("blockwise", "_2", 1),
            ("fp8", "", 2),
            ("onebit", "", 1),
        )
        for team in ("warps", "ctas")
    ),
    Vectors("natural", "sums", 1, 2),
)
"""Where alignment is decided once: these accesses are made without another look at the address."""

_LOAD = re.compile(r"ld\.global(?:\.nc)?\.v4\.\w32\s+\{(?P<into>[^}]*)\}")
_LOAD_OF_CODES = re.compile(  # scales are float32, and what may be written is not .nc
    r"ld\.global(?:(?:\.nc)?\.v4\.\w32|\.nc(?:\.v2)?\.[bu]32)\s+(?P<into>\{[^}]*\}|%r\w+)"
)
_NAME = re.compile(r"%\w+")


def body(ptx: str, name: str) -> str:
    """Return a kernel's part of what the compiler makes of a source."""
    return ptx.split(f".entry {name}(", 1)[1].split(".entry ", 1)[0].split(".func ", 1)[0]


def vector_runs(ptx: str, name: str, *, codes: bool = False) -> Iterator[int]:
    """Yield the bytes of each run of loads of 16 bytes: nothing uses the first before the last.

    Copies between registers do not count as a use: they are where the two sides of a branch meet.

    Args:
        ptx: What the compiler makes of a source.
        name: Of the kernel.
        codes: Whether loads of words and pairs of them count, too, where codes are.
    """
    asked, pending, load = 0, set[str](), _LOAD_OF_CODES if codes else _LOAD
    for line in body(ptx, name).splitlines():
        if found := load.search(line):
            into = _NAME.findall(found["into"])
            asked += 4 * len(into)
            pending |= set(into)
        elif "mov." not in line and pending & set(_NAME.findall(line.partition(",")[2])):
            yield asked
            asked, pending = 0, set()
