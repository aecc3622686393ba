"""The perf engine on real programs: nothing missed, nothing twice, everything in its time, whenever it is drained."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.engines.perf import opening as perf_opening
from collector.engines.perf.engine import PerfEngine
from collector.engines.perf.samples import walk
from collector.events import Accounts, Batch, Change, Edge, Executed, Exited, Forked, Mapped, Mode, RecordsLost
from collector.linux import abi, perf

pytestmark = pytest.mark.usefixtures("perf_allowed")

INTERVAL_NS = 997_000
FOREVER_NS = 2**62
HOLE_NS = 500_000  # in the program "steady"
STAMP_NS = 1000  # to which stamps of different moments are right
# Of the kernel's work at a thread's switch, of which a part is not told as the thread's, on average: 4 to 12 us seen.
# And 10 us are its clocks' shortest period.
EDGE_NS = 50_000
# While nobody comes for seconds: ends are told of the whole machine, and switch-outs with their stacks, of which there
# are as many as others want the CPUs.
MAY_LOSE = {"dying", "dead", "leave"}
OF_EVERYONE = {"waking", "dying", "dead"}  # events of a CPU, not of a thread
ATTR_STACK_USER = 88  # sample_stack_user in perf_event_attr


@dataclass
class Drained:
    """All batches of a program as plain lists, and what it said of itself."""

    pid: int
    changes: list[Change] = field(default_factory=list)
    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    bounds: list[tuple[int, int, int]] = field(default_factory=list)  # first and last time of a batch, its until
    lives: list[int] = field(default_factory=list)  # beginnings and ends in each batch
    accounts: list[Accounts] = field(default_factory=list)  # as they were read before each drain
    truth: dict[str, Any] = field(default_factory=dict)
    opened: perf_opening.Opened | None = None

    def take_all(self, engine: PerfEngine, until_ns: int) -> None:
        """All batches up to a time."""
        has_more = True
        while has_more:
            batch = engine.drain(until_ns)
            has_more = batch.has_more
            self.take(batch)
            engine.release()

    def take(self, batch: Batch) -> None:
        """Copies what is valid only until the release."""
        self.changes += batch.changes
        self.lives.append(sum(isinstance(change, Forked | Exited) for change in batch.changes))
        times = [change.time_ns for change in batch.changes]
        for name, fields in (("clock", ("time_ns", "pid", "tid", "mode", "abi", "n_words", "low", "regs")),
                             ("switches", ("time_ns", "pid", "tid", "edge", "cpu")),
                             ("leaving", ("time_ns", "tid", "regs")), ("exits", ("tid", "run_ns"))):
            part = getattr(batch, name)
            if part is not None:
                if name != "exits":
                    times += part.time_ns.tolist()
                    assert (np.diff(part.time_ns) >= 0).all()
                for column in fields:
                    self.columns.setdefault(f"{name}.{column}", []).append(getattr(part, column).copy())
        if times:
            self.bounds.append((min(times), max(times), batch.until_ns))

    def all(self, name: str) -> np.ndarray:
        """A column of all batches."""
        return np.concatenate(self.columns[name])

    def ticks(self) -> list[tuple[int, int]]:
        """Of all clock samples the tid and the time."""
        columns = (np.concatenate(self.columns.get(f"clock.{name}", [np.zeros(0, int)])) for name in ("tid", "time_ns"))
        return sorted(zip(*(column.tolist() for column in columns), strict=True))

    def of(self, kind: type[Change]) -> list[Any]:
        """The changes of a kind."""
        return [change for change in self.changes if isinstance(change, kind)]


class Witness:
    """Reads what the kernel writes into the rings of clocks, record by record, and leaves it there."""

    def __init__(self, rings: perf.Rings) -> None:
        self._rings = rings
        self._at = {ring: 0 for ring in rings.rings if ring.name in ("clock", "brief")}
        self.ticks: list[tuple[int, int]] = []  # tid and time

    def look(self) -> None:
        """All that was written since the last look; to be called before that is given back."""
        for ring, at in self._at.items():
            head = self._rings.head(ring)
            while at < head:
                (header, ids, time_ns) = (self._word(ring, at + offset) for offset in (0, 8, 16))
                if header & 0xFFFF_FFFF == abi.RECORD_SAMPLE:
                    self.ticks.append((ids >> 32, time_ns))
                at += header >> 48
            self._at[ring] = at

    def _word(self, ring: perf.Ring, position: int) -> int:
        at = ring.data_offset + position % ring.data_bytes
        return int.from_bytes(self._rings.memory[at:at + 8], "little")


def stand_on_each_cpu() -> None:
    """Whoever has been on a CPU finds all that was recorded there before: nobody else runs there while a record is
    being written, however long a hypervisor takes the CPU meanwhile."""
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def drained(tmp_path: Path) -> Iterator[Callable[..., Drained]]:
    """``drained(program, 0.3, every_s=0.01)``: runs a program from its exec to its end under the engine."""

    def run(*command: object, every_s: float = 0.1, asked: Sequence[tuple[int, int]] = (),
            guarded: bool = False) -> Drained:
        held = ["/bin/sh", "-c", 'read line; exec "$@"', "sh", *map(str, command)]
        # Not into a pipe, which has no room for all that a program may have to say before it ends.
        with (tmp_path / "said").open("wb") as said, subprocess.Popen(
                held, stdin=subprocess.PIPE, stdout=said) as process:
            assert process.stdin is not None
            opened = perf_opening.open_events([process.pid], INTERVAL_NS, on_exec=True, follow=False)
            if guarded:
                opened.guard(process.pid)
            engine = None if guarded else PerfEngine(opened, "a test")
            witness = Witness(opened.rings)
            result = Drained(process.pid, opened=opened)
            process.stdin.write(b"\n")
            process.stdin.flush()
            ended = os.pidfd_open(process.pid)
            while process.poll() is None:
                select.select([ended], [], [], every_s)
                if engine is None:
                    engine = PerfEngine(opened, "a test")
                result.accounts.append(engine.look(asked))
                until_ns = time.monotonic_ns()
                stand_on_each_cpu()
                witness.look()
                result.take_all(engine, until_ns)
            os.close(ended)
            assert engine is not None
            engine.stop()
            witness.look()
            result.take_all(engine, FOREVER_NS)
            result.truth = json.loads((tmp_path / "said").read_bytes())
            last = engine.drain(FOREVER_NS)
            assert (last.changes, last.clock, last.switches) == ((), None, None)
            if not guarded:  # which moves records meanwhile
                assert sorted(witness.ticks) == result.ticks()
            engine.close()
            engine.close()
        return result

    yield run


@pytest.mark.parametrize("every_s", [0.003, 0.1, 5])
def test_a_program_from_its_exec_to_its_end(
        workload: Callable[..., Path], drained: Callable[..., Drained], every_s: float) -> None:
    found = drained(workload("split"), 0.66, every_s=every_s)
    tids = [thread["tid"] for thread in found.truth["threads"]]
    (executed,) = found.of(Executed)
    assert (executed.pid, executed.comm) == (found.pid, b"split-O2")
    assert [change.tid for change in found.of(Forked)] == tids[1:]
    assert sorted(change.tid for change in found.of(Exited)) == sorted(tids)
    assert {change.pid for change in found.of(Forked)} == {found.pid}
    paths = [change.path for change in found.of(Mapped)]
    assert {b"[vdso]", os.fsencode(os.path.realpath(workload("split")))} <= set(paths)
    assert any(path.endswith(b"/libc.so.6") for path in paths)
    assert {change.source for change in found.of(RecordsLost)} <= MAY_LOSE
    assert set(found.all("clock.pid").tolist()) == set(found.all("switches.pid").tolist()) == {found.pid}
    assert set(found.all("clock.tid").tolist()) == set(tids)


def test_a_backlog_comes_in_bites(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """In time order, whatever ring they lie in, each life once; and what lies behind a bite is there for the next."""
    n_cpus = len(perf.online_cpus())
    n_threads = 1501 * n_cpus
    found = drained(workload("pool"), n_threads, 0.01, every_s=60)
    born, gone = ([change.tid for change in found.of(kind)] for kind in (Forked, Exited))
    assert len(born) == n_threads
    assert sorted(gone) == sorted([*born, found.pid])
    # Of each CPU's ring twice 64 KiB at most, of records of 56 bytes.
    assert max(found.lives) <= n_cpus * (2 << 16) // 56 < 2 * n_threads
    for (_, _, until), (first, last, _) in zip(found.bounds, found.bounds[1:], strict=False):
        assert until < first <= last


def test_batches_follow_each_other_in_time(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("split"), 2.2, every_s=0.01)  # so long that we come while it runs
    assert len(found.bounds) >= 2
    for first, last, until in found.bounds:
        assert first <= last <= until
    for (_, _, until), (first, _, _) in zip(found.bounds, found.bounds[1:], strict=False):
        assert first > until - 1  # nothing from before the last batch's end


@dataclass(frozen=True)
class Stints:
    """When a thread of the program ``steady`` had a CPU, by the records of its switches, and when it was at work."""

    began_ns: np.ndarray
    ended_ns: np.ndarray
    cpu: np.ndarray  # -1: not told
    ticks_ns: list[np.ndarray]  # in each stint
    holes: np.ndarray  # (n, 2): outside of these it was at work

    def times(self, i: int) -> np.ndarray:
        """Of a stint the beginning, its ticks and the end."""
        return np.concatenate([self.began_ns[i:i + 1], self.ticks_ns[i], self.ended_ns[i:i + 1]])

    def idle_ns(self, begin_ns: int, end_ns: int) -> np.ndarray:
        """The parts of a time that lie in holes."""
        return np.clip(np.minimum(self.holes[:, 1], end_ns) - np.maximum(self.holes[:, 0], begin_ns), 0, None)

    def ran_ns(self, begin_ns: int, end_ns: int) -> int:
        """The time with a CPU within a time."""
        return int(np.clip(np.minimum(self.ended_ns, end_ns) - np.maximum(self.began_ns, begin_ns), 0, None).sum())

    def unseen(self) -> list[tuple[int, int]]:
        """Times without a CPU that the program knows nothing of."""
        between = zip(self.ended_ns.tolist(), self.began_ns.tolist()[1:], strict=False)
        return [(left_ns, came_ns) for left_ns, came_ns in between
                if came_ns - left_ns - self.idle_ns(left_ns, came_ns).sum() > HOLE_NS]


def stints_of(found: Drained) -> list[Stints]:
    """Of each thread: every switch is told, in their order, and no tick lies outside of a stint."""
    result = []
    switched_ns, switched, edges, cpus = (found.all(f"switches.{name}") for name in ("time_ns", "tid", "edge", "cpu"))
    for thread in found.truth["threads"]:
        mine = switched == thread["tid"]
        is_in = edges[mine] == Edge.IN
        assert (is_in[1:] != is_in[:-1]).all()
        began_ns, ended_ns, cpu = switched_ns[mine][is_in], switched_ns[mine][~is_in], cpus[mine][is_in]
        if not is_in[0]:  # the founder ran already when its events began: at its exec, which is told a little later
            began_ns = np.append(found.of(Executed)[0].time_ns - INTERVAL_NS, began_ns)
            cpu = np.append(-1, cpu)
        if len(ended_ns) < len(began_ns):
            ended_ns = np.append(ended_ns, [end.time_ns for end in found.of(Exited) if end.tid == thread["tid"]])
        ticks_ns = found.all("clock.time_ns")[found.all("clock.tid") == thread["tid"]]
        bounds = zip(np.searchsorted(ticks_ns, began_ns), np.searchsorted(ticks_ns, ended_ns), strict=True)
        parts = [ticks_ns[first:end] for first, end in bounds]
        assert sum(map(len, parts)) == len(ticks_ns)
        holes = np.array([(0, thread["began_ns"]), *thread["holes"], (thread["ended_ns"], FOREVER_NS)])
        result.append(Stints(began_ns, ended_ns, cpu, parts, holes))
    return result


def none_is_missing(threads: list[Stints], n_given_way: int = 0) -> None:
    """The timer of a clock is set to an interval ahead at most: a thread that is at work has its next tick by then. One
    that comes later came in a hole, when interrupts or a hypervisor had the CPU. Where a CPU's clock gives way to
    another, whose timer is set then, the thread there may be up to an interval behind its last tick.

    What one tick is late by the gap behind it lacks: as many gaps are too long as too short.
    """
    late = []
    for stints in threads:
        for i in range(len(stints.ticks_ns)):
            times_ns = stints.times(i)
            gaps_ns = [end_ns - begin_ns - stints.idle_ns(begin_ns, end_ns).sum()
                       for begin_ns, end_ns in pairwise(times_ns)]
            late += [gap_ns / INTERVAL_NS for gap_ns in gaps_ns if gap_ns >= 1.5 * INTERVAL_NS]
    assert len(late) <= n_given_way, late
    assert all(gap < 2.5 for gap in late), late
    gaps_ns = np.concatenate([np.diff(ticks_ns) for stints in threads for ticks_ns in stints.ticks_ns])
    assert np.median(gaps_ns) == pytest.approx(INTERVAL_NS, rel=0.01)


def none_is_twice(threads: list[Stints]) -> None:
    """A tick that is late brings the next but one no nearer than an interval."""
    for stints in threads:
        for ticks_ns in stints.ticks_ns:
            assert (ticks_ns[2:] - ticks_ns[:-2] > INTERVAL_NS - STAMP_NS).all()


def they_count_the_time(threads: list[Stints], n_ticks: int) -> None:
    """As many ticks as intervals on a CPU. Each thread's clock runs on each CPU by itself, and what is left of its last
    interval is never told. It begins a little before its thread's stint is told, and ends a little later. A tick that
    is late by intervals stands for all of these."""
    ran_ns = sum(stints.ran_ns(0, FOREVER_NS) for stints in threads)
    edges_ns = sum(len(stints.began_ns) for stints in threads) * EDGE_NS
    kept_ns = 0
    for stints in threads:
        for begin_ns, end_ns in zip(stints.began_ns, stints.ended_ns, strict=True):
            idle_ns = stints.idle_ns(begin_ns, end_ns)
            kept_ns += int(idle_ns[idle_ns > HOLE_NS].sum())
    last_ns = len(threads) * len(perf.online_cpus()) * INTERVAL_NS
    assert ran_ns - kept_ns - last_ns - edges_ns < n_ticks * INTERVAL_NS < ran_ns + edges_ns


def test_the_clock_ticks_once_per_interval(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("steady"), 3, 0.66)
    threads = stints_of(found)
    none_is_missing(threads)
    none_is_twice(threads)
    they_count_the_time(threads, len(found.all("clock.tid")))
    modes = Counter(found.all("clock.mode").tolist())
    assert modes[Mode.SYSTEM_CALL] <= 0.1 * sum(modes.values())
    assert modes[Mode.USER] > modes[Mode.TRAP]  # which is as often as others have interrupts here


def test_every_switch_is_told_at_its_time(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """As many as the kernel counts. Whenever a thread was at work it had a CPU, and no two had the same."""
    found = drained(workload("steady"), 3, 0.66)
    threads = stints_of(found)
    for said, stints in zip(found.truth["threads"], threads, strict=True):
        began_ns, ended_ns = said["began_ns"], said["ended_ns"]
        assert ((stints.ended_ns > began_ns) & (stints.ended_ns < ended_ns)).sum() == said["n_switches"]
        for moment_ns in {began_ns, ended_ns, *chain(*said["holes"])}:
            assert ((stints.began_ns < moment_ns) & (moment_ns < stints.ended_ns)).sum() == 1
        assert stints.unseen() == []
    cpu, began_ns, ended_ns = (np.concatenate([getattr(stints, name) for stints in threads])
                               for name in ("cpu", "began_ns", "ended_ns"))
    for number in perf.online_cpus():
        order = np.argsort(began_ns[cpu == number])
        assert (began_ns[cpu == number][order][1:] > ended_ns[cpu == number][order][:-1]).all()


def test_a_look_has_the_accounts_of_those_who_ran_and_live(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """And of the one that is asked for each time: the test itself, which none of the events is of."""
    me = os.getpid(), threading.get_native_id()
    before_ns = time.monotonic_ns()
    found = drained(workload("steady"), 3, 2.2, every_s=0.05, asked=[me, (2**22 + 1, 2**22 + 1)])  # so long as above
    tids = {thread["tid"] for thread in found.truth["threads"]}
    seen: dict[int, list[tuple[int, int, int, int]]] = {}
    for accounts in found.accounts:
        assert accounts.tid.tolist().count(me[1]) == 1
        assert before_ns < accounts.time_ns.min() <= accounts.time_ns.max() <= accounts.read_ns
        before_ns = accounts.read_ns
        columns = (accounts.tid, accounts.run_ns, accounts.delay_ns, accounts.turns)
        for tid, *account in zip(*(column.tolist() for column in columns), strict=True):
            seen.setdefault(tid, []).append((accounts.read_ns, *account))
    assert {found.pid, me[1]} <= seen.keys() <= tids | {me[1]}
    for said, stints in zip(found.truth["threads"], stints_of(found), strict=True):
        looks = seen.get(said["tid"], [])
        assert all((np.diff(column) >= 0).all() for column in zip(*looks, strict=True))
        for read_ns, run_ns, _, _ in looks:
            ran_ns = said["before_ns"] + stints.ran_ns(said["began_ns"], read_ns)
            assert 0 <= run_ns < ran_ns + EDGE_NS * len(stints.began_ns), (said["began_ns"], stints.unseen(), looks)


def test_samples_have_registers_and_stack(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("split"), 0.33)
    regs, low, n_words = (found.all(f"clock.{name}") for name in ("regs", "low", "n_words"))
    assert set(found.all("clock.abi").tolist()) == {64}
    assert (regs[:, 7] == low).all()  # the copy begins at the stack pointer
    assert (n_words[found.all("clock.mode") == Mode.USER] > 16).all()  # in the kernel, a thread may have none any more
    assert (n_words * 8 <= 16 << 10).all()
    mapped = [(change.start, change.start + change.size) for change in found.of(Mapped)]
    inside = np.zeros(len(regs), bool)
    for start, end in mapped:
        inside |= (regs[:, 16] >= start) & (regs[:, 16] < end)
    # Every program counter of the program lies in memory that was told; its clock begins amid execve.
    assert inside[found.all("clock.mode") == Mode.USER].all()


def test_registers_of_32_bit_code(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("split", "-O2", "-m32"), 0.22)
    user = found.all("clock.mode") == Mode.USER
    assert set(found.all("clock.abi")[user].tolist()) == {32}
    assert (found.all("clock.regs")[user][:, 16] < 2**32).all()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others have no records of switch-outs with stacks")
def test_every_switch_out_has_its_stack_unless_they_come_too_often(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("sites"), 1)
    outs = found.all("switches.edge") != Edge.IN
    leaving = Counter(found.all("leaving.tid").tolist())
    # A thread's last departure, at its exit, has no user registers any more but is told nevertheless.
    assert leaving == Counter(found.all("switches.tid")[outs].tolist())


def test_a_full_ring_of_stacks_loses_samples_and_nothing_else(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """Nobody comes for longer than the clock's ring has room. The last losses have no record behind them."""
    found = drained(workload("steady"), 3, 4.4, every_s=30)
    threads = stints_of(found)
    none_is_twice(threads)
    n_lost = sum(change.n_records for change in found.of(RecordsLost) if change.source == "clock")
    they_count_the_time(threads, len(found.all("clock.tid")) + n_lost)
    tids = [thread["tid"] for thread in found.truth["threads"]]
    assert {"clock"} <= {change.source for change in found.of(RecordsLost)} <= {"clock", *MAY_LOSE}
    assert len(found.of(Executed)) == 1
    assert [change.tid for change in found.of(Forked)] == tids[1:]
    assert sorted(change.tid for change in found.of(Exited)) == sorted(tids)
    assert any(change.path.endswith(b"/libc.so.6") for change in found.of(Mapped))


