"""CPython read from outside: a real process that waits, its memory as it is and damaged at random; looks."""

from __future__ import annotations

import dis
import glob
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, SimpleNamespace

import numpy as np
import pytest
from living import ready

from collector import elf
from collector.clock import NEVER_NS, NS_PER_S
from collector.events import ClockSamples
from collector.experiment import dyntext
from collector.linux import proc, tasks
from collector.runtimes import cpython
from collector.runtimes.callers_cpython import UNIT
from collector.runtimes.cpython import CodeObject, Interpreter, PyFrame
from collector.runtimes.layout_cpython import LAYOUTS
from collector.runtimes.lines_cpython import lines_of
from collector.runtimes.looks import NOBODY, Anchor, Looks
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.runtimes.places_cpython import NOT_PROVEN, CodePlaces, Sieve
from collector.runtimes.ways_cpython import Ways
from collector.session import python_process
from collector.session.objects import Objects
from collector.session.placing import Frames
from collector.session.python import PythonFrames
from collector.session.python_evaluations import Place, lost_words, words_of
from collector.session.python_process import Process
from collector.session.python_stacks import Runs, _looked_after, _reliable
from collector.unwind.table import Tables

PROGRAM = """
import threading, time
def \u03b1\u03b2(n):
    return sorted([n], key=lambda one: \u03b1\u03b2(n - 1)) if n else wait()
def wait():
    print("ready", flush=True)
    time.sleep(86_400)
def generated():
    yield \u03b1\u03b2(2)
def work():
    for _ in generated(): pass
threading.Thread(target=work).start()
"""
# Of each version that is here.
VERSIONS = sorted({os.path.realpath(path) for path in (sys.executable, *glob.glob(
    str(Path.home() / ".pyenv/versions/3.1[0-5].*/bin/python3")))})
NAMES = {"work", "generated", "\u03b1\u03b2", "\u03b1\u03b2.<locals>.<lambda>", "wait", "Thread.run", "_shutdown",
         "Thread._bootstrap_inner", "Thread._bootstrap", "Thread.join", "Thread._wait_for_tstate_lock", "<module>"}
CHAIN = ["Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", "work", "generated",
         *["\u03b1\u03b2", "\u03b1\u03b2.<locals>.<lambda>"] * 2, "\u03b1\u03b2", "wait"]
SYS_FUTEX, SYS_CLOCK_NANOSLEEP = "202", "230"
N_DRAWS = int(os.environ.get("CPYTHON_DRAWS", "400"))

Reader = Callable[[Sequence[int], Sequence[int]], list[bytes]]


class Target:
    """A waiting process: how its memory is read, and where CPython's symbols are in it."""

    def __init__(self, pid: int) -> None:
        self.read: Reader = partial(proc.read_pieces, pid)
        self.tids = proc.threads(pid)
        for mapped in tasks.executables(pid, pid):
            if b"python3" in mapped.path:
                with elf.open_object(os.fsdecode(mapped.path)) as file:
                    symbols = file.exported(cpython.SYMBOLS)
                    if b"_PyRuntime" in symbols:
                        bias = mapped.start - (file.vaddr_of(mapped.file_offset) or 0)
                        self.path = mapped.path
                        self.symbols = {name: (value + bias, size) for name, (value, size) in symbols.items()}

    def interpreter(self, read: Reader) -> Interpreter | str:
        """Anew, by this reader."""
        return cpython.recognise(self.symbols, self.path, read)


def call(pid: int, tid: int) -> str:
    """The number of the system call that a thread is blocked in, or "running"."""
    return Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with ready(sys.executable, "-c", PROGRAM) as pid:
        main, worker = proc.threads(pid)
        while (call(pid, worker), call(pid, main)) != (SYS_CLOCK_NANOSLEEP, SYS_FUTEX):
            time.sleep(0.001)  # main has yet to come to where it waits for the other one's end
        yield Target(pid)


def _names(interpreter: Interpreter, chain: cpython.Chain) -> list[str]:
    """Outermost first."""
    return [interpreter.codes[frame.code].name.decode() for activation in chain for frame in reversed(activation)]


@contextmanager
def _waiting(python: str, program: str) -> Iterator[tuple[Target, Interpreter]]:
    """A process that waits when it has said so, and its interpreter."""
    with ready(python, "-c", program) as pid:
        waiting = Target(pid)
        interpreter = waiting.interpreter(waiting.read)
        assert isinstance(interpreter, Interpreter)
        yield waiting, interpreter


LONG = """
import time
def wait():
    print("ready", flush=True)
    time.sleep(86_400)
def long(): wait()
table = "co_linetable" if hasattr(long.__code__, "co_linetable") else "co_lnotab"
names = dict.fromkeys(["co_name", *(["co_qualname"] if hasattr(long.__code__, "co_qualname") else [])], "n" * 5000)
long.__code__ = long.__code__.replace(**{table: getattr(long.__code__, table) + bytes(300_000)}, **names)
long()
"""


@pytest.mark.parametrize("python", VERSIONS)
def test_what_is_long_of_code_hides_no_thread(python: str) -> None:
    """The lines of a module with thousands of statements, a name that a program has made."""
    with _waiting(python, LONG) as (_, interpreter):
        (state,) = interpreter.threads().values()
        (chain,) = interpreter.chains([state])
        assert chain is not None
        first, long, wait = _names(interpreter, chain)
        assert (first, long, wait) == ("<module>", "n" * 4096, "wait")
        of_long, = (frame.code for activation in chain for frame in activation
                    if len(interpreter.codes[frame.code].name) > 10)
        assert interpreter.lines(of_long) == ()


CLASS = """
import time
class Thing:
    def __init__(self, is_last):
        if is_last:
            print("ready", flush=True)
            time.sleep(86_400)
def main():
    for i in range(5000): Thing(i == 4999)
main()
"""


@pytest.mark.parametrize("python", VERSIONS)
def test_between_a_class_and_who_calls_it_there_is_nobody(python: str) -> None:
    with _waiting(python, CLASS) as (_, interpreter):
        (chain,) = interpreter.chains(list(interpreter.threads().values()))
        assert chain is not None
        names = _names(interpreter, chain)
    assert [name.rpartition(".")[2] for name in names] == ["<module>", "main", "__init__"]


# A thread in another interpreter, that the first one has made, and two that wait in the main interpreter.
INTERPRETERS = """
import os, threading
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def older(): threading.Event().wait()
threading.Thread(target=older).start()
made = interpreters.create()
begun, told = os.pipe()
program = f'''
import os, time
def inner():
    os.write({told}, b".")
    time.sleep(86_400)
def task(): inner()
task()
'''
def outer(): interpreters.run_string(made, program)
threading.Thread(target=outer).start()
def main():
    os.read(begun, 1)
    print("ready", flush=True)
    threading.Event().wait()
main()
"""


@pytest.mark.parametrize("python", VERSIONS)
def test_a_thread_in_several_interpreters_hides_no_other(python: str) -> None:
    with _waiting(python, INTERPRETERS) as (waiting, interpreter):
        states = interpreter.threads()
        assert states.keys() == set(waiting.tids)
        names = []
        for chain in interpreter.chains([states[tid] for tid in waiting.tids]):
            assert chain is not None
            found = [name.rpartition(".")[2] for name in _names(interpreter, chain)]
            names.append([name for name in found if name in {"older", "outer", "task", "inner", "main"}])
    # Which thread carries out what in another interpreter is not known before.
    inner = ["task", "inner"] if interpreter.layout.version >= (3, 13) else []
    assert names == [["main"], ["older"], ["outer", *inner]]


