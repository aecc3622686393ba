"""V8 from outside: the JavaScript functions that frames of its code carry out. Pure, over a ``read`` handed in.

The theory. All code that V8 makes, and its builtins, which lie in the program's own file, keep the frame pointer, so
their frames are unwound like any others. What a frame carries out stands below it:

    fp - 8     a context: the frame is a function's; or a small integer: it is an entry, an exit or a stub
    fp - 16    JSFunction -> SharedFunctionInfo (``functions_v8``)
    fp - 32    BytecodeArray, fp - 40 the place in it: of interpreted frames; baseline code has the former, too

The words are those of the sample's moment, memory is that of a look some time later, and the collector of garbage moves
JSFunctions meanwhile: at the old address stands where to, and later anything, perhaps another function. So a function
is verified only if something proves it that is not moved so easily:

    the frame's BytecodeArray is that of the function
    the frame's pc lies in code that was compiled for the function (``code_v8``), or for one that it was inlined into,
    and so says the frame, or the code was met before the sample: what lies there now may have come since
    it is a builtin, and so is the frame's code
    the JSFunction has led to it before and after the sample

A function that code or bytecode alone tell, of what was proven before, is verified, too; one that nothing proves is
torn; where there is none it is unknown. A leaf that has not made its frame yet, or has none any more, stands on its
caller's: then code tells the one and the frame the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.runtimes import layout_v8
from collector.runtimes.code_v8 import Code, Codes, Scope, place_of, positions_of
from collector.runtimes.functions_v8 import Functions, JsFunction
from collector.runtimes.heap_v8 import Heap, are_objects, is_object, small, word
from collector.runtimes.layout_v8 import Layout, Read

U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

SYMBOLS = layout_v8.SYMBOLS
MARK = layout_v8.MARK
BUILTINS = b"Builtins_"  # how names of the functions begin that V8 has in its own file
INTERPRETER = BUILTINS + b"InterpreterEntryTrampoline"  # to which bytecode handlers return
# To the beginnings of these frames return that were made of one of optimised code, when that was given up: those
# of functions, which the interpreter or baseline code goes on with, and those of builtins that had been inlined.
RESUMED = {BUILTINS + made + name for name in (b"EnterAtBytecode", b"EnterAtNextBytecode")
           for made in (b"Interpreter", b"BaselineOrInterpreter")}
CONTINUED = {BUILTINS + b"ContinueTo" + name + more for name in (b"CodeStubBuiltin", b"JavaScriptBuiltin")
             for more in (b"", b"WithResult")}

_KEPT_MAX = 1 << 16
_LOOK_NS = 1_000_000_000


class Frame(NamedTuple):
    """What a frame was found with: its pc as looked up, and where the memory without a file begins that it lies in (0:
    it lies in a builtin); whether it is a return to the interpreter; the words below fp (0: not copied)."""

    pc: int
    low: int
    is_leaf: bool
    is_interpreted: bool
    context: int
    function: int
    bytecode: int
    offset: int


class Told(NamedTuple):
    """The functions of a frame, innermost first, and since when that is known (0: it is proven)."""

    scopes: tuple[Scope, ...]
    since_ns: int
    is_known: bool = True


NOBODY = Told((), 0)  # the frame is no function's
NOT_KNOWN = Told((Scope(0, -1),), 0, is_known=False)


class _Owner(NamedTuple):
    """Who has a BytecodeArray: the SharedFunctionInfo, what leads from that to it, and how the array begins."""

    shared: int
    head: bytes
    data: int


class Machine:
    """The V8 in one process, with all its isolates."""

    def __init__(self, layout: Layout, read: Read) -> None:
        self.layout = layout
        self._heap = Heap(layout, read)
        self._functions = Functions(layout, self._heap)
        self.codes = Codes(layout, self._heap, read)
        self._led: dict[int, tuple[int, int]] = {}  # by JSFunction: its SharedFunctionInfo, since when
        self._owner: dict[int, _Owner] = {}  # by BytecodeArray
        self._shared: dict[int, int] = {}  # of this batch, by JSFunction
        self._data: dict[int, int] = {}  # of this batch, by SharedFunctionInfo: what leads to its code
        self._positions: dict[int, tuple[bytes, tuple[list[int], list[int]]]] = {}  # by BytecodeArray
        self._looked_ns = 0

    def function(self, shared: int) -> JsFunction | None:
        """A function that was learnt."""
        return self._functions.known.get(shared)

    def function_of(self, code: Code) -> JsFunction | None:
        """What code was compiled from."""
        owner = self._owner.get(code.bytecode)
        return self.function(owner.shared if owner is not None else code.shared)

    def line_at(self, scope: Scope) -> int:
        """The line of a place; 0: not known."""
        if scope.shared not in self._functions.known:
            return 0
        return self._functions.line_at(scope.shared, scope.position)

    def frames(self, batch: Sequence[Frame], now_ns: int) -> list[Told]:
        """What frames carry out, whose memory is read at ``now_ns``."""
        if now_ns - self._looked_ns > _LOOK_NS:
            self._heap.look()
            self._looked_ns = now_ns
        self.codes.learn(((frame.pc, frame.low) for frame in batch if frame.low), now_ns)
        codes = [self.codes.at(frame.pc) if frame.low else None for frame in batch]
        of_functions = [frame for frame in batch if self._is_function(frame)]
        self._lead({frame.function for frame in of_functions}, now_ns)
        arrays = {frame.bytecode for frame in of_functions} | {code.bytecode for code in codes if code is not None}
        shared = {*self._shared.values(), *(self._owner[one].shared for one in arrays if one in self._owner)}
        for code in codes:
            if code is not None:
                shared.update((code.shared, *code.inlined))
        self._data = self._functions.learn(shared)
        self._own(arrays, of_functions)
        self._read_positions([frame for frame in of_functions if self._place(frame) >= 0])
        return [self._told(frame, code) for frame, code in zip(batch, codes, strict=True)]

    @staticmethod
    def are_functions(words: U64) -> Bools:
        """Which frames are those of functions, by the words (4, k) below their frame pointers."""
        return are_objects(words[0]) & are_objects(words[1])

    def canonicalise(self, words: U64, pc: U64, low: U64, is_leaf: Bools, is_function: Bools) -> None:
        """Zeros in ``words`` (4, k), of frames with the columns of ``Frame``, for what their functions do not depend
        on: it is another in each sample, and all that is distinct is worked on."""
        words[1:, ~is_function] = 0
        # Where optimised code is known it says more than what it happens to keep there; a leaf may stand on a frame of
        # other code.
        words[2, ~are_objects(words[2]) | (self.codes.are_optimised(pc) & ~is_leaf)] = 0
        words[3, (words[2] == 0) | (low > 0)] = 0

    @staticmethod
    def _is_function(frame: Frame) -> bool:
        return is_object(frame.context) and is_object(frame.function)

    # -- what is read once for all frames

    def _lead(self, functions: set[int], now_ns: int) -> None:
        """Which SharedFunctionInfo each JSFunction leads to."""
        at = self.layout.at
        asked = sorted(functions)
        heads = self._heads_of_functions(asked)
        if asked and not any(heads):  # the process is gone: what was known to the last stays so
            self._shared = {one: self._led[one][0] for one in asked if one in self._led}
            self._led.update((one, (shared, now_ns)) for one, shared in self._shared.items())
            return
        first, last = at["type_function_first"], at["type_function_last"]
        self._shared = {one: word(head, at["function_shared"]) for one, head, kind in zip(
            asked, heads, self._heap.types(heads), strict=True) if first <= kind <= last}
        if len(self._led) > _KEPT_MAX:
            self._led.clear()
        for one in set(asked) - self._shared.keys():
            self._led.pop(one, None)
        for one, shared in self._shared.items():
            if self._led.get(one, (0, 0))[0] != shared:
                self._led[one] = shared, now_ns

    def _heads_of_functions(self, functions: Sequence[int]) -> list[bytes]:
        """How they begin, where they are now: one that has been moved has its new address, without the tag, in place
        of its map, until something else comes there."""
        size = self.layout.at["function_shared"] + 8
        heads = self._heap.heads(functions, size)
        moved = self._heap.heads([word(head, 0) + 1 for head in heads], size)
        return [now or head for now, head in zip(moved, heads, strict=True)]

    def _own(self, arrays: set[int], frames: Sequence[Frame]) -> None:
        """Which functions have the BytecodeArrays of frames."""
        asked = sorted(one for one in arrays if is_object(one))
        heads = self._heap.heads(asked, self._bytecode_size)
        if not any(heads):
            return  # none, or the process is gone
        there = {one: head for one, head, kind in zip(asked, heads, self._heap.types(heads), strict=True)
                 if kind == self.layout.at["type_bytecode"]}
        self._drop_owners([one for one in asked if one in self._owner], there)
        if len(self._owner) > _KEPT_MAX:
            self._owner.clear()
        pairs = {(frame.bytecode, self._shared.get(frame.function, 0)) for frame in frames
                 if frame.bytecode in there and frame.bytecode not in self._owner}
        data = self._bytecodes_of(self._data.get(shared, 0) for _, shared in pairs)
        for one, shared in pairs:
            if data.get(self._data.get(shared, 0)) == one:
                self._owner[one] = _Owner(shared, there[one], self._data[shared])

    def _drop_owners(self, arrays: Sequence[int], there: dict[int, bytes]) -> None:
        """Forgets whose BytecodeArrays were, where it is not so any more; ``there``: how those begin that are."""
        now = {one: self._data.get(self._owner[one].shared, 0) for one in arrays}
        led = self._bytecodes_of(data for one, data in now.items() if data != self._owner[one].data)
        for one, data in now.items():
            owner = self._owner[one]
            if owner.head != there.get(one) or (data != owner.data and led.get(data) != one):
                del self._owner[one]

    def _bytecodes_of(self, data: Iterable[int]) -> dict[int, int]:
        """The BytecodeArrays that each of the words leads to."""
        asked = sorted(set(data) - {0})
        return dict(zip(asked, self.codes.bytecodes_of(asked), strict=True))

    def _read_positions(self, frames: Sequence[Frame]) -> None:
        """Where in the source the places of frames' BytecodeArrays are, of those that are new."""
        if len(self._positions) > _KEPT_MAX:
            self._positions.clear()
        owners = {frame.bytecode: self._owner[frame.bytecode] for frame in frames if frame.bytecode in self._owner}
        new = {array: owner.head for array, owner in owners.items()
               if array not in self._positions or self._positions[array][0] != owner.head}
        at = self.layout.at["bytecode_positions"]
        tables = self.codes.bytes_of([word(head, at) for head in new.values()])
        self._positions.update((array, (head, positions_of(table)))
                               for (array, head), table in zip(new.items(), tables, strict=True))

    @property
    def _bytecode_size(self) -> int:
        return max(self.layout.at["bytecode_positions"], 24) + 8

    # -- frame by frame

    def _told(self, frame: Frame, code: Code | None) -> Told:
        own = self._of_words(frame) if self._is_function(frame) else NOBODY
        compiled = self._of_code(frame.pc, code) if code is not None else ()
        if code is None or not compiled or not self._is_known(compiled):
            return own
        if self._is_same(own, compiled[-1].shared):  # two of the sample's words lead to one function
            return Told(compiled, 0 if len(compiled) == 1 else code.since_ns)  # but not to what is inlined there
        if frame.is_leaf and own.scopes and own is not NOT_KNOWN:
            return Told((*compiled, *own.scopes), max(own.since_ns, code.since_ns))  # it stands on its caller's frame
        return Told(compiled, code.since_ns)

    @staticmethod
    def _is_same(own: Told, shared: int) -> bool:
        return bool(own.scopes) and own.scopes[-1].shared == shared

    def _is_known(self, scopes: Sequence[Scope]) -> bool:
        return all(scope.shared in self._functions.known for scope in scopes)

    def _of_code(self, pc: int, code: Code) -> tuple[Scope, ...]:
        if code.level > 0:
            return code.scopes_at(pc)
        if code.level == 0 and code.bytecode in self._owner:
            return (Scope(self._owner[code.bytecode].shared, -1),)
        return ()

    def _of_words(self, frame: Frame) -> Told:
        """By what stands below fp alone."""
        owner = self._owner.get(frame.bytecode)
        shared = self._shared.get(frame.function, 0)
        # In frames of optimised code there may be what an older frame has left.
        if owner is not None and owner.shared in self._functions.known and (
                frame.is_interpreted or owner.shared == shared):
            return Told((Scope(owner.shared, self._position(frame, owner)),), 0)
        function = self._functions.known.get(shared)
        if function is None:
            return NOT_KNOWN
        if not function.name:  # a builtin that V8 has for itself; its machine code has a name
            return NOBODY
        if not function.script and not frame.low and small(self._data.get(shared, 1)) >= 0:
            return Told((Scope(shared, -1),), 0)  # a builtin
        return Told((Scope(shared, -1),), self._led[frame.function][1])

    def _position(self, frame: Frame, owner: _Owner) -> int:
        """The place in the source of an interpreted frame; -1: not known."""
        place = self._place(frame)
        if place < 0 or place >= small(word(owner.head, self.layout.at["array_length"])):
            return -1
        _, (offsets, positions) = self._positions[frame.bytecode]
        at = bisect_right(offsets, place) - 1
        return place_of(positions[at]) if at >= 0 else -1

    def _place(self, frame: Frame) -> int:
        """The place in its BytecodeArray; below zero: none."""
        return small(frame.offset) - self.layout.at["bytecode_data"] + 1


def recognise(symbols: dict[bytes, tuple[int, int]], read: Read) -> Machine | str:
    """The machine whose exported constants are at these run-time addresses; or why it is not to be read (empty: its
    process is gone, or not ours to read)."""
    layout = layout_v8.layout_of(symbols, read)
    return Machine(layout, read) if isinstance(layout, Layout) else layout


def builtins(symbols: dict[bytes, tuple[int, int]], read: Read) -> tuple[int, int]:
    """Where its builtins are, if they have no symbols; (0, 0): not known."""
    return layout_v8.embedded_code(symbols, read)
