"""What the tests of microstates share: a target under ``collect`` with a second observer beside it.

The observer reads the kernel's own account of every thread, ``/proc/PID/task/TID/schedstat`` (time on CPU, time waiting
for a CPU), every few milliseconds until the thread has gone. Between two looks it does not know, so it tells bounds: a
thread was born between the last look that did not find it and the first one that did. Now and then Linux counts nearly
all of a sleep as a wait for a CPU (see README, run_delay): who was seen to sleep has waited since then, at most.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import prefork
import pytest
from children import children_of

from collector.cli import er_print
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES
from collector.linux import proc

INTERVALS_S = {"on": 10.007e-3, "hi": 0.997e-3}
FIRST_WAITING_STATE = 3
CPU_STATES = STATES[:FIRST_WAITING_STATE]
LOOK_EVERY_S = 0.004
COLLECT = str(Path(sys.executable).parent / "collect")
NOBODY = 65534
PF_EXITING = 0x4  # of the kernel's flags of a thread

Bounds = tuple[float, float]


def runs_python(pid: int) -> bool:
    """Whether a process runs our Python. Raises OSError."""
    return os.readlink(f"/proc/{pid}/exe") == os.path.realpath(sys.executable)


def account(schedstat: int) -> tuple[float, float]:
    """How long a thread has had a CPU, and has waited for one, by a descriptor. Raises OSError."""
    cpu_ns, delay_ns, _ = map(int, os.pread(schedstat, 64, 0).split())
    return cpu_ns * 1e-9, delay_ns * 1e-9


def account_of(pid: int) -> tuple[float, float]:
    """The same of a process's first thread. Raises OSError."""
    with open(f"/proc/{pid}/schedstat", "rb", buffering=0) as file:
        return account(file.fileno())


