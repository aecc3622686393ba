"""What addresses mean at times: against the definition, mapping by mapping, and of programs that make much code."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector.experiment.identity import UNKNOWN
from collector.report.address_space import ADDRESS_END, END_OF_TIME, AddressSpace, Mapped

TIME, PLACE = st.integers(0, 12), st.integers(0, 40) | st.integers(ADDRESS_END - 9, ADDRESS_END - 1)
MAPPED = st.builds(lambda start, lasts, vaddr, size: Mapped(start, start + lasts if lasts else END_OF_TIME, vaddr,
                                                            min(size, ADDRESS_END - vaddr), 0, (b"/x", UNKNOWN)),
                   TIME, TIME, PLACE, st.integers(0, 20))


def by_definition(mapped: list[Mapped], pc: int, time_ns: int) -> int:
    """Of what is mapped the closest below, of those the latest; else the first to be over of all that are not over."""
    now = [(m.vaddr, m.start_ns, i) for i, m in enumerate(mapped) if m.start_ns <= time_ns < m.end_ns and m.vaddr <= pc]
    closest = max(now)[2] if now else -1
    if now and pc < mapped[closest].vaddr + mapped[closest].size:
        return closest
    later = [(m.end_ns, i) for i, m in enumerate(mapped) if time_ns < m.end_ns and m.vaddr <= pc < m.vaddr + m.size]
    return min(later)[1] if later else -1


@given(st.lists(MAPPED, max_size=9), st.lists(PLACE, min_size=1, max_size=5))
def test_every_address_in_every_epoch(mapped: list[Mapped], pcs: list[int]) -> None:
    space = AddressSpace(mapped)
    times = [-END_OF_TIME, *space.bounds.tolist()]
    asked = [(pc, epoch) for epoch in range(len(times)) for pc in pcs]
    found = space.locate(np.array([pc for pc, _ in asked], np.uint64), np.array([epoch for _, epoch in asked]))
    expected = {(pc, epoch): by_definition(mapped, pc, times[epoch]) for pc, epoch in asked}
    assert found.tolist() == [expected[one] for one in asked]
    last = space.last_epochs(np.array(pcs, np.uint64))
    for pc, epoch in zip(pcs, last.tolist(), strict=True):
        assert epoch == max([at for at in range(len(times)) if expected[pc, at] >= 0], default=epoch)


class Counted(list[Mapped]):
    """Counts how often one of them is looked at."""

    n = 0

    def __getitem__(self, index: Any) -> Any:
        self.n += 1
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        self.n += len(self)
        return super().__iter__()


def test_work_grows_with_mappings_and_samples_not_with_their_product() -> None:
    """Functions that are made one after the other over what is left of the memory for them."""
    n, base = 3000, 0x7F00_0000_0000
    mapped = Counted()
    for k in range(n):
        key, vaddr, start_ns = (b"made", UNKNOWN), base + k * 256, k * 1_000_000
        mapped.append(Mapped(start_ns, END_OF_TIME, vaddr, 200, 0, key, k))
        mapped.append(Mapped(start_ns, start_ns + 999_999, vaddr + 200, (n - k) * 256, 0, key))
    space = AddressSpace(mapped)
    assert len(space.bounds) > n
    epochs = np.searchsorted(space.bounds, np.arange(n) * 1_000_000, side="right")
    pcs = np.uint64(base + 16) + np.arange(n, dtype=np.uint64) * np.uint64(256)
    mapped.n = 0
    assert space.locate(pcs, epochs).tolist() == list(range(0, 2 * n, 2))
    assert space.locate(pcs, np.zeros(n, np.int64)).tolist() == [0] + [1] * (n - 1)
    assert (space.last_epochs(pcs) == len(space.bounds)).all()
    assert mapped.n < 100 * n
