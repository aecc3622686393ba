"""Every byte layout of an experiment, declared once. The writing and the reading door both use these.

A packet file is a chain of packets; each starts with ``tsize`` (bytes, the whole packet) and ``kind``::

    0      2      4                          tsize
    +------+------+---------------------------+------+------+---
    |tsize | kind | body                      |tsize | kind | ...
    +------+------+---------------------------+------+------+---

A ``tsize`` of zero means "nothing here yet": readers go on at the next multiple of BLOCK_SIZE. So a packet
whose ``tsize`` is written last does not exist before it is whole. Writing happens in blocks: no packet
crosses a multiple of BLOCK_SIZE unless it is larger than a block.

A stack is stored leaf first in a FRAME packet. Its tail may be shared: with the bit LINKED set, the last
eight bytes name another stack or a UID packet that continues it toward the root::

    FRAME 11  uid=48  [NATIVE uid=48: pc0 pc1 -> link 32]        pc0 pc1 pc2 pc3
    UID   17  uid=32  [pc2 pc3]

All numbers are little endian. The fields with a meaning are described in log.xml; the others are private to
this file.
"""

from __future__ import annotations

from collector.layout import Described, Field, Record

BLOCK_SIZE = 16_384
PACKET_SIZE_MAX = 65_532

KIND_EMPTY = 0
KIND_SYNC = 2
KIND_COUNTER = 3
KIND_HEAP = 5
KIND_CLOCK = 8
KIND_FRAME = 11
KIND_UID = 17
KIND_IO = 19
KIND_CLOSED = 65_535

STATES = ("user", "system", "trap", "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "wait",
          "stop")
N_STATES = len(STATES)

# Stored as the last pc of a stack that does not reach the root.
PC_TRUNCATED = 0xFFFF_FFFF_FFFF_FFFE
PC_UNWIND_FAILED = 0xFFFF_FFFF_FFFF_FFFD

# In NATIVE's block kind and in a UID packet's flags: the last eight bytes are a link.
LINKED = 0x8000_0000
BLOCK_NATIVE = 1

HEAD = Record(-1, "head", Field("tsize", "<u2"), Field("kind", "<u2"))

# The fields and names that other collectors write, in 64 bytes so that 256 packets fill a block exactly and
# every wide field lies on its natural boundary. SYSCALL and EXACT_NS are ours; readers offer them as
# properties for filters.
CLOCK = Record(
    KIND_CLOCK, "clock",
    Field("tsize", "<u2"), Field("kind", "<u2"),
    Field("LWPID", "<i8", "Lightweight process id", 8),
    Field("THRID", "<i8", "Thread number", 16),
    Field("CPUID", "<i4", "CPU id", 24),
    Field("SYSCALL", "<i4", "System call number", 28),
    Field("TSTAMP", "<i8", "High resolution timestamp", 32),
    Field("FRINFO", "<i8", "Frame Info", 40),
    Field("MSTATE", "<i4", "Thread state", 48),
    Field("NTICK", "<i4", "Duration", 52),
    Field("EXACT_NS", "<i8", "Exact nanoseconds", 56),
)
NO_SYSCALL = -1
EXACT_UNKNOWN = -1

# What other collectors trace. Nothing here writes these; they say what a report needs of a packet.
_TRACED = (
    Field("tsize", "<u2"), Field("kind", "<u2"),
    Field("LWPID", "<i8", "Lightweight process id", 8),
    Field("THRID", "<i8", "Thread number", 16),
    Field("CPUID", "<i4", "CPU id", 24),
    Field("TSTAMP", "<i8", "High resolution timestamp", 32),
    Field("FRINFO", "<i8", "Frame Info", 40),
)
# Locks: granted at TSTAMP.
SYNC = Record(
    KIND_SYNC, "sync", *_TRACED,
    Field("SRQST", "<i8", "Synchronization start time", 48),
    Field("SOBJ", "<i8", "Synchronization object address", 56),
)
HEAP = Record(
    KIND_HEAP, "heap", *_TRACED,
    Field("HTYPE", "<i4", "Heap trace function type", 48),
    Field("HSIZE", "<u8", "Memory size", 56),
    Field("HVADDR", "<u8", "Memory address", 64),
    Field("HOVADDR", "<u8", "Previous memory address", 72),
)
HEAP_MALLOC, HEAP_FREE, HEAP_REALLOC, HEAP_MMAP, HEAP_MUNMAP = range(5)
# Ended at TSTAMP. The name of a file that was opened follows, ended by NUL.
IO = Record(
    KIND_IO, "io", *_TRACED,
    Field("IOTYPE", "<i4", "IO trace function type", 48),
    Field("IOFD", "<i4", "File descriptor", 52),
    Field("IONBYTE", "<i8", "Number of bytes", 56),
    Field("IORQST", "<i8", "Time of IO requested", 64),
    Field("IOOFD", "<i4", "Original file descriptor", 72),
    Field("IOFSTYPE", "<i4", "File system type", 76),
)
IO_READ, IO_WRITE, IO_OPEN, IO_CLOSE, IO_OTHER = range(5)
IO_ERROR = 5  # added to those that failed
IO_NAME = Described("IOFNAME", "File name", IO.size, "STRING")
# Hardware counters: HWCINT events since the last packet of that counter.
COUNTER = Record(
    KIND_COUNTER, "counter", *_TRACED,
    Field("HWCTAG", "<i4", "Hardware counter tag", 48),
    Field("HWCINT", "<i8", "Hardware counter interval", 56),
)
COUNTER_DOUBTFUL = 1 << 63  # set in HWCINT by collectors that found an impossible number

