"""Lists of CPUs; spares of rings. Events and their rings are tested with the engine that reads them."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.linux import abi, libc, perf
from collector.linux.perf import PAGE, Ring, Rings


@pytest.mark.parametrize(("text", "cpus"), [
    ("0", [0]), ("0-3\n", [0, 1, 2, 3]), ("0-2,5", [0, 1, 2, 5]), ("1,3,5-6,11\n", [1, 3, 5, 6, 11])])
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert perf.parse_cpu_list(text) == cpus


def test_the_cpus_that_are_online() -> None:
    online = perf.online_cpus()
    assert online == sorted(set(online))
    assert len(online) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert os.sched_getaffinity(0) <= set(online)


def test_a_tracepoint_that_is_not_there_has_no_number() -> None:
    assert perf.tracepoint_number("no_such_system", "no_such_event") is None
    number = perf.tracepoint_number("task", "task_newtask")
    assert number is None if os.geteuid() else number is not None and number > 0


IN_A_CONTAINER = """
import os
from collector.engines.perf import opening
opened = opening.open_events([os.getpid()], 10**7, on_exec=False, follow=True, asked=frozenset({"waits"}))
print(*{ring.name for ring in opened.rings.rings})
opened.close()
"""


@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.parametrize("ours", [True, False])
def test_tracepoints_that_name_threads_are_left_out_where_these_have_other_numbers(
        ours: bool, need: Callable[[str, str], str]) -> None:
    """Thread 15 of a container is not the one that the kernel tells to be woken by this number."""
    if os.geteuid():
        pytest.skip("only root makes a PID namespace, and sees tracepoints")
    apart = [] if ours else [need("unshare", "util-linux"), "--pid", "--fork", "--kill-child", "--mount-proc"]
    said = subprocess.run([*apart, sys.executable, "-c", IN_A_CONTAINER], check=True, capture_output=True, text=True)
    assert {"clock", "switch", "dying"} <= set(said.stdout.split())
    assert {"waking", "handover", "birth"} & set(said.stdout.split()) == ({"waking", "handover", "birth"} if ours else
                                                                         set())


REFUSED = """
import os
from collector.engines.perf import opening
from collector.linux import abi, perf
number = perf.tracepoint_number("task", "task_newtask")
flags = opening._COMMON | abi.EXCLUDE_KERNEL
attr = abi.pack_attr(kind=abi.TYPE_TRACEPOINT, config=number, period=1, sample_type=opening._WHO | abi.SAMPLE_RAW,
                     flags=flags, watermark=0)
(birth,) = (spec._replace(attr=attr) for spec in opening._specs(10**7, opening._COMMON, number, None, 1 << 14, 1 << 14)
            if spec.name == "birth")
os.setuid(65534)
specs = opening._smaller([*opening._specs(10**7, flags, None, None, 1 << 14, 1 << 14), birth])
print(*{ring.name for ring in perf.open_rings([os.getpid()], specs).rings})
"""


@pytest.mark.usefixtures("perf_allowed")
def test_how_processes_are_made_is_left_out_where_the_user_may_not_have_it() -> None:
    """Though he may read the tracepoint's number: kernel mode is not to be lost for that."""
    if os.geteuid():
        pytest.skip("only root can tell somebody else the number")
    level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if not -1 < level < 3:
        pytest.skip(f"at level {level} users have everything, or nothing")
    said = subprocess.run([sys.executable, "-c", REFUSED], check=True, capture_output=True, text=True).stdout
    assert set(said.split()) == {"clock", "task", "map", "switch"}


