"""Lowered: hop after hop over sockets, in compiled code that needs no interpreter lock.

collectives/lowering.py   a sum's program -> a table of hops          once per layout, in Python
program.py                a table in memory, with what is under way
messages.py               an exchange -> a table of one hop           filled in each time
loop.py, links.py         sockets and memory of a transport           Python's side
failure.py                what has failed, in words
_drive.py                 waits, and goes on with what has come       compiled, as all below
_sends.py, _receives.py   frames to and from one peer
_hops.py                  what a table's hops send, hear and add
_places.py                where the values lie: in one memory, or in several
_adds.py, _chunks.py, _frames.py, _macs.py, _pace.py, _memory.py, _libc.py
digests.py, bucket.py     OpenSSL's SHA-256, and the time at which a pacer's bucket is empty
"""

import sys

AVAILABLE = sys.platform == "linux" and sys.maxsize > 1 << 32 and sys.byteorder == "little"
"""Whether there is such code here: its calls of the C library are those of 64-bit Linux."""
