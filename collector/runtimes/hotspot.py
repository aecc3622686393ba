"""HotSpot from outside: its compiled code, its interpreter's frames and the methods that both carry out. Pure, over a
``read`` handed in.

The theory. A Java thread's native stack is one stack. Frames of the VM are C++; between the call stub, by which C++
calls Java, and whatever Java calls, lie frames of the code cache, one after the other:

    C++  ->  call stub  ->  interpreter | compiled | native wrapper | stub  ->  ...  ->  C++ (the VM, JNI, libc)

Each begins where the one before ends, so they are unwound like all others, by rules (``code_hotspot``). A rule needs
nothing but the code that a pc lies in: the code cache is some heaps, each with a map of segments, in which every block
is found from any pc in it, in one read for all that are asked for at once. A block is a *blob*: a name, a frame size
and, of compiled code (an *nmethod*), the method and the number of its compilation. So no frame is read one by one, and
a known blob costs nothing but a look, batch by batch, at whether it is still the same.

Which method a frame carries out:

    interpreted    Method* at fp - 24 and the bytecode pointer at fp - 64 (r13 in the leaf), both in the stack that was
                   copied
    compiled       the nmethod's own; and the methods that were inlined into it, by the record of its debug information
                   that belongs to the return address, or to the next place behind a leaf's pc that has one
                   (``scopes_hotspot``)

A Method* leads over ConstMethod and ConstantPool to the symbols of its class, name and signature, level by level, for
all new ones at once; it is believed if the pool belongs to a class that has this pool, the tags are those of symbols,
the symbols and all that leads to them are the same when read twice, the names are names and the signature says as many
words as the method takes.
So what lies at a wrong address, or changes while it is read, gives no name rather than a wrong one.

Code comes and goes. A blob counts from the look before it was first seen; a frame in code that has been there before
and after its sample is verified, and so is one whose stack reaches the thread's first frame. One in code that has
changed between the sample and the look is torn; one without a method is unknown.

Since 21 a virtual thread's frames lie on its carrier's stack while it runs. Those that have not been brought back from
the heap yet are not there: the stack goes on with the continuation's entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.arrays import distinct
from collector.runtimes import layout_hotspot
from collector.runtimes.code_hotspot import (
    ENTERED,
    FRAMELESS,
    INTERPRETED,
    Rows,
    rows_of_compiled,
    rows_of_stub,
    rows_of_stubs,
)
from collector.runtimes.layout_hotspot import NONE, Layout
from collector.runtimes.methods_hotspot import JavaMethod, Methods
from collector.runtimes.scopes_hotspot import Scope, Scopes, ranges_of
from collector.unwind.rules import Rule
from collector.unwind.table import HOLE, STOP

Read = Callable[[Sequence[int], Sequence[int]], list[bytes]]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

SYMBOLS = layout_hotspot.SYMBOLS
_COMPILED, _NATIVE = b"nmethod", b"native nmethod"
_INTERPRETER = b"Interpreter"
_STUBS, _CONTINUATION = b"StubRoutines", b"continuation"
_FRAMELESS = (b"I2C/C2I adapters", b"vtable chunks", b"MethodHandles adapters", b"AdapterBlob", b"VtableBlob")
_LEVELS = {1: b"C1", 2: b"C1", 3: b"C1", 4: b"C2"}

_HEAPS_MAX, _CACHE_MAX = 16, 1 << 31
_BLOB_MAX, _TEXT_MAX, _FRAME_MAX = 1 << 26, 1 << 22, 1 << 20
_NAME_MAX = 128
_NO_FRAME = -1  # the frame's size is not known
_FREE = 0xFF
_NOT_INSTALLED = 0xFF
_USER_END = 1 << 47
_METHODS_NS = 1_000_000_000  # how often methods are looked at
_FEW = 2  # blobs that are new from batch to batch in a program that has all that it works with
_WORD = 8


class Blob(NamedTuple):
    """A block of the code cache: its code at [code, code_end), the frame's size in bytes, and of compiled code the
    Method*, the number and the level of the compilation (else 0). ``since_ns``: it was not there before, as far as is
    known."""

    start: int
    code: int
    code_end: int
    name: bytes
    frame_size: int
    method: int
    compile_id: int
    level: int
    since_ns: int
    head: bytes

    @property
    def is_compiled(self) -> bool:
        """Whether it is a method's: compiled, or the wrapper of a native one."""
        return self.name in (_COMPILED, _NATIVE)

    @property
    def maker(self) -> bytes:
        """Who compiled it; of a native method's wrapper: ``native``."""
        return _LEVELS.get(self.level, b"native")

    @property
    def is_interpreter(self) -> bool:
        """Whether it carries out bytecode."""
        return self.name == _INTERPRETER


