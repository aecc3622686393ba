"""V8 read from outside: a real process that waits, its memory as it is and damaged at random; tables of positions."""

from __future__ import annotations

import glob
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from living import ready

from collector import elf
from collector.linux import proc, tasks
from collector.runtimes import v8
from collector.runtimes.code_v8 import Code, positions_of
from collector.runtimes.functions_v8 import _ends, _file
from collector.runtimes.heap_v8 import (
    _SEQUENTIAL,
    _SLICED,
    _assembled,
    _joined,
    _String,
    _units,
    is_object,
    small,
    word,
)
from collector.runtimes.v8 import Frame, Machine
from tests.runtimes.test_cpython import Damaged

# The distribution's, and further ones by a pattern, where somebody asks for it.
NODES = ["node", *sorted(glob.glob(os.environ.get("NODES", "")))]
DRAWS = range(*map(int, os.environ.get("V8_DRAWS", "0:60").split(":")))

# What is compiled, and inlined, is always the same. Names are strings of all shapes, with characters of all sizes.
PROGRAM = """
const cell = new Int32Array(new SharedArrayBuffer(8));
function leaf(x) { if (x > 5) { Atomics.wait(cell, 0, 0, cell[1]); } return x * 31; }
function inlined(x) { return leaf(x) + 1; }
function warm(xs) { let sum = 0; for (const x of xs) sum += inlined(x); return sum; }
const größeΩ = xs => warm(xs);
class Thing { method(xs) { return größeΩ(xs); } }
const object = { 'a method of a long name, \U0001d4b3' (xs) { return new Thing().method(xs); } };
function compiled() {
  const numbers = [1, 2, 3, 7, 8];
  %PrepareFunctionForOptimization(inlined);
  %PrepareFunctionForOptimization(leaf);
  %PrepareFunctionForOptimization(warm);
  for (let i = 0; i < 99; i++) warm(numbers);
  %OptimizeFunctionOnNextCall(warm);
  warm(numbers);
}
compiled();
// Scripts by names that any program may give them: half a character, and a byte that no path has.
const { Script } = require('vm');
const half = new Script('(function ofHalf(then) { return then(); })', { filename: 'file:///tmp/half\\ud800%20.js' });
const none = new Script('(function ofNone(then) { return then(); })', { filename: 'file:///tmp/no%00ne.js' });
const ofHalf = half.runInThisContext(), ofNone = none.runInThisContext();
const through = then => ofHalf(() => ofNone(() => ofParts(then)));
// And names that are parts of texts which are much longer, with characters of one byte and of two.
const [part, widePart] = ['', 'Ω'].map(one => `/a/rather/long/name/of${one}Part.js\\n`.repeat(9999).split('\\n')[3]);
const ofPart = new Script('(function ofPart(then) { return then(); })', { filename: part }).runInThisContext();
const ofWide = new Script('(function ofWide(then) { return then(); })', { filename: widePart }).runInThisContext();
const ofParts = then => ofPart(() => ofWide(then));
cell[1] = 1e6;
console.log('ready');
(() => [[1, 99]].map(xs => through(() => object['a method of a long name, \U0001d4b3'](xs))))();
"""
NAMES = {b"warm", "größeΩ".encode(), b"method", "a method of a long name, \U0001d4b3".encode()}
DIRECTORY = "js \U0001f680 "


@dataclass(frozen=True)
class Target:
    """A waiting process of node, how its memory is read, and what its main thread has on its stack."""

    read: v8.Read
    symbols: dict[bytes, tuple[int, int]]
    builtins: tuple[int, int]  # by their symbols
    frames: list[Frame]

    def machine(self, read: v8.Read) -> Machine | str:
        """Anew, by this reader."""
        return v8.recognise(self.symbols, read)


