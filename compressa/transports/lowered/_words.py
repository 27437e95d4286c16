"""Where things lie in the loop's memory: word offsets of each kind of block."""

from __future__ import annotations

# The loop itself.
LINKS, LINK_COUNT, POLLFDS, PROGRAMS, PROGRAM_ROOM = 0, 1, 2, 3, 4
FAULT_NAME_A, FAULT_NAME_B = 5, 18  # of the message that the first failure is about
EPOCH, CHUNK_BYTES, POLL_NS, EARLY_LIMIT = 6, 7, 8, 9
FAULT, FAULT_PEER, FAULT_A, FAULT_B = 10, 11, 12, 13  # the first failure
DONE_COUNT, DRIVING, WAKE_FD, OTHER_FD = 14, 15, 16, 17
SENT_BYTES, MESSAGES, CLOCK, CORE_FREE = 19, 20, 21, 23  # CLOCK has two words
SOON = 37  # whether what was waited for last came soon
TIMED = 38  # whether anybody wants to know when messages left and came
HELD = 39  # whether nothing leaves yet
BUCKET, PACE_BITS_PER_S, BURST_NS = 40, 41, 42  # address of the pacer's word; 0 without a pace
SPARE = 24  # 11 words for the C library: what `send_two` and `ppoll` are given
ENQUEUED = 43  # whether a message has been queued since all links were offered what waits
AT_FENCES = 44  # how many programs wait for a GPU to come to their fences
AWAY_NS = 45  # for how long this process did not run while it waited, since that was asked last
SEEN_NS = 46  # when who drives looked at the clock last
LOOP_WORDS = 47
NOBODY, COMMUNICATION, CALLER = 0, 1, 2  # who is driving

# A link: one connection to a peer. What is to leave, and what came early, is with the first one.
FD, PEER, FULL = 0, 1, 2
NOT_BEFORE_NS = 3  # when the frame that is leaving may begin to, if it is paced
QUEUE = 4  # the row that goes next; others follow by `NEXT`
OUT_ROW, OUT_SENT, OUT_BYTES, OUT_AT = 5, 6, 7, 8  # the frame that is leaving
OUT_HEADER = 9  # 6 words
IN_STAGED, IN_LEFT, IN_AT = 15, 16, 17  # the frame that is coming
IN_ROW, IN_EARLY, IN_DATA, IN_BYTES, IN_CHECK, IN_OFFSET = 18, 19, 20, 21, 22, 23
EARLY, EARLY_BYTES = 24, 25  # a list of messages that nobody waits for yet
STAGING, CHUNK = 26, 27  # addresses: of what was read with a header, of a frame that is added
ENDED = 28  # whether the peer's stream has
PIECE = 29  # bytes that the kernel tells of
OUT_MAC, IN_MAC = 30, 31  # addresses of what makes the checks of each direction; 0: checksums
IN_FRONT = 32  # 4 words of the frame that is coming, which its MAC covers
FIRST, SEVERAL = 36, 37  # address of the first link to the same peer; whether there are others
WAITING = 38  # of a first link: whether a frame of one of them has to wait for its turn
PAID_BYTES = 39  # of a first link: of a frame that had its turn, and found no room
OUT_CHUNK = 40  # address: of a frame whose data lies in several places
LINK_WORDS = 41

HEADER_BYTES = 48
STAGING_BYTES = 4096

# A message that came before anybody waited for it, followed by its bytes, filled up to a word, and
# by a bit for each chunk.
E_NEXT, E_NAME_A, E_NAME_B, E_BYTES, E_CAME = 0, 1, 2, 3, 4
E_FROM_NS, E_UNTIL_NS, EARLY_WORDS = 5, 6, 7

# A program: this block, then its chains, hops and rows.
STATUS, STEP, UNIT, STAGE, STRIDE, PRIORITY = 0, 1, 2, 3, 4, 5
CHAINS, CHAIN_COUNT, CHAINS_LEFT, HOPS, ROWS = 6, 7, 8, 9, 10
BASE = 12  # of values, and of scratch: 2 words
DTYPE, DIVISOR = 14, 15
FENCE = 16  # address of what it waits for before it begins; 0 for nothing
PLACES = 17  # address of where its values lie (`_places`); 0 if that is one place
PROGRAM_WORDS = 20
UNDER_WAY, DONE, AT_FENCE = 1, 2, 3

# A chain: hops one after another. Chains of a program go side by side.
C_HOP, C_FIRST, C_END, C_OPEN, C_OFFSET, C_BYTES, CHAIN_WORDS = 0, 1, 2, 3, 4, 5, 6

# A hop: its rows are sends, then receives, then additions.
H_STAGE, H_FIRST, H_SENDS, H_RECEIVES, H_ADDS, HOP_WORDS = 0, 1, 2, 3, 4, 5

# A row. Of what is fixed: region and offset of its memory, and of what it is added to; and whether
# a message may be shorter, until its first frame says how long it is.
R_LINK, R_REGION, R_OFFSET, R_BYTES, R_TO_REGION, R_TO_OFFSET, R_FUSED = 0, 1, 2, 3, 4, 5, 6
R_SHORTER, FIXED_WORDS = 7, 8
R_DONE, R_NEXT, R_CHAIN, R_PROGRAM, R_STAGE = 8, 9, 10, 11, 12
R_FROM_NS, R_UNTIL_NS = 13, 14  # when its first byte left or came, and its last
R_LEAVING = 15  # frames of it that have been cut and have not left
R_CAME = 16  # address of a bit for each chunk that may come in any order
ROW_WORDS = 17

# A MAC: three hashes of OpenSSL's (one begun with the inner key, one with the outer key, one to
# work with), three functions, how many frames came before, and the last digest.
M_INNER, M_OUTER, M_WORK, M_COPY, M_UPDATE, M_FINAL, M_NUMBER, M_BROKEN = 0, 1, 2, 3, 4, 5, 6, 7
M_DIGEST, MAC_WORDS = 8, 12

# What has failed; 0 for nothing.
F_LOST, F_MAGIC, F_HEADER, F_EPOCH, F_SIZES, F_DATA = 1, 2, 3, 4, 5, 6
F_LENGTH, F_EARLY, F_ORDER, F_LEFT, F_GIVEN_UP, F_LONG, F_OPENSSL, F_CHUNK = (
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
)

CALL_WORDS = 8  # arguments of a call
WORD_BYTES = 8
