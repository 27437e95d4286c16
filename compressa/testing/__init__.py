"""The test kit: ranks without a network, and what a new compressor has to hold.

    check_codec(MyCodec())                              one codec, alone
    check_compressor(ErrorFeedback(codec=MyCodec()))    among several ranks
    LoopbackWorld(4, parameters, compressor).step(...)  a step of all ranks, in one process
    MassLedger(world)                                   whether nothing is lost

Needs neither pytest nor a network.
"""

from compressa.testing.conformance import check_codec, check_compressor
from compressa.testing.mass import MassLedger
from compressa.testing.world import LoopbackWorld

__all__ = ["LoopbackWorld", "MassLedger", "check_codec", "check_compressor"]
