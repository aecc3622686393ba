"""What map.xml says: the address space over time, as lines to append and read back.

Readers make a load object of a segment only if its modes are exactly 5 (read, execute), overflow at 2 GiB,
and warn when a segment covers a live one. So executable segments are written with modes 5 whatever else they
are, large ones in pieces, and whatever a new segment covers is unmapped first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from collector.clock import NS_PER_S
from collector.experiment.damage import ADDRESS_END, Damage
from collector.experiment.identity import UNKNOWN, Identity, attributes, of_element
from collector.experiment.log import sound_time_of, time_text
from collector.experiment.xml import Element, Plain, Value, element, parse

MODE_READ = 1
MODE_WRITE = 2
MODE_EXECUTE = 4
# Functions of interpreters, which have no machine code of their own, get addresses from here on, below the end: no
# processor has such ones, with four or five levels of pages, and no kernel.
MADE_UP_FIRST, MADE_UP_END = 0x0F00_0000_0000_0000, 0x1000_0000_0000_0000
MODES_TEXT = MODE_READ | MODE_EXECUTE
# The largest piece of a segment: page aligned for any page size, below the 2 GiB at which readers overflow.
PIECE_MAX = (1 << 31) - (1 << 20)

AGREED_NS = 2  # how far apart codes that follow each other at one place have to be told

DELETED = b" (deleted)"
ANONYMOUS = b"[anonymous code]"  # executable memory of which nothing is known
_COVERED_MAX = 64  # stretches of growing memory that are remembered: those that were told last
_NO_CHECKSUM = {True: 0xFFFF_FFFF, False: 0}


class MapLines:
    """The lines of map.xml for an experiment that started at ``start_ns``; remembers what is mapped."""

    def __init__(self, start_ns: int, page_size: int) -> None:
        self._start_ns = start_ns
        self._page_size = page_size
        self._starts: list[int] = []  # vaddr of what is mapped, sorted
        self._ends: dict[int, int] = {}  # vaddr -> end
        self._code: dict[int, bytes] = {}  # vaddr -> name of code without a file that may be divided
        self._since_ns: dict[int, int] = {}  # and when it was mapped
        self._covered: dict[int, int] = {}  # vaddr -> end of memory without a file that is in _code from end to end

    def segment(self, time_ns: int, vaddr: int, size: int, file_offset: int, name: bytes,
                modes: int, identity: Identity = UNKNOWN) -> bytes:
        """A mapped file; ``name`` as the kernel gives it."""
        modes = MODES_TEXT if modes & MODE_EXECUTE else modes
        lines = [self._cleared(time_ns, vaddr, vaddr + size)]
        for done in range(0, size, PIECE_MAX):
            piece = min(PIECE_MAX, size - done)
            self._remember(vaddr + done, piece)
            rest = _segment_rest(self._page_size, file_offset + done, modes, name.removesuffix(DELETED), identity)
            lines.append(self._map(b"segment", time_ns, vaddr + done, piece, rest))
        return b"".join(lines)

    def function(self, time_ns: int, vaddr: int, size: int, name: bytes,
                 symbols: Sequence[tuple[int, int, bytes]] = ()) -> bytes:
        """Code without a file; ``symbols`` (vaddr, size, name) subdivide it."""
        lines = [self._cleared(time_ns, vaddr, vaddr + size)]
        if symbols:
            starts, lengths, names = zip(*symbols, strict=True)
            lines.append(_division(name, lengths, names) % starts)
        self._remember(vaddr, size)
        lines.append(self._map(b"function", time_ns, vaddr, size, _function_rest(name)))
        return b"".join(lines)

    def anonymous(self, time_ns: int, vaddr: int, size: int, name: bytes = ANONYMOUS) -> bytes:
        """Executable memory without a file. What is known of code inside of it stays.

        A runtime lets its memory grow by small steps, and is told with all of it each time: only what is new is looked
        at, not thousands of functions again.
        """
        end, stop = self._covered.pop(vaddr, vaddr), vaddr + size
        if end > stop:
            end = vaddr
        first = self._first_over(end) if end > vaddr else bisect_left(self._starts, vaddr)
        last = bisect_left(self._starts, stop)
        known = [start for start in self._starts[first:last] if start in self._code and self._ends[start] <= stop]
        lines = []
        for start in [*known, stop]:
            if end < start:
                lines += [self._cleared(time_ns, end, start), self._loose(time_ns, end, start - end, name)]
            end = max(end, self._ends[start]) if start in self._code else end
        self._covered[vaddr] = stop
        if len(self._covered) > _COVERED_MAX:
            del self._covered[next(iter(self._covered))]
        return b"".join(lines)

    def code(self, time_ns: int, vaddr: int, size: int, name: bytes) -> tuple[bytes, int]:
        """A function inside of such memory, or beside of all memory, and from when on; empty if it is there already, or
        cannot be.

        It takes the place of what was there, not sooner than AGREED_NS after that came; what is left of that is code of
        which nothing is known.
        """
        end = vaddr + size
        if self._code.get(vaddr) == name and self._ends.get(vaddr) == end:
            return b"", time_ns
        first = self._first_over(vaddr)
        covered = [(start, self._ends[start]) for start in self._starts[first:bisect_left(self._starts, end)]]
        if any(start not in self._code for start, _ in covered):
            return b"", time_ns  # a file
        # gprofng takes events of one time in any order if they come late in the file: what ends here ended just before.
        time_ns = max([time_ns, *(self._since_ns[start] + AGREED_NS for start, _ in covered)])
        self._uncover(vaddr, end, but_inside=True)
        lines = [self._make_room(time_ns - 1, vaddr, end), self._loose(time_ns, vaddr, size, name)]
        for start, stop in covered:
            lines += [self._loose(time_ns, low, high - low, ANONYMOUS)
                      for low, high in ((start, vaddr), (end, stop)) if low < high]
        return b"".join(lines), time_ns

    def _loose(self, time_ns: int, vaddr: int, size: int, name: bytes) -> bytes:
        lines = []
        for done in range(0, size, PIECE_MAX):
            piece = min(PIECE_MAX, size - done)
            self._remember(vaddr + done, piece)
            self._code[vaddr + done], self._since_ns[vaddr + done] = name, time_ns
            lines.append(self._map(b"function", time_ns, vaddr + done, piece, _function_rest(name)))
        return b"".join(lines)

    def unmapped(self, time_ns: int, vaddr: int, size: int = 0) -> bytes:
        """Nothing is left in ``size`` bytes from ``vaddr``; 0: what was mapped to start there, whatever its
        size.
        """
        return self._cleared(time_ns, vaddr, max(vaddr + size, self._end_of(vaddr)))

    def _end_of(self, vaddr: int) -> int:
        """The end of the segment at ``vaddr`` with its further pieces."""
        end = vaddr
        while end in self._ends:
            piece = self._ends[end] - end
            end += piece
            if piece < PIECE_MAX:
                break
        return end

    def _cleared(self, time_ns: int, vaddr: int, end: int) -> bytes:
        """Makes room for what is no code that may be divided, or for nothing."""
        self._uncover(vaddr, end)
        return self._make_room(time_ns, vaddr, end)

    def _uncover(self, vaddr: int, end: int, *, but_inside: bool = False) -> None:
        """Forgets that memory which overlaps [vaddr, end) is covered, but perhaps not that which all of it lies in."""
        for begin in [begin for begin, stop in self._covered.items() if begin < end and stop > vaddr
                      and not (but_inside and begin <= vaddr and end <= stop)]:
            del self._covered[begin]

    def _first_over(self, vaddr: int) -> int:
        """Which is the first of what is mapped that ends above an address."""
        first = bisect_right(self._starts, vaddr)
        return first - 1 if first and self._ends[self._starts[first - 1]] > vaddr else first

    def _make_room(self, time_ns: int, vaddr: int, end: int) -> bytes:
        """Unmap everything mapped that overlaps [vaddr, end)."""
        first = self._first_over(vaddr)
        last = bisect_left(self._starts, end)
        if first == last:
            return b""
        gone = self._starts[first:last]
        del self._starts[first:last]
        for start in gone:
            del self._ends[start]
            self._code.pop(start, None)
            self._since_ns.pop(start, None)
        tstamp = time_text(time_ns - self._start_ns)
        return b"".join(element("event", {"kind": "unmap", "tstamp": tstamp, "vaddr": Plain(b"0x%016X" % start)})
                        for start in gone)

    def _remember(self, vaddr: int, size: int) -> None:
        self._starts.insert(bisect_left(self._starts, vaddr), vaddr)
        self._ends[vaddr] = vaddr + size

    def _map(self, kind: bytes, time_ns: int, vaddr: int, size: int, rest: bytes) -> bytes:
        return _MAPPED % (kind, *divmod(max(time_ns - self._start_ns, 0), NS_PER_S), vaddr, size, rest)


# A mapping up to what it has in common with those of the same file, or name, in other processes: of a build there are
# ten thousand.
_MAPPED = b'<event kind="map" object="%b" tstamp="%d.%09d" vaddr="0x%016X" size="%d"%b'


@lru_cache(maxsize=64)
def _division(name: bytes, lengths: tuple[int, ...], symbols: tuple[bytes, ...]) -> bytes:
    """The functions of code without a file, to be filled with their addresses: all processes have the vDSO."""
    address = Plain(b"\0")  # which nothing that is escaped has in it
    lines = [element("event", {"kind": "map", "object": "dynfunc", "name": name, "vaddr": address, "size": length,
                               "funcname": symbol}) for length, symbol in zip(lengths, symbols, strict=True)]
    return b"".join(lines).replace(b"%", b"%%").replace(address, b"0x%016X")


@lru_cache(maxsize=1024)
def _segment_rest(page_size: int, file_offset: int, modes: int, name: bytes, identity: Identity) -> bytes:
    return _rest({"pagesz": page_size, "foffset": Plain(b"+0x%08x" % file_offset), "modes": f"0x{modes:03x}",
                  "chksum": f"0x{_NO_CHECKSUM[not modes & MODE_WRITE]:x}", "name": name, **attributes(identity)})


@lru_cache(maxsize=64)
def _function_rest(name: bytes) -> bytes:
    return _rest({"name": name})


def _rest(attributes: dict[str, Value]) -> bytes:
    """What an element ends with: all but its own name."""
    return element("", attributes).removeprefix(b"<")


class Segment(NamedTuple):
    """A file mapped at ``vaddr`` from start_ns until end_ns (absolute)."""

    start_ns: int
    end_ns: int
    vaddr: int
    size: int
    file_offset: int
    modes: int
    name: bytes
    identity: Identity = UNKNOWN


class DynamicFunction(NamedTuple):
    """Code without a file; ``symbols`` (vaddr, size, name) subdivide it."""

    start_ns: int
    end_ns: int
    vaddr: int
    size: int
    name: bytes
    symbols: tuple[tuple[int, int, bytes], ...] = ()


# The end of what is mapped until the end.
FOREVER_NS = (1 << 63) - 1


# No mapping is larger than what a process can address, none begins behind the end of the largest file.
_SIZE_MAX = 1 << 47
_OFFSET_MAX = 1 << 62


def read(data: bytes, start_ns: int, damage: Damage | None = None) -> tuple[list[Segment], list[DynamicFunction]]:
    """Files and functions without a file, each in the order of ``mappings``."""
    found = mappings(data, start_ns, damage)
    return ([one for one in found if isinstance(one, Segment)],
            [one for one in found if isinstance(one, DynamicFunction)])


def mappings(data: bytes, start_ns: int, damage: Damage | None = None) -> list[Segment | DynamicFunction]:
    """Parse a map.xml of an experiment that started at ``start_ns``: what was mapped, in order of time; of one time, in
    that of the file. What a later mapping covers ends there.

    Every mapping has a name and lies in 64 bits; one that does not is left out.
    """
    reading = Reading(start_ns, damage)
    reading.feed(data)
    return reading.mappings


class Reading:
    """A map.xml that is parsed piece by piece, as it is written; as ``read`` of all pieces."""

    def __init__(self, start_ns: int, damage: Damage | None = None) -> None:
        self._start_ns = start_ns
        self._damage = damage or Damage()
        self._symbols: list[tuple[int, int, bytes]] = []  # of a function that comes behind them
        self._timed: list[_Timed] = []
        self._space = _Space()

    @property
    def mappings(self) -> list[Segment | DynamicFunction]:
        """What was mapped, in order of time."""
        return self._space.everything()

    @property
    def segments(self) -> list[Segment]:
        """The files among them."""
        return [one for one in self.mappings if isinstance(one, Segment)]

    @property
    def functions(self) -> list[DynamicFunction]:
        """Code without a file among them."""
        return [one for one in self.mappings if isinstance(one, DynamicFunction)]

    def feed(self, data: bytes) -> None:
        """More of the text: whole elements."""
        events = [node for node in parse(data, self._damage.note) if node.name == "event"]
        sound = [node for node in events if _is_sound(node)]
        self._damage.note("mappings without a possible place were skipped", len(events) - len(sound))
        timed = sorted(filter(None, map(self._timed_event, sound)), key=_time_of)
        is_late = bool(timed and self._timed and timed[0][0] < self._timed[-1][0])
        self._timed += timed
        if is_late:
            self._timed.sort(key=_time_of)
            self._space, timed = _Space(), self._timed
        for time_ns, node, own in timed:
            if node.get("kind") == b"unmap":
                self._space.unmap(time_ns, _place(node)[0], _place(node)[0] + 1)
            elif node.get("object") in _MAPPINGS:
                self._space.map(_mapping(node, time_ns, own))

    def _timed_event(self, node: Element) -> _Timed | None:
        """The event at its time, with the symbols that came before it; None for such a symbol."""
        if node.get("object") == b"dynfunc":
            self._symbols.append((*_place(node), node.get("funcname")))
            return None
        own: tuple[tuple[int, int, bytes], ...] = ()
        if node.get("object") == b"function":
            vaddr, size = _place(node)
            own = tuple(symbol for symbol in self._symbols if vaddr <= symbol[0] < vaddr + size)
            self._damage.note("symbols outside of their function were skipped", len(self._symbols) - len(own))
            self._symbols = []
        time_ns = sound_time_of(node)
        self._damage.note("events without a possible time were taken as of the start", time_ns is None)
        return (time_ns or 0) + self._start_ns, node, own


_Timed = tuple[int, Element, tuple[tuple[int, int, bytes], ...]]


def _time_of(event: _Timed) -> int:
    return event[0]


_MAPPINGS = (b"segment", b"function")


def _is_sound(node: Element) -> bool:
    vaddr, size = _place(node)
    if node.get("kind") == b"unmap":
        return vaddr >= 0
    if node.get("object") not in (*_MAPPINGS, b"dynfunc"):
        return node.get("kind") == b"map" and "object" in node.attributes  # there may be others, not known here
    has_name = bool(node.get("funcname" if node.get("object") == b"dynfunc" else "name"))
    has_offset = node.get("object") != b"segment" or abs(node.number("foffset", _OFFSET_MAX)) < _OFFSET_MAX
    return vaddr >= 0 and 0 <= size < _SIZE_MAX and vaddr + size <= ADDRESS_END and has_name and has_offset


def _place(node: Element) -> tuple[int, int]:
    """Address and size, -1 where there is none that can be."""
    return node.number("vaddr", -1, 0, ADDRESS_END - 1), node.number("size", -1, 0)


def _mapping(node: Element, time_ns: int, symbols: tuple[tuple[int, int, bytes], ...]) -> Segment | DynamicFunction:
    (vaddr, size), name = _place(node), node.get("name")
    if node.get("object") == b"function":
        return DynamicFunction(time_ns, FOREVER_NS, vaddr, size, name, symbols)
    return Segment(time_ns, FOREVER_NS, vaddr, size, node.number("foffset"), node.number("modes"), name,
                   of_element(node))


class _Space:
    """Mappings while they are read in order of time."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._live: dict[int, int] = {}  # vaddr -> number in _all
        self._all: list[Segment | DynamicFunction] = []

    def everything(self) -> list[Segment | DynamicFunction]:
        return self._all

    def unmap(self, time_ns: int, vaddr: int, end: int) -> None:
        first = bisect_right(self._starts, vaddr)
        if first and self._end(self._starts[first - 1]) > vaddr:
            first -= 1
        last = bisect_left(self._starts, end)
        for start in self._starts[first:last]:
            number = self._live.pop(start)
            self._all[number] = self._all[number]._replace(end_ns=time_ns)
        del self._starts[first:last]

    def map(self, mapping: Segment | DynamicFunction) -> None:
        if not mapping.size:
            return
        self.unmap(mapping.start_ns, mapping.vaddr, mapping.vaddr + mapping.size)
        self._starts.insert(bisect_left(self._starts, mapping.vaddr), mapping.vaddr)
        self._live[mapping.vaddr] = len(self._all)
        self._all.append(mapping)

    def _end(self, vaddr: int) -> int:
        mapping = self._all[self._live[vaddr]]
        return mapping.vaddr + mapping.size
