"""Sites of departures: what is known of them, and how long."""

from __future__ import annotations

import numpy as np

from collector.events import Array
from collector.session.sites import SiteTable, keys

IPS = np.array([0x401000, 0x401000, 0x401000, 0x402000], np.uint64)

def told(table: SiteTable, key: Array) -> list[tuple[int, int]]:
    """Stack and reason of each key."""
    uid, reason = table.find(key)
    return list(zip(uid.tolist(), reason.tolist(), strict=True))


def site_keys(slot: Array, image: Array) -> Array:
    """Of threads that wait at one place."""
    registers = np.full((3, len(slot)), 0x401000, np.uint64)
    return keys(slot, image, *registers)


def test_the_last_stack_of_a_site_is_known_until_its_image_is_over() -> None:
    table, image = SiteTable(), np.array([3, 4, 5, 4])
    key = site_keys(np.array([0, 1, 2, 3]), image)
    table.learn(key, np.array([31, 41, 51, 42], np.uint64), np.array([1, 2, 1, 2], np.int8), image, IPS)
    table.learn(key[:1], np.array([32], np.uint64), np.array([2], np.int8), image[:1], IPS[:1])
    assert told(table, key) == [(32, 2), (41, 2), (51, 1), (42, 2)]
    table.forget([9, 4])
    assert told(table, key) == [(32, 2), (0, 0), (51, 1), (0, 0)]
    table.forget([])
    assert len(table) == 2
    table.forget([5, 3, 1])
    assert (len(table), told(table, key)) == (0, [(0, 0)] * 4)
    table.forget([3])
    assert len(table) == 0


def test_what_others_wait_for_at_an_instruction() -> None:
    table, image = SiteTable(), np.array([3, 4, 5, 4])
    asked = np.array([4, 4, 3, 3, 9]), np.array([0x401000, 0x402000, 0x401000, 0x402000, 0x401000], np.uint64)
    assert table.reasons(*asked).tolist() == [0] * 5
    table.learn(site_keys(np.array([0, 1, 2, 3]), image), np.ones(4, np.uint64), np.array([1, 2, 1, 3], np.int8), image,
                IPS)
    assert table.reasons(*asked).tolist() == [2, 3, 1, 0, 0]
    table.forget([4])
    assert table.reasons(*asked).tolist() == [0, 0, 1, 0, 0]


def test_what_images_of_the_past_had_takes_no_room() -> None:
    table = SiteTable()
    for number in range(1000):
        slot, image = np.arange(50), np.full(50, number)
        uid = slot.astype(np.uint64) + 1
        table.learn(site_keys(slot, image), uid, np.ones(50, np.int8), image, uid)
        assert told(table, site_keys(slot, image)) == [(uid + 1, 1) for uid in range(50)]
        table.forget([number - 1])
    assert len(table) == 50
