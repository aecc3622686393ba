"""How long a batch may wait for CPUs: times in, times out."""

from __future__ import annotations

import pytest

from collector.session.patience import MOST_NS, Patience

MS = 1_000_000


@pytest.mark.parametrize(("room_ms", "work_ms", "expected_ns"), [
    (100, 0, 50 * MS),
    (100, 20, 10 * MS),
    (100, 30, 0),  # there is hardly time for the work itself
    (9000, 20, MOST_NS),
    (0, 0, 0),
])
def test_it_ends_while_there_is_room_for_as_long_again(room_ms: int, work_ms: int, expected_ns: int) -> None:
    patience = Patience()
    patience.worked(work_ms * MS)
    assert patience.for_next(room_ms * MS, lost=False) == expected_ns


def test_what_a_batch_takes_is_forgotten_slowly() -> None:
    patience = Patience()
    patience.worked(40 * MS)
    patience.worked(1 * MS)
    assert patience.for_next(100 * MS, lost=False) == 10 * MS
    patience.worked(1 * MS)
    assert patience.for_next(100 * MS, lost=False) == 30 * MS


def test_who_loses_records_has_half_of_it_and_ten_batches_later_all_again() -> None:
    patience = Patience()
    assert [patience.for_next(100 * MS, lost=lost) for lost in (False, True, True)] == [50 * MS, 25 * MS, 12.5 * MS]
    later = [patience.for_next(100 * MS, lost=False) for _ in range(21)]
    assert later == sorted(later)
    assert later[9] < 25 * MS < later[10]
    assert later[20] == 50 * MS
