"""CPython from outside: code objects, and which functions each thread is carrying out. Pure, over a ``read`` handed in.

A thread's frames hang together from its innermost one, each with its code object and the instruction that it is at.
Evaluations of C, ``_PyEval_EvalFrameDefault`` on the native stack, correspond to them: up to 3.10 one for each; since
3.11 a Python function that calls another goes on in the same evaluation, whose first frame is marked (3.11:
``is_entry``) or lies above a frame that belongs to the C stack (3.12 and later). Such a run is an *activation* here.

A thread that runs changes all this while it is read. So whatever is read is checked: the types of objects are those of
the interpreter's own type objects, sizes have bounds, chains have an end. Who wants to know whether it was so at
another moment has to compare it with what he knows of that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain as joined
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from collector.runtimes.callers_cpython import NO_INSTRUCTION, UNIT, Callers
from collector.runtimes.holes import Read, last_of
from collector.runtimes.layout_cpython import N_OFFSETS, Layout, is_free_threaded, layout_of
from collector.runtimes.lines_cpython import Lines, lines_of

SYMBOLS = (b"_PyRuntime", b"_PyEval_EvalFrameDefault", b"PyCode_Type", b"PyUnicode_Type", b"Py_Version")
_THREAD_SIZE = 320
_CHUNK_HEAD = 24
_CHUNK_MAX = 1 << 18
_CHUNK_SPARE = 2048
# The file of code objects that are no function's. Since 3.12 there is one amid calls of a class, too: its name and file
# are these, and it has no line.
_SHIM, _CLASS_SHIM = b"<shim>", b"__init__"
_OWNED_BY_C = 3  # and more: by C, or by the interpreter itself
_TAGS = 7  # since 3.14 a reference has them in its lowest bits
_ANOTHER_PROGRAM = (0, 0)  # its version: other things lie where the interpreter's did
_DEPTH_MAX = 1024
_THREADS_MAX, _INTERPRETERS_MAX = 4096, 64
_STRING_MAX, _TABLE_MAX, _SIZE_MAX, _TEXT_MAX = 4096, 1 << 18, 1 << 24, 1 << 16
_USER_END = 1 << 47
_NUMBERS_FROM = 47  # the bit
_VAIN_MAX = 1 << 18
# Of a word that no code object is before this many lowest bits do not matter: 128 bytes on there is none, either, since
# a code object's head is longer (184 and more).
_VAIN_BITS = 7
_SEARCHED = (1 << 14) + (1 << _VAIN_BITS)  # before a word; the second part, since others in its block rely on it
_VAIN_NS = 5_000_000_000  # for which it is believed: code that no look meets comes unheard
_FIXED = 28  # bytes of a code object from its first line on that never change
_HEAD_SIZE = 24
_TID_IN_PTHREAD = 0x2D0  # glibc's struct pthread, x86-64; checked against the process's threads
_KINDS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class CodeObject(NamedTuple):
    """A function's code: where its object and its bytecode are, and what is known of it."""

    address: int
    bytecode: int
    size: int  # of the bytecode
    name: bytes
    file: bytes
    first_line: int
    table: bytes  # of its lines
    identity: tuple[bytes, ...] = ()  # what tells it from another one that has come to be at its address
    text: bytes = b""  # the bytecode, as it was when it was met; empty where nobody asks for it


class PyFrame(NamedTuple):
    """A function that is being carried out: its frame, the number of its code object, and the offset in the bytecode.
    """

    address: int
    code: int
    offset: int


class Gone(NamedTuple):
    """A code object that is not there any more, and until when it was. Times in ns."""

    seen_ns: int  # it was there for certain
    # No other had come in its place: its memory, though free, still had what tells code objects apart, or was none.
    unused_ns: int
    since_ns: int  # it certainly was not


Activation = tuple[PyFrame, ...]  # innermost first
Chain = tuple[Activation, ...]  # outermost first


