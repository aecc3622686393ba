"""A recording as a stepper: it does what is due when it is asked to, and several share a process and a poll loop."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.experiment.reader import open_experiment
from collector.linux import perf, proc
from collector.session.control import Action, Window
from collector.session.options import Options
from collector.session.recording import Recording
from collector.session.runner import Observer, Runner

Run = Callable[..., Any]
SEVERAL = Path(__file__).with_name("several.py")
INTERVAL_S = 10.007e-3
SWITCH_IN_LAG_S = 20e-6  # the most that a switch record is late
N_DESCRIPTORS = 211
CLOSED, ASKED_FOR = "collector_close_experiment", "signal"


# --- one, step by step: a process that sleeps, without an engine ------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def recording_of(sleeper: subprocess.Popen[bytes], path: Path, **options: Any) -> Recording:
    """Of a running process, by overview samples alone."""
    path.mkdir()
    asked = Options(arguments=("sleep", "60"), interval_ns=0, archive="off", **options)
    return Recording(asked, path, sleeper.pid, None, time.monotonic_ns(), [os.pidfd_open(sleeper.pid)])


def labels(path: Path) -> list[str]:
    """Those of the overview samples of a closed experiment."""
    experiment = open_experiment(path)
    assert experiment.log.complete
    return [sample.label for sample in experiment.samples]


def test_a_step_does_nothing_before_it_is_due(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    recording = recording_of(sleeper, tmp_path / "x.er")
    due_ns = recording.due_ns()
    assert 0 < due_ns - time.monotonic_ns() < 1e9
    assert not recording.step({})
    assert recording.due_ns() == due_ns
    recording.close()
    assert labels(tmp_path / "x.er") == [CLOSED]


def test_no_cpu_is_left_out_that_a_program_may_use(sleeper: subprocess.Popen[bytes], tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Python is told (PYTHON_CPU_COUNT), and whichever are offline: what ran there would be cut."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    recording = recording_of(sleeper, tmp_path / "x.er")
    assert recording._pipeline.time.ledger.n_cpus == len(perf.parse_cpu_list(
        Path("/sys/devices/system/cpu/present").read_text())) >= len(perf.online_cpus())
    recording.close()
    assert len(open_experiment(tmp_path / "x.er").log.cpus) == len(perf.online_cpus())


WORKS = """
import os, sys, time
while os.times().user < 0.06 or os.times().system < 0.03:
    sum(range(3000))
    os.listdir("/dev/fd")
for _ in range(31):
    time.sleep(0.0001)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("samples", [(), (Action.SAMPLE, Action.SAMPLE)], ids=["one sample", "three samples"])