class _Heap(NamedTuple):
    low: int
    high: int
    segmap: int
    log2_segment: int


class Machine:
    """The HotSpot in one process. ``low`` and ``high``: where its code cache is; addresses of the rules that it tells
    are those behind ``low``."""

    def __init__(self, layout: Layout, bounds: tuple[int, int], heaps: Sequence[int], call_stub_return: int, read: Read,
                 now_ns: int) -> None:
        """``heaps``: the addresses of its heaps; ``now_ns``: when this was read."""
        self.layout = layout
        self.low, self.high = bounds
        self.methods = Methods(layout, read)
        self.changed: set[int] = set()  # starts of blobs that were others before the last look
        self._call_stub_return = call_stub_return
        self._read = read
        self._heap_at = list(heaps)
        self._blobs: dict[int, Blob] = {}  # by start
        self._stretches: dict[int, tuple[int, int]] = {}  # by start: what was told of it
        self._covered: list[tuple[int, int]] = []  # stretches of which nothing holds any more, since the last look
        self._unknown: set[int] = set()  # pcs that lie in nothing
        self._certain: set[int] = set()  # starts of blobs that have been looked at since the last look
        self._telling = _telling_bytes(layout)
        self._names: dict[int, bytes] = {}  # by address
        self._segmaps: dict[int, list[bytes]] = {}  # by where a heap begins: of the last two looks for all
        self._scopes: dict[tuple[int, int, int], Scopes] = {}  # by what a blob is
        self._looked_ns = self._before_ns = now_ns  # the last look, and the one before
        self.seen_ns = now_ns  # until when blobs that are known were there for certain
        self._starts = array("Q")  # of the code of all blobs, sorted
        self._ends = array("Q")  # of the code of each
        self._in_order: list[Blob] = []
        self._undiscovered: list[Blob] = []  # those that were met since code was discovered last
        self._discovered: set[int] = set()  # starts of blobs found so in the place of others, since the last look
        self.is_moving = True  # whether more than a few blobs were new, or had changed, before the last look
        self._n_new = 0  # since then

    # -- blobs

    @property
    def blobs(self) -> list[Blob]:
        """All that have been met, by address."""
        return list(self._in_order)

    def look(self, now_ns: int) -> list[tuple[int, int]]:
        """Whether what was told still holds will be seen as it is needed, from now on; the stretches [begin, end),
        behind ``low``, of which nothing could be told."""
        self._certain.clear()
        self.changed, self._discovered = self._discovered, set()
        lost = [(pc - self.low, pc - self.low + 1) for pc in self._unknown] + self._covered
        self._unknown.clear()
        self._covered = []
        self.is_moving, self._n_new = self._n_new > _FEW, 0
        self._looked_ns, self._before_ns = now_ns, self._looked_ns
        if now_ns // _METHODS_NS != self._before_ns // _METHODS_NS:
            self.methods.look()
        return lost

    def no_more(self, pcs: U64) -> list[tuple[int, int]]:
        """The stretches that ``pcs`` (n,) lie in, of which what was told does not hold any more, and those that others
        have been found in since the last look."""
        hit = {self._in_order[at].start for at in distinct(self._at(pcs)).tolist() if at >= 0} - self._certain
        gone = self._changed(list(hit))
        self._certain |= hit
        self._replaced(gone)
        forgotten, self._covered = self._covered, []
        return forgotten

    def blob_at(self, pc: int) -> Blob | None:
        """The blob whose code is at a pc, among those that were met."""
        at = bisect_right(self._starts, pc) - 1
        return self._in_order[at] if at >= 0 and pc < self._in_order[at].code_end else None

    def blobs_at(self, pcs: U64) -> list[Blob | None]:
        """The same for pcs (n,), all that are not known yet, or may have changed, in one go."""
        return [self._in_order[at] if at >= 0 else None for at in self._met(pcs).tolist()]

    def in_code(self, pcs: U64) -> U64:
        """Those (k,) of ``pcs`` (n,) that lie in blobs."""
        return pcs[self._met(pcs) >= 0]

    def _met(self, pcs: U64) -> I64:
        """The places (n,) in the order of all blobs of those that pcs (n,) lie in, -1 where there is none; blobs that
        are not known yet, or may have changed, are asked for in one go."""
        at = self._at(pcs)
        doubtful = {self._in_order[one].start for one in distinct(at).tolist() if one >= 0} - self._certain
        if doubtful:
            # Of what was told the unwinder has asked before; this has been found without it.
            gone = [start for start in self._changed(list(doubtful)) if start not in self._stretches]
            self.changed |= set(gone)
            self._drop(gone)
            self._certain |= doubtful
            at = self._at(pcs)
        missing = [pc for pc in pcs[at < 0].tolist() if pc not in self._unknown]
        if missing:
            self._find(missing)
            at = self._at(pcs)
        return at

    def _at(self, pcs: U64) -> I64:
        """The same among those that are known."""
        starts, ends = np.array(self._starts), np.array(self._ends)
        if not len(starts):
            return np.full(len(pcs), -1)
        at = starts.searchsorted(pcs, "right") - 1
        at[(at >= 0) & (pcs >= ends.take(at))] = -1
        return at

    def discover(self) -> list[Blob]:
        """All code that has come to be known since the last time, also what stacks have led to, and is there. What was
        allocated just before a look may not be whole in it, so a heap is left out only if nothing has come for two
        looks."""
        before, self.changed = self.changed, set()
        for heap in self._heaps():
            (segmap,) = self._read([heap.segmap], [(heap.high - heap.low) >> heap.log2_segment])
            seen = self._segmaps.get(heap.low, [])
            self._segmaps[heap.low] = [*seen[-1:], segmap]
            if seen == [segmap, segmap]:
                continue
            begins = np.flatnonzero(np.frombuffer(segmap, np.uint8) == 0)
            starts = heap.low + (begins << heap.log2_segment) + self.layout.size["block"]
            self._learn([start for start in starts.tolist() if start not in self._blobs])
        self._discovered |= self.changed
        self.changed |= before
        met, self._undiscovered = self._undiscovered, []
        return [blob for blob in met if self._blobs.get(blob.start) is blob]

    # -- rules, as the unwinder's Teller

    def rows(self, pcs: Sequence[int]) -> list[tuple[int, int, Rows]]:
        """Rules for code at ``pcs`` behind ``low``; see collector.unwind.table.Teller."""
        absolute = np.array(pcs, np.uint64) + np.uint64(self.low)
        found = self.blobs_at(absolute)
        told = self._rows_of([blob for blob in dict.fromkeys(found) if blob is not None and not _continues(blob)])
        told += [(pc, pc + 1, ((pc, self._at_continuation(pc)),)) for pc, blob in zip(pcs, found, strict=True)
                 if blob is not None and _continues(blob)]
        lost = [pc for pc, blob in zip(pcs, found, strict=True) if blob is None]
        self._unknown.update(pc + self.low for pc in lost)
        return told + [(pc, pc + 1, ((pc, STOP),)) for pc in lost]

    def _at_continuation(self, pc: int) -> Rule | int:
        """Frames of a virtual thread that are still in the heap stand on the stack as a return to code that begins with
        ``mov rsp, [r15 + ...]``; fp is the one of the continuation's entry then."""
        return ENTERED if self.text(pc + 1, 3) == b"\x49\x8b\xa7" else HOLE

    def text(self, at: int, size: int) -> bytes:
        """Code behind ``low``."""
        return self._read([self.low + at], [size])[0] if 0 <= at < self.high - self.low else b""

    def _rows_of(self, blobs: Sequence[Blob]) -> list[tuple[int, int, Rows]]:
        self._n_new += len(blobs)
        framed = [blob for blob in blobs if self._plain_rule(blob) is None]
        sizes = [min(blob.code_end - blob.code, _TEXT_MAX) for blob in framed]
        read = self._read([blob.code for blob in framed], sizes)
        texts = {blob.start: text for blob, text in zip(framed, read, strict=True)}
        told = []
        for blob in blobs:
            begin, end = self._stretches[blob.start] = blob.code - self.low, blob.code_end - self.low
            rows = self._rules(blob, begin, texts.get(blob.start, b""))
            told.append((begin, end, tuple(row for row in rows if row[0] < end)))
        return told

    def _plain_rule(self, blob: Blob) -> Rule | int | None:
        """The rule of all code of a blob; None where its instructions tell."""
        if blob.is_interpreter:
            return INTERPRETED
        if blob.name.startswith(_STUBS):
            return HOLE
        if blob.frame_size == _NO_FRAME and blob.name not in _FRAMELESS:
            return STOP
        return FRAMELESS if blob.name in _FRAMELESS or not blob.frame_size else None

    def _rules(self, blob: Blob, begin: int, text: bytes) -> Rows:
        plain = self._plain_rule(blob)
        if plain == HOLE and blob.code < self._call_stub_return < blob.code_end:
            return rows_of_stubs(begin, self._call_stub_return - self.low)
        if plain is not None:
            return ((begin, plain),)
        if not blob.is_compiled:
            return rows_of_stub(begin, text, blob.frame_size)
        return rows_of_compiled(begin, text, blob.frame_size, blob.name == _NATIVE)

    # -- methods

    def scopes(self, blob: Blob) -> Scopes:
        """Which methods its places carry out."""
        self.read_scopes([blob])
        return self._scopes[_what(blob)]

    def read_scopes(self, blobs: Iterable[Blob]) -> None:
        """Those of all, in one go, which are not known yet."""
        new = [blob for blob in blobs if _what(blob) not in self._scopes]
        pieces = [ranges_of(self.layout, blob.start, (blob.code, blob.code_end), blob.head) for blob in new]
        begins, sizes = zip(*(one for ranges in pieces for one in ranges), strict=True) if new else ((), ())
        tables = self._read(begins, sizes)
        for i, blob in enumerate(new):
            self._scopes[_what(blob)] = Scopes(blob.method, blob.code, self.layout.excluded, *tables[4 * i:4 * i + 4])

    def scopes_at(self, places: Iterable[tuple[Blob, int, bool]]) -> list[tuple[Scope, ...]]:
        """The methods at places, innermost first, as (Method*, index of its bytecode): of compiled blobs, pcs as
        looked up, and whether it is a leaf's. All methods are learnt."""
        asked = list(places)
        self.read_scopes(dict.fromkeys(blob for blob, _, _ in asked))
        found = [self._scopes[_what(blob)].at(pc, is_leaf) for blob, pc, is_leaf in asked]
        self.methods.learn(scope.method for scopes in found for scope in scopes)
        return found

    def method(self, address: int) -> JavaMethod | None:
        """A method that was learnt."""
        return self.methods.known.get(address)

    # -- memory

    def _changed(self, starts: Sequence[int]) -> list[int]:
        """Which of the blobs at ``starts`` are others by now."""
        if not starts:
            return []
        size = self.layout.size["block"] + self.layout.size["nmethod"]
        read = self._heads(starts)
        others = [(start, head) for start, head in zip(starts, read, strict=True) if head != self._blobs[start].head]
        if not others or not any(read):
            return []  # (the process is gone: what was known to the last stays so)
        heads = [head if len(head) == size else bytes(size) for _, head in others]
        before = [self._blobs[start].head.ljust(size, b"\0") for start, _ in others]
        now, then = (np.frombuffer(b"".join(some), np.uint8).reshape(-1, size)[:, self._telling]
                     for some in (heads, before))
        return [others[i][0] for i in np.flatnonzero((now != then).any(axis=1)).tolist()]

    def _drop(self, starts: Sequence[int]) -> None:
        for start in starts:
            blob = self._blobs.pop(start)
            self._scopes.pop(_what(blob), None)
            at = bisect_left(self._starts, blob.code)
            while self._in_order[at].start != start:
                at += 1
            del self._starts[at], self._ends[at], self._in_order[at]

    def _find(self, pcs: Sequence[int]) -> None:
        """Learns the blobs that pcs lie in."""
        asked = np.array([pc for pc in pcs if self.low <= pc < self.high], np.int64)
        starts: list[int] = []
        for heap in self._heaps():
            mine = asked[(asked >= heap.low) & (asked < heap.high)]
            if not len(mine):
                continue
            (content,) = self._read([heap.segmap], [(heap.high - heap.low) >> heap.log2_segment])
            segmap = np.frombuffer(content, np.uint8)
            if len(segmap):
                begins = _begins(segmap, (mine - heap.low) >> heap.log2_segment)
                starts += (heap.low + (begins << heap.log2_segment) + self.layout.size["block"]).tolist()
        found = list(dict.fromkeys(starts))
        # Where one was met there may be another by now, which goes on where that one has ended.
        doubtful = {start for start in found if start in self._blobs} - self._certain
        self._replaced(self._changed(list(doubtful)))
        self._certain |= doubtful
        self._learn([start for start in found if start not in self._blobs])

    def _replaced(self, starts: Sequence[int]) -> None:
        """The blobs at ``starts`` are others by now; nobody has asked yet whether what was told of them holds."""
        self._n_new += len(starts)
        self._covered += [self._stretches.pop(start) for start in starts if start in self._stretches]
        self.changed |= set(starts)
        self._drop(starts)

    def _learn(self, starts: Sequence[int]) -> list[Blob]:
        heads = self._heads(starts)
        self._learn_names(heads)
        found = [blob for blob in map(self._blob, starts, heads) if blob is not None]
        below = {blob.start: {other.start for other in self._below(blob)} for blob in found}
        self._replaced(list(set().union(*below.values())))
        self.changed |= {start for start, others in below.items() if others}
        for blob in found:
            self._blobs[blob.start] = blob
            self._certain.add(blob.start)
            self._undiscovered.append(blob)
            at = bisect_left(self._starts, blob.code)
            self._starts.insert(at, blob.code)
            self._ends.insert(at, blob.code_end)
            self._in_order.insert(at, blob)
        return found

    def _below(self, blob: Blob) -> list[Blob]:
        """Those that were met where a new one is now: they are there no more, and would hide it."""
        found = []
        for i in range(max(bisect_left(self._starts, blob.start) - 1, 0), len(self._in_order)):
            other = self._in_order[i]
            if other.start >= blob.code_end:
                break
            if other.code_end > blob.start:
                found.append(other)
        return found

    def _heads(self, starts: Sequence[int]) -> list[bytes]:
        """What stands at the beginning of blobs, with the heads of their blocks before."""
        before = self.layout.size["block"]
        heads = self._read([start - before for start in starts], [before + self.layout.size["nmethod"]] * len(starts))
        if any(heads):
            self.seen_ns = self._looked_ns
        elif starts:  # the process is gone
            self.seen_ns = min(self.seen_ns, self._before_ns)
        return heads

    def _is_used(self, head: bytes) -> int:
        at = self.layout.at["block_used"]
        return int(len(head) > at and head[at])

    def _word(self, head: bytes, at: int, size: int = 8) -> int:
        at += self.layout.size["block"]
        return int.from_bytes(head[at:at + size], "little")

    def _half(self, head: bytes, at: int) -> int:
        return self._word(head, at, 4)

    def _blob(self, start: int, head: bytes) -> Blob | None:
        """The blob with this head; None if it is none."""
        at, block = self.layout.at, self.layout.size["block"]
        if len(head) < block + self.layout.size["blob"] or not self._is_used(head):
            return None
        size, frame_size = self._half(head, at["blob_size"]), self._half(head, at["blob_frame_size"]) * _WORD
        if frame_size > _FRAME_MAX:
            frame_size = _NO_FRAME
        name = self._names.get(self._word(head, at["blob_name"]), b"")
        if at["code_begin"] != NONE:
            code, code_end = self._word(head, at["code_begin"]), self._word(head, at["code_end"])
        else:
            code, code_end = (start + self._half(head, at[field]) for field in ("code_offset", "data_offset"))
        is_sound = size <= _BLOB_MAX and start <= code < code_end <= start + size and start + size <= self.high
        if not is_sound or not name:
            return None
        is_compiled = name in (_COMPILED, _NATIVE)
        if is_compiled and (frame_size < 2 * _WORD or len(head) < block + self.layout.size["nmethod"]):
            return None
        if name == _COMPILED and at["state"] != NONE and self._word(head, at["state"], 1) == _NOT_INSTALLED:
            return None  # nobody carries it out yet, and what tells its methods may not be there
        return Blob(start, code, code_end, name, frame_size, *(
            (self._word(head, at["method"]), self._half(head, at["compile_id"]), self._word(head, at["comp_level"], 1))
            if is_compiled else (0, 0, 0)), self._looked_ns, head)

    def _learn_names(self, heads: Iterable[bytes]) -> None:
        at = self.layout.at["blob_name"]
        new = sorted({self._word(head, at) for head in heads if self._is_used(head)} - self._names.keys() - {0})
        for address, piece in zip(new, self._read(new, [_NAME_MAX] * len(new)), strict=True):
            name, end, _ = piece.partition(b"\0")
            if end and name.isascii() and name.decode("ascii").isprintable():
                self._names[address] = name

    def _heaps(self) -> list[_Heap]:
        at = self.layout.at
        size = max(at["heap_log2_segment"], at["heap_segmap"] + at["space_high"], at["heap_memory"]) + 64
        found = []
        for piece in self._read(self._heap_at, [size] * len(self._heap_at)):
            if len(piece) < size:
                continue
            low, high = (_word(piece, at["heap_memory"] + at[end]) for end in ("space_low", "space_high"))
            heap = _Heap(low, high, _word(piece, at["heap_segmap"] + at["space_low"]),
                         int.from_bytes(piece[at["heap_log2_segment"]:][:4], "little"))
            if self.low <= heap.low < heap.high <= self.high and 4 <= heap.log2_segment <= 16:
                found.append(heap)
        return found


