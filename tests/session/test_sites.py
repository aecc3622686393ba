"""Sites of departures: what is known of them, and how long."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.events import Array
from collector.session.sites import SiteTable, keys

IPS = np.array([0x401000, 0x401000, 0x401000, 0x402000], np.uint64)
NO_TIME = np.zeros(4, np.int64)


def told(table: SiteTable, key: Array) -> list[tuple[int, int]]:
    """Stack and reason of each key."""
    uid, reason = table.find(key)
    return list(zip(uid.tolist(), reason.tolist(), strict=True))


def site_keys(thread: Array, image: Array) -> Array:
    """Of threads that wait at one place, each on its own stack."""
    sp = thread.astype(np.uint64) * np.uint64(1 << 23) + np.uint64(0x7F00_0000_0000)
    return keys(image, np.full(len(sp), 0x401000, np.uint64), sp, sp + np.uint64(0x40))


def test_only_a_frame_pointer_tells_sites_apart() -> None:
    """In code without frame pointers the register holds numbers, pointers to data, or what is below the stack."""
    ip, sp = (np.full(6, value, np.uint64) for value in (0x401000, 0x7FFE_0000_1000))
    bp = np.array([0, 1, 0x5555_0000_1000, 0x7FFE_0000_0FFF, 2**64 - 1, 0x7FFE_0080_1000], np.uint64)
    image = np.full(6, 3)
    assert len(set(keys(image, ip, sp, bp).tolist())) == 1
    into_the_stack = sp + np.array([0, 8, 0x10, 0x1000, 0x10_0000, 0x7F_FFFF], np.uint64)
    assert len({*keys(image, ip, sp, into_the_stack).tolist(), *keys(image, ip, sp, bp).tolist()}) == 7


def test_sites_that_nobody_is_seen_at_any_more_take_no_room() -> None:
    """A million, each of which is seen once; one thread goes on and on."""
    table, image = SiteTable(), np.zeros(10_000, np.int64)
    stays = site_keys(image[:1], image[:1])
    ips, reasons, no_time = np.full(10_000, 0x401000, np.uint64), np.ones(10_000, np.int8), np.zeros(10_000, np.int64)
    table.learn(stays, np.array([31], np.uint64), reasons[:1], image[:1], ips[:1], no_time[:1])
    for batch in range(100):
        key = np.arange(10_000 * batch, 10_000 * (batch + 1)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        table.learn(key, np.full(10_000, 41, np.uint64), reasons, image, ips, no_time)
        assert told(table, stays) == [(31, 1)]
        assert set(told(table, key[-1_000:])) == {(41, 1)}
    assert len(table) < 50_000


def test_the_stack_of_a_site_is_known_until_its_image_is_over() -> None:
    table, image = SiteTable(), np.array([3, 4, 5, 4])
    key = site_keys(np.array([0, 1, 2, 3]), image)
    table.learn(key, np.array([31, 41, 51, 42], np.uint64), np.array([1, 2, 1, 2], np.int8), image, IPS, NO_TIME)
    table.learn(key[:1], np.array([31], np.uint64), np.array([2], np.int8), image[:1], IPS[:1], NO_TIME[:1])
    assert told(table, key) == [(31, 2), (41, 2), (51, 1), (42, 2)]
    table.forget([9, 4])
    assert told(table, key) == [(31, 2), (0, 0), (51, 1), (0, 0)]
    table.forget([])
    assert len(table) == 2
    table.forget([5, 3, 1])
    assert (len(table), told(table, key)) == (0, [(0, 0)] * 4)
    table.forget([3])
    assert len(table) == 0


def learn(table: SiteTable, *seen: tuple[int, int]) -> Array:
    """Stacks of one site, with the time spent there; its key, a thousand times."""
    n, image = len(seen), np.zeros(len(seen), np.int64)
    uid, spent_ns = np.array(seen).reshape(n, 2).T
    key = site_keys(image, image)
    table.learn(key, uid.astype(np.uint64), np.ones(n, np.int8), image, np.full(n, 0x401000, np.uint64), spent_ns)
    return np.repeat(key[:1], 1000)


def test_of_several_stacks_of_a_site_each_has_its_part_of_the_time() -> None:
    table = SiteTable()
    key = learn(table, *[(31, 100), (32, 300)] * 7, (33, 400))
    n = Counter(table.find(key)[0].tolist())
    assert n.keys() == {31, 32, 33}
    for uid, part in ((31, 700 / 3200), (32, 2100 / 3200), (33, 400 / 3200)):
        assert n[uid] == pytest.approx(1000 * part, abs=3)
    # Others of the thread that are asked for meanwhile have no part in it.
    others = learn(SiteTable(), (31, 1)) ^ np.uint64(1)
    mixed = Counter(table.find(np.stack([key, others], axis=1).reshape(-1))[0].tolist())
    assert mixed.pop(0) == 1000
    for uid in mixed:
        assert mixed[uid] == pytest.approx(n[uid], abs=3)


def test_a_stack_that_is_not_seen_again_fades() -> None:
    table = SiteTable()
    learn(table, *[(31, 1000)] * 50)
    for n_batches in range(1, 12):
        parts = Counter(table.find(learn(table, (32, 50_000)))[0].tolist())
        assert parts[31] == pytest.approx(1000 * 0.5**n_batches / sum(0.5**n for n in range(n_batches + 1)), abs=3)
    # Where it is seen often it is the last batch that tells.
    parts = Counter(table.find(learn(table, *[(33, 10), (34, 20)] * 11))[0].tolist())
    assert parts == {33: pytest.approx(333, abs=3), 34: pytest.approx(667, abs=3)}
    # Many ways to one site: those in which most time was spent are kept.
    parts = Counter(table.find(learn(table, *[(uid, 10 * uid) for uid in range(1, 200)]))[0].tolist())
    assert len(table) == 4
    assert parts.keys() == {196, 197, 198, 199}


def test_what_others_wait_for_at_an_instruction() -> None:
    table, image = SiteTable(), np.array([3, 4, 5, 4])
    asked = np.array([4, 4, 3, 3, 9]), np.array([0x401000, 0x402000, 0x401000, 0x402000, 0x401000], np.uint64)
    assert table.reasons(*asked).tolist() == [0] * 5
    table.learn(site_keys(np.array([0, 1, 2, 3]), image), np.ones(4, np.uint64), np.array([1, 2, 1, 3], np.int8), image,
                IPS, NO_TIME)
    assert table.reasons(*asked).tolist() == [2, 3, 1, 0, 0]
    table.forget([4])
    assert table.reasons(*asked).tolist() == [0, 0, 1, 0, 0]


def test_what_images_of_the_past_had_takes_no_room() -> None:
    table = SiteTable()
    for number in range(1000):
        slot, image = np.arange(50), np.full(50, number)
        uid = slot.astype(np.uint64) + 1
        table.learn(site_keys(slot, image), uid, np.ones(50, np.int8), image, uid, np.zeros(50))
        assert told(table, site_keys(slot, image)) == [(uid + 1, 1) for uid in range(50)]
        table.forget([number - 1])
    assert len(table) == 50


@pytest.mark.usefixtures("perf_allowed")
def test_places_are_known_in_code_without_frame_pointers(
        workload: Callable[..., Path], collect: Callable[..., Any], tmp_path: Path) -> None:
    """main joins thousands of threads at one place, with another number in the frame pointer's register each time."""
    said = collect("-p", "on", "-A", "off", "-o", tmp_path / "x.er", workload("pool", "-O2"), 3001, 0.01, 2).stderr
    assert "3002 threads" in said
    unknown = re.search(r"(\d+) waits? with only", said)
    assert int(unknown[1] if unknown else 0) < 100
