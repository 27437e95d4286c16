"""Zstandard frames (RFC 8878) in memory that is there already; what arrives is not trusted.

    frame       magic number, descriptor, window or nothing, bytes that it holds, blocks
    descriptor  bits 0 and 1 a dictionary, bit 2 a checksum, bits 3 and 4 nothing: all zero here
    block       u24: bit 0 the last one, bits 1 and 2 its kind, the others its size; then its bytes

The header and the blocks are walked through before anything is unpacked, so that a frame is known
to be the only one, to end where the payload does, and to say how much memory it needs.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from compressa.errors import PayloadError
from compressa.kernels.scratch import scratch

Bytes = npt.NDArray[np.uint8]

_LEAST_FRAME = 9  # magic, descriptor, a size of one byte, and a block of no bytes
_MAGIC = bytes.fromhex("28b52ffd")
_UNUSED = 0b11111  # flags of a descriptor: a dictionary, a checksum, and those without a meaning
_LAST, _RUN, _RESERVED = 1, 1, 3
_WINDOW_LOG = 20  # what a decoder may be asked to remember: a megabyte

_kept = threading.local()


def missing_library() -> str:
    """Return what to do about the library that this needs; nothing if it is there."""
    try:
        _zstandard()
    except ImportError:
        return "the library zstandard is not installed: pip install 'compressa[entropy]'"
    return ""


def _zstandard() -> Any:
    import zstandard  # optional, and no configuration without this stage waits for it

    return zstandard


def code(raw: Bytes, frame: Bytes, level: int) -> int:
    """Write a frame as far as there is room; return how much was written.

    Args:
        raw: What it shall hold.
        frame: Receives it. Empty if that is: the library would wait for more for ever.
        level: Zstandard's.
    """
    written = 0
    with _coder(level).stream_reader(raw.data, size=raw.size, closefd=False) as reader:
        while written < frame.size and (count := reader.readinto(frame[written:].data)):
            written += count
    return written


def decoded(frame: Bytes, most: int) -> Bytes:
    """Return what a frame holds, in memory that the thread keeps.

    Args:
        frame: What arrived.
        most: How many bytes it may hold.

    Raises:
        PayloadError: It is not one whole frame, or holds more than it may.
    """
    zstandard, written = _zstandard(), 0
    # One more than is due shows a frame that holds more than it says.
    room: Bytes = scratch("entropy.payload", most + 1, np.uint8)
    try:
        due = _declared(frame, most)
        with _decoder().stream_reader(frame.data, closefd=False) as reader:
            while written <= due and (count := reader.readinto(room[written : due + 1].data)):
                written += count
    except zstandard.ZstdError as error:
        raise PayloadError(f"entropy: {error}") from error
    if written != due:
        raise PayloadError(f"entropy: a frame that says it holds {due} bytes holds {written}")
    return room[:due]


def _declared(frame: Bytes, most: int) -> int:
    """Return how many bytes a frame says it holds, having seen that nothing follows it."""
    if frame.size < _LEAST_FRAME or frame[:4].tobytes() != _MAGIC:
        raise PayloadError(f"entropy: {frame.size} bytes arrived that are no frame")
    if frame[4] & _UNUSED:
        raise PayloadError(f"entropy: a frame has the flags {frame[4]:#04x}, which are not in use")
    header = _zstandard().get_frame_parameters(frame.data)
    due, window = int(header.content_size), int(header.window_size)
    if window > 1 << _WINDOW_LOG:
        raise PayloadError(f"entropy: a frame wants {window} bytes to be remembered")
    if not frame.size < due <= most:
        raise PayloadError(
            f"entropy: a frame of {frame.size} bytes says it holds {due}; it must be more than it "
            f"has itself, and at most {most}"
        )
    end = _end(frame.data, int(_zstandard().frame_header_size(frame.data)))
    if end != frame.size:
        raise PayloadError(f"entropy: a frame ends at byte {end} of {frame.size}")
    return due


def _end(frame: memoryview, at: int) -> int:
    """Return where the last block ends; more than there is if there is no last one."""
    last = False
    while not last and at + 3 <= len(frame):
        header = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = bool(header & _LAST), header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            raise PayloadError(f"entropy: the block at byte {at} is of no known kind")
        at += 3 + (1 if kind == _RUN else size)
    return at if last else len(frame) + 1


def _coder(level: int) -> Any:
    """Return this thread's coder of a level; it has tables that are worth keeping."""
    coders: dict[int, Any] = _kept.__dict__.setdefault("coders", {})
    if level not in coders:
        zstandard = _zstandard()
        parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=_WINDOW_LOG)
        coders[level] = zstandard.ZstdCompressor(compression_params=parameters)
    return coders[level]


def _decoder() -> Any:
    """Return this thread's decoder; it refuses to remember more than a coder asks it to."""
    if not hasattr(_kept, "decoder"):
        _kept.decoder = _zstandard().ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    return _kept.decoder
