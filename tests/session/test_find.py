"""How threads of real programs are found: what they wait for, where, and on which CPU they were last."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from living import ready

from collector.events import Edge, Reason
from collector.linux import tasks
from collector.session.attach import STACK_WORDS, account_of, departures, find
from collector.session.objects import Objects
from collector.session.placing import placed_frames_of
from collector.session.world import Sleeper, ThisMachine
from collector.unwind.table import Tables

PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static void *waits(void *unused) {
    pthread_mutex_lock(&mutex);
    for (;;) pthread_cond_wait(&condition, &mutex);
    return unused;
}

int main(int n_arguments, char **arguments) {
    pthread_t thread;
    (void)arguments;
    pthread_create(&thread, NULL, waits, NULL);
    puts("ready");
    fflush(stdout);
    if (n_arguments > 1) syscall(SYS_exit, 0); /* the first thread alone */
    for (;;) pause();
}
"""


@contextmanager
def running(*command: str | Path, cpu: int | None = None) -> Iterator[tuple[int, int]]:
    """The process and its other thread, when both are off their CPUs; killed in the end."""
    pinned = ("taskset", "-c", str(cpu)) if cpu is not None else ()
    with ready(*pinned, *command) as pid:
        tasks = Path(f"/proc/{pid}/task")
        while any((one / "stat").read_text().rpartition(")")[2].split()[0] not in "SZ" for one in tasks.iterdir()):
            time.sleep(0.001)
        (other,) = (int(one.name) for one in tasks.iterdir() if int(one.name) != pid)
        yield pid, other


@pytest.fixture
def built(need: Callable[[str, str], str], tmp_path: Path) -> Callable[..., Path]:
    def build(*flags: str) -> Path:
        source, program = tmp_path / "waits.c", tmp_path / "waits"
        source.write_text(PROGRAM)
        subprocess.run([need("gcc", "gcc"), "-O2", "-Wall", *flags, "-pthread", "-o", program, source], check=True)
        return program
    return build


@pytest.mark.parametrize("flags", [(), ("-m32",)], ids=" ".join)
def test_a_lock_is_one_in_programs_of_both_sizes(built: Callable[..., Path], flags: tuple[str, ...]) -> None:
    with running(built(*flags)) as (pid, other):
        waits, sleeps = find(pid, other), find(pid, pid)
        assert waits is not None
        assert sleeps is not None
        assert (waits.cut, waits.reason) == (Edge.OUT_BLOCKED, Reason.LOCK)
        assert (sleeps.cut, sleeps.reason) == (Edge.OUT_BLOCKED, Reason.SLEEP)


def test_a_first_thread_that_has_ended_waits_for_nothing_and_others_have_their_stacks(
        built: Callable[..., Path]) -> None:
    """The kernel shows it until the others end, and nothing of the process's memory by its number."""
    with running(built(), "alone") as (pid, other):
        assert find(pid, pid) is None
        found = find(pid, other)
        assert found is not None
        assert found.reason == Reason.LOCK
        leaving = departures(pid, [found], time.monotonic_ns()).leaving
        assert leaving is not None
        assert leaving.n_words.min() > 0


def test_a_thread_is_found_on_the_cpu_that_it_was_last_on(built: Callable[..., Path]) -> None:
    cpu = max(os.sched_getaffinity(0))
    assert cpu > 0, "needs more than one CPU"
    with running(built(), cpu=cpu) as (pid, other):
        found = find(pid, other)
        assert found is not None
        leaving = departures(pid, [found], time.monotonic_ns()).leaving
        assert leaving is not None
        assert leaving.cpu.tolist() == [cpu]


def test_who_has_run_since_it_was_seen_to_sleep_is_no_sleeper_any_more(built: Callable[..., Path]) -> None:
    """It waits at the same place again: for something else, since another time."""
    objects = Objects(Tables())
    world = ThisMachine(objects, partial(placed_frames_of, tables=objects.tables))
    with running(built()) as (pid, _):
        before = account_of(pid, pid)
        assert before is not None
        seen = Sleeper(pid, pid, before.run_ns)
        assert [samples.tid.tolist() for samples in world.blocked([seen], 1, STACK_WORDS)] == [[pid]]
        for signal_, state in ((signal.SIGSTOP, b"T"), (signal.SIGCONT, b"S")):
            os.kill(pid, signal_)
            while tasks.parse_stat(tasks.Files(pid, pid).read_once("stat")).state != state:
                time.sleep(0.001)
        assert world.blocked([seen], 1, STACK_WORDS) == []
        assert [len(samples.tid) for samples in world.blocked([seen._replace(run_ns=-1)], 1, STACK_WORDS)] == [1]
