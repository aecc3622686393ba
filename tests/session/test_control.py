"""When to record and when not: -t, -y, -l, -L."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import prefork
import psutil
import pytest

from collector.clock import NEVER_NS
from collector.errors import UsageError
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES
from collector.session.control import ORDERS, Action, Control, Signals, Window, parse_signal, parse_window

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
INTERVAL_S = 0.997e-3  # of -p hi
N_CPU_STATES = 3
ROUNDING_S = len(STATES) * INTERVAL_S  # each state's ticks are off by less than one of them

pytestmark = pytest.mark.usefixtures("perf_allowed")


@pytest.fixture
def spin(tmp_path: Path, need: Run) -> Path:
    """A program that works for as many seconds of CPU time as it is told, or until SIGTERM, and then exits with 7. At
    its beginning, and whenever it has worked for 10 ms more, it looks at the time (CLOCK_MONOTONIC) and at its work so
    far, both in ns: these looks it tells in the end."""
    source, program = tmp_path / "spin.c", tmp_path / "spin"
    source.write_text("""
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        enum { MOST_LOOKS = 1000 };
        static volatile sig_atomic_t over;
        static void end(int number) { over = 1; }
        static long now_ns(clockid_t clock) {
            struct timespec t;
            clock_gettime(clock, &t);
            return t.tv_sec * 1000000000 + t.tv_nsec;
        }
        int main(int argc, char **argv) {
            static long times_ns[MOST_LOOKS], works_ns[MOST_LOOKS];
            long begin_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID), worked_ns;
            volatile long n = 0;
            int n_looks = 0;
            signal(SIGTERM, end);
            while (!over && (worked_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_ns) < atof(argv[1]) * 1e9) {
                if (n_looks < MOST_LOOKS && worked_ns >= n_looks * 10000000) {
                    works_ns[n_looks] = worked_ns;
                    times_ns[n_looks++] = now_ns(CLOCK_MONOTONIC);
                }
                for (int i = 0; i < 100003; i++) n++;
            }
            for (int i = 0; i < n_looks; i++) printf("%ld %ld\\n", times_ns[i], works_ns[i]);
            return 7;
        }""")
    subprocess.run([need("gcc", "gcc"), "-O1", "-o", program, source], check=True)
    return program


def ticks(experiment: Experiment) -> list[int]:
    """Times of the packets of a running thread, in ns since the start: each is that of a sample of the clock."""
    packets = experiment.packets()
    return sorted((packets["TSTAMP"][packets["MSTATE"] < N_CPU_STATES] - experiment.log.start_ns).tolist())


def told_s(experiment: Experiment) -> float:
    """Seconds that all packets come to. A thread that never sleeps has of each moment one state."""
    return float(experiment.packets()["NTICK"].sum()) * INTERVAL_S


def worked_told_s(experiment: Experiment) -> float:
    """Of these, how many on a CPU."""
    packets = experiment.packets()
    return float(packets["NTICK"][packets["MSTATE"] < N_CPU_STATES].sum()) * INTERVAL_S


def events_ns(experiment: Experiment, *kinds: str) -> list[int]:
    """When there was the first event of each kind behind the start, in ns since then."""
    start_ns = experiment.log.start_ns
    return [next(event.time_ns for event in experiment.log.events if event.kind == kind and event.time_ns > start_ns)
            - start_ns for kind in kinds]


@pytest.mark.parametrize(("text", "window"), [
    ("5", Window(0, 5)), ("5s", Window(0, 5)), ("1.5m", Window(0, 90)), ("10-20", Window(10, 20)),
    ("1m-90s", Window(60, 90)), ("0-0.7", Window(0, 0.7)),
])
def test_windows(text: str, window: Window) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["", "x", "5h", "-5", "5-", "20-10", "7-7", "1e3", "0", "5-6-7", "9" * 400,
                                  "1-20000000m"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(UsageError):
        parse_window(text)


def test_signals_have_names_and_numbers() -> None:
    assert parse_signal("-l", "USR1") == parse_signal("-l", "sigusr1") == parse_signal("-l", "10") == signal.SIGUSR1


@pytest.mark.parametrize("text", ["", "NONE", "KILL", "9", "0", "65", "-1", "TERM", "CHLD", "²", "32", "33",
                                  "9" * 5000])
def test_what_is_no_signal(text: str) -> None:
    with pytest.raises(UsageError):
        parse_signal("-l", text)


def test_a_window_begins_and_ends_once() -> None:
    control = Control(1_000, Window(2, 5))
    assert not control.recording
    assert control.due_ns() == 2_000_001_000
    assert control.actions(2_000_001_000, 2_000_000_999) == []  # what happened before it is to be told
    assert control.actions(2_000_001_000, 2_000_001_000) == [Action.RESUME]
    assert control.due_ns() == 5_000_001_000
    assert control.actions(9_000_000_000, 4_000_000_000) == [Action.STOP]
    assert control.due_ns() == NEVER_NS
    assert control.actions(10_000_000_000, 10_000_000_000) == []


@pytest.mark.parametrize(("paused", "expected"), [
    (True, [Action.RESUME, Action.SAMPLE, Action.PAUSE]), (False, [Action.PAUSE, Action.SAMPLE, Action.RESUME])])
def test_a_toggle_is_the_other_one(paused: bool, expected: list[Action]) -> None:
    control = Control(0, Window(), paused=paused)
    assert control.due_ns() == NEVER_NS
    for action in (Action.TOGGLE, Action.SAMPLE, Action.TOGGLE):
        control.ask(action)
    assert control.due_ns() == 0
    assert control.actions(1, 1) == expected
    assert control.due_ns() == NEVER_NS


def test_signals_are_told_in_order_and_once() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    signals = Signals({signal.SIGUSR1: Action.SAMPLE, signal.SIGUSR2: Action.STOP})
    try:
        assert signals.actions() == []
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
            signal.raise_signal(number)
        assert select.select(signals.fds, [], [], 0)[0]
        assert signals.actions() == [Action.SAMPLE, Action.STOP, Action.SAMPLE]
        assert not select.select(signals.fds, [], [], 0)[0]
        signals.close()
        signal.raise_signal(signal.SIGUSR1)  # too late, and harmless
    finally:
        for number, handler in zip((signal.SIGUSR1, signal.SIGUSR2), before, strict=True):
            signal.signal(number, handler)


def test_each_order_is_told_however_soon_after_another() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    reads, writes = os.pipe()
    signals = Signals({signal.SIGUSR1: Action.STOP}, reads)
    try:
        assert signals.actions() == []
        asked = [Action.PAUSE, Action.RESUME, Action.SAMPLE, Action.PAUSE, Action.RESUME]
        os.write(writes, b"".join(ORDERS[action] for action in asked) + b"?")
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert len(select.select(signals.fds, [], [], 0)[0]) == 2
        assert signals.actions() == [*asked, Action.STOP, Action.STOP]
        assert not select.select(signals.fds, [], [], 0)[0]
        os.close(writes)
        assert select.select(signals.fds, [], [], 0)[0] == [reads]
        assert signals.actions() == []
        assert not select.select(signals.fds, [], [], 0)[0]  # who is gone is not listened to
        signals.close()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("value", ["@", "@x", "@-1", "@999", "@99999999999999"])
def test_orders_come_by_a_pipe_that_is_open(value: str, collect: Run) -> None:
    result = collect("-y", value, "/bin/true")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"collect: -y {value}: give SIGNAL")
    assert result.stderr.count("\n") == 1


@pytest.mark.kernel_times
def test_t_ends_the_recording_and_not_the_program(collect: Run, spin: Path, tmp_path: Path, gprofng: Run) -> None:
    path = tmp_path / "t.er"
    result = collect("-t", "0.5", "-p", "hi", "-o", path, spin, "1.9")
    assert result.returncode == 7
    experiment = open_experiment(path)
    assert experiment.log.complete
    ended_ns = experiment.end_ns - experiment.log.start_ns
    assert 0.5e9 <= ended_ns < 1.9e9  # not before it is due, nor at the end of the program
    assert all(0 < time_ns <= ended_ns for time_ns in ticks(experiment))
    check_told(experiment, 0, result.stdout)
    assert "not closed" not in gprofng("-header", experiment=path).text


def check_told(experiment: Experiment, began_ns: int, said: str) -> None:
    """Of ``spin``, which always works or waits for a CPU, all is told from then on until the end, and no more; where it
    was not there yet, from its first look on. Between two looks it had a CPU for as long as it says."""
    times_ns, works_ns = np.array(said.split(), np.int64).reshape(-1, 2).T - [[experiment.log.start_ns + began_ns], [0]]
    recorded_ns = experiment.end_ns - experiment.log.start_ns - began_ns
    unborn_ns = max(int(times_ns[0]), 0)
    assert (recorded_ns - unborn_ns) * 1e-9 - ROUNDING_S < told_s(experiment) < recorded_ns * 1e-9 + ROUNDING_S
    works_ns = works_ns[(times_ns >= 0) & (times_ns <= recorded_ns)]
    worked_s = float(np.ptp(works_ns)) * 1e-9 if len(works_ns) else 0.0
    assert worked_s - N_CPU_STATES * INTERVAL_S < worked_told_s(experiment)


@pytest.mark.kernel_times
def test_t_can_begin_late(collect: Run, spin: Path, tmp_path: Path, gprofng: Run) -> None:
    path = tmp_path / "late.er"
    result = collect("-t", "0.4-0.9", "-p", "hi", "-o", path, spin, "2.3")
    assert result.returncode == 7
    experiment = open_experiment(path)
    resumed_ns, = events_ns(experiment, "resume")
    ended_ns = experiment.end_ns - experiment.log.start_ns
    assert resumed_ns >= 0.4e9
    assert 0.9e9 <= ended_ns < 2.3e9
    assert all(resumed_ns < time_ns <= ended_ns for time_ns in ticks(experiment))
    check_told(experiment, resumed_ns, result.stdout)
    header = gprofng("-header", experiment=path).text
    assert "Pause" in header
    assert "Resume" in header


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command in the background; it must have ended by itself."""
    process = prefork.Popen([COLLECT, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True)
    try:
        yield process
        assert process.wait() == 7
    finally:
        process.kill()
        process.communicate()


def wait_for_target(process: subprocess.Popen[str]) -> None:
    """Until the program runs, and has said what it does at SIGTERM: before that collect knows its signals."""
    while not any(child.name() == "spin" and is_caught(child.pid, signal.SIGTERM)
                  for child in psutil.Process(process.pid).children()):
        time.sleep(0.01)


def is_caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    caught = re.search(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> number - 1 & 1)


@pytest.mark.kernel_times
def test_a_signal_pauses_and_resumes(spin: Path, tmp_path: Path) -> None:
    """Each is asked for when the one before is in the log, however late that is, and the program ends when all are."""
    path, sent_ns = tmp_path / "y.er", []
    with running("-y", "USR1", "-p", "hi", "-o", path, spin, "100") as process:
        wait_for_target(process)
        for n_before in (1, 2, 3):  # it begins with a pause
            while not path.is_dir() or n_before > sum(
                    event.kind in ("pause", "resume") for event in open_experiment(path).log.events):
                assert process.poll() is None
                time.sleep(0.02)
            time.sleep(0.4)
            sent_ns.append(time.monotonic_ns())
            process.send_signal(signal.SIGUSR1 if n_before < 3 else signal.SIGTERM)
    experiment = open_experiment(path)
    resumed_ns, paused_ns = events_ns(experiment, "resume", "pause")
    times = ticks(experiment)
    assert sent_ns[0] <= experiment.log.start_ns + resumed_ns
    assert sent_ns[1] <= experiment.log.start_ns + paused_ns
    assert resumed_ns < times[0]
    assert times[-1] <= paused_ns
    recorded_s = (paused_ns - resumed_ns) * 1e-9
    assert recorded_s >= 0.4
    assert told_s(experiment) == pytest.approx(recorded_s, abs=ROUNDING_S)


@pytest.mark.kernel_times
def test_y_with_r_records_from_the_start(collect: Run, spin: Path, tmp_path: Path) -> None:
    path = tmp_path / "yr.er"
    assert collect("-y", "USR2,r", "-p", "hi", "-o", path, spin, "0.3").returncode == 7
    assert len(ticks(open_experiment(path))) > 0
    assert worked_told_s(open_experiment(path)) > 0.3 - INTERVAL_S  # all that it worked


def test_a_signal_takes_a_sample(spin: Path, tmp_path: Path, gprofng: Run) -> None:
    """The program ends when that is in the log, however late it comes."""
    path = tmp_path / "l.er"
    with running("-S", "off", "-l", "USR1", "-o", path, spin, "100") as process:
        wait_for_target(process)
        process.send_signal(signal.SIGUSR1)
        while b'label="signal"' not in (path / "log.xml").read_bytes():
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
    assert [sample.label for sample in open_experiment(path).samples] == ["signal", "collector_close_experiment"]
    gprofng("-sample_list", experiment=path)


def test_a_full_experiment_ends_with_error_14_and_the_program_goes_on(collect: Run, tmp_path: Path, workload: Run,
                                                                      gprofng: Run) -> None:
    path = tmp_path / "full.er"
    result = collect("-L", "1", "-p", "0.5", "-o", path, workload("sleepers"), "4999", "4")
    assert result.returncode == 0, result.stderr
    # Nothing else than what the log says behind it may pass the limit, however much there is to tell at once.
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    assert 0.9 * (1 << 20) < size < (1 << 20) + 4096
    experiment = open_experiment(path)
    assert [message.id for message in experiment.log.messages if message.kind == "cerror"] == [14]
    assert any(file.name.startswith("sleepers") for file in (path / "archives").iterdir())
    gprofng("-functions", experiment=path)


@pytest.mark.parametrize("arguments", [("-t", "x"), ("-l", "KILL"), ("-y", "USR1,x"), ("-L", "0"), ("-L", "many")])
def test_errors_are_one_line(arguments: tuple[str, str], collect: Run, tmp_path: Path) -> None:
    result = collect(*arguments, "-o", tmp_path / "x.er", "/bin/true")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "x.er").exists()
