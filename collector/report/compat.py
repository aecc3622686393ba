"""What is so only because gprofng's reader does it so.

Two tools that read one experiment must print one set of names and figures, so where gprofng's are a matter of taste, or
an accident, we share them. Each accident is declared here, once, with the file of gprofng (binutils 2.40,
``gprofng/src``) that it comes from. The judge is ``gprofng display text`` itself (``scripts/agree``). What other rooms
of this house would do is theirs; nothing here knows experiments or load objects. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.clock import NS_PER_US

I8 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint64]

# --- names of functions ---------------------------------------------------------------------------

# What is no function has the form of one: <Total> is the sum of all, <Unknown> what lies in no load object, the other
# two are roots of incomplete stacks and belong to the load object <Total> (DbeSession.cc).
TOTAL, UNKNOWN = b"<Total>", b"<Unknown>"
TRUNCATED, FAILED = b"<Truncated-stack>", b"<Stack-unwind-failed>"
# Functions without a file share one load object, whose name has no angle brackets (DbeSession.cc).
DYNAMIC_FUNCTIONS = b"DYNAMIC_FUNCTIONS"
# The procedure linkage table is one function, whatever symbols lie in it; a leaf there stands for its caller
# (Stabs.cc, CallStack.cc).
PLT = b"@plt"
# Behind the name of code that the object's file says nothing of (LoadObject.cc).
_NO_FUNCTIONS = b" --  no functions found"
_WITHOUT_SYMBOL = rb"<(?:static|Unknown)>@0x([0-9a-f]+) \(<(.*)>\)(?: --  no functions found)?"


def static_name(offset: int, object_name: bytes) -> bytes:
    """A hole between two functions is a function, named by where it *begins*, not by what was met (LoadObject.cc)."""
    return b"<static>@0x%x (%s)" % (offset, object_name)


def without_symbol(name: bytes) -> re.Match[bytes] | None:
    """Whether ``static_name`` or ``unknown_name`` made it; groups: offset in hexadecimal, object without brackets."""
    return re.fullmatch(_WITHOUT_SYMBOL, name, re.DOTALL)


def unknown_name(offset: int, object_name: bytes) -> bytes:
    """Of a file that is not the one that was recorded every place is a function of its own."""
    return b"<Unknown>@0x%x (%s)" % (offset, object_name)


def name_of_aliases(linkages: Iterable[bytes], shown: Callable[[bytes], bytes]) -> tuple[bytes, bytes]:
    """Of symbols at one place: (linkage name, name shown). The shortest shown, the first among equals (Stabs.cc)."""
    found = [(shown(name), name) for name in sorted(set(linkages), reverse=True)]
    return min(found, key=lambda pair: (len(pair[0]), pair[0]))[::-1]


def may_be_mangled(linkage: bytes) -> bool:
    """What has no underscore first is shown as it is (Function.cc)."""
    return linkage.startswith(b"_")


def short_name(name: bytes) -> bytes:
    """A name without its parameters: up to the last parenthesis that is in no template's arguments (Function.cc)."""
    angles = rounds = 0
    for at in range(len(name) - 1, -1, -1):
        mark = name[at:at + 1]
        angles += (mark == b">") - (mark == b"<")
        rounds += (mark == b")") - (mark == b"(")
        if mark == b"(" and angles <= 0 and rounds <= 0:
            return name[:at]
    return name


# --- where functions are --------------------------------------------------------------------------


class Places(NamedTuple):
    """A table of last answers: an offset's place in it is ``(offset >> shift) % n``."""

    shift: int
    n: int


# The reader keeps the function that it found last for each place of a table, and does not search for what is in it.
# A hole that was filled behind the text may hide functions from later searches, but not from this table (LoadObject.cc,
# find_function).
LAST_FUNCTIONS = Places(6, 1024)
# ... and the same of instructions (LoadObject.cc, find_dbeinstr).
LAST_INSTRUCTIONS = Places(2, 4096)
TEXT_FLAGS = 5  # readable and executable


class Hole(NamedTuple):
    """What lies between functions: from ``low`` to ``high``, file offsets, and what it is called."""

    low: int
    high: int
    name: bytes


def hole(offset: int, at: int, offsets: Sequence[int], ends: Sequence[int], text: int, object_name: bytes) -> Hole:
    """The hole that ``offset`` lies in (LoadObject.cc, find_function).

    ``at``: where the search among functions from ``offsets`` to ``ends`` ended. ``text``: the *size* of the only
    executable segment, which the reader compares with file offsets: what lies at or behind it "cannot be mapped". A
    search that ended before the hole makes it end where the function behind the next one begins.
    """
    if offset >= text:
        return Hole(text, offset, static_name(text, object_name) + _NO_FUNCTIONS)
    if not offsets:
        return Hole(0, text, static_name(0, object_name) + _NO_FUNCTIONS)
    if offset < offsets[0]:
        low, high = 0, offsets[0]
    elif offset >= ends[-1]:
        low, high = ends[-1], text
    elif offset >= ends[at]:
        low, high = ends[at], offsets[at + 1]
    else:
        low, high = ends[at - 1], offsets[at]
    return Hole(low, high, static_name(low, object_name))