class Interpreter:
    """The CPython in one process. ``symbols``: where those of SYMBOLS are (address, size).

    Code objects come and go (that of a module's own code goes as soon as it is imported), and others come to be at
    their addresses. So each has a number: its address, or that and how many have gone before.
    """

    def __init__(self, layout: Layout, symbols: dict[bytes, tuple[int, int]], read: Read,
                 clock: Callable[[], int] = time.monotonic_ns, tid_of: Callable[[int], int] | None = None) -> None:
        """``clock`` tells the time around what is read, in ns; ``tid_of`` our number of a thread by its own, where
        these are not the same."""
        self.layout = layout
        self.symbols = symbols
        self.codes: dict[int, CodeObject] = {}  # by number
        self.numbers: dict[int, int] = {}  # of those that are there, by address
        self.gone: dict[int, Gone] = {}  # those that are not there any more, by number
        self.first_ns: dict[int, int] = {}  # since when a code object was there for certain, by number
        self.n_changes = 0  # of all that
        self.shims: set[int] = set()  # code objects of no function, by number: what evaluations begin with
        # None where words do not lead to places behind instructions that have called, or too few do.
        self.callers = Callers() if layout.version == (3, 11) else None
        self.not_codes: set[int] = set()
        self._vain: set[int] = set()  # words that lead to none, though there is code before them
        self._clock = clock
        self._vain_since_ns = clock()
        self._tid_of = tid_of
        self._seen: dict[int, int] = {}  # until when a code object was there for certain, by number
        self._n_gone = 0
        self._read = read
        self._chunks: dict[int, tuple[int, int]] = {}  # by tstate: the data stack's piece, as much as was in use
        self._met: set[int] = set()  # addresses of code objects in the chains of the last look
        self._nearby: dict[int, tuple[int, ...]] = {}  # by tstate: frames elsewhere that the last look needed
        self._frame_size = layout.frame_size
        # Of a code object its type and size, which free() may overwrite; its first line and what stands behind that
        # (since 3.12 a number that no other has), and where its names and lines are.
        self._identity = itemgetter(slice(8, 24), slice(layout.code_first_line, layout.code_first_line + _FIXED), *(
            slice(at, at + 8) for at in (layout.code_file, layout.code_name, layout.code_lines)))
        # By where that stands: the newest interpreter, and the newest thread of each, when last listed.
        self._newest: dict[int, int] = {}
        self.has_new_threads = False  # since then, as of the last look
        # By the state that ``threads`` tells, those of the same thread in younger interpreters, the oldest first.
        self._inner: dict[int, list[int]] = {}

    # -- threads

    def threads(self, known: Mapping[int, int] = MappingProxyType({})) -> dict[int, int]:
        """The interpreter's threads: their states' addresses by tid, the newest first; with ``known`` ones it is only
        read which have come since. Of a thread with a state in several interpreters that in the oldest one."""
        interpreters = self._interpreters()
        self.has_new_threads = False
        if len(interpreters) > 1:
            known = {}
        states: dict[int, list[int]] = {}  # by tid
        for interpreter in interpreters:
            newest = interpreter + self.layout.threads_head
            self._newest[newest] = self._word(newest)
            for tid, state in self._states_from(self._newest[newest], known).items():
                states.setdefault(tid, []).append(state)
        # Up to 3.12 a state may be said to be of the thread that made the interpreter, while another one runs in it.
        are_own = self.layout.version >= (3, 13)
        self._inner = {each[-1]: each[-2::-1] for each in states.values() if are_own and len(each) > 1}
        found = {tid: each[-1] for tid, each in states.items()}
        taken = set(found.values())  # by one that has come to be where another was
        return found | {tid: state for tid, state in known.items() if tid not in found and state not in taken}

    def _interpreters(self) -> list[int]:
        """Where the interpreters of the process are, the newest first."""
        head = self.symbols[b"_PyRuntime"][0] + self.layout.interpreters_head
        interpreter = self._word(head)
        self._newest = {head: interpreter}
        found: list[int] = []
        while _is_address(interpreter) and len(found) < _INTERPRETERS_MAX and interpreter not in found:
            found.append(interpreter)
            interpreter = self._word(interpreter + self.layout.interpreter_next)
        return found

    def _states_from(self, state: int, known: Mapping[int, int]) -> dict[int, int]:
        """The states of one interpreter's threads by tid, from the newest one on to a known one."""
        found: dict[int, int] = {}
        while _is_address(state) and len(found) < _THREADS_MAX:
            (memory,) = self._read([state], [_THREAD_SIZE])
            tid = self._tid(memory)
            if tid in found or known.get(tid) == state:
                break
            found[tid] = state
            state = _word(memory, self.layout.thread_next)
        return found

    def _tid(self, state: bytes) -> int:
        own = self._own_tid(state)
        return self._tid_of(own) if self._tid_of and own else own

    def _own_tid(self, state: bytes) -> int:
        if self.layout.native_thread_id >= 0:
            return _word(state, self.layout.native_thread_id)
        pthread = _word(state, self.layout.thread_id)
        return self._word(pthread + _TID_IN_PTHREAD) & 0xFFFF_FFFF if _is_address(pthread) else 0

    # -- frames

    def chains(self, states: Sequence[int], codes: Iterable[int] = ()) -> list[Chain | None]:
        """What threads are carrying out, by the addresses of their states; None where that makes no sense. Code objects
        at addresses ``codes`` are looked after, too."""
        expected = list(self._met.union(codes) & self.numbers.keys())
        before_ns = self._clock()
        whole = [[state, *self._inner.get(state, ())] for state in states]
        memories, heads = self._memories(list(joined.from_iterable(whole)), expected)
        after_ns = self._clock()
        rest = iter(memories)
        chains = [self._whole_chain(each, list(islice(rest, len(each)))) for each in whole]
        met = {frame.code for chain in chains if chain for activation in chain for frame in activation}
        self._met = met
        self._compare(expected, heads, before_ns, after_ns)
        self.look_after(met & self.numbers.keys() - set(expected))
        self.learn(met - self.numbers.keys())
        if not self.shims and all(self.numbers.get(address) == address for address in met):
            return chains
        return [chain if chain is None else self._numbered(chain) for chain in chains]

    def _whole_chain(self, states: Sequence[int], memories: Sequence[_Memory]) -> Chain | None:
        """What a thread carries out in interpreters, from the oldest one on."""
        activations: list[Activation] = []
        at = self.layout.native_thread_id
        for state, memory in zip(states, memories, strict=True):
            if state != states[0] and memory.word(state + at) != memories[0].word(states[0] + at):
                continue  # another thread's by now
            found = self._chain(state, memory)
            if found is None:
                return None
            activations += found
        return tuple(activations)

    def _numbered(self, chain: Chain) -> Chain | None:
        """The chain with numbers of code objects instead of addresses, without those that are no function's."""
        numbers = self.numbers
        if not all(frame.code in numbers for activation in chain for frame in activation):
            return None
        activations = [[PyFrame(frame.address, numbers[frame.code], frame.offset) for frame in activation
                        if numbers[frame.code] not in self.shims] for activation in chain]
        return tuple([tuple(activation) for activation in activations if activation])

    def _memories(self, states: Sequence[int], codes: Sequence[int]) -> tuple[list[_Memory], list[bytes]]:
        """Each thread's state, data stack, and what the last look needed besides, and then the code objects at some
        addresses, read in one go, with which are the newest threads."""
        asked: list[tuple[int, int]] = []
        ends = []
        for state in states:
            asked.append((state, _THREAD_SIZE))
            asked.append(self._chunks.get(state, (state, _THREAD_SIZE)))
            asked += [(address, self._frame_size) for address in self._nearby.get(state, ())]
            ends.append(len(asked))
        begin = len(asked)
        asked += [(address, self.layout.code_size) for address in codes]
        asked += [(address, 8) for address in self._newest]
        got = self._read(*_columns(asked))
        heads, newest = got[begin:begin + len(codes)], got[begin + len(codes):]
        self.has_new_threads = [_word(content, 0) for content in newest] != list(self._newest.values())
        found = []
        begin = 0
        for end in ends:
            own = [(address, content) for (address, _), content in zip(asked[begin:end], got[begin:end], strict=True)]
            found.append(_Memory(self._read, own[1::-1], dict(own[2:])))
            begin = end
        return found, heads

    def _chain(self, state: int, memory: _Memory) -> Chain | None:
        layout = self.layout
        frame = memory.word(state + layout.frame)
        if layout.cframe_current >= 0 and _is_address(frame):
            frame = memory.word(frame + layout.cframe_current)
        if layout.has_inlined_calls:
            self._note_chunk(state, memory)
        has_shims = layout.is_entry < 0 and layout.has_inlined_calls
        activations: list[Activation] = []
        run: list[PyFrame] = []
        for _ in range(_DEPTH_MAX):
            if not frame:
                break
            raw = self._frame(frame, memory)
            if raw is None:
                return None
            previous, code, instruction, owner, is_entry = raw
            if has_shims and owner >= _OWNED_BY_C:
                is_entry = 1
            else:
                run.append(PyFrame(frame, code, instruction))
            if is_entry and run:
                activations.append(tuple(run))
                run = []
            frame = previous
        else:
            return None
        if run:
            activations.append(tuple(run))
        self._nearby[state] = memory.elsewhere()
        return tuple(reversed(activations))

    def _note_chunk(self, state: int, memory: _Memory) -> None:
        """Where the data stack is, and how much of it is in use, for the next look and for the rest of this one."""
        place = state + self.layout.datastack_chunk
        chunk = memory.word(place)
        size = memory.word(chunk + 8) if _is_address(chunk) else 0
        if not _CHUNK_HEAD < size <= _CHUNK_MAX:
            return
        top = memory.word(place + 8) - chunk
        used = min(top, size) if top > 0 else size
        known = self._chunks.get(state)
        if known is None or known[0] != chunk or not used <= known[1] <= used + 2 * _CHUNK_SPARE:
            self._chunks[state] = chunk, min(used + _CHUNK_SPARE, size)
            if known is None or known[0] != chunk or known[1] < used:
                memory.add(*self._chunks[state])

    def _frame(self, address: int, memory: _Memory) -> tuple[int, int, int, int, int] | None:
        """Of a frame the one before it, its code object, its instruction, its owner, whether it is an entry."""
        layout = self.layout
        content, at = memory.at(address, self._frame_size)
        if not content or not _is_address(address):
            return None
        previous = _word(content, at + layout.previous)
        code = _word(content, at + layout.code)
        instruction = _word(content, at + layout.instruction)
        if not layout.has_inlined_calls:
            index = instruction & 0xFFFF_FFFF
            index -= (1 << 32) * (index >> 31)
            return previous, code, max(index * (2 if layout.version == (3, 10) else 1), 0), 0, 1
        return (previous, code & ~_TAGS, instruction, content[at + layout.owner],
                content[at + layout.is_entry] if layout.is_entry >= 0 else 0)

    def offset(self, frame: PyFrame) -> int:
        """Where in its bytecode a frame is."""
        code = self.codes[frame.code]
        offset = frame.offset - code.bytecode if self.layout.has_inlined_calls else frame.offset
        return offset if 0 <= offset < code.size else 0

    def lines(self, code: int) -> Lines:
        """The line table of the code object of a number."""
        known = self.codes[code]
        return lines_of(self.layout.version, known.table, known.first_line, known.size)

    # -- code objects

    def look_after(self, addresses: Iterable[int]) -> None:
        """Whether code objects are still there, by the addresses of some that were."""
        asked = list(addresses)
        if not asked:
            return
        before_ns = self._clock()
        heads = self._read(asked, [self.layout.code_size] * len(asked))
        after_ns = self._clock()
        self._compare(asked, heads, before_ns, after_ns)

    def is_proven(self, number: int, time_ns: int) -> bool:
        """Whether a code object has been seen at a time or later."""
        return self.seen_ns(number) >= time_ns

    def seen_ns(self, number: int) -> int:
        """Until when a code object that is there was there for certain."""
        return self._seen.get(number, 0)

    def _compare(self, addresses: Sequence[int], heads: Sequence[bytes], before_ns: int, after_ns: int) -> None:
        """Code objects with what was read, between two times, at their addresses."""
        for address, head in zip(addresses, heads, strict=True) if any(heads) else ():  # else the process is gone
            number = self.numbers[address]
            if _is_alive(head) and self._identity(head) == self.codes[number].identity:
                self._seen[number] = before_ns
            else:
                seen_ns = self._seen.pop(number)
                is_unused = not head or self._identity(head)[1:] == self.codes[number].identity[1:]
                self.gone[number] = Gone(seen_ns, before_ns if is_unused else seen_ns, after_ns)
                del self.numbers[address]
                self._n_gone += 1
                self.n_changes += 1
                self.not_codes.clear()  # what was none may be one by now
                self._vain.clear()

    def forget_before(self, time_ns: int) -> list[int]:
        """Nobody asks any more for what was gone by then: these numbers."""
        forgotten = [number for number, gone in self.gone.items() if gone.since_ns < time_ns]
        for number in forgotten:
            del self.gone[number], self.codes[number], self.first_ns[number]
            self.shims.discard(number)
            self.n_changes += 1
        return forgotten

    def learn(self, addresses: Iterable[int]) -> None:
        """Reads the code objects at addresses, those that are not known; what is none is remembered as such."""
        new = [address for address in addresses if address not in self.numbers and _is_address(address)]
        if not new:
            return
        pieces = _Pieces(self._read)
        found = self._code_objects(new, pieces.read)
        now_ns = self._clock()
        # Twice the same: what is being made, or overwritten, while it is read is not believed.
        again = self._code_objects(list(found), pieces.again())
        found = {address: code for address, code in found.items() if again.get(address) == code}
        texts = self._texts(list(found.values()))
        for address, text in zip(found, texts, strict=True):
            self._note(address, found[address]._replace(text=text), now_ns)
        if len(self.not_codes) > 1 << 18:
            self.not_codes.clear()
        self.not_codes.update(address for address in new if address not in found)

    def _texts(self, codes: Sequence[CodeObject]) -> list[bytes]:
        """The bytecode of code objects; it changes while it is carried out, and may be read at any time."""
        if self.callers is None or not codes:
            return [b""] * len(codes)
        texts = self._read([code.bytecode for code in codes], [min(code.size, _TEXT_MAX) for code in codes])
        for text in texts:
            self.callers.add_code(text)
        return texts

    def instruction_before(self, number: int, place: int) -> int:
        """What stands before a place in the code object of a number, as far as that is known (NO_INSTRUCTION)."""
        code = self.codes[number]
        at = place - UNIT - code.bytecode
        return code.text[at] if 0 <= at < len(code.text) else NO_INSTRUCTION

    def _note(self, address: int, code: CodeObject, now_ns: int) -> None:
        number = address | (self._n_gone & 0xFFFF) << _NUMBERS_FROM
        self.codes[number], self.numbers[address] = code, number
        if code.file == _SHIM or (code.file == code.name == _CLASS_SHIM and not code.first_line):
            self.shims.add(number)
        self.first_ns[number] = self._seen[number] = now_ns
        self.n_changes += 1

    def is_no_code(self, word: int) -> bool:
        """Whether a word has turned out not to lead to code: since 3.11 where no code object is before it."""
        return (word >> _VAIN_BITS if self.layout.has_inlined_calls else word) in self.not_codes or word in self._vain

    def forget_vain(self) -> None:
        """Words that lead to none may do so by now."""
        self._vain.clear()

    def forget_old(self) -> None:
        """The same, of what was found long ago."""
        now_ns = self._clock()
        if now_ns - self._vain_since_ns > _VAIN_NS:
            self._vain_since_ns = now_ns
            self.not_codes.clear()
            self._vain.clear()

    def search(self, words: Iterable[int]) -> None:
        """Looks for the code objects whose bytecode words lead into; their heads lie before it."""
        asked = [word for word in words if 0xFFFF + _SEARCHED < word < _USER_END and not self.is_no_code(word)]
        kind = self.symbols[b"PyCode_Type"][0].to_bytes(8, "little")
        found: dict[int, int] = {}  # by word
        before = last_of(self._read, [((word & ~7) - _SEARCHED, word & ~7) for word in asked])
        for word, content in zip(asked, before, strict=True):
            at = content.rfind(kind)
            while at > 0 and at & 7:
                at = content.rfind(kind, 0, at)
            if at >= 8:
                found[word] = (word & ~7) - len(content) + at - 8
            else:
                self.not_codes.add(word >> _VAIN_BITS)
        self.look_after(self.numbers.keys() & set(found.values()))
        self.learn(dict.fromkeys(found.values()))
        if len(self._vain) > _VAIN_MAX:
            self._vain.clear()
        self._vain.update(word for word, address in found.items() if not self._leads_to(word, address))

    def _leads_to(self, word: int, address: int) -> bool:
        """Whether a word lies in the bytecode of the code object at an address."""
        number = self.numbers.get(address)
        return number is not None and 0 <= word - self.codes[number].bytecode < self.codes[number].size

    def _code_objects(self, addresses: Sequence[int], read: Read) -> dict[int, CodeObject]:
        layout, type_at = self.layout, self.symbols[b"PyCode_Type"][0]
        heads = {address: head for address, head in zip(
            addresses, read(addresses, [layout.code_size] * len(addresses)), strict=True)
            if len(head) == layout.code_size and _is_alive(head) and _word(head, 8) == type_at}
        if not heads:
            return {}
        names = self._strings({_word(head, at) for head in heads.values()
                               for at in (layout.code_file, layout.code_name)}, read)
        tables = _bytes({_word(head, layout.code_lines) for head in heads.values()}, read)
        sizes = {} if layout.has_inlined_calls else _sizes(
            {_word(head, layout.bytecode) for head in heads.values()}, read)
        found = {}
        for address, head in heads.items():
            file, name = (names.get(_word(head, at)) for at in (layout.code_file, layout.code_name))
            table = tables.get(_word(head, layout.code_lines))
            if layout.has_inlined_calls:
                bytecode, size = address + layout.bytecode, 2 * _word(head, 16)
            else:
                bytecode = _word(head, layout.bytecode) + 32
                size = sizes.get(bytecode - 32, 0)
            first_line = _word(head, layout.code_first_line) & 0xFFFF_FFFF
            if file is None or not name or table is None or not 0 < size <= _SIZE_MAX or first_line >= 1 << 31:
                continue
            found[address] = CodeObject(address, bytecode, size, name, file, first_line, table, self._identity(head))
        return found

    def _strings(self, addresses: Iterable[int], read: Read) -> dict[int, bytes]:
        """The text of string objects, as UTF-8, or the beginning of a long one; what is none is left out."""
        asked = [address for address in addresses if _is_address(address)]
        heads = zip(asked, read(asked, [40] * len(asked)), strict=True)
        # Where the characters are, how many bytes, of which size, and how many zeros behind them are among them.
        places: dict[int, tuple[int, int, int, int]] = {}
        for address, head in heads:
            if len(head) < 40 or not _is_alive(head) or _word(head, 8) != self.symbols[b"PyUnicode_Type"][0]:
                continue
            length, state = _word(head, 16), _word(head, 32) & 0xFF
            kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
            if kind in _KINDS and is_compact and length <= _SIZE_MAX:
                begin = address + (self.layout.ascii_size if is_ascii else self.layout.compact_size)
                places[address] = begin, min(length + 1, _STRING_MAX) * kind, kind, int(length < _STRING_MAX)
        contents = read(*_columns([(begin, size) for begin, size, *_ in places.values()]))
        texts = {address: (content.decode(_KINDS[kind], "replace"), n_zeros)
                 for (address, (_, size, kind, n_zeros)), content in zip(places.items(), contents, strict=True)
                 if len(content) == size}
        # A zero stands behind each: what has it elsewhere, or has none, is not as long as it was said to be.
        return {address: text[:len(text) - n_zeros].encode("utf-8", "surrogatepass")
                for address, (text, n_zeros) in texts.items() if "\0" not in text[:len(text) - n_zeros]
                and text.endswith("\0" * n_zeros)}

    def _word(self, address: int) -> int:
        (content,) = self._read([address], [8])
        return _word(content, 0)