def has_begun(pid: int) -> bool:
    """Whether a process that execs has carried that out, and is not held at its end by who traces it. An engine may
    count it from either end. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    state, start_code = fields[0], int(fields[23])
    return state in "ZX" or (start_code != 0 and state not in "tT")  # 1 where we may not know


@dataclass
class Seen:
    """A thread as the kernel accounts for it, in seconds; what it had before its exec is ``*_before``."""

    born: Bounds
    died: Bounds = (0.0, 0.0)
    cpu: float = 0.0
    delay: float = 0.0
    told: float = 0.0  # the same as its account has it, and collect may tell it
    delay_alive: float = 0.0  # as of ``alive``
    looked: float = 0.0
    account: Bounds = (0.0, 0.0)  # the kernel's, when it was looked at
    rested: float = 0.0  # then, if it was seen to sleep just behind that; else 0
    slept: float = 0.0  # the last time of these before which nothing had happened since it was looked at
    queued: float = 0.0  # since when it may wait for a CPU: a wait is in its account when it is over
    alive: float = 0.0  # when it was last seen that had not begun to exit: then its records end
    cpu_before: Bounds = (0.0, 0.0)
    delay_before: Bounds = (0.0, 0.0)

    def note(self, account: Bounds, now: float) -> bool:
        """Takes its account, which was read before ``now``; whether it is as it was. It has not waited for longer than
        since it slept, whatever the account says: where the kernel moves who has just gone to sleep, it takes the rest
        of the sleep for a wait."""
        is_same = account == self.account
        if is_same and self.rested:
            self.slept = self.rested
        grown = account[1] - self.account[1]
        self.told += grown
        self.delay += min(grown, now - self.slept) if self.slept else grown
        self.cpu, self.account = account[0], account
        return is_same

    @property
    def life_s(self) -> Bounds:
        """From birth or exec to death."""
        return self.died[0] - self.born[1], self.died[1] - self.born[0]

    @property
    def cpu_s(self) -> Bounds:
        """Time on CPU; it may have run on until its death after the last look."""
        return self.cpu - self.cpu_before[1], self.cpu - self.cpu_before[0] + self.died[1] - self.looked

    @property
    def delay_s(self) -> Bounds:
        """Time runnable and not running: at least until it began to exit, when its records end; at most to death."""
        return self.delay_alive - self.delay_before[1], self.told - self.delay_before[0] + self.died[1] - self.queued


class Observer(threading.Thread):
    """Looks at all threads of ``collect``'s child until it has ended."""

    def __init__(self, collect_pid: int, since: float) -> None:
        """``since``: when nothing of it ran yet; the first look may be late."""
        super().__init__(daemon=True)
        self._since = since
        self.threads: dict[int, Seen] = {}
        self._collect = collect_pid
        self._files: dict[int, tuple[int, int]] = {}  # schedstat and stat

    def run(self) -> None:
        """From the child's exec to its end."""
        pid = self._child()
        if not pid:
            return
        before = self.threads[pid].born[0]
        while self._look(pid, before):
            before = self._looked
            time.sleep(LOOK_EVERY_S)
        for tid in list(self._files):
            self._close(tid)

    def _open(self, tid: int, folder: str, seen: Seen) -> None:
        """Raises OSError."""
        fds = [os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("schedstat", "stat")]
        self._files[tid], self.threads[tid] = (fds[0], fds[1]), seen

    def _close(self, tid: int) -> None:
        for fd in self._files.pop(tid):
            os.close(fd)

    def _child(self) -> int:
        """The child, as soon as it runs its own program; 0 if it never does."""
        pid, past = 0, Seen((0.0, 0.0), looked=self._since)  # what was known before the program runs
        while True:
            now = time.monotonic()
            try:
                pid = pid or children_of(self._collect)[0]  # its watchdog and its heir come later
                cpu_s, delay_s = account_of(pid)
                runs_us = runs_python(pid)
                if not runs_us and not has_begun(pid):
                    continue
                if not runs_us:
                    cpu_s, delay_s = account_of(pid)  # whoever looks may wait for a CPU between two looks
            except IndexError:
                past.looked = now
                continue
            except OSError:
                return 0
            if not runs_us:
                self._open(pid, f"/proc/{pid}", Seen(
                    (past.looked, time.monotonic()), queued=past.looked, alive=now, delay_alive=delay_s,
                    cpu_before=(past.cpu, cpu_s), delay_before=(past.delay, delay_s)))
                return pid
            past = Seen((0.0, 0.0), cpu=cpu_s, delay=delay_s, looked=now)

    def _look(self, pid: int, before: float) -> bool:
        """One look at every thread; False when the process has ended."""
        self._looked = time.monotonic()
        try:
            tids = set(map(int, os.listdir(f"/proc/{pid}/task")))
            ended = tids <= {pid} and ") Z " in Path(f"/proc/{pid}/stat").read_text()  # others may outlive the first
        except OSError:
            tids, ended = set(), True
        for tid in tids - self._files.keys() - self.threads.keys():
            with suppress(OSError):
                self._open(tid, f"/proc/{pid}/task/{tid}", Seen(
                    (before, time.monotonic()), queued=before, alive=self._looked))
        for tid, (schedstat, stat) in list(self._files.items()):
            seen, now = self.threads[tid], time.monotonic()
            try:
                known, read = account(schedstat), time.monotonic()
                is_same, seen.looked = seen.note(known, read), now
                fields = os.pread(stat, 1024, 0).rpartition(b")")[2].split()
                seen.rested = 0.0 if fields[0] == b"R" else read
                if fields[0] != b"R" or not is_same:
                    seen.queued = now
                if not int(fields[6]) & PF_EXITING:
                    seen.alive, seen.delay_alive = seen.looked, seen.delay
            except OSError:
                self._close(tid)
                seen.died = (seen.alive, time.monotonic())
            if ended and seen.died == (0.0, 0.0):
                seen.died = (min(before, seen.alive), time.monotonic())
        return not ended


