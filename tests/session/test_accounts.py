"""All time of all threads: what is recorded adds up, and agrees with the kernel's accounts.

``recorded`` itself checks every thread of every run: the sum of its states is its life, its CPU states are the
kernel's account of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from scheduler_events import WAIT, SchedulerEvents, times_of
from sockets import is_listening

from collector.experiment.reader import open_experiment

pytestmark = pytest.mark.usefixtures("perf_allowed")

INTERVAL_S = 10.007e-3
ON_CPU = ("user", "system", "trap")
SWITCHES_PER_S = 100_000  # above, they are counted
SIGTIMEDWAIT = 128  # the number of that system call
QUEUED_S = 30e-6  # at most, behind its wake-up, a thread is in a CPU's queue


@pytest.mark.parametrize(("name", "arguments"), [
    ("split", (0.7,)), ("usersys", (0.7, 61)), ("pingpong", (20011,)), ("sleepers", (101, 1.3)), ("eintr", (0.7,)),
    ("states", ("nanosleep", 1, 1700)),
])
def test_states_add_up_to_lives(name: str, arguments: tuple[object, ...], workload: Any, recorded: Any) -> None:
    run = recorded(workload(name), *arguments)
    threads = set(run.packets()["THRID"].tolist())
    # Whoever looks at them has no CPU, at times, from a short life's begin to its end.
    assert threads <= run.observed.keys() | {run.truth.get("reply_tid")}
    assert run.truth["pid"] in threads


@pytest.mark.kernel_times
def test_threads_that_switch_too_often_are_counted(workload: Any, recorded: Any) -> None:
    """From its first milliseconds on, by the kernel's accounts."""
    run = recorded(workload("pingpong"), 300_011, observed=False)
    # Where they get too little of a CPU they do not switch so often. A mean rate is reached at some time at least.
    n_switches, log = run.truth["n_voluntary"] + run.truth["n_involuntary"], run.experiment.log
    life_s = (log.end_ns - log.start_ns) * 1e-9
    if n_switches > 1.1 * SWITCHES_PER_S * life_s:
        assert "switched too often for a record of each" in (run.path / "log.xml").read_text()
    both = [run.states_s(tid) for tid in (run.truth["pid"], run.truth["reply_tid"])]
    cpu_s = run.truth["user_s"] + run.truth["system_s"]
    rounded_s = [INTERVAL_S * sum(seconds > 0 for seconds in states.values()) for states in both]
    told_s = [sum(states[each] for each in ON_CPU) for states in both]
    assert abs(sum(told_s) - cpu_s) <= 0.01 * cpu_s + sum(rounded_s)
    # Behind the last account, what both ran is known as a sum, and shared out: which is told.
    is_estimated = "the last tenth of a second is estimated" in (run.path / "log.xml").read_text()
    walls_s = run.truth["wall_s"], run.truth["reply_wall_s"]
    for states, on_cpu_s, error_s, wall_s in zip(both, told_s, rounded_s, walls_s, strict=True):
        life_told_s = sum(states.values())
        assert wall_s - error_s <= life_told_s <= life_s + error_s + (on_cpu_s if is_estimated else 0)
        # Whoever of the two does not run sleeps, or waits for their CPU, as others may let it.
        assert states["sleep"] + states["wait"] == pytest.approx(life_told_s - on_cpu_s, abs=3 * INTERVAL_S)
    assert run.unrooted_share() <= 0.01
    counted = sum(sample.counters[name] for sample in run.experiment.samples
                  for name in ("voluntary_switches", "involuntary_switches"))
    # Main is asked at its end, and switches in each round. Its partner's switches behind the last look are estimated.
    assert 0.99 * run.truth["rounds"] <= counted <= 1.01 * n_switches


def test_the_overview_counts_the_switches_of_all_threads(workload: Any, recorded: Any) -> None:
    run = recorded(workload("pingpong"), 3001)  # too few to be counted, not recorded
    counted = [sum(sample.counters[name] for sample in run.experiment.samples)
               for name in ("voluntary_switches", "involuntary_switches")]
    assert counted[0] == pytest.approx(run.truth["n_voluntary"], rel=0.01, abs=20)
    assert sum(counted) == pytest.approx(run.truth["n_voluntary"] + run.truth["n_involuntary"], rel=0.01, abs=20)