def test_a_clock_whose_ring_fills_up_gives_way_to_small_copies(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """The same, while the collector starts: none is missing."""
    found = drained(workload("steady"), 3, 4.4, every_s=30, guarded=True)
    assert found.opened is not None
    n_given_way = sum(ring.name == "clock" for ring in found.opened.guards[0].rested)
    assert n_given_way
    assert {change.source for change in found.of(RecordsLost)} <= MAY_LOSE
    none_is_missing(stints_of(found), n_given_way)


def test_threads_that_end_while_the_collector_starts_have_their_accounts(
        last_accounts_told: None, workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("split"), 0.33, every_s=60, guarded=True)
    run_ns = dict(zip(found.all("exits.tid").tolist(), found.all("exits.run_ns").tolist(), strict=True))
    for thread in found.truth["threads"][1:]:
        assert run_ns[thread["tid"]] == pytest.approx(thread["cpu_s"] * 1e9, abs=2_000_000)


@pytest.mark.parametrize("n_cpus", [1, 2, 8, 32])
@pytest.mark.parametrize("interval_ns", [500_000, 997_000, 10_007_000, 100_003_000])
def test_small_copies_have_room_for_seconds_and_all_rings_together_are_bounded(interval_ns: int, n_cpus: int) -> None:
    room_bytes = (256 << 20) // n_cpus
    specs = perf_opening._specs(interval_ns, 0, 1, 2, 63 << 10, 24 << 10)
    specs = perf_opening._with_brief(specs, interval_ns, 0, room_bytes)
    brief = specs[-1]
    stack_bytes = min(int.from_bytes(brief.attr[ATTR_STACK_USER:ATTR_STACK_USER + 4], "little"), 15 << 10)
    assert stack_bytes >= 2 << 10
    assert brief.ring_bytes / (stack_bytes + 512) * interval_ns >= 4.99e9
    # The least that is of use, and at the shortest interval on many CPUs a little more than the room that there is.
    least_bytes = brief.ring_bytes + 12 * perf_opening._LEAST_RING_BYTES
    assert sum(spec.ring_bytes for spec in specs) <= max(room_bytes, least_bytes)
    assert all(spec.ring_bytes & spec.ring_bytes - 1 == 0 for spec in specs)


def _heads(rings: perf.Rings, name: str) -> int:
    return sum(rings.head(ring) for ring in rings.rings if ring.name == name)


@contextmanager
def engine_of(process: subprocess.Popen[Any]) -> Iterator[tuple[perf_opening.Opened, PerfEngine]]:
    """Events of a running program, and their engine. It stays on one CPU from now on, and so writes into the rings of
    that one alone; in the end it is killed."""
    os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(process.pid))})
    opened = perf_opening.open_running([process.pid], INTERVAL_NS, follow=False)
    engine = PerfEngine(opened, "a test")
    engine.start()
    try:
        yield opened, engine
    finally:
        process.kill()
        engine.stop()
        engine.close()