@pytest.fixture(scope="module", params=NODES)
def node(request: pytest.FixtureRequest, need: Callable[[str, str], str],
         tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    program = tmp_path_factory.mktemp(DIRECTORY) / "program.js"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [need(request.param, "nodejs"), "--allow-natives-syntax", "--no-lazy-feedback-allocation", str(program)]
    with ready(*command) as pid:
        wait_until_blocked(pid)
        yield target(pid)


def wait_until_blocked(pid: int) -> None:
    """In the last call of the program, which is to a futex, with a time-out, which locks do not have."""
    number, timeout = "", "0x0"
    while number != "202" or timeout == "0x0":
        number, _, _, _, timeout, *_ = [*Path(f"/proc/{pid}/syscall").read_text().split(), *["0x0"] * 4]


def target(pid: int) -> Target:
    read = partial(proc.read_pieces, pid)
    mapped = list(tasks.executables(pid, pid))
    files = [one for one in mapped if one.path.startswith(b"/") and not one.path.startswith(b"//")]
    made = [one for one in mapped if one not in files]
    symbols: dict[bytes, tuple[int, int]] = {}
    builtins, places = (0, 0), []
    for path in dict.fromkeys(os.fsdecode(one.path) for one in files):
        with elf.open_object(path) as file:
            biases = [one.start - (file.vaddr_of(one.file_offset) or 0) for one in files
                      if os.fsdecode(one.path) == path]
            found = file.exported(v8.SYMBOLS)
            if v8.MARK in found:
                symbols = {name: (value + biases[0], size) for name, (value, size) in found.items()}
                low, high = file.symbols().extent_of(v8.BUILTINS)
                builtins = (low + biases[0], high + biases[0]) if high else (0, 0)
                low, high = builtins if high else v8.builtins(symbols, read)
                # They may be mapped again, near to code that is made.
                places = [(low + bias - biases[0], high + bias - biases[0]) for bias in set(biases)]
    sp = int(Path(f"/proc/{pid}/syscall").read_text().split()[-2], 16)
    end = next(int(line.split()[0].split("-")[1], 16) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
               if line.endswith("[stack]"))
    stack = read([sp], [end - sp])[0]
    # Links of frame pointers; what stands below each is the frame's. Words of frames of C++ may be anything.
    frames = []
    for at in range(32, len(stack) - 64, 8):
        above, pc = word(stack, at), word(stack, at + 8)
        if sp + at < above < end - 48 and not above & 7 and is_object(word(stack, above - sp - 16)):
            start = next((one.start for one in made if one.start <= pc < one.end), 0)
            words = [word(stack, above - sp - back) for back in (8, 16, 32, 40)]
            if start or any(low <= pc < high for low, high in places):
                frames.append(Frame(pc - (start > 0), start, False, not start, *words))
    return Target(read, symbols, builtins, frames)


def everything(machine: Machine, frames: list[Frame]) -> dict[bytes, tuple[bytes, int]]:
    """All functions of all frames, with their files and first lines."""
    found = {}
    for told in machine.frames(frames, 1):
        for scope in told.scopes:
            function = machine.function(scope.shared)
            if function is not None:
                found[function.name] = function.source, machine.line_at(scope)
    return found


def test_functions_have_their_names_and_lines(node: Target) -> None:
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    found = everything(machine, node.frames)
    assert found.keys() >= NAMES | {b"map", b"<module> (program.js)", b"executeUserEntryPoint"}
    for name in NAMES:
        text = {b"method": "method(xs)", b"warm": "inlined(x);"}.get(name, name.decode())
        line = PROGRAM[:PROGRAM.index(text)].count("\n") + 1
        assert found[name][0].endswith(f"/{DIRECTORY}0/program.js".encode())
        assert found[name][1] == line, name
    assert [name for name in found if re.fullmatch(rb"\(anonymous\) program.js:\d+", name)]


def test_a_script_may_have_any_name(node: Target) -> None:
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    found = everything(machine, node.frames)
    assert found[b"ofHalf"] == (b"/tmp/half? .js", 1)
    assert found[b"ofNone"] == (b"", 1)
    assert found[b"ofPart"] == (b"/a/rather/long/name/ofPart.js", 1)
    assert found[b"ofWide"] == ("/a/rather/long/name/ofΩPart.js".encode(), 1)


@given(st.text(st.characters(exclude_categories=())), st.booleans())
def test_the_file_of_a_script_is_a_path_or_none(name: str, is_url: bool) -> None:
    assert b"\0" not in _file("file:///" * is_url + name)


def ends(text: str) -> tuple[int, ...]:
    """Of its units as V8 keeps them: of two bytes where a single character needs that."""
    is_wide = any(ord(one) > 0xFF for one in text)
    return _ends(np.frombuffer(text.encode("utf-16-le" if is_wide else "latin-1"), "<u2" if is_wide else "<u1"))


@given(st.text(alphabet="a\u00e9\u2713\U0001d4b3", max_size=9), st.data())
def test_a_string_that_is_a_part_of_another_one_is_cut_by_units(text: str, data: st.DataObject) -> None:
    """Of UTF-16: a character may be two of them."""
    content = text.encode("utf-16-le")
    begin, end = sorted(data.draw(st.integers(0, len(content) // 2)) for _ in range(2))
    whole = _String(len(content) // 2, _SEQUENTIAL, 2, 0, 0)
    known = {1: whole, 5: _String(end - begin, _SLICED, 2, 1, begin << 32)}
    units = _assembled(5, known, {1: _units(content, 2)})
    assert units is not None
    assert len(units) == end - begin
    assert _joined(units).encode("utf-16-le", "surrogatepass") == content[2 * begin:2 * end]


@given(st.text(alphabet="a;\n\r\u00e9", max_size=40))
def test_lines_end_at_the_same_places_whatever_the_characters_of_a_source(text: str) -> None:
    """Of one byte each, or more where there is a single one that needs them."""
    plain = ends(text)
    assert plain == (*(match.end() - 1 for match in re.finditer("\r\n|\n|\r", text)), *((len(text),) if text else ()))
    assert ends(f"{text}\u2713") == (*plain[:-1], len(text) + 1)
    assert ends(f"{text};\u2028") == (*plain[:-1], len(text) + 1, len(text) + 2)


def test_builtins_are_found_without_their_symbols(node: Target) -> None:
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    low, high = v8.builtins(node.symbols, node.read)
    if machine.layout.version >= (13, 0):  # since then the functions that tell are not exported
        assert (low, high) == (0, 0)
    elif node.builtins[1]:
        assert low <= node.builtins[0] < node.builtins[1] <= high
    else:
        assert 0 < low < high
    assert v8.builtins({}, node.read) == (0, 0)


def test_inlined_calls_are_told_with_their_caller(node: Target) -> None:
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    chains = set()
    for told in machine.frames(node.frames, 1):
        functions = [machine.function(scope.shared) for scope in told.scopes]
        chains.add(tuple(function.name for function in functions if function is not None))
    assert (b"leaf", b"inlined", b"warm") in chains, [chain for chain in chains if b"warm" in chain]


def test_a_function_that_changes_while_it_is_read_is_not_believed(node: Target) -> None:
    """It is when it stays as it has become."""
    n_read: Counter[int] = Counter()  # characters of names, by their address

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        found = node.read(addresses, sizes)
        for i, at in enumerate(addresses):
            if found[i] == b"warm":
                found[i] = b"warm" if not n_read[at] else b"cold"
                n_read[at] += 1
        return found

    machine = node.machine(read)
    assert isinstance(machine, Machine), machine
    before, after = (everything(machine, node.frames).keys() & {b"warm", b"method", b"cold"} for _ in range(2))
    assert n_read
    assert before < after
    assert after == {b"method", b"cold"}


def test_a_function_in_whose_place_another_one_comes_while_it_is_read_is_not_told_as_that(node: Target) -> None:
    """It was asked for by what led to the one that was there before."""
    whole = node.machine(node.read)
    assert isinstance(whole, Machine), whole
    everything(whole, node.frames)
    place, other = (next(one for one, function in whole._functions.known.items() if function.name == name)
                    for name in (b"warm", b"method"))
    n_read = 0

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        nonlocal n_read
        is_gone = n_read > 0
        n_read += place - 1 in addresses
        return node.read([other - 1 if is_gone and at == place - 1 else at for at in addresses], sizes)

    machine = node.machine(read)
    assert isinstance(machine, Machine), machine
    machine.frames(node.frames, 1)
    assert n_read > 1
    assert machine.function(place) is None
    machine.frames(node.frames, 2)
    now = machine.function(place)
    assert now is not None
    assert now.name == b"method"


def test_what_is_known_stays_known_when_the_process_is_gone(node: Target) -> None:
    there = [True]
    machine = node.machine(lambda addresses, sizes: node.read(addresses, sizes) if there[0] else [b""] * len(sizes))
    assert isinstance(machine, Machine), machine
    before = everything(machine, node.frames)
    there.clear()
    there.append(False)
    assert everything(machine, node.frames) == before


def test_functions_that_were_moved_are_found_where_they_are_now(node: Target) -> None:
    whole = node.machine(node.read)
    assert isinstance(whole, Machine), whole
    names = everything(whole, node.frames)
    away = 1 << 46
    moved = {frame.function - 1 for frame in node.frames if is_object(frame.function)}

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        there = node.read([at - away if at - away in moved else at for at in addresses], sizes)
        return [(at + away).to_bytes(8, "little").ljust(size, b"\0") if at in moved else content
                for at, size, content in zip(addresses, sizes, there, strict=True)]

    machine = node.machine(read)
    assert isinstance(machine, Machine), machine
    assert everything(machine, node.frames) == names


def test_code_whose_place_another_one_has_is_not_told_any_more(node: Target) -> None:
    """Of code that was given up the Code object stays in memory as it was."""
    others: set[int] = set()  # where other objects begin by now

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        return [bytes(size) if at in others else content
                for at, size, content in zip(addresses, sizes, node.read(addresses, sizes), strict=True)]

    machine = node.machine(read)
    assert isinstance(machine, Machine), machine
    machine.frames(node.frames, 1)
    codes = [(frame.pc, code) for frame in node.frames if frame.low and (code := machine.codes.at(frame.pc))]
    assert any(code.level > 0 for _, code in codes)
    others.update(code.start - machine.codes.head_size for _, code in codes)
    machine.frames(node.frames, 2)
    assert not [pc for pc, _ in codes if machine.codes.at(pc)]


def canonical(machine: Machine, frames: list[Frame]) -> list[Frame]:
    """The same frames without what tells nothing of them."""
    pc, low, is_leaf, _, *below = np.array(frames, np.uint64).T
    words = np.stack(below)
    machine.canonicalise(words, pc, low, is_leaf.astype(bool), machine.are_functions(words))
    return [one._replace(**dict(zip(("context", "function", "bytecode", "offset"), its, strict=True)))
            for one, its in zip(frames, words.T.tolist(), strict=True)]


def test_frames_are_told_alike_without_what_tells_nothing_of_them(node: Target) -> None:
    """What lies below the frame of optimised code, and of none of a function's, is another in each sample."""
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    frames = [one._replace(is_leaf=is_leaf) for one in node.frames for is_leaf in (False, True)]
    frames += [one._replace(context=2 << 32) for one in node.frames]
    told = machine.frames(frames, 1)
    assert machine.frames(canonical(machine, frames), 1) == told

    def with_noise(one: Frame) -> Frame:
        code = machine.codes.at(one.pc) if one.low else None
        if not is_object(one.context) or not is_object(one.function):
            return one._replace(function=one.function ^ 6, bytecode=one.context, offset=7)
        is_noise = code is not None and code.level > 0 and not one.is_leaf
        return one._replace(bytecode=one.context, offset=7) if is_noise else one._replace(offset=one.offset ^ (
            one.low > 0))

    noisy = [with_noise(one) for one in frames]
    assert sum(one != other for one, other in zip(frames, noisy, strict=True)) > len(node.frames)
    assert canonical(machine, noisy) == canonical(machine, frames)
    assert len(set(canonical(machine, frames))) > len(node.frames)  # the rest of them differ still


def test_code_alone_proves_nothing_of_times_before_it_was_met(node: Target) -> None:
    """Other code may have been in its place, with other functions inlined, even if it was for the same one."""
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    machine.frames(node.frames, 1)
    frame = next(one for one in node.frames if one.low and (code := machine.codes.at(one.pc)) and code.level > 0)
    other = node.machine(node.read)
    assert isinstance(other, Machine), other
    frames = [frame, frame._replace(function=0)]
    for now_ns in (7, 9):
        both, alone = other.frames(frames, now_ns)
        assert both.scopes == alone.scopes
        assert len(both.scopes) > 1
        assert (both.since_ns, alone.since_ns) == (7, 7)


def test_code_that_is_gone_hides_none_that_has_come_in_its_place(node: Target) -> None:
    """It begins within what has come, and ends before the place that is asked for."""
    machine = node.machine(node.read)
    assert isinstance(machine, Machine), machine
    machine.frames(node.frames, 1)
    pc, low, code = next((one.pc, one.low, code) for one in node.frames
                         if one.low and (code := machine.codes.at(one.pc)) and code.level > 0)
    gone = Code(code.object, code.start + 64, min(code.start + 128, pc), 2, b"", b"", 1)
    other = node.machine(node.read)
    assert isinstance(other, Machine), other
    other.codes._known, other.codes._starts = {gone.start: gone}, [gone.start]
    other.codes.learn([(pc, low)], 2)
    found = other.codes.at(pc)
    assert found is not None
    assert (found.start, found.end) == (code.start, code.end)


def test_functions_of_a_process_that_has_ended_are_proven_up_to_the_last_look(node: Target) -> None:
    there = [True]
    machine = node.machine(lambda addresses, sizes: node.read(addresses, sizes) if there[0] else [b""] * len(sizes))
    assert isinstance(machine, Machine), machine
    frames = [frame._replace(bytecode=0) for frame in node.frames
              if frame.is_interpreted and is_object(frame.function)]
    assert 5 in {told.since_ns for told in machine.frames(frames, 5)}
    assert 7 not in {told.since_ns for told in machine.frames(frames, 7)}
    there[0] = False
    found = {told.since_ns for told in machine.frames(frames, 9)}
    assert 9 in found  # function objects may lead elsewhere by now
    assert 5 not in found


def test_code_is_found_beside_a_hole_in_memory(node: Target) -> None:
    """A page that was given up lies before it, in what is searched for where it begins."""
    whole = node.machine(node.read)
    assert isinstance(whole, Machine), whole
    whole.frames(node.frames, 1)
    known = {frame.pc: code for frame in node.frames if frame.low and (code := whole.codes.at(frame.pc))}
    held = {pc: code.start - whole.codes.head_size & -4096 for pc, code in known.items()}
    assert held
    for pc, page in held.items():
        def read(addresses: Sequence[int], sizes: Sequence[int], hole: int = page - 4096) -> list[bytes]:
            return [b"" if at < hole + 4096 and at + size > hole else content
                    for at, size, content in zip(addresses, sizes, node.read(addresses, sizes), strict=True)]

        machine = node.machine(read)
        assert isinstance(machine, Machine), machine
        machine.codes.learn([(pc, page - 4096)], 1)
        found = machine.codes.at(pc)
        assert found is not None
        assert (found.start, found.end) == (known[pc].start, known[pc].end)


def test_memory_without_code_of_ours_is_read_once(node: Target) -> None:
    """Such as that of WebAssembly, which may be large."""
    begin, size = 1 << 46, 2 << 20
    asked: list[int] = []  # bytes, at once

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        inside = [begin <= at < begin + size for at in addresses]
        asked.append(sum(size for size, is_inside in zip(sizes, inside, strict=True) if is_inside))
        return [bytes(size) if is_inside else content for size, is_inside, content in zip(
            sizes, inside, node.read(addresses, sizes), strict=True)]

    machine = node.machine(read)
    assert isinstance(machine, Machine), machine
    pcs = range(begin + 99, begin + size, size // 499)
    machine.codes.learn([(pc, begin) for pc in pcs], 1)
    assert not any(map(machine.codes.at, pcs))
    assert size <= sum(asked) <= 2 * size + 500 * 64
    assert max(asked) <= 4 << 20


def test_functions_are_told_whose_scope_ends_where_memory_ends(node: Target) -> None:
    """Nothing can be read that goes beyond."""
    whole = node.machine(node.read)
    assert isinstance(whole, Machine), whole
    names = everything(whole, node.frames)
    name_at = whole.layout.at["shared_name"]
    shared = next(one for one, function in whole._functions.known.items() if function.name == b"warm")
    scope = word(node.read([shared - 1], [name_at + 8])[0], name_at)
    content = whole._heap.pieces([scope - 1], [192])[0]
    words = [word(content, at) for at in range(0, len(content), 8)]
    texts = whole._heap.texts(words, 99)
    named = next(i for i, one in enumerate(words) if texts.get(one) == "warm")
    end = next(i for i, one in enumerate(words) if small(one) == PROGRAM.index("}", PROGRAM.index("return sum")) + 1)
    content = content[:8 * (max(named, end) + 1)]
    page_end = 1 << 46
    begin = page_end - len(content)

    def piece(at: int, size: int, there: bytes) -> bytes:
        if page_end - 4096 <= at < page_end:
            return content[at - begin:at - begin + size] if begin <= at and at + size <= page_end else b""
        skipped = shared - 1 + name_at - at
        moved = (begin + 1).to_bytes(8, "little")
        return there[:skipped] + moved + there[skipped + 8:] if 0 <= skipped < size else there

    machine = node.machine(lambda addresses, sizes: list(map(piece, addresses, sizes, node.read(addresses, sizes))))
    assert isinstance(machine, Machine), machine
    assert everything(machine, node.frames) == names


def test_damaged_memory_gives_no_exception_and_no_name_that_is_none(node: Target) -> None:
    whole = node.machine(node.read)
    assert isinstance(whole, Machine), whole
    names = everything(whole, node.frames)
    n_named = 0
    for seed in DRAWS:
        draw = random.Random(seed)
        read = Damaged(node.read, seed, (0.02, 0.2, 0.7)[seed % 3])
        how = [read if seed % 7 == 0 else node.read]
        other = node.machine(lambda addresses, sizes, how=how: how[-1](addresses, sizes))  # type: ignore[misc]
        if isinstance(other, str):
            continue
        how.append(read)
        some = draw.sample(node.frames, min(len(node.frames), 9))
        field = draw.choice(("function", "bytecode", "context", "pc"))
        some.append(some[0]._replace(**{field: draw.getrandbits(47) | 1}))
        # Who has no name is told by a place, which is no name, and may be a neighbour's.
        found = {name: told for name, told in everything(other, some).items() if not name.startswith(b"(anonymous)")}
        n_named += len(found)
        assert found.keys() <= names.keys(), (seed, found.keys() - names.keys())
    assert n_named > len(DRAWS) // 10


def test_positions_of_a_table() -> None:
    table = bytes([2, 20, 1 << 1, 6, 0x81, 0x02, 5])  # +1, +10; +1, +3; downwards by 128, -3
    assert positions_of(table) == ([0, 1, 129], [10, 13, 10])
    for cut in range(len(table)):
        offsets, positions = positions_of(table[:cut])
        assert (offsets, positions) == tuple(part[:len(offsets)] for part in positions_of(table))
