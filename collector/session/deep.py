"""Stacks that go on above what was copied of them: read as a whole from threads that still wait there.

A departure is recorded with the top of its stack alone; with the registers alone, where a thread leaves its CPU too
often. Who is still blocked there when we look has the same stack, which can be read as deep as it goes; and when that
thread leaves its CPU there again, with the same frames in what is copied, the rest is the same as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.arrays import Columns, indices
from collector.events import Array
from collector.session.placing import Placed
from collector.session.sites import SiteTable, keys

STACK_WORDS = 1 << 16  # 512 KiB of each
_AT_ONCE = 32


class DeepStacks:
    """Per slot: the last departure, if its stack was cut short and nothing is known of the rest (key 0: it was not);
    and its site, where the leaf is all there is (else 0), and whether a look was too short for the rest, too."""

    def __init__(self) -> None:
        self._of = Columns(key=("u8", 0), ip=("u8", 0), sp=("u8", 0), site=("u8", 0), short=("?", False))
        self._whole = SiteTable()
        self._kernel: Array = np.zeros((64, 0), dtype=np.uint64)  # the kernel's part of such a stack

    def completed(self, placed: Placed, ip: Array, sp: Array, kernel: Array | None = None) -> Array:
        """The stacks (n,) of departures in time order, whole where the rest is known. ``kernel`` (n, depth): the
        kernel's part of them."""
        self._grow(int(placed.slot.max(initial=-1)) + 1)
        key = np.zeros(len(placed.slot), dtype=np.uint64)
        uid = placed.uid
        cut = indices(placed.cut)
        if len(cut):
            slot, image = placed.slot[cut], placed.image[cut]
            key[cut] = keys(image, uid[cut], sp[cut], np.zeros(len(cut), dtype=np.uint64))
            whole, _ = self._whole.find(key[cut])
            known = whole != 0
            uid = uid.copy()
            uid[cut[known]], key[cut[known]] = whole[known], 0
            if kernel is not None:
                self._keep(slot, kernel[cut])
        self._note(placed.slot, key, ip, sp, 0)
        return uid

    def leaves(self, slot: Array, image: Array, uid: Array, ip: Array, sp: Array, site: Array) -> None:
        """Departures (n,) in time order with stacks ``uid`` that are the leaf alone, at sites with these keys."""
        self._grow(int(slot.max(initial=-1)) + 1)
        self._kernel[slot] = 0
        self._note(slot, keys(image, uid, sp, np.zeros_like(sp)), ip, sp, site)

    def _note(self, slot: Array, key: Array, ip: Array, sp: Array, site: Array | int) -> None:
        of = self._of
        of.key[slot], of.ip[slot], of.sp[slot], of.site[slot], of.short[slot] = key, ip, sp, site, False

    def alone(self, slot: Array) -> Array:
        """Those of the slots of whose last departure there is the leaf alone, and no look yet."""
        self._grow(int(slot.max(initial=-1)) + 1)
        of = self._of
        found: Array = slot[(of.key[slot] != 0) & (of.site[slot] != 0) & ~of.short[slot]]
        return found

    def open(self, slot: Array) -> Array:
        """Those of the slots whose last departure was cut short, and looks at its leaf alone; not too many at once."""
        self._grow(int(slot.max(initial=-1)) + 1)
        of = self._of
        found: Array = slot[(of.key[slot] != 0) & ((of.site[slot] == 0) | of.short[slot])][:_AT_ONCE]
        return found

    def kernel(self, slot: Array) -> Array | None:
        """The kernel's part (n, depth) of the stacks of the last departures that were cut short; None: there is none.
        """
        self._grow(int(slot.max(initial=-1)) + 1)
        return self._kernel[slot] if self._kernel.shape[1] else None

    def _keep(self, slot: Array, kernel: Array) -> None:
        more = kernel.shape[1] - self._kernel.shape[1]
        if more > 0:
            self._kernel = np.pad(self._kernel, ((0, 0), (0, more)))
        self._kernel[slot] = 0
        self._kernel[slot, :kernel.shape[1]] = kernel

    def learn(self, placed: Placed, ip: Array, sp: Array, reason: Array) -> tuple[Array, Array, Array]:
        """Stacks of threads as they are now; returns which of them (n,) are the rest of what was cut short, the sites
        (n,) of those of which there was the leaf alone, else 0, and which of these (n,) are still there, though what
        was read is not whole: that tells what they wait for. Each is looked at once, and where that look is too short
        for a leaf, once more."""
        slot, of = placed.slot, self._of
        there: Array = (of.ip[slot] == ip) & (of.sp[slot] == sp) & (of.key[slot] != 0)
        same: Array = placed.whole & there
        self._whole.learn(of.key[slot[same]], placed.uid[same], reason[same], placed.image[same],
                          ip[same], np.zeros(np.count_nonzero(same)))
        is_over = ~placed.cut | (of.site[slot] == 0) | of.short[slot]
        of.key[slot[is_over]], of.short[slot[~is_over]] = 0, True
        site = of.site[slot]
        return same, np.where(same, site, np.uint64(0)), there & ~same & (site != 0)

    def give_back(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._grow(int(slots.max(initial=-1)) + 1)
        self._of.reset(slots)
        self._kernel[slots] = 0

    def forget(self, images: Iterable[int]) -> None:
        """Images are over, and nobody will ask for their stacks."""
        self._whole.forget(images)

    def _grow(self, n: int) -> None:
        self._of.grow(n)
        if n > len(self._kernel):
            self._kernel = np.pad(self._kernel, ((0, max(n, 2 * len(self._kernel)) - len(self._kernel)), (0, 0)))