def test_nobody_is_opened_who_has_ended(workload: Callable[..., Path]) -> None:
    """Its parent has not waited for it yet."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            perf_opening.open_running([process.pid], INTERVAL_NS, follow=False)


def test_who_goes_on_wakes_us_when_the_first_one_has_ended() -> None:
    """The ring of each CPU is that of an event of the first one's, which hangs up with it."""
    with ExitStack() as stack:
        first, other = (stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE)) for command in (
            ["cat"], [sys.executable, "-c", "input()\nwhile True: pass"]))
        stack.callback(other.kill)
        opened = perf_opening.open_running([first.pid, other.pid], INTERVAL_NS, follow=False)
        engine = PerfEngine(opened, "a test")
        engine.start()
        stack.callback(engine.close)
        of_threads = {ring.fd for ring in opened.rings.rings if ring.name not in OF_EVERYONE}
        fds = [fd for fd in engine.poll_fds() if fd in of_threads]
        n_fds = len(engine.poll_fds())
        first.kill()
        first.wait()
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        while len(gone := [fd for fd, events in poller.poll(1000) if events & select.POLLHUP]) < len(fds):
            pass
        others = [engine.instead_of(fd) for fd in gone]
        assert all(fd is not None for fd in others)
        assert set(others) < set(engine.poll_fds())
        assert len(engine.poll_fds()) == n_fds
        for fd in gone:
            poller.unregister(fd)
        for fd in others:
            poller.register(fd, select.POLLIN)
        assert not [fd for fd, events in poller.poll(0) if events & select.POLLHUP]
        assert other.stdin is not None
        other.stdin.write(b"\n")
        other.stdin.close()
        ready = {fd for fd, events in poller.poll(60_000) if events & select.POLLIN}
        assert ready
        assert engine.wants_drain(ready, time.monotonic_ns() + 60 * 10**9)
        other.kill()
        other.wait()
        assert {engine.instead_of(fd) for fd in others} == {None}
        assert len(engine.poll_fds()) == n_fds - len(fds)