def recognise(symbols: dict[bytes, tuple[int, int]], read: Read, now_ns: int) -> Machine | str:
    """The machine whose exported tables are at these run-time addresses; or why it is not to be read (empty: it has not
    begun yet, or its process is gone or not ours to read)."""
    layout = layout_hotspot.layout_of(symbols, read)
    if isinstance(layout, str):
        return layout
    static = layout.static
    names = ("low_bound", "high_bound", "heaps", "call_stub_return")
    low, high, heaps, stub = (_word(one, 0) for one in read([static[name] for name in names], [8] * len(names)))
    if not 0 < low < high < _USER_END or high - low > _CACHE_MAX or not heaps or not stub:
        return ""
    (array,) = read([heaps], [32])
    n = int.from_bytes(array[layout.at["array_length"]:][:4], "little")
    if not 0 < n <= _HEAPS_MAX:
        return ""
    (pointers,) = read([_word(array, layout.at["array_data"])], [8 * n])
    found = np.frombuffer(pointers[:len(pointers) // 8 * 8], "<u8").tolist()
    return Machine(layout, (low, high), found, stub, read, now_ns) if found else ""


def _begins(segmap: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The first segments of the blocks that segments (n,) belong to, of those that belong to one."""
    at = at[at < len(segmap)]
    for _ in range(len(segmap)):
        back = segmap[at]
        at = at[(back != _FREE) & (back <= at)]
        back = segmap[at]
        if not back.any():
            break
        at = at - back
    return distinct(at)


def _telling_bytes(layout: Layout) -> npt.NDArray[np.int64]:
    """Which bytes of a head tell a blob from others that come to its place; those of a blob that has not been compiled
    are other things, which do not change either."""
    at, block = layout.at, layout.size["block"]
    fields = (("blob_name", 8), ("blob_size", 4), ("blob_frame_size", 4), ("method", 8), ("compile_id", 4))
    return np.array([at["block_used"], *(block + at[name] + i for name, size in fields for i in range(size))])


def _continues(blob: Blob) -> bool:
    return blob.name.startswith(_STUBS) and _CONTINUATION in blob.name


def _what(blob: Blob) -> tuple[int, int, int]:
    return blob.start, blob.method, blob.compile_id


def _word(content: bytes, at: int) -> int:
    return int.from_bytes(content[at:at + 8], "little") if len(content) >= at + 8 else 0
