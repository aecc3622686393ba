"""Plain tables: whole texts. That they are laid out as gprofng's is the business of er_print's tests."""

from __future__ import annotations

import numpy as np
import pytest

from collector.export.text import Layout, printable, seconds, text_lines, tree_marks
from collector.report.documents import Table
from collector.report.metrics import MICROSTATES, View, parse_view
from collector.report.tables import Labels, Rows, pack_address, table, unpack_address


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


def rows_of(view: View, values: list[list[int]], percents: list[list[float]], names: list[bytes]) -> Table:
    """A table without sizes and addresses of its own."""
    rows = Rows(np.arange(len(names)), np.array(values, np.int64), np.array(percents, np.float64))
    return table("functions", ("title",), rows, view, Labels.of_names(names, 0))


def test_a_table() -> None:
    view = parse_view("e.%totalcpu:i.%totalcpu:name", MICROSTATES)
    found = rows_of(view, [[1_420_000, 1_420_000, 0], [0, 120_000, 0]], [[100.0, 100.0, 0], [0.0, 8.4507, 0]],
                    [b"<Total>", b"main"])
    assert list(text_lines(found)) == [
        "title",
        "",
        "Excl. Total   Incl. Total    Name",
        "CPU           CPU",
        " sec.      %   sec.      %",
        "1.420 100.00  1.420 100.00   <Total>",
        "0.      0.    0.120   8.45   main",
        "",
    ]


def test_a_name_that_is_not_last_gets_a_column() -> None:
    view = parse_view("name:e.kernelpfault:size", MICROSTATES)
    lines = list(text_lines(rows_of(view, [[0, 12_345_678, 7]], [[0, 0, 0]], [b"a long name"])))
    assert lines[2:-1] == [
        "Name         Excl.        Size",
        "             Kernel Page",
        "             Fault sec.",
        " a long name 12.346       7",
    ]


def test_widths_only_grow() -> None:
    values = [[1_000_000, 0], [1_234_567_000_000, 0], [1, 0], [1_000_000, 0]]
    layout = Layout(rows_of(parse_view("e.user:name", MICROSTATES), values, [[0, 0]] * 4, [b"x"] * 4).columns)
    layout.fit(slice(1))
    narrow = list(layout.rows(slice(1)))
    layout.fit(slice(1, 2))
    layout.fit(slice(2, 3))
    assert (narrow, list(layout.rows(slice(3, 4)))) == (["1.000      x"], ["      1.000   x"])


@pytest.mark.parametrize(("depths", "marks"), [
    ([0], [" +-"]),
    ([0, 1, 1], [" +-", "   +-", "   +-"]),
    ([0, 1, 2, 1], [" +-", "   +-", "   |  +-", "   +-"]),
    ([0, 1, 2, 2, 3], [" +-", "   +-", "     +-", "     +-", "       +-"]),
    ([0, 1, 2, 3, 1], [" +-", "   +-", "   |  +-", "   |    +-", "   +-"]),
    ([0, 1, 2, 3, 2, 1], [" +-", "   +-", "   |  +-", "   |  |  +-", "   |  +-", "   +-"]),
])
def test_branches_of_a_tree(depths: list[int], marks: list[str]) -> None:
    assert tree_marks(depths, len(depths)) == marks


def test_addresses_are_packed_and_unpacked() -> None:
    packed = np.array([pack_address(number, offset) for number, offset in ((0, 0), (3, 0xF82A0), (71, 0xFFFF_FFFF_F))])
    assert [unpack_address(int(one)) for one in packed] == [(0, 0), (3, 0xF82A0), (71, 0xFFFF_FFFF_F)]