def written_ns(rings: perf.Rings, name: str) -> list[int]:
    """When the samples in the rings of a name were written, oldest first."""
    words = rings.memory.cast("Q")
    found = []
    for ring in rings.rings:
        if ring.name == name:
            base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
            found += [words[base + (at + 2 & mask)]
                      for at in walk(words, base, mask, rings.tail(ring) >> 3, rings.head(ring) >> 3)]
    return sorted(found)


@pytest.fixture
def napping(workload: Callable[..., Path]) -> Iterator[tuple[perf_opening.Opened, PerfEngine]]:
    """Events of a program that sleeps 2,000 times a second, and their engine."""
    with (subprocess.Popen([workload("naps"), "sleep", "100000", "500000"], stdout=subprocess.DEVNULL) as process,
          engine_of(process) as opened_and_engine):
        yield opened_and_engine


def test_a_ring_that_should_rest_and_is_written_into_is_let_rest_again(
        napping: tuple[perf_opening.Opened, PerfEngine]) -> None:
    opened, engine = napping
    for ring in opened.rings.rings:
        if ring.name == "site":
            opened.rings.wake(ring)  # as in a thread that is born while its events are let rest
    deadline_s = time.monotonic() + 10
    while not _heads(opened.rings, "site"):
        assert time.monotonic() < deadline_s
    engine.drain(time.monotonic_ns())
    engine.release()
    left, sites = _heads(opened.rings, "leave"), _heads(opened.rings, "site")
    while _heads(opened.rings, "leave") == left:
        assert time.monotonic() < deadline_s
    assert _heads(opened.rings, "site") == sites