@pytest.mark.kernel_times
@pytest.mark.parametrize("n_threads", [1009, 2503])
def test_many_threads_wait_for_a_lock(n_threads: int, workload: Any, recorded: Any, tmp_path: Path) -> None:
    """Of the larger number, so many block at once that the records of it do not fit: who is lost is asked where it
    waits, if it is looked at before it goes on. So they go on when the experiment tells of each what it did behind the
    moment when all were seen to wait. All between that moment and the signal is lock time then, or a wait for a CPU:
    where no wake-up tells, the kernel's account does, which takes the rest of a sleep for a wait if it moves who has
    just gone to sleep."""
    window_ns: list[int] = []

    def look(pid: int) -> None:
        tids = _all_that_sleep(pid, n_threads)
        began_ns = time.monotonic_ns()
        while True:
            packets = open_experiment(tmp_path / "run.0.er").packets()
            if tids <= set(packets["THRID"][packets["TSTAMP"] > began_ns].tolist()):
                break
            time.sleep(0.05)
        window_ns.extend((began_ns, time.monotonic_ns()))
        os.kill(pid, signal.SIGUSR1)

    run = recorded(workload("sleepers"), n_threads, 100, meanwhile=look, observed=False)
    packets, stacks = run.packets(), run.experiment.stacks
    seen = packets[(packets["TSTAMP"] > window_ns[0]) & (packets["TSTAMP"] <= window_ns[1])]
    index = stacks.index(seen["FRINFO"])
    assert ((index < 0) | stacks.truncated[index] | stacks.failed[index]).mean() <= 0.01
    tids = set(packets["THRID"].tolist()) - {run.truth["pid"]}
    assert len(tids) == n_threads
    states = {tid: run.states_s(tid) for tid in tids}
    waited_s = sum(mine["lock"] + mine["wait"] for mine in states.values())
    rounded_s = 2 * n_threads * INTERVAL_S  # each state of each thread
    assert run.truth["asleep_s"] - rounded_s <= waited_s <= run.truth["lived_s"] + rounded_s
    window_s = (window_ns[1] - window_ns[0]) * 1e-9
    assert min(mine["lock"] + mine["wait"] for mine in states.values()) >= window_s - 2 * INTERVAL_S


def _all_that_sleep(pid: int, n_threads: int) -> set[int]:
    """The threads of ``sleepers`` without main, once main waits for its signal: then each has counted itself, and
    sleeps from when it is first seen to until it is woken."""
    while not Path(f"/proc/{pid}/syscall").read_text().startswith(f"{SIGTIMEDWAIT} "):
        time.sleep(0.01)
    tids = set(map(int, os.listdir(f"/proc/{pid}/task"))) - {pid}
    assert len(tids) == n_threads
    awake = tids
    while awake := {tid for tid in awake if " S " not in Path(f"/proc/{pid}/task/{tid}/stat").read_text()}:
        time.sleep(0.01)
    return tids


def _wait_for_threads(pid: int, n_threads: int) -> None:
    """Until a program has all its threads: what its main does before them is done."""
    while len(os.listdir(f"/proc/{pid}/task")) < n_threads:
        time.sleep(0.002)


def test_threads_stopped_while_they_sleep_are_stopped(workload: Any, recorded: Any) -> None:
    """SIGSTOP and SIGCONT for a program whose threads are all in system calls."""
    times_s: list[float] = []

    def stop(pid: int) -> None:
        _wait_for_threads(pid, 6)
        time.sleep(0.4)
        times_s.append(time.monotonic())
        os.kill(pid, signal.SIGSTOP)
        times_s.append(time.monotonic())
        time.sleep(0.7)
        times_s.append(time.monotonic())
        os.kill(pid, signal.SIGCONT)
        times_s.append(time.monotonic())
        os.kill(pid, signal.SIGUSR1)

    run = recorded(workload("sleepers"), 5, 100, meanwhile=stop)
    at_least_s, at_most_s = times_s[2] - times_s[1], times_s[3] - times_s[0]
    # Whoever takes the signal, when there is a CPU for it, tells the others, which need a CPU to stop as well.
    told_s = max(seen.delay_s[1] for seen in run.observed.values())
    for tid in run.observed:
        states = run.states_s(tid)
        waited_s = max(states["wait"], run.observed[tid].delay_s[1])
        slack = run.stolen_s + 2 * INTERVAL_S + told_s + waited_s  # each state is rounded
        assert at_least_s - slack <= states["stop"] <= at_most_s + slack, f"{tid}: {states}"