def test_without_an_engine_proc_tells_cpu_time_and_switches(samples: tuple[Action, ...], tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        while "\nState:\tS" not in Path(f"/proc/{program.pid}/status").read_text():
            time.sleep(0.001)
        recording = recording_of(program, tmp_path / "x.er")
        for action in samples:
            recording.ask(action)
            recording.step({})
        recording.close()
        usage, switches = proc.process_usage(program.pid), proc.process_switches(program.pid)
        program.communicate()
    assert usage is not None
    assert min(usage.user_ns, usage.system_ns) > 0
    assert switches[0] >= 31
    found = open_experiment(tmp_path / "x.er").samples
    assert len(found) == len(samples) + 1
    assert [sum(ns) for ns in zip(*(sample.states_ns for sample in found), strict=True)] == [
        usage.user_ns, usage.system_ns, *[0] * 8]
    assert tuple(sum(sample.counters[f"{kind}_switches"] for sample in found)
                 for kind in ("voluntary", "involuntary")) == switches


def test_what_it_is_asked_for_is_due_at_once(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    recording = recording_of(sleeper, tmp_path / "x.er", sample_period_s=0)
    for action in (Action.SAMPLE, Action.PAUSE, Action.RESUME, Action.SAMPLE):
        recording.ask(action)
        assert recording.due_ns() == 0
        assert not recording.step({})
        assert recording.due_ns() > time.monotonic_ns()
    recording.ask(Action.STOP)
    assert recording.step({})
    (line,) = recording.close()
    assert line.startswith(f"{tmp_path}/x.er: 0.")
    assert labels(tmp_path / "x.er") == [ASKED_FOR, ASKED_FOR, CLOSED]


def test_it_is_over_when_its_process_has_ended(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    recording = recording_of(sleeper, tmp_path / "x.er")
    (fd,) = recording.fds()
    assert recording.status is None
    sleeper.kill()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert recording.step(dict(poller.poll()))
    assert recording.fds() == []
    assert recording.status == 0
    recording.close()
    assert labels(tmp_path / "x.er") == [CLOSED]


def test_it_is_over_when_its_time_is(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    recording = recording_of(sleeper, tmp_path / "x.er", window=Window(0, 0.02))
    while not recording.step({}):
        time.sleep(max(0, recording.due_ns() - time.monotonic_ns()) / 1e9)
    recording.close()
    assert sleeper.poll() is None


def test_one_that_fails_ends_and_the_others_go_on(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "child.er").mkdir()
    with subprocess.Popen(["true"]) as gone:
        failing = Recording(Options(arguments=("true",), interval_ns=0, archive="off"), tmp_path / "child.er", gone.pid,
                            None, time.monotonic_ns())
    # Somebody else has waited for that child.
    lasting = recording_of(sleeper, tmp_path / "lasting.er", window=Window(0, 0.3))
    said: list[object] = []
    runner = Runner()
    runner.add(failing, Observer(said.append, said.append))
    runner.add(lasting, Observer(said.append, said.append))
    runner.run()
    error, of_failing, of_lasting = said
    assert isinstance(error, ChildProcessError)
    assert str(of_failing).startswith(f"{tmp_path}/child.er: ")
    assert str(of_lasting).startswith(f"{tmp_path}/lasting.er: 0.3")
    assert labels(tmp_path / "child.er") == labels(tmp_path / "lasting.er") == [CLOSED]


# --- several programs, with the perf engine ----------------------------------------------------------


def record_several(directory: Path, *commands: str, delay: float = 0) -> list[str]:
    """What ``several.py`` and its programs print. It is started with few descriptors."""
    limited = ["sh", "-c", f'ulimit -Sn {N_DESCRIPTORS}; exec "$@"', "sh", sys.executable, str(SEVERAL), str(directory),
               str(delay)]
    result = subprocess.run([*limited, *commands], capture_output=True, text=True, check=True, timeout=60)
    assert not result.stderr
    return result.stdout.splitlines()


def cpu_s(path: Path, tid: int) -> float:
    """CPU time of a thread by its ticks."""
    packets = open_experiment(path).packets()
    mine = packets[(packets["THRID"] == tid) & (packets["MSTATE"] <= 2)]
    return float(np.sum(mine["NTICK"])) * INTERVAL_S


@pytest.mark.kernel_times
def test_three_programs_in_one_process_by_one_loop(perf_allowed: None, workload: Run, tmp_path: Path,
                                                   stolen: Callable[[], float]) -> None:
    split = workload("split")
    # The first one takes much longer than the last one's time, and than it takes to start all of them.
    lines = record_several(tmp_path, f"{split} 1.9", f"{split} 0.17", f"0.05:{split} 1.9")
    closed = dict(line.split(" | ") for line in lines if " | " in line)
    assert len(closed) == 3
    assert {"2 0", "2 0 1"} & closed.keys()  # the last one's time was over while others went on
    truths = sorted((json.loads(line) for line in lines if line.startswith("{")), key=lambda truth: truth["pid"])
    for number in (0, 1):
        path = tmp_path / f"{number}.er"
        assert open_experiment(path).log.complete
        slack_s = INTERVAL_S + SWITCH_IN_LAG_S * truths[number]["n_involuntary"] + stolen()
        for thread in truths[number]["threads"]:
            if thread["tid"] != truths[number]["pid"]:  # that one has used some before its exec
                assert abs(cpu_s(path, thread["tid"]) - thread["cpu_s"]) < slack_s
    assert open_experiment(tmp_path / "2.er").log.complete
    third = truths[2]["threads"]
    assert sum(cpu_s(tmp_path / "2.er", thread["tid"]) for thread in third) < sum(
        thread["cpu_s"] for thread in third) / 2


def test_a_window_is_where_it_was_asked_for_however_late_we_come(perf_allowed: None, workload: Run, tmp_path: Path
                                                                 ) -> None:
    split = workload("split")
    record_several(tmp_path, f"0.05:{split} 0.9", f"0.11-0.2:{split} 0.9", delay=0.4)
    for number, begin_ns, end_ns in ((0, 0, 50_000_000), (1, 110_000_000, 200_000_000)):
        experiment = open_experiment(tmp_path / f"{number}.er")
        assert experiment.log.complete
        packets = experiment.packets()
        start_ns = experiment.log.start_ns
        assert experiment.log.end_ns - start_ns == end_ns
        released_ns = int((tmp_path / f"{number}.released").read_text())  # before that it has waited for a CPU
        assert len(packets) or released_ns * 1e-9 > end_ns * 1e-9 - 4 * INTERVAL_S
        assert np.all((packets["TSTAMP"] > start_ns + begin_ns) & (packets["TSTAMP"] <= start_ns + end_ns))
        born_ns = {int(event.attributes["tid"]): event.time_ns for event in experiment.log.events
                   if event.kind == "jthread_start"}
        for tid in np.unique(packets["THRID"]).tolist():
            mine = packets[packets["THRID"] == tid]
            lived_ns = start_ns + end_ns - max(start_ns + begin_ns, born_ns[tid])
            assert abs(float(np.sum(mine["NTICK"])) * INTERVAL_S - lived_ns / 1e9) < 4 * INTERVAL_S


def test_what_the_process_changes_for_itself_no_target_sees(perf_allowed: None, tmp_path: Path) -> None:
    script = tmp_path / "limits"
    script.write_text("ulimit -Sn\n")
    lines = record_several(tmp_path, f"sh {script}", f"sh {script}")
    assert [line for line in lines if " | " not in line] == [str(N_DESCRIPTORS)] * 2