@pytest.mark.parametrize("name", ["leave", "site"])
def test_a_departure_comes_with_its_switch_wherever_batches_end(
        napping: tuple[perf_opening.Opened, PerfEngine], name: str) -> None:
    """Also between the two, where a batch ends at a departure's own time and a moment behind it. It is younger than
    that batch's end then, and as old as it was otherwise."""
    opened, engine = napping
    opened.most_per_s.pop("leave")  # nobody lets it rest but we
    for ring in opened.rings.rings:
        if ring.name in ("leave", "site"):
            (opened.rings.wake if ring.name == name else opened.rings.rest)(ring)
    engine.drain(time.monotonic_ns())
    engine.release()
    deadline_s = time.monotonic() + 60
    while len(departures_ns := written_ns(opened.rings, name)) < 40:
        assert time.monotonic() < deadline_s
    before_ns, met = 0, []
    for number, until_ns in enumerate([*departures_ns[1:31], departures_ns[35] - 1]):
        until_ns += number % 3
        batch = engine.drain(until_ns)
        part = batch.leaving if name == "leave" else batch.sites
        if part is not None:
            assert batch.switches is not None
            out_ns = batch.switches.time_ns[batch.switches.edge != Edge.IN]
            # Each one's switch, and no other's, is the next one that is told behind it.
            assert out_ns.searchsorted(part.time_ns).tolist() == list(range(len(out_ns)))
            assert (before_ns < part.time_ns).all()
            met += part.time_ns.tolist()
        engine.release()
        before_ns = until_ns
    moved_ns = np.array(met) - departures_ns[:len(met)]
    assert len(met) == 35
    assert set(moved_ns[1:31]) <= {1, 2, 3}  # the first one may have been left over by the drain before
    assert set(moved_ns[31:]) == {0}