def test_threads_held_by_a_debugger_are_stopped(workload: Any, recorded: Any, need: Callable[[str, str], str]) -> None:
    gdb, held = need("gdb", "gdb"), []
    script = "import time; start = time.monotonic(); time.sleep(0.7); print('held', time.monotonic() - start)"

    def hold(pid: int) -> None:
        _wait_for_threads(pid, 4)
        time.sleep(0.4)
        start = time.monotonic()
        done = subprocess.run([gdb, "-nx", "-q", "-batch", "-p", str(pid), "-ex", f"python {script}", "-ex", "detach"],
                              capture_output=True, text=True, timeout=60, check=False)
        held.append(time.monotonic() - start)
        os.kill(pid, signal.SIGUSR1)
        assert done.returncode == 0, done.stderr
        held.insert(0, float(done.stdout.split("held ")[1].split()[0]))

    run = recorded(workload("sleepers"), 3, 100, meanwhile=hold)
    for tid in run.observed:
        states = run.states_s(tid)
        assert held[0] - INTERVAL_S - states["wait"] <= states["stop"] <= held[1] + INTERVAL_S, (states, held)


# --- a real program ---------------------------------------------------------------------------------------------------


def test_a_servers_waits_for_a_cpu_are_those_of_the_kernels_account(
        recorded: Any, need: Callable[[str, str], str], tmp_path: Path) -> None:
    """Of each of its threads, however often it is woken: no less, and no more than wake-ups come before their queues.

    Where the kernel moves a thread that sleeps to another CPU, its account takes the rest of the sleep for a wait (see
    README, run_delay): less than that is right if the scheduler's own events, of which perf has lost none, tell less.
    """
    server, benchmark = need("redis-server", "redis-server"), need("redis-benchmark", "redis-tools")
    client, socket, n_requests = need("redis-cli", "redis-tools"), tmp_path / "redis.sock", 701
    events = None
    if os.geteuid() == 0:  # who sees the machine's
        events = SchedulerEvents(need("perf", "linux-perf"), need("unshare", "util-linux"), tmp_path)

    def load(_pid: int) -> None:
        while not is_listening(socket):
            time.sleep(0.02)
        for _ in range(2):
            subprocess.run([benchmark, "-s", socket, "-q", "-t", "lrange_300,lrange_600", "-n", str(n_requests),
                            "-c", "3"], stdout=subprocess.DEVNULL, timeout=60, check=True)
            time.sleep(0.2)
        subprocess.run([client, "-s", socket, "shutdown", "nosave"], timeout=60, check=True)

    with events or nullcontext():
        run = recorded(server, "--port", 0, "--unixsocket", socket, "--save", "", "--dir", tmp_path, meanwhile=load)
    tids = set(run.packets()["THRID"].tolist())
    by_events, n_missing = times_of(events.lines(), tids) if events else ({}, 0)
    assert len(tids) >= 4  # redis has threads of its own for closing files and the like
    assert tids == run.observed.keys()
    n_switches = sum(sample.counters["voluntary_switches"] for sample in run.experiment.samples)
    assert n_switches > n_requests
    for tid, seen in run.observed.items():
        wait_s, slack_s = run.states_s(tid)["wait"], 1.1 * INTERVAL_S + 0.01 * seen.delay_s[1]
        above_s = QUEUED_S * n_switches + run.stolen_s
        least_s = seen.delay_s[0]
        if tid in by_events and not n_missing:
            least_s = min(least_s, by_events[tid][WAIT])
        assert least_s - slack_s <= wait_s <= seen.delay_s[1] + above_s + slack_s, (tid, seen)
