"""Rules of code that is made at run time: told as they are hit, forgotten, told anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.elf import object_of_bytes
from collector.unwind.batch import Maps, Stacks, unwind
from collector.unwind.rules import Cfa, CfaKind, How, Kind, Rule
from collector.unwind.table import HOLE, STOP, Tables
from collector.unwind.trampoline import image
from collector.unwind.x86_64 import RBP, RIP, RSP, X86_64

SMALL, LARGE = (Rule(Cfa(CfaKind.REGISTER, 7, size), ((16, How(Kind.SAVED, -8)),)) for size in (8, 48))


class Told:
    """One function of 100 bytes at every multiple of 200, of which the first 7 have no frame."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def rows(self, pcs: Sequence[int]) -> list[tuple[int, int, Sequence[tuple[int, Rule | int]]]]:
        """See Teller."""
        self.asked += pcs
        begins = {pc // 200 * 200 for pc in pcs if pc % 200 < 100}
        return [(begin, begin + 100, ((begin, SMALL), (begin + 7, LARGE))) for begin in begins] + [
            (pc, pc + 1, ((pc, STOP),)) for pc in pcs if pc % 200 >= 100]

    def text(self, at: int, size: int) -> bytes:
        """See Teller."""
        return bytes(at % 251 for at in range(at, at + size))


def test_rules_are_told_once_until_they_are_forgotten() -> None:
    tables, told = Tables(), Told()
    before = tables.add_object_of_rule(object_of_bytes(image(1000), "[before]"), SMALL)
    number = tables.add_told(object_of_bytes(image(4000), "[told]"), told)
    behind = tables.add_object_of_rule(object_of_bytes(image(1000), "[behind]"), LARGE)
    rules = tables.rule_sets[X86_64.machine].rules

    def at(which: int, *pcs: int) -> list[Rule | int | None]:
        numbers = tables.rules_at(np.array(pcs, np.uint64) + tables.origin[which]).tolist()
        return [one if one in (HOLE, STOP) else rules[one] for one in numbers]

    assert at(number, 406, 407, 499, 550, 1203) == [SMALL, LARGE, LARGE, STOP, SMALL]
    assert sorted(told.asked) == [406, 407, 499, 550, 1203]
    assert at(number, 400, 450, 550, 1299) == [SMALL, LARGE, STOP, LARGE]
    assert len(told.asked) == 5
    tables.forget(number, [(1200, 1300), (550, 551)])
    assert at(number, 400, 450) == [SMALL, LARGE]
    assert len(told.asked) == 5
    assert at(number, 550, 1250, 551) == [STOP, LARGE, STOP]
    assert sorted(told.asked[5:]) == [550, 551, 1250]
    # The neighbours on the line have their own.
    assert at(before, 0, 999) == [SMALL, SMALL]
    assert at(behind, 0, 999) == [LARGE, LARGE]


def test_code_that_is_gone_has_no_rules_and_nobody_is_asked_about_it() -> None:
    tables, told = Tables(), Told()
    before = tables.add_object_of_rule(object_of_bytes(image(1000), "[before]"), SMALL)
    number, damaged = (tables.add_told(object_of_bytes(made, "[told]"), told) for made in (image(4000), image(1 << 62)))
    behind = tables.add_object_of_rule(object_of_bytes(image(1000), "[behind]"), LARGE)
    pcs = np.array([0, 250, 406, 407, 1203, 3999], np.uint64)
    line = pcs + tables.origin[number]
    tables.rules_at(line)
    tables.hints(line, np.ones(len(line), bool))
    tables.follows_call(line)
    asked, n_rows = list(told.asked), len(tables.start)
    for one in (number, damaged):
        tables.retire(one)
    assert tables.rules_at(line).tolist() == [HOLE] * len(pcs)
    assert not tables.is_told(line).any()
    assert not tables.follows_call(line).any()
    assert told.asked == asked
    assert len(tables.start) < n_rows
    for neighbour, rule in ((before, SMALL), (behind, LARGE)):
        numbers = tables.rules_at(pcs[:2] + tables.origin[neighbour])
        assert [tables.rule_sets[X86_64.machine].rules[one] for one in numbers.tolist()] == [rule] * 2


def test_what_is_expected_is_asked_for_once_and_not_when_it_is_looked_up() -> None:
    tables, told = Tables(), Told()
    tables.add_object_of_rule(object_of_bytes(image(1000), "[before]"), SMALL)
    number = tables.add_told(object_of_bytes(image(4000), "[told]"), told)
    pcs = np.array([250, 406, 407, 1203], np.uint64)
    tables.rules_at(pcs[1:2] + tables.origin[number])
    assert told.asked == [406]
    tables.expect(number, pcs)
    assert sorted(told.asked) == [250, 406, 1203]
    tables.expect(number, pcs)
    tables.rules_at(pcs + tables.origin[number])
    assert len(told.asked) == 3
    tables.forget(number, [(1200, 1300)])
    tables.expect(number, pcs)
    assert told.asked[3:] == [1203]


BEGIN, STACK = 0x5000_0000, 0x7000_0000
# A frame that keeps the caller's sp, told in two ways that say the same.
KEPT_SP = tuple(
    Rule(Cfa(CfaKind.REGISTER, RBP, 16), ((RBP, How(Kind.SAVED, -16)), (RSP, how), (RIP, How(Kind.SAVED, -8))))
    for how in (How(Kind.SAVED, -24), How(Kind.SAVED_AT, -8, RBP)))


class OneRule:
    """The rule is the same everywhere, or two rules take turns."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def rows(self, pcs: Sequence[int]) -> list[tuple[int, int, Sequence[tuple[int, Rule | int]]]]:
        """See Teller."""
        return [(pc, pc + 1, ((pc, self.rules[pc % len(self.rules)]),)) for pc in pcs]

    def text(self, _at: int, _size: int) -> bytes:
        """See Teller."""
        return b""


@pytest.mark.parametrize("other", [None, SMALL, Rule(Cfa(CfaKind.REGISTER, 3, 8), ((16, How(Kind.SAVED, -8)),))],
                         ids=["alone", "beside plain frames", "with all registers"])
@given(seed=st.integers(0, 1 << 32), n=st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_the_sp_of_a_caller_is_read_as_other_registers_are(other: Rule | None, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    n_words, some = rng.integers(1, 33, n), np.arange(n)
    places = np.concatenate((STACK + 8 * np.arange(-4, 40), BEGIN + rng.integers(0, 3900, 30), [0, STACK + 3]))
    # Many words lead on: to a frame a bit above, or into the code.
    words = (STACK + 8 * (np.arange(32 * n) % 32 + rng.integers(-1, 6, 32 * n))).astype(np.uint64)
    others = np.flatnonzero(rng.random(32 * n) < 0.5)
    words[others] = rng.choice(places, len(others))
    regs = rng.choice(places, (n, 17)).astype(np.uint64)
    regs[:, RIP] = BEGIN + rng.integers(0, 3900, n)
    stacks = Stacks(0 * some, regs, words, 32 * some, 0 * some + 31, 0 * some, np.full(n, STACK, np.uint64), n_words)
    found = []
    for rule in KEPT_SP:
        tables = Tables()
        told = OneRule(*(one for one in (rule, other) if one))
        number = tables.add_told(object_of_bytes(image(4000), "[told]"), told)
        maps = Maps(np.zeros(1, np.int64), *np.array([[BEGIN], [BEGIN + 4000], [BEGIN]], np.uint64), np.array([number]))
        frames = unwind(stacks, maps, tables, max_depth=50)
        found.append([getattr(frames, name).tolist() for name in ("pcs", "length", "stop", "proof", "sps", "fps")])
    assert found[0] == found[1]
