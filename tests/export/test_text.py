"""Plain tables: whole texts. That they are laid out as gprofng's is the business of er_print's tests."""

from __future__ import annotations

import numpy as np
import pytest

from collector.export.text import Layout, printable, seconds, table, tree_mark
from collector.report.metrics import MICROSTATES, parse_view
from collector.report.tables import pack_address, unpack_address


@pytest.mark.parametrize(("name", "shown"), [
    (b"main", "main"),
    ("gr\u00fc\u00df(\u4f60)".encode(), "gr\u00fc\u00df(\u4f60)"),
    (b"a\nb\tc", "a\\nb\\tc"),
    (b"\x1b[31mred\x07\x7f", "\\x1b[31mred\\x07\\x7f"),
    (b"bad\xff\xfe", "bad\\xff\\xfe"),
    ("\u202e\u2028\u00a0".encode(), "\\u202e\\u2028\\xa0"),
    (b"", ""),
])
def test_names_are_one_printable_line(name: bytes, shown: str) -> None:
    assert printable(name) == shown
    assert shown.isprintable()


@pytest.mark.parametrize(("value_us", "text"), [(0, "0.   "), (1, "0.000"), (499, "0.000"), (10_007, "0.010"),
                                                (86_400_000_000, "86400.000")])
def test_seconds(value_us: int, text: str) -> None:
    assert seconds(value_us) == text


def test_a_table() -> None:
    view = parse_view("e.%totalcpu:i.%totalcpu:name", MICROSTATES)
    lines = table(view, [[1_420_000, 1_420_000], [0, 120_000]], [[100.0, 100.0], [0.0, 8.4507]], ["<Total>", "main"])
    assert lines == [
        "Excl. Total   Incl. Total    Name",
        "CPU           CPU",
        " sec.      %   sec.      %",
        "1.420 100.00  1.420 100.00   <Total>",
        "0.      0.    0.120   8.45   main",
    ]


def test_a_name_that_is_not_last_gets_a_column() -> None:
    view = parse_view("name:e.kernelpfault:size", MICROSTATES)
    lines = table(view, [[0, 12_345_678, 7]], [[0, 0, 0]], ["a long name"])
    assert lines == [
        "Name         Excl.        Size",
        "             Kernel Page",
        "             Fault sec.",
        " a long name 12.346       7",
    ]


def test_widths_only_grow() -> None:
    layout = Layout(parse_view("e.user:name", MICROSTATES))
    layout.fit([[1_000_000]])
    narrow = layout.row([1_000_000], [0.0], "x")
    layout.fit([[1_234_567_000_000]])
    layout.fit([[1]])
    assert (narrow, layout.row([1_000_000], [0.0], "x")) == ("1.000      x", "      1.000   x")


@pytest.mark.parametrize(("is_last", "mark"), [
    ((), " +-"),
    ((False,), "   +-"),
    ((True,), "   +-"),
    ((False, True), "   |  +-"),
    ((True, False), "     +-"),
    ((False, True, False), "   |    +-"),
    ((False, False, True), "   |  |  +-"),
])
def test_branches_of_a_tree(is_last: tuple[bool, ...], mark: str) -> None:
    assert tree_mark(is_last) == mark


def test_addresses_are_packed_and_unpacked() -> None:
    packed = np.array([pack_address(number, offset) for number, offset in ((0, 0), (3, 0xF82A0), (71, 0xFFFF_FFFF_F))])
    assert [unpack_address(int(one)) for one in packed] == [(0, 0), (3, 0xF82A0), (71, 0xFFFF_FFFF_F)]
