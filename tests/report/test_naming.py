"""What functions are called, by every word of ``name``."""

from __future__ import annotations

import pytest

from collector.errors import UsageError
from collector.report.functions import AddressTable, Function, FunctionTable, SymbolTable
from collector.report.naming import Naming

WORK_1 = Function(b"work", b"work", b"<one>", 0x1180, 67, 2)
WORK_2 = Function(b"work", b"work", b"<one>", 0x11D0, 71, 2)
WORK_3 = Function(b"work", b"work", b"<two.so>", 0x11D0, 73, 3)
MORE = Function(b"Box<int>::put(int)", b"_ZN3BoxIiE3putEi", b"<one>", 0x1300, 79, 2)
HOLE = FunctionTable(SymbolTable.empty(0x200000), b"<libc.so.6>", 2, bytes).find(0x96063)
OTHER_BUILD = AddressTable(b"<prog (old)>", 3).find(0x115B)
EVERY = [WORK_1, WORK_2, WORK_3, MORE, HOLE, OTHER_BUILD]
HOLES = [b"<static>@0x0 (<libc.so.6>) --  no functions found", b"<Unknown>@0x115b (<prog (old)>)"]
CASES = {
    "long": [b"work", b"work", b"work", b"Box<int>::put(int)", *HOLES],
    "short": [b"work", b"work", b"work", b"Box<int>::put", b"<static>@0x0 ", b"<Unknown>@0x115b "],
    "mangled": [b"work", b"work", b"work", b"_ZN3BoxIiE3putEi", *HOLES],
    "long:offset": [b"work", b"work", b"work", b"Box<int>::put(int)", b"libc.so.6+0x0", b"prog (old)+0x115b"],
    "short:soname": [b"work [<one>]", b"work [<one>]", b"work [<two.so>]", b"Box<int>::put [<one>]",
                     b"<static>@0x0  [<libc.so.6>]", b"<Unknown>@0x115b  [<prog (old)>]"],
    "short:offset:unique": [b"work [<one>] @0x1180", b"work [<one>] @0x11d0", b"work [<two.so>]", b"Box<int>::put",
                            b"libc.so.6+0x0", b"prog (old)+0x115b"],
}


@pytest.mark.parametrize("words", CASES)
def test_names(words: str) -> None:
    assert Naming.of(words).names(EVERY) == CASES[words]


def test_functions_of_one_name_in_one_object_differ_by_offset() -> None:
    assert Naming.of("long:unique").names([WORK_1, WORK_2]) == [b"work @0x1180", b"work @0x11d0"]
    assert Naming.of("long:unique").names([WORK_1, WORK_3]) == [b"work [<one>]", b"work [<two.so>]"]


@pytest.mark.parametrize("words", ["", "longer", "long:so", "soname", "long:offset:"])
def test_other_words_are_errors(words: str) -> None:
    with pytest.raises(UsageError, match="give long, short or mangled"):
        Naming.of(words)