class _Pieces:
    """Memory that is read step by step, and then as a whole once more."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._asked: list[tuple[int, int]] = []

    def read(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """The first time."""
        self._asked += zip(addresses, sizes, strict=True)
        return self._read(addresses, sizes) if len(addresses) else []

    def again(self) -> Read:
        """The same pieces as they are by now, and no others."""
        there = dict(zip(self._asked, self._read(*_columns(self._asked)), strict=True))
        return lambda addresses, sizes: [there.get(piece, b"") for piece in zip(addresses, sizes, strict=True)]


class _Memory:
    """Pieces of memory as they were read, and whatever else turns out to be needed."""

    def __init__(self, read: Read, pieces: Iterable[tuple[int, bytes]], nearby: dict[int, bytes]) -> None:
        """``nearby``: small pieces, by their addresses, of which each is one thing."""
        self._read = read
        self._pieces = [(address, address + len(content), content) for address, content in pieces]
        self._nearby = nearby
        self._more: dict[int, bytes] = {}

    def add(self, address: int, size: int) -> None:
        """Further memory."""
        (content,) = self._read([address], [size])
        self._pieces.insert(0, (address, address + len(content), content))

    def at(self, address: int, size: int) -> tuple[bytes, int]:
        """Memory that has ``size`` bytes at an address, and where in it; none of it where there is none."""
        for start, end, content in self._pieces:
            if start <= address and address + size <= end:
                return content, address - start
        content = self._more.get(address, b"") or self._nearby.get(address, b"")
        if len(content) < size:
            (content,) = self._read([address], [size]) if _is_address(address) else (b"",)
        self._more[address] = content
        return (content, 0) if len(content) >= size else (b"", 0)

    def word(self, address: int) -> int:
        """A word of it; 0 where there is none."""
        content, at = self.at(address, 8)
        return _word(content, at)

    def elsewhere(self) -> tuple[int, ...]:
        """What was read one by one."""
        return tuple(list(self._more)[:_DEPTH_MAX])


def recognise(symbols: dict[bytes, tuple[int, int]], path: bytes, read: Read,
              clock: Callable[[], int] = time.monotonic_ns,
              tid_of: Callable[[int], int] | None = None) -> Interpreter | str:
    """The interpreter whose symbols these are, at their run-time addresses, from a file of this path; or why it is not
    to be read (empty: its process is gone, or not ours to read). ``tid_of``: see Interpreter."""
    (begin,) = read([symbols[b"_PyRuntime"][0]], [8 * N_OFFSETS])
    if not begin:
        return ""
    if any(name not in symbols for name in SYMBOLS[:4]):
        return "its symbols are not exported"
    version = _version(symbols, path, read)
    if version == _ANOTHER_PROGRAM:
        return ""
    if version is None:
        return "its version is not known"
    offsets = tuple(np.frombuffer(begin, "<u8", len(begin) // 8).tolist())
    if is_free_threaded(offsets):
        return f"Python {version[0]}.{version[1]} without a global interpreter lock (free-threaded) is not supported"
    layout = layout_of(version, offsets)
    if layout is None:
        return f"where Python {version[0]}.{version[1]} keeps its frames is not known"
    return Interpreter(layout, symbols, read, clock, tid_of)


def _version(symbols: dict[bytes, tuple[int, int]], path: bytes, read: Read) -> tuple[int, int] | None:
    if b"Py_Version" in symbols:  # since 3.11
        (content,) = read([symbols[b"Py_Version"][0]], [8])
        number = _word(content, 0)
        return (number >> 24, number >> 16 & 0xFF) if _is_version(number) else _ANOTHER_PROGRAM
    digits = path.rsplit(b"/", 1)[-1].partition(b"python3.")[2]
    minor = digits[:len(digits) - len(digits.lstrip(b"0123456789"))]
    return (3, int(minor)) if minor and len(minor) < 3 else None


def _is_version(number: int) -> bool:
    """Whether a word is one of PY_VERSION_HEX: 3, minor, micro, and alpha, beta, candidate or final."""
    return number >> 24 == 3 and number >> 4 & 0xF in (0xA, 0xB, 0xC, 0xF)


def _sizes(addresses: Iterable[int], read: Read) -> dict[int, int]:
    """The sizes of bytes objects."""
    asked = [address for address in addresses if _is_address(address)]
    heads = zip(asked, read(asked, [_HEAD_SIZE] * len(asked)), strict=True)
    return {address: _word(head, 16) for address, head in heads if len(head) == _HEAD_SIZE and _is_alive(head)}


def _bytes(addresses: Iterable[int], read: Read) -> dict[int, bytes]:
    """What is in bytes objects; nothing of those that are long."""
    sizes = {address: size if size <= _TABLE_MAX else 0 for address, size in _sizes(addresses, read).items()
             if size <= _SIZE_MAX}
    contents = read(*_columns([(address + 32, size) for address, size in sizes.items()]))
    return {address: content for (address, size), content in zip(sizes.items(), contents, strict=True)
            if len(content) == size}


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [address for address, _ in pairs], [size for _, size in pairs]


def _is_alive(head: bytes) -> bool:
    """Whether an object is referred to, by its first bytes.

    What has been freed has there the address of other free memory, or zero, and all else of it may be as it was. A
    number of references has no more than 40 bits, but for marks from 48 on (of immortal objects, since 3.14).
    """
    n_references = _word(head, 0)
    return n_references != 0 and not n_references >> 40 & 0xFF


def _is_address(word: int) -> bool:
    return 0xFFFF < word < _USER_END and not word & 7


def _word(content: bytes, at: int) -> int:
    return int.from_bytes(content[at:at + 8], "little") if len(content) >= at + 8 else 0
