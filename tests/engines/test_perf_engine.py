"""The perf engine on real programs: nothing missed, nothing twice, everything in its time, whenever it is drained."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.engines.perf import opening as perf_opening
from collector.engines.perf.engine import PerfEngine
from collector.engines.perf.samples import walk
from collector.events import Accounts, Batch, Change, Edge, Executed, Exited, Forked, Mapped, Mode, RecordsLost
from collector.linux import perf

pytestmark = pytest.mark.usefixtures("perf_allowed")

INTERVAL_NS = 997_000
FOREVER_NS = 2**62
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
                             ("switches", ("time_ns", "pid", "tid", "edge")), ("leaving", ("time_ns", "tid", "regs"))):
            part = getattr(batch, name)
            if part is not None:
                times += part.time_ns.tolist()
                assert (np.diff(part.time_ns) >= 0).all()
                for column in fields:
                    self.columns.setdefault(f"{name}.{column}", []).append(getattr(part, column).copy())
        if times:
            self.bounds.append((min(times), max(times), batch.until_ns))

    def all(self, name: str) -> np.ndarray:
        """A column of all batches."""
        return np.concatenate(self.columns[name])

    def of(self, kind: type[Change]) -> list[Any]:
        """The changes of a kind."""
        return [change for change in self.changes if isinstance(change, kind)]


@pytest.fixture
def drained(tmp_path: Path) -> Iterator[Callable[..., Drained]]:
    """``drained(program, 0.3, every_s=0.01)``: runs a program from its exec to its end under the engine."""

    def run(*command: object, every_s: float = 0.1, slack_ns: int = 10_000_000,
            asked: Sequence[tuple[int, int]] = (), guarded: bool = False) -> Drained:
        held = ["/bin/sh", "-c", 'read line; exec "$@"', "sh", *map(str, command)]
        with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            opened = perf_opening.open_events([process.pid], INTERVAL_NS, on_exec=True, follow=False)
            if guarded:
                opened.guard(process.pid)
            engine = None if guarded else PerfEngine(opened, "a test")
            result = Drained(process.pid)
            process.stdin.write(b"\n")
            process.stdin.flush()
            ended = os.pidfd_open(process.pid)
            while process.poll() is None:
                select.select([ended], [], [], every_s)
                if engine is None:
                    engine = PerfEngine(opened, "a test")
                result.accounts.append(engine.look(asked))
                until_ns = time.monotonic_ns()
                time.sleep(slack_ns / 1e9)
                result.take_all(engine, until_ns)
            os.close(ended)
            assert engine is not None
            engine.stop()
            result.take_all(engine, FOREVER_NS)
            assert process.stdout is not None
            result.truth = json.loads(process.stdout.read())
            last = engine.drain(FOREVER_NS)
            assert (last.changes, last.clock, last.switches) == ((), None, None)
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
    # Ends are told of the whole machine, and for five seconds there may be too many.
    assert {change.source for change in found.of(RecordsLost)} <= {"dying", "dead"}
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
    found = drained(workload("split"), 0.44, every_s=0.01)
    assert len(found.bounds) >= 7
    for first, last, until in found.bounds:
        assert first <= last <= until
    for (_, _, until), (first, _, _) in zip(found.bounds, found.bounds[1:], strict=False):
        assert first > until - 1  # nothing from before the last batch's end


def test_the_clock_ticks_once_per_interval(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("split"), 0.66)
    cpu_s = found.truth["user_s"] + found.truth["system_s"]
    # Each thread's clock runs on each CPU by itself: up to an interval per thread and CPU has not come to a sample.
    rounding = 3 * len(perf.online_cpus()) + 1
    assert len(found.all("clock.tid")) == pytest.approx(cpu_s * 1e9 / INTERVAL_NS, abs=rounding, rel=0.02)
    modes = Counter(found.all("clock.mode").tolist())
    assert modes[Mode.USER] >= 0.9 * sum(modes.values())


def test_switches_add_up_to_the_cpu_time(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    found = drained(workload("split"), 0.66)
    time_ns, tid, edge = (found.all(f"switches.{name}") for name in ("time_ns", "tid", "edge"))
    ends = {change.tid: change.time_ns for change in found.of(Exited)}
    total_ns = 0
    for thread in found.truth["threads"]:
        mine = tid == thread["tid"]
        edges, times = edge[mine], time_ns[mine]
        is_in = edges == Edge.IN
        assert (is_in[1:] != is_in[:-1]).all()  # in, out, in, out
        # The founder ran already when its events began, at its exec.
        before = [] if is_in[0] else [found.of(Executed)[0].time_ns]
        starts = np.concatenate([np.array(before, np.int64), times[is_in]])
        outs = times[~is_in]
        if len(outs) < len(starts):
            outs = np.append(outs, ends[thread["tid"]])
        total_ns += int((outs - starts).sum())
    assert total_ns * 1e-9 == pytest.approx(found.truth["user_s"] + found.truth["system_s"], rel=0.02)


def test_a_look_has_the_accounts_of_those_who_ran_and_live(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """And of the one that is asked for each time: the test itself, which none of the events is of."""
    me = os.getpid(), threading.get_native_id()
    before_ns = time.monotonic_ns()
    found = drained(workload("split"), 0.66, every_s=0.05, asked=[me, (2**22 + 1, 2**22 + 1)])
    tids = {thread["tid"] for thread in found.truth["threads"]}
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for accounts in found.accounts:
        assert accounts.tid.tolist().count(me[1]) == 1
        assert before_ns < accounts.time_ns.min() <= accounts.time_ns.max() <= accounts.read_ns
        before_ns = accounts.read_ns
        columns = (accounts.tid, accounts.run_ns, accounts.delay_ns, accounts.turns)
        for tid, *account in zip(*(column.tolist() for column in columns), strict=True):
            seen.setdefault(tid, []).append(tuple(account))
    assert {found.pid, me[1]} <= seen.keys() <= tids | {me[1]}
    said_ns = {thread["tid"]: thread["cpu_s"] * 1e9 for thread in found.truth["threads"]}
    for tid in tids & seen.keys():
        assert seen[tid] == sorted(seen[tid])
        assert 0 < seen[tid][-1][0] < said_ns[tid] + 20e6  # of which its start and its end are no part


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
    assert inside.all()  # every program counter lies in memory that was told


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


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_a_full_ring_of_stacks_loses_samples_and_nothing_else(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """Nobody comes for longer than the clock's ring has room. The last losses have no record behind them."""
    found = drained(workload("split"), 4.4, every_s=30)
    cpu_s = found.truth["user_s"] + found.truth["system_s"]
    n_samples = len(found.all("clock.tid")) + sum(change.n_records for change in found.of(RecordsLost))
    rounding = 3 * len(perf.online_cpus()) + 1
    assert n_samples == pytest.approx(cpu_s * 1e9 / INTERVAL_NS, abs=rounding, rel=0.02)
    tids = [thread["tid"] for thread in found.truth["threads"]]
    assert {change.source for change in found.of(RecordsLost)} == {"clock"}
    assert len(found.of(Executed)) == 1
    assert [change.tid for change in found.of(Forked)] == tids[1:]
    assert sorted(change.tid for change in found.of(Exited)) == sorted(tids)
    assert any(change.path.endswith(b"/libc.so.6") for change in found.of(Mapped))


def test_a_clock_whose_ring_fills_up_gives_way_to_small_copies(
        workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    """The same, while the collector starts."""
    found = drained(workload("split"), 4.4, every_s=30, guarded=True)
    assert found.of(RecordsLost) == []
    cpu_s = found.truth["user_s"] + found.truth["system_s"]
    # Beside what has not come to a sample at the threads' ends, an interval for each, where one clock gave way.
    rounding = 2 * 3 * len(perf.online_cpus()) + 1
    assert len(found.all("clock.tid")) == pytest.approx(cpu_s * 1e9 / INTERVAL_NS, abs=rounding, rel=0.02)


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


def test_events_are_given_back(workload: Callable[..., Path], drained: Callable[..., Drained]) -> None:
    n_open = []
    for _ in range(2):
        drained(workload("start"))
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(10)
        n_open.append(len(os.listdir("/proc/self/fd")))
    assert n_open[0] == n_open[1]


def test_a_process_that_is_gone_cannot_be_watched() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    n_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Exception, match=r"perf events cannot be opened: .*No such process"):
        perf_opening.open_events([process.pid], INTERVAL_NS, on_exec=True, follow=False)
    assert len(os.listdir("/proc/self/fd")) == n_before


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
