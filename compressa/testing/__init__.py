"""The test kit: ranks without a network, and what a new compressor has to hold.

    check_compressor(MyCompressor())                    all that it owes, alone and among ranks
    check_codec(MyCodec())                              a codec alone
    check_allocations(MyCompressor())                   whether steps need fresh memory
    check_codec_allocations(MyCodec())                  whether a codec does
    LoopbackWorld(4, parameters, compressor).step(...)  a step of all ranks, in one process
    MassLedger(world)                                   whether nothing is lost

Needs neither pytest nor a network.
"""

from compressa.testing.allocation import check_allocations, check_codec_allocations
from compressa.testing.conformance import check_codec, check_compressor
from compressa.testing.mass import MassLedger
from compressa.testing.world import LoopbackWorld

__all__ = [
    "LoopbackWorld",
    "MassLedger",
    "check_allocations",
    "check_codec",
    "check_codec_allocations",
    "check_compressor",
]
