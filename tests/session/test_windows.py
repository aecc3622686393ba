"""What a recording has only a part of is in no distribution unmarked; its parts add up to what was recorded."""

from __future__ import annotations

import numpy as np
import pytest

from collector.aggregate.spans import Source, Spans
from collector.session.windows import Windows, cut

RECORDED, SYNTHETIC = int(Source.RECORDED), int(Source.SYNTHETIC)


def spans(*rows: tuple[int, int]) -> Spans:
    """From when to when."""
    start, end = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    none = np.zeros(len(rows), dtype=np.int64)
    return Spans(start, end, none.astype(np.uint8), none, none, none, none, none, none.astype(np.uint8))


def within(windows: Windows, *rows: tuple[int, int], found_ns: int = 0) -> list[tuple[int, int, int]]:
    """What of them is seen: from when to when, and whether that is all."""
    found = windows.within(spans(*rows), np.full(len(rows), found_ns))
    return list(zip(found.start_ns.tolist(), found.end_ns.tolist(), found.source.tolist(), strict=True))


def test_all_is_seen_of_who_is_born_in_an_open_window() -> None:
    assert within(Windows(), (100, 150), (150, 170)) == [(100, 150, RECORDED), (150, 170, RECORDED)]
    assert within(Windows()) == []


def test_what_one_was_found_in_had_begun_before() -> None:
    assert within(Windows(), (100, 150), (150, 170), found_ns=100) == [(100, 150, SYNTHETIC), (150, 170, RECORDED)]


def test_a_pause_cuts_what_it_interrupts_and_hides_what_lies_in_it() -> None:
    windows = Windows()
    assert within(windows, (100, 150)) == [(100, 150, RECORDED)]
    windows.close(200)
    assert not windows.is_open
    # Those that reach it are told during the pause.
    assert within(windows, (150, 199), (180, 200), (180, 230), (200, 240), (240, 250)) == [
        (150, 199, RECORDED), (180, 200, SYNTHETIC), (180, 200, SYNTHETIC)]
    windows.open(300)
    assert windows.is_open
    assert within(windows, (250, 310), (300, 320), (301, 320)) == [
        (300, 310, SYNTHETIC), (300, 320, SYNTHETIC), (301, 320, RECORDED)]
    # A run from before all of it has a part on either side.
    assert within(windows, (150, 400)) == [(150, 200, SYNTHETIC), (300, 400, SYNTHETIC)]


def test_who_begins_with_a_pause_sees_nothing_before_its_end() -> None:
    windows = Windows()
    windows.close(0)
    assert within(windows, (100, 250)) == []
    windows.close(210)  # a pause within a pause
    windows.open(300)
    windows.open(350)  # goes on
    assert within(windows, (100, 250), (260, 400), (310, 320)) == [(300, 400, SYNTHETIC), (310, 320, RECORDED)]


@pytest.mark.parametrize("n", [1, 63])
def test_a_run_over_many_pauses_has_a_part_in_each_window(n: int) -> None:
    windows = Windows()
    within(windows, (1, 2))
    for i in range(n):
        windows.close(1000 * i + 600)
        windows.open(1000 * (i + 1))
    found = within(windows, (500, 1000 * n + 5))
    assert sum(end - start for start, end, _ in found) == 100 + 600 * (n - 1) + 5
    assert {source for _, _, source in found} == {SYNTHETIC}


def test_what_is_cut_stays_as_long_as_it_is() -> None:
    found = cut(spans((1, 5), (5, 9)), np.array([False, True]))
    assert (found.end_ns.tolist(), found.source.tolist()) == ([5, 9], [RECORDED, SYNTHETIC])


def test_moments_are_seen_in_windows_alone() -> None:
    windows = Windows()
    moments = np.array([0, 199, 200, 299, 300, 399, 400, 450])
    assert windows.sees(moments).all()
    windows.close(200)
    assert moments[windows.sees(moments)].tolist() == [0, 199]
    windows.open(300)
    windows.close(400)
    windows.open(450)
    assert moments[windows.sees(moments)].tolist() == [0, 199, 300, 399, 450]


@pytest.mark.parametrize("row", [(100, 200), (300, 350), (199, 200), (300, 301)])
def test_what_touches_a_pause_has_no_part_in_it_nor_behind_it(row: tuple[int, int]) -> None:
    windows = Windows()
    windows.close(200)
    windows.open(300)
    assert within(windows, row) == [(*row, SYNTHETIC)]
    assert within(windows, (200, 300)) == []
