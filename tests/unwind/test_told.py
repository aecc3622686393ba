"""Rules of code that is made at run time: told as they are hit, forgotten, told anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collector.elf import object_of_bytes
from collector.unwind.rules import Cfa, CfaKind, How, Kind, Rule
from collector.unwind.table import HOLE, STOP, Tables
from collector.unwind.trampoline import image
from collector.unwind.x86_64 import X86_64

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