@pytest.mark.usefixtures("perf_allowed")
def test_who_has_ended_before_its_events_are_opened_leaves_the_others_theirs() -> None:
    """Also the first one: of a process whose main thread has ended, that is any other thread."""
    attr = abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=abi.SAMPLE_TIME, watermark=0,
                         flags=abi.DISABLED | abi.EXCLUDE_KERNEL)
    specs = [perf.EventSpec("task", attr, PAGE)]
    n_before = len(os.listdir("/proc/self/fd"))
    nobody = 2**22 + 1
    rings = perf.open_rings([nobody, nobody, os.getpid(), nobody], specs)
    assert {ring.name for ring in rings.rings} == {"task"}
    assert len(os.listdir("/proc/self/fd")) == n_before + len(perf.online_cpus())
    rings.close()
    with pytest.raises(ProcessLookupError):
        perf.open_rings([nobody, nobody], specs)
    assert len(os.listdir("/proc/self/fd")) == n_before


@pytest.mark.usefixtures("perf_allowed")
def test_where_a_ring_is_refused_what_was_there_stays() -> None:
    """It is no hole that Python's next frame or object would be put into, and unmapped with the others."""
    attr = abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=abi.SAMPLE_TIME, watermark=0,
                         flags=abi.DISABLED | abi.EXCLUDE_KERNEL)
    fd = libc.perf_event_open(attr, 0, -1, -1, abi.FLAG_FD_CLOEXEC)
    address = libc.mmap(0, 8 * PAGE, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_PRIVATE | libc.MAP_ANONYMOUS, -1)
    ctypes.memmove(address + PAGE, b"mine", 4)
    with pytest.raises(OSError, match="Invalid argument"):  # not so many pages
        libc.put(address + PAGE, 4 * PAGE, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_SHARED, fd)
    assert ctypes.string_at(address + PAGE, 4) == b"mine"
    libc.put(address + PAGE, 5 * PAGE, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_SHARED, fd)
    assert ctypes.string_at(address + PAGE, 4) != b"mine"
    libc.munmap(address, 8 * PAGE)
    os.close(fd)


REFUSED_LATER = """
import os, resource
from pathlib import Path
from collector.linux import abi, perf
attr = abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=abi.SAMPLE_TIME, watermark=0,
                     flags=abi.DISABLED | abi.EXCLUDE_KERNEL)
specs = [perf.EventSpec("task", attr, 64 * perf.PAGE)]
perf.open_rings([os.getpid()], specs).close()
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + len(perf.online_cpus()), ) * 2)
try:
    perf.open_rings([os.getpid(), os.getppid()], specs)
except OSError as err:
    print(err.strerror, "anon_inode:[perf_event]" in Path("/proc/self/maps").read_text(), os.dup(0) - free)
"""


@pytest.mark.usefixtures("perf_allowed")
def test_of_events_that_are_refused_for_a_later_thread_nothing_stays() -> None:
    said = subprocess.run([sys.executable, "-c", REFUSED_LATER], check=True, capture_output=True, text=True).stdout
    assert said == "perf_event_open: Too many open files False 0\n"


@pytest.mark.usefixtures("perf_allowed")
def test_spares_that_there_is_no_memory_for_are_gone_without() -> None:
    attr = abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=abi.SAMPLE_TIME, watermark=0,
                         flags=abi.DISABLED | abi.EXCLUDE_KERNEL | abi.COMM)
    n_before = len(os.listdir("/proc/self/fd"))
    for spare_bytes, n_spares in ((2 * PAGE, 2), (1 << 47, 0)):  # more than a process has addresses
        specs = [perf.EventSpec(name, attr, PAGE, spare_bytes=n_bytes) for name, n_bytes in
                 (("task", spare_bytes), ("map", 0), ("touch", spare_bytes))]
        rings = perf.open_rings([os.getpid()], specs)
        rings.enable()
        Path("/proc/self/comm").write_text(Path("/proc/self/comm").read_text())
        assert all(any(rings.head(ring) for ring in rings.rings if ring.name == spec.name) for spec in specs)
        assert len(rings.spares) == n_spares * len(perf.online_cpus())
        rings.close()
    assert len(os.listdir("/proc/self/fd")) == n_before


