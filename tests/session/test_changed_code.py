"""Code that changes while stacks through it are unwound: these are unwound again, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.clock import NEVER_NS, NS_PER_S
from collector.elf import object_of_bytes
from collector.events import Array, ClockSamples
from collector.processes.process import Epoch, Image
from collector.processes.space import AddressSpace, Mapping
from collector.runtimes.made_up import MadeUp
from collector.session.java import JavaFrames, _Process
from collector.session.pace import YOUNG_NS, Pace
from collector.session.placing import Frames, by_image, placed_frames_of, replaced
from collector.unwind.rules import Cfa, CfaKind, How, Kind, Rule
from collector.unwind.table import STOP, Tables
from collector.unwind.trampoline import image

LOW, N_FUNCTIONS, SIZE, ROOM = 0x7000_0000, 12, 100, 200
HIGH = LOW + N_FUNCTIONS * ROOM
STACK, N_WORDS = 0x7FFC_0000, 64
PID = 77


class Machine:
    """A machine with a function of 100 bytes at each multiple of 200, each with frames of some words."""

    low, high = LOW, HIGH

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.told = list(sizes), set[int]()
        self.soon: dict[int, int] = {}  # sizes that functions have as soon as somebody looks
        self.asked: list[list[int]] = []
        self.is_moving = False

    def look(self, _now_ns: int) -> list[tuple[int, int]]:
        """See hotspot.Machine, here and below."""
        return []

    def no_more(self, pcs: Array) -> list[tuple[int, int]]:
        hit = {(pc - LOW) // ROOM for pc in pcs.tolist() if (pc - LOW) % ROOM < SIZE} & self.soon.keys() & self.told
        for function in hit:
            self.sizes[function] = self.soon.pop(function)
        self.told -= hit
        return [(function * ROOM, function * ROOM + SIZE) for function in hit]

    def rows(self, pcs: Sequence[int]) -> list[tuple[int, int, Sequence[tuple[int, Rule | int]]]]:
        self.asked.append(list(pcs))
        functions = {pc // ROOM for pc in pcs if pc % ROOM < SIZE}
        self.told |= functions
        return [(at * ROOM, at * ROOM + SIZE, ((at * ROOM, frame(self.sizes[at])),)) for at in functions] + [
            (pc, pc + 1, ((pc, STOP),)) for pc in pcs if pc % ROOM >= SIZE]

    def in_code(self, pcs: Array) -> Array:
        return pcs[(pcs - np.uint64(LOW)) % np.uint64(ROOM) < np.uint64(SIZE)]

    def text(self, _at: int, _size: int) -> bytes:
        return b""

    def discover(self) -> list[object]:
        return []

    def read_scopes(self, _blobs: Iterable[object]) -> None:
        pass

    @property
    def methods(self) -> SimpleNamespace:
        return SimpleNamespace(learn=list)


def frame(n_words: int) -> Rule:
    return Rule(Cfa(CfaKind.REGISTER, 7, 8 * n_words), ((16, How(Kind.SAVED, -8)),))


def samples(rng: np.random.Generator, n: int) -> ClockSamples:
    """Stacks full of return addresses, most of them into functions."""
    shape = n, N_WORDS
    words = (LOW + rng.integers(0, N_FUNCTIONS, shape) * ROOM + rng.integers(1, 110, shape)).astype(np.uint64)
    words[rng.random(shape) < 0.1] = 0
    regs, none = np.zeros((n, 17), np.uint64), np.zeros(n, np.int64)
    regs[:, 16], regs[:, 7] = words[:, 0], STACK
    return ClockSamples(none, none + PID, none + PID, none.astype(np.int32), none.astype(np.int8),
                        np.full(n, 64, np.int8), regs, words.ravel(), np.arange(n) * N_WORDS, none + N_WORDS - 1, none,
                        np.full(n, STACK, np.uint64), none + N_WORDS)


class Recording:
    """Thirty samples of three epochs, two of them of a process with such a machine."""

    def __init__(self, seed: int, sizes: Sequence[int]) -> None:
        rng = np.random.default_rng(seed)
        self.taken, self.index = samples(rng, 30), rng.integers(0, 3, 30)
        images = (process := Image(1, PID, 0)), process, Image(2, PID + 1, 0)
        self.epochs = [Epoch(0, of, AddressSpace([Mapping(LOW, HIGH, 0, b"", -1, 0)])) for of in images]
        self.machine, self.tables = Machine(sizes), Tables()
        objects = SimpleNamespace(tables=self.tables, by_number={})
        self.java = JavaFrames(objects, MadeUp(1 << 60), wanted=True)  # type: ignore[arg-type]
        number = self.tables.add_told(object_of_bytes(image(HIGH - LOW), "[code]"), self.machine)
        self.java._processes[1] = _Process(self.machine, number, 0)  # type: ignore[arg-type]

    def unwound(self, rows: Array | slice = slice(None)) -> Frames:
        """The stacks of some samples, as runtimes have them unwound."""
        taken, index = self.taken[rows], self.index[rows]
        caches = self.java.caches(taken, index, by_image(self.epochs))
        return placed_frames_of(taken, index, self.epochs, self.tables, caches)


SEEDS = st.integers(0, 2**32)
SIZES = st.lists(st.integers(1, 4), min_size=N_FUNCTIONS, max_size=N_FUNCTIONS)
SOON = st.dictionaries(st.integers(0, N_FUNCTIONS - 1), st.integers(1, 4), max_size=5)


@given(SEEDS, SIZES, SOON, st.booleans())
@settings(max_examples=100, deadline=None)
def test_stacks_are_as_if_all_were_unwound_again(seed: int, sizes: list[int], soon: dict[int, int],
                                                 is_moving: bool) -> None:
    recording = Recording(seed, sizes)
    java, machine, index, epochs = recording.java, recording.machine, recording.index, recording.epochs
    machine.is_moving = is_moving
    found = recording.unwound()
    machine.soon = dict(soon)
    rows = java.out_of_date(index, by_image(epochs), found)
    changed = soon.keys() - machine.soon.keys()
    through = [{(pc - LOW) // ROOM for pc in pcs[:n] if LOW <= pc < HIGH and (pc - LOW) % ROOM < SIZE}
               for pcs, n in zip(found.pcs.tolist(), found.length.tolist(), strict=True)]
    assert rows.tolist() == [row for row, functions in enumerate(through) if functions & changed and index[row] < 2]
    for others in [recording.unwound(rows) for _ in rows[:1]]:
        found = replaced(found, rows, others)
    assert_same(found, recording.unwound())


@given(SEEDS, SIZES, SOON)
@settings(max_examples=100, deadline=None)
def test_code_that_moves_is_asked_for_once_before_stacks_are_unwound(seed: int, sizes: list[int],
                                                                     soon: dict[int, int]) -> None:
    """All of it at once, whether it is new or was another: nothing is left to be asked for in a turn, or to be unwound
    again."""
    recording, later = Recording(seed, sizes), Recording(seed, [soon.get(at, size) for at, size in enumerate(sizes)])
    recording.machine.is_moving = True
    for coming in ({}, soon):
        recording.machine.soon = dict(coming)
        recording.machine.asked.clear()
        found = recording.unwound()
        assert not len(recording.java.out_of_date(recording.index, by_image(recording.epochs), found))
        assert sum(any(pc % ROOM < SIZE for pc in pcs) for pcs in recording.machine.asked) <= 1
    assert_same(found, later.unwound())


def test_samples_are_asked_for_while_a_machine_is_young_or_has_not_begun() -> None:
    """Not whenever one is looked at: a drain of its own costs as much as the one that is due anyway."""
    now_ns = time.monotonic_ns()
    for is_young, expected in ((True, True), (False, False)):
        java = Recording(0, [1] * N_FUNCTIONS).java
        java._processes[1].pace = Pace(now_ns + (NS_PER_S * 3600 if is_young else -2 * YOUNG_NS))
        assert java.due_ns <= now_ns
        assert java.look() == expected
        java._processes[1].code_due_ns = NEVER_NS
        assert java.due_ns == NEVER_NS, "it had no samples since"
    objects = SimpleNamespace(tables=Tables(), by_number={})
    expecting = JavaFrames(objects, MadeUp(1 << 60), True, now_ns + 60 * NS_PER_S)  # type: ignore[arg-type]
    assert expecting.due_ns <= now_ns
    assert expecting.look()
    assert now_ns < expecting.due_ns < NEVER_NS


def assert_same(found: Frames, again: Frames) -> None:
    assert found.stop.tolist() == again.stop.tolist()
    assert found.length.tolist() == again.length.tolist()
    for row, n in enumerate(again.length.tolist()):
        for name in ("pcs", "sps", "fps"):
            assert getattr(found, name)[row, :n].tolist() == getattr(again, name)[row, :n].tolist()
        assert not found.pcs[row, n:].any()