def fitted(offset: I8, size: I8) -> I8:
    """Sizes of functions at ``offset`` (n), sorted: equal offsets share their largest size; a size of 0, or into the
    next offset, ends at the next offset. What lies at offset 0 is left as it is (Stabs.cc, fixSymtabAlias).
    """
    if not len(offset):
        return size
    starts = np.flatnonzero(np.diff(offset, prepend=offset[0] - 1))
    places = offset[starts]
    largest = np.maximum.reduceat(size, starts)
    room = np.append(np.diff(places), np.iinfo(np.int64).max)
    found = np.where((largest == 0) | (largest > room), room, largest)
    found[-1] = largest[-1]
    spread = np.repeat(found, np.diff(np.append(starts, len(offset))))
    return np.where(offset == 0, size, spread)


# --- what packets are worth -----------------------------------------------------------------------


def whole_us(times_ns: Any) -> Any:
    """Times are cut to whole microseconds packet by packet: sums of nanoseconds would differ (Experiment.cc)."""
    return times_ns // NS_PER_US


def wake_up_ns(threads: npt.NDArray[Any], times_ns: npt.NDArray[Any], ticks: npt.NDArray[Any], interval_ns: int) -> I8:
    """How long what each clock packet (n) tells of took: the ticks of all packets of one thread and time, which are
    one wake-up, *less one* (Experiment.cc, EVT_TIME).
    """
    if not len(ticks):
        return np.zeros(0, np.int64)
    order = np.lexsort((times_ns, threads))
    threads, times_ns = threads[order], times_ns[order]
    is_new = np.append(True, (threads[1:] != threads[:-1]) | (times_ns[1:] != times_ns[:-1]))
    group = np.cumsum(is_new) - 1
    sums = np.bincount(group, ticks[order]).astype(np.int64)
    found = np.zeros(len(ticks), np.int64)
    found[order] = (np.maximum(sums - 1, 0) * interval_ns)[group]
    return found


def sample_numbers(starts: I8, ends: I8, numbers: I8, times_ns: I8) -> I8:
    """The number of the sample in which each time (n) lies; 0: in none. A time at the very point of a sample belongs to
    the one that *ends* there (Experiment.cc).
    """
    if not len(starts):
        return np.zeros(len(times_ns), np.int64)
    at = np.searchsorted(starts, times_ns, side="left") - 1
    return np.where((at >= 0) & (times_ns <= ends[at]), numbers[at], 0).astype(np.int64)


def by_appearance(values: I8) -> I8:
    """LWPs are numbered as packets tell of them, from 1, threads as the log does (Experiment.cc)."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.zeros(len(distinct), np.int64)
    rank[np.argsort(first)] = np.arange(1, len(distinct) + 1)
    return rank[inverse]


# Properties of every packet, whatever there is of Java (Expression.cc).
GROUP_NUMBER, JAVA_THREAD, GARBAGE_COLLECTION = 1, 1, 0

# --- filters --------------------------------------------------------------------------------------

# Which operators bind: those of the first line least; within a line from left to right. So AND does not bind more than
# OR, products not more than sums (``1+2*3`` is 9), and IN less than anything (QLParser.yy).
LEVELS = (("||", "&&", "|", "^", "&"), ("==", "!=", "<", "<=", ">", ">="), ("<<", ">>", "+", "-", "*", "/", "%"))
COMPARING = 1
_BITS = 64


def divided(how: Callable[[U8, U8], U8]) -> Callable[[U8, U8], U8]:
    """What is divided by zero is zero (Expression.cc)."""
    return lambda left, right: np.where(right == 0, np.uint64(0), how(left, np.where(right == 0, np.uint64(1), right)))


def shifted(how: Callable[[U8, U8], U8]) -> Callable[[U8, U8], U8]:
    """Shifts by 64 and more are those by the rest, as x86-64 has them (Expression.cc)."""
    return lambda left, right: how(left, right % np.uint64(_BITS))


# --- files of input and output --------------------------------------------------------------------

# Channels are numbered: 1 to 3 are the standard ones, 4 is all that has no descriptor, the others follow from ten on,
# ten apart between experiments (FileData.h, Experiment.cc).
STANDARD_FILES = {0: b"<stdin>", 1: b"<stdout>", 2: b"<stderr>"}
OTHER_NAME = b"<Other IO activity>"
UNKNOWN_NAME = b"<pipe(), socket(), or other fds>"
OTHER_CHANNEL = 4
FIRST_CHANNEL = 10
CHANNELS_APART = 10


def channel_name(number: int, name: bytes, descriptor: int) -> bytes:
    """A channel as it is listed; descriptor -1: none."""
    shown = b", FD=%d" % descriptor if descriptor >= 0 else b""
    return b"%s (IOVFD=%d%s)" % (name, number, shown)


# --- columns --------------------------------------------------------------------------------------

# What is shown unless something is asked for (gprofng.rc): CPU time and counters with shares, what is traced inclusive.
DEFAULT_METRICS = (
    "i.heapleakbytes:i.heapleakcnt:i.heapallocbytes:i.heapalloccnt:ei.%totalcpu:ei.kcpu:i!hwc:e.%hwc:i.sync:i.syncn:"
    "i.ioreadtime:i.iowritetime:i.ioothertime:i.ioerrortime:ei!any:!size:!address:name")
DEFAULT_SORT = "ei.any:name"