def test_a_ring_that_is_hardly_filled_waits_until_its_pace_has_nearly_filled_the_half(
        napping: tuple[perf_opening.Opened, PerfEngine]) -> None:
    opened, engine = napping
    (pid,) = opened.threads
    opened.most_per_s.pop("leave")  # nobody lets it rest
    while True:
        os.kill(pid, signal.SIGCONT)
        began_ns = time.monotonic_ns()
        engine.drain(began_ns)
        engine.release()
        came_ns, left = time.monotonic_ns(), _heads(opened.rings, "leave")
        while _heads(opened.rings, "leave") == left:
            assert time.monotonic_ns() < came_ns + 10_000_000_000
        os.kill(pid, signal.SIGSTOP)
        while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
            pass
        ring = next(ring for ring in opened.rings.rings
                    if ring.name == "leave" and opened.rings.head(ring) != opened.rings.tail(ring))
        n_bytes = opened.rings.head(ring) - opened.rings.tail(ring)
        if n_bytes <= ring.data_bytes // 4:  # it was stopped in time
            break
    assert engine.pressed_ns > came_ns + 3_600_000_000_000
    assert not engine.wants_drain({ring.fd}, came_ns)
    half_ns = (time.monotonic_ns() - began_ns) * ring.data_bytes // n_bytes // 2
    assert began_ns < engine.pressed_ns <= came_ns + half_ns
    maps = {ring.fd for ring in opened.rings.rings if ring.name == "map"}
    assert engine.wants_drain(maps, came_ns)  # a mapping that is lost is told by nobody


