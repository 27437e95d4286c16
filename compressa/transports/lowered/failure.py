"""Failure: what compiled code has noted, as an error for people."""

from __future__ import annotations

import os

import numpy as np

from compressa.errors import CompressaError, PayloadError, PeerLost, StateError, TransportError
from compressa.transports.checks import Checksum, Mac
from compressa.transports.frames import way
from compressa.transports.lowered import _words as w
from compressa.transports.lowered.program import stage_of


def failure(loop: np.ndarray, rank: int, *, authenticated: bool) -> CompressaError:
    """Return what has failed first, as an error.

    Args:
        loop: The words of a loop that has failed.
        rank: This rank.
        authenticated: Whether frames have MACs: what a header says is not proven before its data
            is here.
    """
    fault, peer, a, b = loop[w.FAULT : w.FAULT_B + 1].tolist()
    doubt = f", or {Mac.wrong}" if authenticated and fault != w.F_DATA else ""
    name, (stage, _) = int(loop[w.FAULT_NAME_A]), stage_of(int(loop[w.FAULT_NAME_B]))
    if fault == w.F_LOST:
        why = "in the middle of a frame" if b else os.strerror(a)
        return PeerLost(peer, f"rank {peer} is lost: its connection was closed ({why})")
    if fault == w.F_LEFT:
        return PeerLost(peer, f"rank {peer} is lost: it has left the training")
    if fault in (w.F_LENGTH, w.F_LONG):
        most, unit, step = "at most " if fault == w.F_LONG else "", name >> 32, name & 0xFFFFFFFF
        return PayloadError(
            f"rank {peer} sends {a} bytes for unit {unit}, stage {stage} of step {step}, "
            f"where {most}{b} are due{doubt}"
        )
    if fault == w.F_OPENSSL:
        return TransportError(f"OpenSSL failed at the MAC of a frame of rank {rank}'s and {peer}'s")
    said = {
        w.F_MAGIC: f"has magic {a & 0xFFFF:#06x} and version {a >> 16 & 0xFF}",
        w.F_HEADER: Checksum.wrong,
        w.F_EPOCH: f"is of epoch {a}, this is epoch {b}",
        w.F_SIZES: f"has {a} bytes at {b}",
        w.F_DATA: Mac.wrong if authenticated else Checksum.wrong,
        w.F_EARLY: f"makes {a} bytes that nobody waits for, more than {b}",
        w.F_CHUNK: f"has {b} bytes at {a}, which are no chunk or came before",
        w.F_ORDER: f"has byte {a} of a message where byte {b} is due",
    }
    if fault == w.F_GIVEN_UP:
        return StateError(
            "a sum was interrupted, and what it left behind is no state to go on from"
        )
    return PayloadError(f"a frame {way(peer, rank, 'tcp')} {said[fault]}{doubt}")