# A frame packet up to the first pc: the packet's head and the head of its only block, the native stack.
FRAME = Record(
    KIND_FRAME, "frame",
    Field("tsize", "<u2"), Field("kind", "<u2"),
    Field("hsize", "<u4"), Field("uid", "<u8"),
    Field("block_hsize", "<u4"), Field("block_kind", "<u4"), Field("block_uid", "<u8"),
)
FRAME_BLOCKS_OFFSET = 16

# The head of an info block inside a frame packet.
INFO = Record(-1, "info", Field("hsize", "<u4"), Field("kind", "<u4"), Field("uid", "<u8"))

UID = Record(
    KIND_UID, "uid", Field("tsize", "<u2"), Field("kind", "<u2"), Field("flags", "<u4"), Field("uid", "<u8"),
)

# Records of dyntext; a head says which function those behind it are of.
DYNTEXT_HEAD, DYNTEXT_CODE, DYNTEXT_LINES, DYNTEXT_SOURCE = 1, 2, 3, 4
TEXT_HEAD = Record(
    DYNTEXT_HEAD, "dyntext", Field("type", "<u4"), Field("size", "<u4"), Field("time", "<i8"), Field("vaddr", "<u8"),
)

# The file of aggregations: this head; then each aggregation's head, followed by the kinds of the elements of its keys,
# the keys (of recorded spans first), their states as DTrace's words, the expression, and names, each ended by NUL.
AGGREGATIONS = Record(
    -1, "aggregations",
    Field("magic", "<u8"), Field("version", "<u4"), Field("checksum", "<u4"),  # CRC-32 of what follows
    Field("length", "<u8"),  # bytes that follow
)
AGGREGATIONS_MAGIC = int.from_bytes(b"AGGRSTAT", "little")
AGGREGATIONS_VERSION = 2  # 1 had no n_dropped
AGGREGATION = Record(
    -1, "aggregation",
    Field("size", "<u8"),  # bytes, a multiple of eight, this head included
    Field("expression", "<u4"), Field("names", "<u4"),  # bytes of each
    Field("n_keys", "<u4"), Field("n_words", "<u4"),  # elements of a key, words of a state
    Field("n_recorded", "<u8"), Field("n_synthetic", "<u8"),  # keys
    Field("n_dropped", "<u8"),  # values of keys for which there was no room
)
AGGREGATION_WORD = "<u8"
KEY_NUMBER, KEY_NAME, KEY_STACK = range(3)
NOT_SAMPLED = (1 << 62) - 1  # in place of a stack's uid: of a run that no clock sample fell into

# The overview's times are pairs of seconds and nanoseconds, its counters single words; a word is 8 or 4
# bytes.
_TIMES = ("tstamp", "created", "terminated", "real", *STATES)
COUNTERS = ("minor_faults", "major_faults", "swaps", "input_blocks", "output_blocks", "messages_sent",
            "messages_received", "signals", "voluntary_switches", "involuntary_switches", "system_calls",
            "characters_io")
_TIME_FILLERS = 6
_COUNTER_FILLERS = 10


def _overview(word: str, size: int) -> Record:
    fields = [Field("lwpid", "<i4"), Field("count", "<i4")]
    for name in _TIMES:
        fields += [Field(name + "_s", word), Field(name + "_ns", word)]
    counters_offset = 8 + (len(_TIMES) + _TIME_FILLERS) * 2 * int(word[2])
    fields.append(Field(COUNTERS[0], word, offset=counters_offset))
    fields += [Field(name, word) for name in COUNTERS[1:]]
    return Record(-1, "overview", *fields, size=size)


OVERVIEW = {64: _overview("<u8", 504), 32: _overview("<u4", 256)}