def test_a_waiting_thread_is_read_from_its_first_frame_on(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    assert interpreter.layout.version == sys.version_info[:2]
    states = interpreter.threads()
    assert sorted(states) == target.tids
    main, worker = interpreter.chains([states[tid] for tid in target.tids])
    assert main is not None
    assert worker is not None
    assert _names(interpreter, worker) == CHAIN
    assert _names(interpreter, main)[0] == "_shutdown"
    assert interpreter.chains([states[tid] for tid in target.tids]) == [main, worker]
    innermost = worker[-1][0]
    code = interpreter.codes[innermost.code]
    line = max(line for offset, line in interpreter.lines(innermost.code) if offset <= interpreter.offset(innermost))
    assert (code.file, line) == (b"<string>", PROGRAM[:PROGRAM.index("time.sleep")].count("\n") + 1)


def test_threads_that_have_come_are_noticed_by_the_next_look(target: Target) -> None:
    """A thread whose predecessor is the newest one known; the listing goes as far as that one."""
    reads: list[int] = []
    is_old = True
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    states = interpreter.threads()
    newest, oldest = states.values()  # the list begins with the newest
    heads = [interpreter.symbols[b"_PyRuntime"][0] + interpreter.layout.interpreters_head]
    heads.append(int.from_bytes(target.read(heads, [8])[0], "little") + interpreter.layout.threads_head)

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        reads.extend(addresses)
        return [oldest.to_bytes(8, "little") if is_old and address == heads[1] else content
                for address, content in zip(addresses, target.read(addresses, sizes), strict=True)]

    again = target.interpreter(read)
    assert isinstance(again, Interpreter)
    assert list(again.threads().values()) == [oldest]
    assert again.chains([oldest]) != [None]
    assert not again.has_new_threads
    is_old = False
    assert again.chains([oldest]) != [None]
    assert again.has_new_threads
    reads.clear()
    assert again.threads({tid: oldest for tid, state in states.items() if state == oldest}) == states
    assert reads.count(newest) == reads.count(oldest) == 1
    assert again.chains([newest]) == interpreter.chains([newest])
    assert not again.has_new_threads


def test_code_that_no_look_has_met_is_searched_where_words_lead_to_code(target: Target) -> None:
    """Of a part of a stack that leads to no known code first the words at the place where those of others do."""
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    interpreter.chains(list(interpreter.threads().values()))
    known, other = [code.bytecode for code in interpreter.codes.values()][:2]
    decoys = [0x100000 + 4096 * i for i in range(300)]  # nothing is there
    words = np.array([known, *decoys, other, other | 1, 7], np.uint64)
    part = np.array([0, *[1] * 303])
    place = np.array([77, *[80] * 300, 77, 77, 77])
    codes = np.array([known, *[0] * 303], np.uint64)
    n_hits = np.bincount(place[codes != 0], minlength=161)
    assert lost_words(interpreter, part, words, place, codes, n_hits) == [other, *decoys[:63]]
    fresh = target.interpreter(target.read)
    assert isinstance(fresh, Interpreter)
    fresh.search(lost_words(fresh, part, words, place, codes, n_hits)[:1])
    assert [code.bytecode for code in fresh.codes.values()] == [other]
    assert lost_words(fresh, part, words, place, np.where(words == other, other, codes), n_hits) == []
    fresh.search(decoys)
    assert lost_words(fresh, part, words, place, codes, n_hits) == [other]


def test_code_at_the_beginning_of_memory_is_found(target: Target) -> None:
    """Its object lies in the first page that there is: nothing can be read that begins before."""
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    interpreter.chains(list(interpreter.threads().values()))
    code = next(code for code in interpreter.codes.values() if code.address // 4096 == code.bytecode // 4096)
    begins = code.address & ~4095

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        return [b"" if code.address - (1 << 16) < address < begins else content
                for address, content in zip(addresses, target.read(addresses, sizes), strict=True)]

    fresh = target.interpreter(read)
    assert isinstance(fresh, Interpreter)
    fresh.search([code.bytecode, begins, begins - 8])
    assert [one.address for one in fresh.codes.values()] == [code.address]
    assert not fresh.is_no_code(code.bytecode)


class Alone:
    """Code of a process as the only one in memory, at another address."""

    def __init__(self, target: Target, code: CodeObject, at: int, size: int = 0) -> None:
        """``size``: of its bytecode, if it is to be longer than it is."""
        self._target, self._code, self._at = target, code, at
        self._n_units = (size // 2).to_bytes(8, "little") if size else b""

    def read(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Zeros before it, its own content, and zeros behind it."""
        return [self._piece(*piece, content) for *piece, content in zip(
            addresses, sizes, self._target.read(addresses, sizes), strict=True)]

    def _piece(self, address: int, size: int, content: bytes) -> bytes:
        if not self._at - (1 << 16) < address < self._at + (1 << 16):
            return content
        at, code = self._at, self._code
        (own,) = self._target.read([code.address], [code.bytecode - code.address + code.size])
        own = own[:16] + (self._n_units or own[16:24]) + own[24:]
        memory = bytes(1 << 16) + own + bytes(1 << 17)
        begin = (1 << 16) + address - at
        return memory[begin:begin + size]


def test_code_is_found_though_a_word_near_it_led_to_none(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    interpreter.chains(list(interpreter.threads().values()))
    code, size = next(iter(interpreter.codes.values())), 1 << 14
    head = code.bytecode - code.address
    for at in range(1 << 46, (1 << 46) + 256, 16):
        # Words right before it, and those from which its head is too far away; with those nearest that lead into it.
        far = at + 8 + (1 << 14)
        for near, word in [*((at + before, at + head) for before in (-8, 0, 8)),
                           *((far + behind, far) for behind in range(8, 192, 24))]:
            fresh = Interpreter(interpreter.layout, interpreter.symbols, Alone(target, code, at, size).read)
            fresh.search([near])
            assert not fresh.is_no_code(word)
            fresh.search([word])
            assert [one.address for one in fresh.codes.values()] == [at]


def test_code_is_found_that_has_come_unheard(target: Target) -> None:
    """Where a word led to none before. No look has met it, and none that is known has gone."""
    now = {"ns": 0, "there": 0}

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        return [content if now["there"] or not at <= code.address + 8 < at + size else bytes(size)
                for at, size, content in zip(addresses, sizes, target.read(addresses, sizes), strict=True)]

    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    interpreter.chains(list(interpreter.threads().values()))
    code = next(iter(interpreter.codes.values()))
    fresh = Interpreter(interpreter.layout, interpreter.symbols, read, lambda: now["ns"])
    for second, there, is_found in ((0, 0, False), (4, 1, False), (6, 1, True)):
        now |= {"ns": second * NS_PER_S, "there": there}
        fresh.forget_old()
        fresh.search([code.bytecode])
        assert (code.address in fresh.numbers) == is_found


def test_words_behind_code_are_not_searched_again_until_code_has_come(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    interpreter.chains(list(interpreter.threads().values()))
    code = next(iter(interpreter.codes.values()))
    behind = code.bytecode + code.size + 2
    assert not interpreter.is_no_code(behind)
    interpreter.search([behind, code.bytecode])
    assert [interpreter.is_no_code(word) for word in (behind, code.bytecode, behind + 2)] == [True, False, False]
    interpreter.forget_vain()
    assert not interpreter.is_no_code(behind)


def test_a_sieve_lets_all_through_that_is_inside_and_little_else() -> None:
    draws = np.random.default_rng(3)
    starts = np.sort(draws.integers(1 << 30, 1 << 46, 500)).astype(np.uint64)
    ends = starts + draws.integers(1, 3000, 500).astype(np.uint64)
    sieve = Sieve(starts, ends)
    for some in (starts, ends - np.uint64(1), starts + (ends - starts) // np.uint64(2)):
        assert sieve.may_have(some).all()
    others = draws.integers(0, 1 << 47, 100_000).astype(np.uint64)
    assert np.count_nonzero(sieve.may_have(others)) < 15_000
    none = np.zeros(0, np.uint64)
    assert not Sieve(none, none).may_have(others).any()


class Replaced:
    """Memory of a process in which other things come to be in the place of code objects, and the time there."""

    def __init__(self, target: Target) -> None:
        self.time_ns = 0
        self.shown: dict[int, int] = {}  # which address shows what is at which other one
        self._target = target
        found = cpython.recognise(target.symbols, target.path, self._read, lambda: self.time_ns)
        assert isinstance(found, Interpreter)
        self.interpreter = found
        self._state = found.threads()[target.tids[1]]

    def _read(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Takes a nanosecond."""
        self.time_ns += 1
        return self._target.read([self.shown.get(address, address) for address in addresses], sizes)

    def look(self, time_ns: int) -> cpython.Chain | None:
        """What the thread carries out, begun at a time."""
        self.time_ns = time_ns
        (chain,) = self.interpreter.chains([self._state])
        return chain

    def told(self, places: CodePlaces, word: int, times: Sequence[int]) -> list[str]:
        """What a word leads to at times; in brackets what is not proven."""
        codes, proven = places.at(np.full(len(times), word, np.uint64), np.array(times))
        names = {0: "none", NOT_PROVEN: "?", **{
            number: code.name.decode() for number, code in self.interpreter.codes.items()}}
        return [names[code] if sure else f"({names[code]})"
                for code, sure in zip(codes.tolist(), proven.tolist(), strict=True)]


def test_code_in_the_place_of_other_code_is_told_apart(target: Target) -> None:
    """Memory in which another code object has come to be where one was; then none."""
    replaced = Replaced(target)
    interpreter, shown = replaced.interpreter, replaced.shown
    first = replaced.look(100)
    assert first is not None
    waiting, working = first[-1][0].code, first[0][0].code
    assert [interpreter.codes[code].name for code in (waiting, working)] == [b"wait", b"Thread.run"]
    shown[waiting] = working
    second = replaced.look(200)
    assert second is not None
    assert [len(activation) for activation in second] == [len(activation) for activation in first]
    assert [interpreter.codes[chain[-1][0].code].name for chain in (first, second)] == [b"wait", b"Thread.run"]
    ((seen_ns, unused_ns, since_ns),) = interpreter.gone.values()
    assert 100 < seen_ns == unused_ns < 120 < 200 < since_ns < 220
    assert replaced.look(300) == second
    shown[waiting] = target.symbols[b"_PyRuntime"][0]  # memory that is no code object
    assert replaced.look(400) is None
    assert [number for number, _ in interpreter.gone.items()] == [waiting, second[-1][0].code]
    assert interpreter.forget_before(400) == [waiting]
    assert waiting not in interpreter.codes
    assert second[-1][0].code in interpreter.codes
    del shown[waiting]
    last = replaced.look(500)
    assert last is not None
    assert _names(interpreter, last) == CHAIN


@pytest.mark.parametrize("reference", [0, 0x7F12_3456_7890, 0x55AA_0123_4560])
def test_what_has_been_freed_is_nothing_any_more(target: Target, reference: int) -> None:
    """A code object, its name or its lines: all of it is as it was, but for the number of references."""
    freed: set[int] = set()

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        return [(reference.to_bytes(8, "little") + content[8:])[:len(content)] if address in freed else content
                for address, content in zip(addresses, target.read(addresses, sizes), strict=True)]

    interpreter = cpython.recognise(target.symbols, target.path, read)
    assert isinstance(interpreter, Interpreter)
    state = interpreter.threads()[target.tids[1]]
    (chain,) = interpreter.chains([state])
    assert chain is not None
    waiting = chain[-1][0].code
    freed.add(waiting)
    assert interpreter.chains([state]) == [None]
    assert list(interpreter.gone) == [waiting]
    layout = interpreter.layout
    (head,) = target.read([waiting], [layout.code_size])
    for at in (layout.code_name, layout.code_file, layout.code_lines):
        interpreter.not_codes.clear()
        freed.clear()
        freed.add(int.from_bytes(head[at:at + 8], "little"))
        interpreter.learn([waiting])
        assert waiting not in interpreter.numbers
    interpreter.not_codes.clear()
    freed.clear()
    interpreter.learn([waiting])
    assert waiting in interpreter.numbers


def test_of_code_in_one_place_each_time_has_its_own_and_none_between(target: Target) -> None:
    """A batch of samples from times when other code was there, and other code before that."""
    replaced = Replaced(target)
    places = CodePlaces(replaced.interpreter)
    first = replaced.look(1000)
    assert first is not None
    waiting, running, booting = (first[at][0].code for at in (-1, 0, 1))
    word = replaced.interpreter.codes[waiting].bytecode + 2
    assert replaced.told(places, word, [500, 1100]) == ["(wait)", "wait"]
    for time_ns, shown in ((1200, None), (2000, running), (2200, running), (3000, booting), (3200, booting),
                           (4000, None)):
        replaced.shown = {waiting: shown} if shown is not None else {}
        replaced.look(time_ns)
    assert replaced.told(places, word, [500, 1100, 1199, 1500, 2100, 2500, 3100, 3700, 4100]) == [
        "(wait)", "wait", "wait", "(?)", "Thread.run", "(?)", replaced.interpreter.codes[booting].name.decode(), "(?)",
        "wait"]
    assert replaced.told(places, word + (1 << 20), [1100]) == ["(none)"]


def test_code_that_was_freed_is_told_until_other_code_comes_there(target: Target) -> None:
    """An interpreter that ends frees all: also what it has carried out since the last look, or what called that."""
    replaced = Replaced(target)
    interpreter = replaced.interpreter
    first = replaced.look(1000)
    assert first is not None
    assert replaced.look(1500) == first
    waiting, running = first[-1][0].code, first[0][0].code
    word = interpreter.codes[waiting].bytecode + 2
    read, is_free = interpreter._read, [True]

    def freed(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """What free() writes to is the first two words."""
        return [bytes(16) + content[16:] if is_free[0] and address == waiting else content
                for address, content in zip(addresses, read(addresses, sizes), strict=True)]

    interpreter._read = freed
    assert replaced.look(3000) is None
    (gone,) = interpreter.gone.values()
    assert 1500 <= gone.seen_ns < 1510 < gone.unused_ns == 3000 < gone.since_ns < 3010
    places = CodePlaces(interpreter)
    assert replaced.told(places, word, [1400, 2500, 3000, 4000]) == ["wait", "(wait)", "(wait)", "(none)"]
    # By now there is other code: it may have been there before, too.
    is_free[0], replaced.shown = False, {waiting: running}
    replaced.look(5000)
    assert replaced.told(places, word, [1400, 2500, 4000, 5100]) == ["wait", "(?)", "(?)", "Thread.run"]


def test_code_whose_memory_is_not_there_any_more_is_told_until_then(target: Target) -> None:
    replaced = Replaced(target)
    interpreter = replaced.interpreter
    first = replaced.look(1000)
    assert first is not None
    waiting = first[-1][0].code
    word = interpreter.codes[waiting].bytecode + 2
    read = interpreter._read
    interpreter._read = lambda addresses, sizes: [
        b"" if address == waiting else content
        for address, content in zip(addresses, read(addresses, sizes), strict=True)]
    replaced.look(3000)
    assert replaced.told(CodePlaces(interpreter), word, [2500, 4000]) == ["(wait)", "(none)"]


def test_a_look_sees_to_code_that_is_not_carried_out_too(target: Target) -> None:
    replaced = Replaced(target)
    interpreter = replaced.interpreter
    first = replaced.look(1000)
    assert first is not None
    (other,) = (number for number in interpreter.codes if interpreter.codes[number].name == b"wait")
    main = interpreter.threads()[target.tids[0]]
    replaced.time_ns = 2000
    interpreter.chains([main], [other])  # where the other thread's code is not met
    assert (interpreter.is_proven(other, 2000), interpreter.is_proven(other, 2100)) == (True, False)
    replaced.shown[other] = first[0][0].code
    replaced.time_ns = 3000
    interpreter.chains([main], [other])
    ((seen_ns, _, since_ns),) = interpreter.gone.values()
    assert 2000 <= seen_ns < 2100 < 3000 < since_ns < 3100
    assert not interpreter.is_proven(other, 2000)


def test_what_is_read_late_was_not_there_before(target: Target) -> None:
    """Code that is found to be other code by a read that took long: when it began the former may have been there."""
    replaced = Replaced(target)
    first = replaced.look(1000)
    assert first is not None
    assert replaced.look(1100) == first
    waiting, working = first[-1][0].code, first[0][0].code
    read, late = replaced.interpreter._read, 500

    def slow(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        if waiting in addresses:
            replaced.time_ns += late
        return read(addresses, sizes)

    replaced.shown[waiting] = working
    replaced.interpreter._read = slow
    replaced.look(2000)
    word = replaced.interpreter.codes[working].bytecode - working + waiting + 2
    assert replaced.told(CodePlaces(replaced.interpreter), word, [1050, 2100, 2499, 4000]) == [
        "wait", "(?)", "(?)", "Thread.run"]


class Damaged:
    """Memory that is overwritten between reads: pieces that are missing, random, or of another place."""

    def __init__(self, read: Reader, seed: int, share: float) -> None:
        self._read, self._random, self._share = read, random.Random(seed), share
        self._seen = [0]

    def __call__(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        return [self._damaged(content, size) for content, size in zip(self._read(addresses, sizes), sizes, strict=True)]

    def _damaged(self, content: bytes, size: int) -> bytes:
        chance = self._random.random()
        if chance > self._share or size < 8:
            return content
        if chance < self._share / 4:
            return b""
        damaged = bytearray(content)
        for _ in range(self._random.randrange(1, 4)):
            at = self._random.randrange(0, max(len(damaged) // 8, 1)) * 8
            self._seen.append(int.from_bytes(damaged[at:at + 8], "little"))
            word = self._random.choice([self._random.getrandbits(64), self._random.getrandbits(47) & ~7, 0,
                                        self._seen[-1] + 8, self._random.getrandbits(63) | 1 << 63])
            damaged[at:at + 8] = (word % (1 << 64)).to_bytes(8, "little")
        return bytes(damaged[:size])


def test_damaged_memory_gives_no_exception_and_no_name_that_is_none(target: Target) -> None:
    n_chains = 0
    for seed in range(N_DRAWS):
        read = Damaged(target.read, seed, (0.02, 0.2, 0.7)[seed % 3])
        interpreter = target.interpreter(read)
        if isinstance(interpreter, str):
            continue
        states = [*interpreter.threads().values(), random.Random(seed).getrandbits(47) & ~7]
        for chain in interpreter.chains(states):
            n_chains += chain is not None
            assert set(_names(interpreter, chain or ())) <= NAMES
        for number, code in interpreter.codes.items():
            dyntext.packed(0, 0, dyntext.Text(b"", code.file, interpreter.lines(number)))
        words = [random.Random(seed).getrandbits(47), *(code.bytecode for code in interpreter.codes.values())]
        interpreter.search(words)
    assert n_chains > N_DRAWS // 10


def test_other_versions_of_it_give_no_name_that_is_none(target: Target) -> None:
    """Wrong layouts: the memory of one version read as that of another."""
    for version in ((3, 8), (3, 9), (3, 10), (3, 12), (3, 14)):
        interpreter = Interpreter(LAYOUTS[version], target.symbols, target.read)
        states = interpreter.threads()
        chains = interpreter.chains(list(states.values()))
        assert {name for chain in chains for name in _names(interpreter, chain or ())} <= NAMES


def test_a_version_that_is_not_known_is_told(target: Target) -> None:
    place = target.symbols[b"Py_Version"][0]

    def interpreter(told: int) -> Interpreter | str:
        def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
            return [told.to_bytes(8, "little") if address == place else content
                    for address, content in zip(addresses, target.read(addresses, sizes), strict=True)]

        return target.interpreter(read)

    assert interpreter(0x03_63_00_F0) == "where Python 3.99 keeps its frames is not known"
    for word in (0, 0x03_0B_02_00, 0x02_07_12_F0, 0x6172_6F_03_0B_02_F0):  # its process runs another program by now
        assert interpreter(word) == ""
    assert target.interpreter(lambda addresses, _: [b""] * len(addresses)) == ""


def test_an_interpreter_without_a_global_lock_is_told(target: Target) -> None:
    begin, place = target.symbols[b"_PyRuntime"][0], target.symbols[b"Py_Version"][0]
    words = [int.from_bytes(b"xdebugpy", "little"), 0x03_0E_00_F0, 1, *range(93)]

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        told = {begin: b"".join(word.to_bytes(8, "little") for word in words), place: words[1].to_bytes(8, "little")}
        return [told.get(address, b"") for address in addresses]

    assert target.interpreter(read) == "Python 3.14 without a global interpreter lock (free-threaded) is not supported"
    words[2] = 0
    interpreter = target.interpreter(read)
    assert isinstance(interpreter, Interpreter)
    assert (interpreter.layout.version, interpreter.layout.frame, interpreter.layout.owner) == ((3, 14), 23, 33)
    for place_of_owner in (1 << 40, 80):  # beyond all structures, and beyond what is read of a frame
        words[36] = place_of_owner
        assert target.interpreter(read) == "where Python 3.14 keeps its frames is not known"


# --- lines ----------------------------------------------------------------------------------------


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def test_lines_are_those_that_the_interpreter_tells() -> None:
    n_lines = 0
    for module in (subprocess, dis, random):
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            compiled = compile(file.read(), module.__file__, "exec")
        for code in _codes(compiled):
            told = {offset: line for offset, line in dis.findlinestarts(code) if line}
            ours = lines_of((3, 11), code.co_linetable, code.co_firstlineno, len(code.co_code))
            assert {offset: line for offset, line in ours if offset in told} == {
                offset: line for offset, line in told.items() if offset in dict(ours)}
            assert len(ours) >= len(told) - sum(a == b for a, b in zip(list(told.values()), list(told.values())[1:],
                                                                       strict=False))
            n_lines += len(ours)
    assert n_lines > 1000


@pytest.mark.parametrize(("version", "table", "lines"), [
    ((3, 8), bytes([0, 1, 6, 2, 8, 0xFF]), ((0, 11), (6, 13), (14, 12))),
    ((3, 10), bytes([4, 1, 2, 0x80, 6, 2, 2, 0xFE]), ((0, 11), (6, 13), (12, 11))),
    ((3, 11), b"", ()),
    ((3, 12), bytes([0x80 | 15 << 3 | 1, 0x80 | 13 << 3, 4, 0x80 | 11 << 3, 0, 0]), ((4, 12), (6, 13))),
])
def test_line_tables_written_by_hand(version: tuple[int, int], table: bytes,
                                     lines: tuple[tuple[int, int], ...]) -> None:
    assert lines_of(version, table, 10, 20) == lines
    for size in (14, 6, 0):  # what leads out of the code is none of its
        assert lines_of(version, table, 10, size) == tuple(pair for pair in lines if pair[0] < size)
    for cut in range(len(table)):
        lines_of(version, table[:cut], 10, 20)


@pytest.mark.parametrize("version", [(3, 8), (3, 10), (3, 11)])
def test_line_tables_that_are_none_tell_nothing_that_cannot_be(version: tuple[int, int]) -> None:
    n_lines = 0
    for seed in range(N_DRAWS):
        found = lines_of(version, random.Random(seed).randbytes(120), random.Random(seed).getrandbits(31), 200)
        assert all(0 <= offset < 200 and 0 < line < 1 << 31 for offset, line in found)
        assert list(found) == sorted(found)
        n_lines += len(found)
    assert n_lines > N_DRAWS


def test_code_of_a_process_that_has_ended_is_proven_up_to_the_last_look(target: Target) -> None:
    replaced = Replaced(target)
    first = replaced.look(1000)
    assert first is not None
    interpreter, own = replaced.interpreter, first[-1][0].code
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    words = np.full(3, interpreter.codes[own].bytecode + 2, np.uint64)
    replaced.time_ns = 2000
    assert _looked_after(process, words, np.array([1100, 1500, 1900]))[1].all()
    interpreter._read = lambda addresses, _: [b""] * len(addresses)
    codes, proven = _looked_after(process, words, np.array([1100, 1500, 2500]))
    assert (codes.tolist(), proven.tolist()) == ([own] * 3, [True, True, False])


def test_looks_at_threads_that_are_over_are_not_kept(target: Target) -> None:
    """A server may begin one for each request; and the next one may have the same number."""
    interpreter = Replaced(target).interpreter
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    process.states = {1: 0x10}
    for tid in (1, 2, 3):
        process.looks_of(tid)
    process.sampled(np.array([3]), np.array([NS_PER_S]))
    assert sorted(process.looks) == [1, 3]


def test_code_that_is_gone_hides_none_that_has_come_in_its_place(target: Target) -> None:
    """It began within what has come, and ended before the word that is asked for."""
    replaced = Replaced(target)
    chain = replaced.look(1000)
    assert chain is not None
    interpreter = replaced.interpreter
    big = max((interpreter.codes[frame.code] for activation in chain for frame in activation),
              key=lambda one: one.size)
    gone = big._replace(address=big.address + 16, bytecode=big.bytecode + 8, size=8, identity=())
    interpreter._note(gone.address, gone, 1)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    replaced.time_ns = 2000
    codes, _ = _looked_after(process, np.array([big.bytecode + 20], np.uint64), np.array([1900]))
    assert codes.tolist() == [interpreter.numbers[big.address]]


# --- samples and looks ----------------------------------------------------------------------------

A, B, C, D = (PyFrame(100 * i, i, 0) for i in range(1, 5))
OTHER = PyFrame(C.address, 9, 0)
NONE = frozenset[int]()
NO_ANCHOR = Anchor(NONE, NONE)


def anchor(*frames: PyFrame) -> Anchor:
    return Anchor(frozenset(frame.code for frame in frames), frozenset(frame.address for frame in frames))


def test_functions_that_stay_are_verified_and_others_torn() -> None:
    looks = Looks()
    looks.add(10, ((C, B, A),))
    looks.add(20, ((C, B, A),))
    looks.add(30, ((OTHER, A),))
    ((frames, marks),) = looks.told((anchor(C),), 15)
    assert (frames, marks) == ((C, B, A), (VERIFIED, VERIFIED, VERIFIED))
    ((frames, marks),) = looks.told((anchor(C),), 25)
    assert (frames, marks) == ((C, B, A), (VERIFIED, TORN, VERIFIED))
    ((frames, marks),) = looks.told((anchor(OTHER),), 12)
    assert (frames, marks) == ((OTHER, A), (VERIFIED, VERIFIED))
    ((frames, marks),) = looks.told((anchor(B),), 15)  # what it called has returned
    assert (frames, marks) == ((B, A), (VERIFIED, VERIFIED))


def test_a_function_whose_caller_has_gone_on_was_called_anew() -> None:
    """Its frame lies where the one before lay."""
    looks = Looks()
    for time_ns, offset in ((10, 2), (20, 8)):
        looks.add(time_ns, ((C, B, A._replace(offset=offset)),))
    ((frames, marks),) = looks.told((anchor(C),), 15)
    assert (frames, marks) == ((C, B, A._replace(offset=2)), (VERIFIED, TORN, VERIFIED))


def test_where_no_look_agrees_only_anchors_name_functions() -> None:
    looks = Looks()
    assert looks.told((anchor(D), Anchor(NONE, NONE)), 5) == [
        ((PyFrame(0, D.code, 0), NOBODY), (VERIFIED, UNKNOWN)), ((NOBODY,), (UNKNOWN,))]
    looks.add(10, ((B, A), (C,)))
    looks.add(20, ((B, A), (C,)))
    outer, inner = looks.told((anchor(B), anchor(D)), 15)
    assert outer == ((B, A), (VERIFIED, VERIFIED))
    assert inner == ((PyFrame(0, D.code, 0), NOBODY, C), (VERIFIED, UNKNOWN, VERIFIED))
    (ambiguous,) = Looks(has_inlined_calls=False).told((anchor(C, D),), 15)
    assert ambiguous == ((NOBODY,), (UNKNOWN,))


def test_where_no_look_agrees_another_thread_s_callers_are_torn() -> None:
    ways, e = Ways(), PyFrame(500, 5, 0)
    looks, module = Looks(ways=ways), e._replace(address=7, code=6)
    ways.add(((D, C, B, e),))
    looks.add(10, ((A, e),))
    looks.add(20, ((A, e),))
    # A was there before and after, but nobody was seen to come from there to D.
    assert looks.told((anchor(D),), 15) == [((D, C, B, e), (VERIFIED, TORN, TORN, VERIFIED))]
    ways.add(((D, B, A, module),))
    assert looks.told((anchor(D),), 15) == [((D, C, B, e), (VERIFIED, TORN, TORN, VERIFIED))]  # told before
    looks.add(30, ((A, e),))
    assert looks.told((anchor(D),), 15) == [((D, B, A, e), (VERIFIED, TORN, VERIFIED, VERIFIED))]
    assert looks.told((anchor(C, B),), 15) == [((C, B, e), (TORN, TORN, VERIFIED))]
    # Before the first look its outermost function is as good a guess as any.
    assert looks.told((anchor(B),), 5) == [((B, e), (VERIFIED, TORN))]
    # What evaluations within the first one began with was not looked at.
    assert looks.told((anchor(A), anchor(D)), 15) == [
        ((A, e), (VERIFIED, VERIFIED)), ((D, B, A, module), (VERIFIED, TORN, TORN, TORN))]
    # Of a thread that was never looked at it is not known where it began.
    assert Looks(ways=ways).told((anchor(D),), 15) == [((PyFrame(0, D.code, 0), NOBODY), (VERIFIED, UNKNOWN))]
    ways.forget([C.code])
    looks.add(40, ((A, e),))
    assert looks.told((anchor(C),), 15) == [((PyFrame(0, C.code, 0), NOBODY, A, e),
                                             (VERIFIED, UNKNOWN, VERIFIED, VERIFIED))]


def test_a_function_whose_frame_another_one_had_was_not_its_caller() -> None:
    """It was there at the looks before and after, and had been left and called again."""
    looks = Looks()
    looks.add(10, ((C, B, A),))
    looks.add(20, ((C, B, A),))
    own = PyFrame(0, OTHER.code, 0)
    assert looks.told((anchor(OTHER),), 15) == [((own, NOBODY, B, A), (VERIFIED, UNKNOWN, VERIFIED, VERIFIED))]
    assert looks.told((anchor(OTHER, C),), 15) == [((C, B, A), (VERIFIED, VERIFIED, VERIFIED))]
    called = anchor(PyFrame(D.address, OTHER.code, 0))
    assert looks.told((called,), 15) == [((own, NOBODY, C, B, A), (VERIFIED, UNKNOWN, *[VERIFIED] * 3))]


def test_behind_the_last_look_a_thread_is_taken_to_be_amid_what_it_always_was() -> None:
    looks, e = Looks(), PyFrame(500, 5, 0)
    own = PyFrame(0, e.code, 0)
    looks.add(10, ((D, C, B, A),))
    looks.add(20, ((D, C, B, A),))
    assert looks.told((anchor(e),), 5) == [((own, NOBODY), (VERIFIED, UNKNOWN))]  # it may not have been there yet
    # It was left somewhere: half way is the nearest guess.
    assert looks.told((anchor(e),), 25) == [((own, NOBODY, B, A), (VERIFIED, UNKNOWN, TORN, TORN))]
    looks.add(30, ((OTHER, D, B, A),))
    looks.add(40, ((OTHER, C, B, A),))
    assert looks.told((anchor(e),), 45) == [((own, NOBODY, B, A), (VERIFIED, UNKNOWN, TORN, TORN))]  # what they share
    looks.add(50, ((OTHER, D, A),))
    assert looks.told((anchor(e),), 55) == [((own, NOBODY, A), (VERIFIED, UNKNOWN, TORN))]
    looks.add(60, ((D, C), (B,)))
    assert looks.told((anchor(e),), 65) == [((own, NOBODY), (VERIFIED, UNKNOWN))]
    inner = Looks()
    inner.add(10, ((A,), (D, C, B)))
    assert inner.told((anchor(A), anchor(e)), 15) == [
        ((A,), (VERIFIED,)), ((own, NOBODY, B), (VERIFIED, UNKNOWN, TORN))]


def test_before_the_first_look_a_thread_is_taken_to_be_amid_that_if_it_was_called_alike() -> None:
    looks, e = Looks(), PyFrame(500, 5, 0)
    told = PyFrame(0, e.code, 0), NOBODY
    alike = e.code, B.address  # and its outermost frame lay where that of the look does
    looks.add(10, ((A,), (OTHER, D, C, B)))
    assert looks.told((anchor(A), Anchor(frozenset(alike[:1]), frozenset(alike))), 5) == [
        ((A,), (VERIFIED,)), ((*told, C, B), (VERIFIED, UNKNOWN, TORN, TORN))]
    # It lay elsewhere, or may have; or what called it is not what called that.
    assert looks.told((anchor(A), anchor(e)), 5)[1] == (told, (VERIFIED, UNKNOWN))
    looks = Looks()
    looks.add(10, ((D, A), (OTHER, C, B)))
    assert looks.told((anchor(A), Anchor(frozenset(alike[:1]), frozenset(alike))), 5) == [
        ((A,), (VERIFIED,)), (told, (VERIFIED, UNKNOWN))]
    # A thread that had called nothing else yet: what it began with may have been other code.
    assert looks.told((Anchor(frozenset(alike[:1]), frozenset((*alike, A.address))),), 5) == [
        (told, (VERIFIED, UNKNOWN))]


def test_of_a_function_that_calls_itself_few_ways_are_kept() -> None:
    ways = Ways()
    for root in range(1000):
        ways.add(((C, B, B, B, PyFrame(0, 10_000 + root, 0)),))
    way, n_met = ways.to([C.code], ()) or ((), 0)
    assert ([frame.code for frame in way], n_met) == ([C.code, B.code, B.code, B.code, 10_999], 0)
    assert ways.to([C.code], (PyFrame(0, 10_000, 0),)) is None
    assert ways.to([C.code], (B, PyFrame(0, 10_999, 0))) == ((C, B, PyFrame(0, 10_999, 0)), 2)
    assert ways.to([A.code], ()) is None


def test_code_that_is_not_proven_verifies_nothing() -> None:
    looks = Looks()
    looks.add(10, ((C, A),))
    looks.add(20, ((OTHER, A),))
    doubtful = Anchor(frozenset([C.code]), frozenset([C.address]), is_proven=False)
    ((frames, marks),) = looks.told((doubtful,), 15)
    assert (frames, marks) == ((C, A), (TORN, VERIFIED))
    neither = Anchor(frozenset([NOT_PROVEN]), frozenset([C.address]))
    ((frames, marks),) = looks.told((neither,), 15)
    assert [frame.code for frame in frames[1:]] == [NOBODY.code, A.code]
    assert frames[0].code == NOT_PROVEN


def test_a_look_is_a_surprise_where_those_before_told_other_callers() -> None:
    looks = Looks()
    told = [((C, B, A),), ((C._replace(offset=8), B, A),), ((C, D, A),), ((C, D, A),), ((C, D._replace(offset=8), A),),
            ((B, A),), ((C, D._replace(offset=8), A),)]
    assert [looks.add(time_ns, chain) for time_ns, chain in enumerate(told)] == [
        True, False, True, False, True, True, False]


def test_what_is_carried_out_seldom_is_told_by_old_looks() -> None:
    looks, second = Looks(), 1_000_000_000
    looks.add(0, ((OTHER, B, A),))
    for number in range(1, 1000):
        is_surprise = looks.add(number * second // 10, ((C, D, A),))
        assert is_surprise == (number == 1)
    assert not looks.add(100 * second, ((OTHER, B, A),))
    assert looks.moments(np.array([0, 100 * second])).tolist()[1] < 200  # few are kept
    ((frames, marks),) = looks.told((anchor(C),), 99 * second)
    assert (frames, marks) == ((C, D, A), (VERIFIED, VERIFIED, VERIFIED))
    for number in range(1001, 1400):
        looks.add(number * second // 10, ((C, D, A),))
    ((frames, marks),) = looks.told((anchor(OTHER),), 139 * second)
    assert (frames, marks) == ((OTHER, B, A), (VERIFIED, TORN, VERIFIED))


def test_looks_that_are_far_apart_tell_for_certain_where_nothing_moves_alone() -> None:
    looks, ms = Looks(), 1_000_000
    moved = C._replace(offset=8)
    for time_ms, own in ((0, C), (50, moved), (450, C), (850, C), (1250, moved)):
        looks.add(time_ms * ms, ((own, B, A),))
    which, _ = looks.certain(np.array([25, 200, 600, 1000]) * ms)
    assert (which >= 0).tolist() == [True, False, True, False]


class Asked(frozenset[int]):
    """Codes that count how often they are asked for one."""

    n_asked = 0

    def __contains__(self, code: object) -> bool:
        Asked.n_asked += 1
        return super().__contains__(code)


def test_of_deep_activations_only_the_frames_that_words_lead_to_are_looked_at() -> None:
    looks, drawn = Looks(), random.Random(2)
    frames = [PyFrame(0x10000 + 112 * i, 1000, 40) for i in range(900)]  # one that calls itself
    for time_ns in range(50):
        looks.add(time_ns, (tuple(reversed(frames[:drawn.randrange(300, 900)])),))
    ((told, marks),) = looks.told((Anchor(Asked({1000}), frozenset({frames[310].address, frames[311].address})),), 20)
    assert told == tuple(reversed(frames[:312]))
    assert marks[0] == VERIFIED
    assert 0 < Asked.n_asked < 200


def test_what_a_thread_had_left_between_two_looks_is_torn() -> None:
    """One of a library that calls Python now and then: it carried out nothing in a look between."""
    looks = Looks()
    for time_ns in (10, 20):
        looks.add(time_ns, ((C, A),))
    looks.add_nothing()
    looks.add(30, ((C, A),))
    assert [told.marks for at in (15, 25) for told in looks.told((anchor(C),), at)] == [(VERIFIED, VERIFIED),
                                                                                   (VERIFIED, TORN)]
    assert (looks.certain(np.array([15, 25]))[0] >= 0).tolist() == [True, False]


def test_a_thread_that_carries_out_nothing_in_a_look_has_left_what_it_did(target: Target) -> None:
    tid = target.tids[1]
    without_frame: set[int] = set()  # states

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        begin = interpreter.layout.frame
        return [content[:begin] + bytes(8) + content[begin + 8:] if address in without_frame else content
                for address, content in zip(addresses, target.read(addresses, sizes), strict=True)]

    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    state = interpreter.threads()[tid]
    interpreter = Interpreter(interpreter.layout, interpreter.symbols, read)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    process.lately, times = list(target.tids), []
    for left in ((), (), (state,), ()):
        without_frame.clear()
        without_frame.update(left)
        process.look()
        times.append(time.monotonic_ns())
    which, chains = process.looks_of(tid).certain(np.array(times[:3:2]))
    assert len(chains) == 3
    assert (which >= 0).tolist() == [True, False]


def test_clock_samples_stand_for_as_many_looks_as_come_in_their_time(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    ms = 1_000_000
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64), 10 * ms)
    for time_ms in (0, 50, 450):
        process.looks_of(7).add(time_ms * ms, ((C, B, A),))
    tids, times = np.array([7, 7, 8, 7, 7, 7, 7]), np.array([-5, 5, 20, 30, 32, 400, 460]) * ms
    assert process.looks_within(tids, times).round(4).tolist() == [0, 0.2, 0, 0.2, 0.04, 0.025, 0]


def test_looks_get_rare_while_they_tell_nothing_new(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    process.lately = list(target.tids)
    read_ns: list[int] = []

    def monotonic_ns() -> int:
        read_ns.append(time.monotonic_ns())
        return read_ns[-1]

    monkeypatch.setattr(python_process, "time", SimpleNamespace(monotonic_ns=monotonic_ns))

    def gap_ms() -> float:
        """How long after a look's end, as it has read its clock, the next one is due."""
        process.look()
        return (process.due_ns - read_ns[-1]) / 1e6

    first = [gap_ms() for _ in range(5)]
    assert max(first) <= 50
    later = [gap_ms() for _ in range(60)][-8:]
    assert min(later) > 300
    assert max(later) < 800
    assert len({round(gap / 20) for gap in later}) > 2  # not at even distances
    interpreter.n_changes += 1
    assert gap_ms() <= 50
    assert gap_ms() > 300
    # Samples that no look can tell the callers of want some more, the sooner the more there are of them.
    process.missed(0)
    assert process.due_ns - read_ns[-1] > 300 * 10**6
    for part, most_ms in (0.03, 110), (0.1, 50):
        process.missed(part)
        assert (process.due_ns - read_ns[-1]) / 1e6 <= most_ms
    assert gap_ms() <= 50
    later = [gap_ms() for _ in range(60)][-8:]
    assert min(later) > 300


def test_functions_without_callers_are_those_of_which_no_look_has_told_any(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    process.lately = list(target.tids)
    process.look()
    (tid, looks), *_ = process.looks.items()
    activation = looks._chains[-1][0]
    runs, alone = Runs(process, MadeUp(1 << 40)), Looks(looks._inlined)
    some = anchor(activation[0])
    for its_tid, its, of in (tid, looks, some), (tid + 1, alone, some), (tid + 1, alone, NO_ANCHOR):
        runs.add(its_tid, its, its.answer(its.asked((of,)), time.monotonic_ns()), False, 1)
    assert runs.lacks == [False, looks._inlined, False]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="words of other versions lead behind the caches")
def test_a_place_that_a_look_has_met_amid_a_call_is_one(target: Target) -> None:
    """However seldom its instruction calls: a loop calls a generator, where all that words lead to is behind calls."""
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    assert interpreter.callers is not None
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    worker, = interpreter.chains([interpreter.threads()[target.tids[1]]])
    assert worker is not None
    loop, = (frame for activation in worker for frame in activation if interpreter.codes[frame.code].name == b"work")
    interpreter.callers.add_places(np.full(1000, dis.opmap["CALL"]))
    codes, words = [loop.code] * 2, [loop.offset + UNIT, loop.offset + 2 * UNIT]
    assert process.may_have_called(codes, words).tolist() == [False, False]
    process.sampled(np.array(target.tids), np.array([1, 2]))
    process.look()
    assert process.may_have_called(codes, words).tolist() == [True, False]


@pytest.mark.parametrize("wanted", [False, True])
def test_samples_are_wanted_until_an_interpreter_has_begun(wanted: bool) -> None:
    """They tell of it, and it may live shortly."""
    begin_ns = time.monotonic_ns()
    frames = PythonFrames(Objects(Tables()), wanted, 0, begin_ns + 10**10)
    assert (frames.due_ns <= begin_ns) == wanted
    assert frames.look() == wanted
    assert frames.due_ns == NEVER_NS if not wanted else begin_ns < frames.due_ns < time.monotonic_ns() + 10**8
    late = PythonFrames(Objects(Tables()), wanted, 0, begin_ns)
    assert not late.look()
    assert late.due_ns == NEVER_NS


def test_a_new_thread_is_looked_at_until_a_batch_tells_who_runs(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    main, worker = target.tids
    process.lately = [main]
    n_looks = {main: 0, worker: 0}
    times = []
    for n in range(6):
        if n == 3:
            process.sampled(np.array([main]), np.array([time.monotonic_ns()]))
        process.look()
        times.append(time.monotonic_ns())
    for tid in n_looks:
        n_looks[tid] = len(set(process.looks_of(tid).moments(np.array(times)).tolist()))
    assert n_looks == {main: 6, worker: 3}


def test_words_at_some_places_are_those_of_all() -> None:
    draws = np.random.default_rng(7)
    n, width, n_words = 40, 5, 256
    low = draws.integers(1 << 20, 1 << 30, n).astype(np.uint64) * np.uint64(4096)
    sps = low[:, None] + np.sort(draws.integers(0, 300, (n, width)), axis=1).astype(np.uint64) * np.uint64(8)
    none = np.zeros(n, np.int64)
    samples = ClockSamples(
        time_ns=none, pid=none, tid=none, cpu=none.astype(np.int32), mode=none.astype(np.int8),
        abi=np.full(n, 64), regs=draws.integers(0, 1 << 60, (n, 17)).astype(np.uint64),
        words=draws.integers(0, 1 << 60, n * n_words).astype(np.uint64), base=np.arange(n) * n_words,
        mask=np.full(n, n_words - 1), first=draws.integers(0, n_words, n), low=low,
        n_words=draws.integers(0, n_words + 1, n))
    frames = Frames(sps, draws.integers(1, width + 1, n), none.astype(np.int8), sps, sps)
    row, depth = np.nonzero(np.arange(width) < frames.length[:, None])
    whole = words_of(samples, row, depth, frames)
    assert whole.is_whole.all()
    used = draws.random(161) < 0.3
    used[128] = False  # where stacks are cut this is all that is beyond, too
    some = words_of(samples, row, depth, frames, used)
    assert not some.is_whole.any()
    kept = used[whole.place]
    assert 0 < np.count_nonzero(kept) < len(kept)
    for all_of, few in ((whole.words, some.words), (whole.part, some.part), (whole.place, some.place)):
        assert few.tolist() == all_of[kept].tolist()
    wanted = draws.random(len(row)) < 0.3
    others = words_of(samples, row, depth, frames, None, wanted)
    assert others.is_whole.tolist() == wanted.tolist()
    both = some.with_all_of(others)
    kept |= wanted[whole.part]
    assert both.is_whole.tolist() == wanted.tolist()
    assert sorted(zip(both.part.tolist(), both.place.tolist(), both.words.tolist(), strict=True)) == sorted(
        zip(whole.part[kept].tolist(), whole.place[kept].tolist(), whole.words[kept].tolist(), strict=True))


def test_words_at_places_that_are_hardly_ever_right_say_nothing(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    old, own, new = 36, 40, 50
    of_100 = np.arange(100, dtype=np.uint64)
    process.learn(np.full(100, old), of_100 + np.uint64(1), of_100, of_100)
    process.learn(np.full(100, own), of_100 + (of_100 >= np.uint64(60)), of_100, of_100)
    caller, callee = 7, 9

    def believed(*words: tuple[int, int]) -> list[tuple[int, int]]:
        """Of the words of one evaluation, places and the codes that they lead to, those that are."""
        places, codes = np.array(words, np.int64).T
        none = np.zeros(len(words), np.int64)
        kept = _reliable(process, places, none, codes.astype(np.uint64), *np.zeros((2, 1), np.uint64), none > 0)
        return [words[i] for i in kept.tolist()]

    assert believed((old, caller)) == []
    assert believed((old, caller), (own, callee)) == [(own, callee)]
    assert believed((old, callee), (own, callee)) == [(own, callee), (old, callee)]
    assert believed((old, caller), (new, callee), (own, caller)) == [(own, caller), (new, callee)]


def test_which_words_are_right_is_not_learnt_from_one_moment(target: Target) -> None:
    interpreter = target.interpreter(target.read)
    assert isinstance(interpreter, Interpreter)
    process = Process(interpreter, CodePlaces(interpreter), (0, 0), np.zeros((0, 2), np.uint64))
    places, drawn = np.array([36, 40]), np.random.default_rng(3)
    is_right = drawn.random((40, 2)) < (0.5, 0.95)
    assert is_right.tolist()[:3] == [[True, True], [False, True], [True, True]]

    def believed(truth: int, n_samples: int, are_right: tuple[bool, bool]) -> set[int]:
        """At which places words of samples of one moment are that lead to this code, or to another one."""
        codes = np.where(are_right, np.uint64(truth), np.uint64(99))
        part = np.repeat(np.arange(n_samples), 2)
        told, moments = np.full((2, n_samples), truth, np.uint64)
        kept = _reliable(process, np.tile(places, n_samples), part, np.tile(codes, n_samples), told, moments, part < 0)
        return set(np.tile(places, n_samples)[kept].tolist())

    assert believed(1, 20, (True, False)) == {36, 40}  # by chance
    for truth, (first, second) in enumerate(is_right.tolist()[:3], 2):
        believed(truth, 20, (first, second))
    assert believed(6, 1, (True, False)) == {36, 40}
    for truth, (first, second) in enumerate(is_right.tolist(), 7):
        believed(truth, 20, (first, second))
    assert believed(50, 1, (False, True)) == {40}


def test_of_evaluations_with_the_same_words_one_is_searched() -> None:
    words, places = np.array([5, 6, 7, 5, 6, 7, 6, 5, 7, 9], np.uint64), np.array([1, 2, 3, 1, 2, 3, 1, 2, 3, 1])
    part = np.array([1, 1, 1, 0, 0, 0, 3, 3, 3, 4])  # nothing was read of the one between
    none = np.zeros(5, np.int64)
    some = Place(none, none, words, part, places, none == 0).different()
    assert sorted(zip(some.part.tolist(), some.place.tolist(), some.words.tolist(), strict=True)) == [
        (0, 1, 5), (0, 2, 6), (0, 3, 7), (3, 1, 6), (3, 2, 5), (3, 3, 7), (4, 1, 9)]


def test_made_up_addresses_are_those_of_the_same_functions() -> None:
    made = MadeUp(1 << 60)
    first = made.start_of(b"f", b"a.py", 40, ((0, 1), (8, 2)))
    second = made.start_of(b"g", b"a.py", 500)
    assert made.start_of(b"f", b"a.py", 40, ((0, 1), (8, 2))) == first == 1 << 60
    found = [made.at(pc) for pc in (first - 1, first + 40, first + 41, second + 500, second + 501)]
    assert [code and code.name for code in found] == [None, b"f", None, b"g", None]