@pytest.fixture
def rings() -> Iterator[Rings]:
    """A ring of two pages with a spare of four, which no event writes into."""
    length = 8 * PAGE
    address = libc.mmap(0, length, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_SHARED | libc.MAP_ANONYMOUS, -1)
    ring = Ring("task", 0, 3, 0, PAGE, 2 * PAGE)
    yield Rings({}, [ring], [(ring, ring._replace(fd=-1, header_offset=3 * PAGE, data_offset=4 * PAGE,
                                                  data_bytes=4 * PAGE))], address, length)
    libc.munmap(address, length)


def test_a_spare_goes_round_and_keeps_what_is_not_given_back(rings: Rings) -> None:
    ((ring, spare),) = rings.spares
    words = rings.memory.cast("Q")
    written = moved = read = 0  # words

    def head(ring: Ring, n_words: int) -> None:
        words[(ring.header_offset + abi.RING_HEAD_OFFSET) >> 3] = 8 * n_words

    for n_words, is_read in ((700, False), (900, False), (1000, True), (701, True), (333, False), (1024, True)) * 5:
        for _ in range(n_words):
            words[(ring.data_offset >> 3) + written % 1024] = written + 1
            written += 1
        head(ring, written)
        if rings.move(ring, spare):
            moved = written
        while is_read and read < moved - 100:  # a hundred are left each time
            assert words[(spare.data_offset >> 3) + read % 2048] == read + 1
            read += 1
        rings.give_back(spare, 8 * read)
        if moved < written:  # there was no room: the kernel would write no more
            written = moved
            head(ring, written)
    assert read > 6 * 2048
    given_back = words[(spare.data_offset >> 3) + (read - 1024) % 2048]
    assert given_back == 0  # its page is the kernel's again


def _fill(rings: Rings, words: list[int]) -> None:
    """Puts words behind what the ring holds, which has room for them."""
    ring, memory = rings.rings[0], rings.memory.cast("Q")
    head_at = (ring.header_offset + abi.RING_HEAD_OFFSET) >> 3
    for word in words:
        memory[(ring.data_offset + memory[head_at] % ring.data_bytes) >> 3] = word
        memory[head_at] += 8


def test_a_spare_packs_what_waits_behind_its_least_and_gives_it_back_as_it_was(rings: Rings) -> None:
    ((ring, spare),) = rings.spares
    rings.may_pack({"task": PAGE, "birth": 8})
    written, n_each, n_moves = 0, 401, 16  # blocks end all over the ring
    for _ in range(n_moves):
        _fill(rings, [word % 7 for word in range(written, written + n_each)])
        written += n_each
        assert rings.move(ring, spare)
    assert 8 * written > 3 * spare.data_bytes  # which would not have room for it
    memory, read = rings.memory.cast("Q"), 0
    while read < written:
        rings.unpack()
        held = (rings.head(spare) - rings.tail(spare)) // 8
        assert held > PAGE // 8 or read + held == written
        part = min(held, 411)
        places = [(spare.data_offset + 8 * (read + i) % spare.data_bytes) >> 3 for i in range(part)]
        assert [memory[place] for place in places] == [word % 7 for word in range(read, read + part)]
        read += part
        rings.give_back(spare, 8 * read)
    assert rings.head(ring) == rings.tail(ring) == 8 * written


def test_a_spare_is_full_of_what_cannot_be_packed(rings: Rings) -> None:
    ((ring, spare),) = rings.spares
    rings.may_pack({"task": PAGE})
    noise, kept = random.Random(7), []
    for _ in range(19):
        words = [noise.getrandbits(64) for _ in range(401)]
        _fill(rings, words)
        if not rings.move(ring, spare):
            break
        kept += words
    assert 401 < len(kept) <= spare.data_bytes // 8
    assert rings.head(ring) - rings.tail(ring) == 8 * 401  # and the ring keeps the rest
    memory, read = rings.memory.cast("Q"), []
    while len(read) < len(kept):
        rings.unpack()
        place = (spare.data_offset + 8 * len(read) % spare.data_bytes) >> 3
        read.append(memory[place])
        rings.give_back(spare, 8 * len(read))
    assert read == kept