def test_a_clock_is_drained_before_a_busy_cpu_may_have_filled_its_ring(workload: Callable[..., Path]) -> None:
    """Even if its thread has slept most of the time so far."""
    with (subprocess.Popen([workload("busy"), "1", "60000"], stdout=subprocess.DEVNULL) as process,
          engine_of(process) as (opened, engine)):
        ring = next(ring for ring in opened.rings.rings
                    if ring.name == "clock" and ring.cpu in os.sched_getaffinity(process.pid))
        busy_ns = ring.data_bytes / perf_opening._sample_bytes(opened.stack_bytes) * INTERVAL_NS

        def filled() -> float:
            return (opened.rings.head(ring) - opened.rings.tail(ring)) / ring.data_bytes

        process.send_signal(signal.SIGSTOP)
        engine.drain(time.monotonic_ns())
        engine.release()
        time.sleep(busy_ns / 2e9)
        process.send_signal(signal.SIGCONT)
        deadline_s = time.monotonic() + 10
        while filled() < 0.3:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        now_ns = time.monotonic_ns()
        late_ns, soon_ns = (now_ns + int(busy_ns * (part - filled())) for part in (0.95, 0.7))
        assert engine.wants_drain({ring.fd}, late_ns)
        assert not engine.wants_drain({ring.fd}, soon_ns)
        # Nor does it have to be polled until then, unless a thread may be sampled more often than others.
        assert ring.fd not in engine.idle_fds(late_ns)
        assert ring.fd in engine.idle_fds(soon_ns)
        opened.spread_periods()
        assert not engine.idle_fds(soon_ns)


def test_events_are_given_back(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    n_open, others = [], threading.enumerate()
    for _ in range(2):
        drained(workload("start"))
        for thread in threading.enumerate():
            if thread not in others:
                thread.join()
        n_open.append(len(os.listdir("/proc/self/fd")))
    assert n_open[0] == n_open[1]


def test_a_process_that_is_gone_cannot_be_watched() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    n_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLookupError):  # which refuses no events
        perf_opening.open_events([process.pid], INTERVAL_NS, on_exec=True, follow=False)
    assert len(os.listdir("/proc/self/fd")) == n_before