@dataclass
class Recorded:
    """A finished recording: what the target said of itself, what ``collect`` said, and what the observer saw."""

    path: Path
    truth: dict[str, Any]
    said: str
    observed: dict[int, Seen]
    interval_s: float
    precision: float  # of a thread's times, beside an interval
    is_traced: bool
    stolen_s: float = 0.0  # for which a hypervisor let others have our CPUs meanwhile

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment through our own reader."""
        return open_experiment(self.path)

    def packets(self, tid: int | None = None) -> Any:
        """The packets, of one thread if asked for."""
        packets = self.experiment.packets()
        return packets if tid is None else packets[packets["THRID"] == tid]

    def states_s(self, tid: int | None = None) -> dict[str, float]:
        """Seconds in each state, of one thread or of all."""
        mine = self.packets(tid)
        ticks = np.bincount(mine["MSTATE"], mine["NTICK"], len(STATES))
        return {name: float(n) * self.interval_s for name, n in zip(STATES, ticks, strict=True)}

    def met(self) -> Any:
        """The packets that have a stack: whoever lives for less than a tracer waits for a CPU is never looked at."""
        packets, stacks = self.packets(), self.experiment.stacks
        index = stacks.index(packets["FRINFO"])
        return packets[~((index >= 0) & stacks.failed[index] & (np.diff(stacks.offsets)[index] == 0))]

    def _waiting(self, packets: Any) -> tuple[Any, Any]:
        """The packets in waiting states, of all or some, and which of them have their leaf alone, as before main.

        A static program has a frame of a page before its main, of which the kernel copies nothing as long as that page
        is not there: who waits then has its leaf alone.
        """
        packets = self.packets() if packets is None else packets
        waiting = packets[packets["MSTATE"] >= FIRST_WAITING_STATE]
        stacks = self.experiment.stacks
        index = stacks.index(waiting["FRINFO"])
        before_main = waiting["FRINFO"][waiting["TSTAMP"] < self.truth.get("begun_ns", 0)]
        is_leaf_alone = (index >= 0) & stacks.truncated[index] & (np.diff(stacks.offsets)[index] == 1)
        return waiting, is_leaf_alone & np.isin(waiting["FRINFO"], before_main)

    def n_leaf_alone(self, packets: Any = None) -> int:
        """Ticks of stacks that have their leaf alone, as it was before main."""
        waiting, is_alone = self._waiting(packets)
        return int(waiting["NTICK"][is_alone].sum())

    def unrooted_share(self, packets: Any = None) -> float:
        """Of the ticks in waiting states, of all packets or some, the part whose stack does not reach the root, without
        those that have their leaf alone, as it was before main."""
        waiting, is_alone = self._waiting(packets)
        stacks = self.experiment.stacks
        index = stacks.index(waiting["FRINFO"])
        bad = ((index < 0) | stacks.truncated[index] | stacks.failed[index]) & ~is_alone
        return float(waiting["NTICK"][bad].sum() / max(waiting["NTICK"].sum(), 1))

    def outside_s(self, thread: dict[str, Any]) -> float:
        """For how long, at most, one of ``truth``'s threads lived outside of its turns, which it times: it may wait for
        others then, such as a partner that has to wait for a CPU."""
        return self.observed[thread["tid"]].life_s[1] - float(thread["wall_s"])

    @cached_property
    def _begun_s(self) -> dict[int, float]:
        log = (self.path / "log.xml").read_text(errors="replace")
        found = re.findall(r'<event kind="jthread_start" tstamp="([\d.]+)"[^>]* tid="(\d+)"', log)
        return {int(tid): float(time_s) for time_s, tid in reversed(found)}

    def begun_s(self, tid: int) -> float:
        """When a thread began, as the log has it."""
        assert tid in self._begun_s, f"the log knows of no {tid}"
        return self._begun_s[tid]

    def check_accounts(self) -> None:
        """Every thread's states add up to its life, and its CPU states to the kernel's account of it.

        Who is traced lives from the stop at the end of its exec on, or at its birth, until whose news the tracer has
        had a CPU: it begins when we say, but the first thread no later than its main.
        """
        for number, (tid, seen) in enumerate(self.observed.items()):
            states, (least_s, most_s) = self.states_s(tid), seen.life_s
            begun_s = self.begun_s(tid)
            assert number or begun_s * 1e9 <= self.truth.get("begun_ns", math.inf)
            if self.is_traced or number == 0:
                least_s = min(least_s, seen.died[0] - begun_s)
            slack = self.interval_s + self.precision * most_s + self.stolen_s
            cpu = [states[name] for name in CPU_STATES]
            assert within(sum(states.values()), (least_s, most_s), slack), f"{tid}: {states}, {seen}, {begun_s}"
            # Each state's ticks are rounded for themselves.
            slack += max(sum(map(bool, cpu)) - 1, 0) * self.interval_s
            assert within(sum(cpu), seen.cpu_s, slack), f"{tid}: {states}, ran {seen.cpu_s}"


def within(value: float, bounds: Bounds, slack: float) -> bool:
    """Whether a value lies between bounds, give or take a slack."""
    return bounds[0] - slack <= value <= bounds[1] + slack


def running_child(parent: int) -> int:
    """The child of a collector that is no Python, as its watchdog and its heir are, once there is one."""
    while True:
        for child in children_of(parent):
            with suppress(OSError):
                if not runs_python(child):
                    return child
        time.sleep(0.002)


@pytest.fixture
def root() -> None:
    """For tests of what only root may do."""
    if os.geteuid() != 0 and os.environ.get("CI"):
        pytest.fail("under CI nothing is skipped: root is needed", pytrace=False)
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def small_disk(root: None, need: Callable[[str, str], str], tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """``small_disk(100)``: a file system of about so many KiB."""
    mount, umount = need("mount", "mount"), need("umount", "mount")
    mounted: list[Path] = []

    def make(kib: int) -> Path:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        subprocess.run([mount, "-t", "tmpfs", "-o", f"size={kib}k,mode=777", "tmpfs", path], check=True)
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run([umount, path], check=True)


def _recorder(directory: Path, precision: float, stolen: Callable[[], float],
              *options: str) -> Callable[..., Recorded]:
    count = iter(range(1000))

    def run(program: Path | str, *arguments: object, interval: str = "on",
            meanwhile: Callable[[int], object] | None = None, observed: bool = True) -> Recorded:
        path = directory / f"run.{next(count)}.er"
        command = [COLLECT, *options, "-p", interval, "-o", str(path), str(program), *map(str, arguments)]
        stolen_before, since = stolen(), time.monotonic()
        with prefork.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            observer = Observer(process.pid, since)
            if observed:
                observer.start()
            if meanwhile is not None:
                meanwhile(running_child(process.pid))
            out, err = process.communicate(timeout=60)
            if observed:
                observer.join()
        assert process.returncode == 0, err
        truth = json.loads(out) if out.startswith("{") else {}
        run = Recorded(path, truth, err, observer.threads, INTERVALS_S[interval], precision, "signal" in options,
                       stolen() - stolen_before)
        run.check_accounts()
        return run

    return run


@pytest.fixture
def recorded(tmp_path: Path, perf_allowed: None, stolen: Callable[[], float]) -> Callable[..., Recorded]:
    """``recorded(program, "mutex", 7, 31)``: the program under ``collect -p on``, observed, its accounts checked.

    ``interval="hi"`` for -p hi; ``meanwhile(pid)`` is called while the program runs; ``observed=False`` where looking
    would cost too much.
    """
    return _recorder(tmp_path, 0.001, stolen)


@pytest.fixture
def recorded_by_signals(tmp_path: Path, stolen: Callable[[], float]) -> Callable[..., Recorded]:
    """The same with the signal engine, which hears of births and ends as soon as it has a CPU."""
    return _recorder(tmp_path, 0.015, stolen, "--engine", "signal")


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that anybody may enter and write to; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="collect-test-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(scope="session")
def as_nobody() -> list[str]:
    """What a command begins with that an ordinary user runs."""
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    if subprocess.run([*become, sys.executable, "-c", "import numpy"], capture_output=True, check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail("under CI nothing is skipped: this Python is private", pytrace=False)
        pytest.skip("this Python is private")
    return become


@pytest.fixture
def refused(public_directory: Path, as_nobody: list[str], workload: Callable[..., Path]) -> Callable[
        ..., subprocess.CompletedProcess[str]]:
    """``refused(errno, "split", 3)``: what collect did, by an ordinary user without any option, to a workload where
    perf_event_open fails like that."""
    def run(code: int, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        for name in ("noperf", program):
            shutil.copy(workload(name), public_directory / name)
        command = ["./noperf", str(code), *as_nobody, COLLECT, f"./{program}", *map(str, arguments)]
        return subprocess.run(command, cwd=public_directory, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture
def times(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, float]]:
    """``times(experiment, "i.totalcpu", *settings)``: seconds by function, as ``er_print`` prints them; functions of
    one name are added up."""

    def seconds(experiment: Path, metric: str, *settings: str) -> dict[str, float]:
        command = [*settings, "-metrics", f"{metric}:name", "-printmode", "|", "-functions", str(experiment)]
        assert er_print.run(command) == 0
        found: dict[str, float] = {}
        for value, name in re.findall(r'^"([\d.]+)"\|"(.*)"$', capsys.readouterr().out, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    return seconds


@pytest.fixture(scope="session")
def kernel_shown(waits_recorded: None) -> None:
    """For tests that need the kernel's addresses, as samples and symbols tell them."""
    if os.geteuid() != 0 or not proc.kernel_functions(rb"do_syscall_64"):
        if os.environ.get("CI"):
            pytest.fail("under CI nothing is skipped: root is needed, and kernel.kptr_restrict below 2", pytrace=False)
        pytest.skip("the kernel shows its addresses to root, unless kernel.kptr_restrict is 2")


@pytest.fixture(scope="session")
def byte_by_byte(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A program of many short system calls, which goes on until it is ended.

    A third of its time is in vfs_write and a tenth in vfs_read, so that some hundred samples meet both for certain.
    What /dev/null has to do for a write is so short that they may meet none.
    """
    return ["dd", "if=/dev/zero", f"of={tmp_path_factory.mktemp('copy') / 'zeros'}", "bs=1"]


@pytest.fixture(scope="session")
def million_bytes(byte_by_byte: list[str]) -> list[str]:
    """The same, of half a second, or more, of system calls."""
    return [*byte_by_byte, "count=1000001"]