def test_who_ends_while_its_events_are_opened_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are listed before and behind that."""
    with ExitStack() as stack:
        stays, ends = (stack.enter_context(subprocess.Popen(["sleep", "60"])) for _ in range(2))
        stack.callback(stays.kill)
        n_lists, open_file = 0, os.open

        def ended(path: Any, *arguments: Any, **more: Any) -> int:
            nonlocal n_lists
            n_lists += path == f"/proc/{ends.pid}/task"
            if n_lists == 2:
                ends.kill()
                ends.wait()
            return open_file(path, *arguments, **more)

        monkeypatch.setattr(os, "open", ended)
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError):
            perf_opening.open_running([stays.pid, ends.pid], INTERVAL_NS, follow=True)
        assert n_lists == 2
        assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("start", [0, 1, 5, 7])
def test_walking_goes_from_header_to_header_around_the_ring(start: int) -> None:
    sizes = [3, 1, 2, 1]  # words
    ring = np.zeros(8, np.uint64)
    positions, at = [], start
    for size in sizes:
        positions.append(at)
        ring[at % 8] = np.uint64(size * 8) << np.uint64(48)
        at += size
    view = memoryview(np.concatenate([np.zeros(3, np.uint64), ring]).tobytes()).cast("Q")
    assert walk(view, 3, 7, start, at) == positions
    assert walk(view, 3, 7, start, start) == []


AHEAD = """
import os, time
from collector.engines.perf import opening
from collector.engines.perf.engine import PerfEngine
from collector.linux import proc
opened = opening.open_events([os.getpid()], 10**7, on_exec=False, follow=False)
opened.rings.enable()
opened.guard(os.getpid())
(guard,) = opened.guards
while not any(ring.name == "leave" for ring in guard.rested):
    time.sleep(1e-6)
engine = PerfEngine(opened, "a test")
rested = [ring for ring in guard.rested if ring.name == "leave"]
for _ in range(10):
    time.sleep(0.1)
    engine.drain(time.monotonic_ns() - proc.clock_offset_ns())
    engine.release()
heads = [opened.rings.head(ring) for ring in rested]
for cpu in [ring.cpu for ring in rested]:
    os.sched_setaffinity(0, [cpu])
    time.sleep(0.01)
print(*(opened.rings.head(ring) > head for ring, head in zip(rested, heads)))
engine.stop()
engine.close()
"""


@pytest.mark.parametrize("ahead_s", [0, 86_400])
def test_departures_that_rested_as_the_engine_began_are_told_again(ahead_s: int, need: Callable[[str, str], str]
                                                                   ) -> None:
    """Also where our clock is a day ahead of the kernel's, as in a container that has been moved."""
    if os.geteuid():
        pytest.skip("only root makes a time namespace")
    apart = [need("unshare", "util-linux"), "-T", "--monotonic", str(ahead_s), "--fork", "--kill-child"]
    said = subprocess.run([*apart, sys.executable, "-c", AHEAD], check=True, capture_output=True, text=True).stdout
    assert set(said.split()) == {"True"}


TOO_FEW = """
import os, resource, threading
from collector.engines.perf import opening
def n_open(): return len(os.listdir("/proc/self/fd"))
gate = threading.Event()
for _ in range(10): threading.Thread(target=gate.wait, daemon=True).start()
before = n_open()
opened = opening.open_running([os.getpid()], 10**7, follow=True)
most = n_open()
opened.close()
assert n_open() == before
resource.setrlimit(resource.RLIMIT_NOFILE, (most - 3, most - 3))
opened = opening.open_running([os.getpid()], 10**7, follow=True)
print(most - n_open(), 11 * len({ring.cpu for ring in opened.rings.rings}))
opened.close()
"""


def test_first_samples_that_there_are_too_few_descriptors_for_take_none() -> None:
    """Else there would be none left for the experiment's files."""
    said = subprocess.run([sys.executable, "-c", TOO_FEW], check=True, capture_output=True, text=True).stdout
    n_left, n_first = map(int, said.split())
    assert n_left == n_first


NO_MORE_THREADS = """
import os, resource, time
from collector.engines.perf import opening
from collector.engines.perf.engine import PerfEngine
opened = opening.open_events([os.getpid()], 10**6, on_exec=False, follow=False)
engine = PerfEngine(opened, "a test")
engine.start()
end_s = time.thread_time() + 0.05
while time.thread_time() < end_s: pass
time.sleep(0.02)  # nothing else of this is sure to give up the CPU
if not os.getuid():
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
engine.stop()
batch = engine.drain(2**62)
print(len(batch.clock.tid), batch.switches is not None)
engine.release()
engine.close()
print(sum("perf_event" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]))
"""


def test_the_last_batch_comes_though_there_is_no_room_for_a_thread() -> None:
    """Whom we record may have used up the limit of threads, and run on."""
    said = subprocess.run([sys.executable, "-c", NO_MORE_THREADS], check=True, capture_output=True, text=True).stdout
    n_samples, has_switches, n_open = said.split()
    assert int(n_samples) >= 20
    assert has_switches == "True"
    assert n_open == "0"
