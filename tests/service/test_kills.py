"""Kills at random instants, the metrics, and the configuration's targets, with a real daemon."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from collector.experiment.reader import open_experiment
from collector.service import protocol

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import time\nwhile True:\n    sum(range(20000)); time.sleep(0.01)"
MARK = f"marked-{os.getpid()}"  # nobody else's
TARGET = f'[[target]]\nname = "one"\ncommand = "{MARK}-one"\nrecord_s = 1.5\nevery_s = 2\nkeep = 2\n'
NAPPERS = ("import threading, time\ndef nap():\n    while True: time.sleep(0.0003)\n"
           "for _ in range(8): threading.Thread(target=nap).start()")
PIECES = '[[target]]\nname = "{name}"\ncommand = "{mark}-{name}"\noptions = ["-p", "0.5"]\nrotate_megabytes = 1\n'
PATIENCE_S = 60


def until(what: Callable[[], object], message: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, message()
        time.sleep(0.05)


def test_kills_at_random_instants_harm_nobody() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "killdaemon", "1", "--seed", "3"], capture_output=True,
                          text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills" in done.stdout


def test_windows_are_recorded_and_the_newest_stay(daemon: Callable[[str], Any], process: Callable[..., Any]) -> None:
    target = process(os.geteuid(), sys.executable, "-c", PROGRAM, f"{MARK}-one")
    metrics = f"/tmp/collectord-metrics-{os.getpid()}"
    running = daemon(f'[daemon]\nbudget_percent = 0\nmetrics = "{metrics}"\n{TARGET}')
    until(lambda: running.session("one").n_runs >= 3, running.log.read_text)
    session = running.session("one")
    assert session.configured
    assert len(session.experiments) <= 2
    assert session.experiments[0] == f"one.{session.n_runs - len(session.experiments) + 1}.er"
    figures = scraped(metrics)
    assert 'collectord_sessions{state="' in figures
    assert "collectord_runs_total" in figures
    running.config.write_text(running.config.read_text() + 'megabytes = "many"\n')
    refused = running.ctl("reload")
    assert refused.returncode == 1
    assert f"{running.config}:10: Expected `int`, got `str`" in refused.stderr
    until(lambda: running.session("one").n_runs >= 4, running.log.read_text)
    running.config.write_text("")
    running.process.send_signal(signal.SIGHUP)
    kept = running.ended("one").experiments
    assert target.poll() is None
    running.stop()
    assert not Path(metrics).exists()
    assert {path.name for path in (running.spool / "own" / "one").iterdir()} == set(kept)
    assert all(open_experiment(running.spool / "own" / "one" / name).log.complete for name in kept)


def test_a_piece_that_is_full_is_followed_by_the_next(daemon: Callable[[str], Any],
                                                       process: Callable[..., Any]) -> None:
    """Of one process, which collect itself sees; and of two, one of which has next to nothing to tell."""
    process(os.geteuid(), sys.executable, "-c", NAPPERS, f"{MARK}-alone")
    process(os.geteuid(), sys.executable, "-c", NAPPERS, f"{MARK}-pair")
    process(os.geteuid(), "sh", "-c", "read forever", f"{MARK}-pair")
    running = daemon("[daemon]\nbudget_percent = 0\n" + "".join(
        PIECES.format(name=name, mark=MARK) for name in ("alone", "pair")))
    for name in ("alone", "pair"):
        until(lambda name=name: running.session(name).n_runs >= 2, running.log.read_text)  # type: ignore[misc]
        session = running.session(name)
        assert open_experiment(Path(session.directory, session.experiments[0])).log.complete


def scraped(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    return body.decode()


def test_what_is_there_counts_whatever_is_known_of_it(daemon: Callable[[str], Any],
                                                        process: Callable[..., Any]) -> None:
    """The facts are lost, and a removal was cut short."""
    process(os.geteuid(), sys.executable, "-c", PROGRAM, f"{MARK}-one")
    config = "[daemon]\nbudget_percent = 0\n" + TARGET.replace("keep = 2", "keep = 3")
    running = daemon(config)
    until(lambda: running.session("one").n_runs >= 3, running.log.read_text)
    running.stop()
    own = running.spool / "own" / "one"
    before = {path.name for path in own.iterdir()}
    assert len(before) >= 2  # the last one may not have begun
    (running.spool / "sessions" / "one.json").unlink()
    (own / ".gone-one.1.er" / "_f1.er").mkdir(parents=True)
    running.start()
    n_runs = max(int(name.split(".")[1]) for name in before)
    assert set(running.session("one").experiments) >= before
    until(lambda: running.session("one").n_runs >= n_runs + 3, running.log.read_text)
    running.stop()
    after = {path.name for path in own.iterdir()}
    assert 2 <= len(after) <= 3
    assert {name for name in after if int(name.split(".")[1]) <= n_runs} < before
    assert all(open_experiment(own / name).log.complete for name in after)


def test_a_run_that_says_nothing_counts_nothing(daemon: Callable[[str], Any], process: Callable[..., Any]) -> None:
    process(os.geteuid(), sys.executable, "-c", PROGRAM, f"{MARK}-one")
    running = daemon(f'[[target]]\nname = "one"\ncommand = "{MARK}-one"\noptions = ["-p", "hi"]\n')
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    for n_runs, number in ((1, signal.SIGINT), (2, signal.SIGKILL), (3, 0)):
        until(lambda n_runs=n_runs: (session := running.session("one")).n_runs == n_runs  # type: ignore[misc]
              and session.state == "recording", running.log.read_text)
        os.kill(int(children.read_text().split()[0]), number)
    said = re.findall(r", (\d+) samples?,", running.log.read_text())  # one, where it was over at once
    assert said == [str(running.session("one").n_samples)]


def test_who_sends_no_end_to_the_metrics_keeps_nobody_out(daemon: Callable[[str], Any]) -> None:
    metrics = f"/tmp/collectord-metrics-{os.getpid()}"
    running = daemon(f'[daemon]\nmetrics = "{metrics}"\n')
    running.until(lambda: "ready on" in running.log.read_text())
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(metrics)
            with suppress(ConnectionError):
                client.sendall(bytes(200_000))
                client.recv(1)
    assert "collectord_cpu_seconds_total" in scraped(metrics)
    assert "faults" not in scraped(metrics)
    running.stop()


def test_a_run_that_fills_its_sessions_megabytes_stays(daemon: Callable[[str], Any],
                                                       process: Callable[..., Any]) -> None:
    """What it recorded is there, and counted; and counts do not fall when sessions are forgotten."""
    metrics = f"/tmp/collectord-metrics-{os.getpid()}"
    target = process(os.geteuid(), sys.executable, "-c", NAPPERS)
    running = daemon(f'[daemon]\nbudget_percent = 0\nmetrics = "{metrics}"\n'
                     "[limits]\nmegabytes_per_session = 1\nfinished_per_user = 1\n")
    total = 0
    for number in ("1", "2", "3"):
        running.ask(protocol.Attach(version=1, pids=(target.pid,), options=("-p", "0.5", "-A", "off")))
        session = running.ended(number)
        assert session.experiments == (f"{number}.1.er",)
        assert session.n_samples > 0, running.log.read_text()
        assert open_experiment(Path(session.directory, session.experiments[0])).log.complete
        total += session.n_samples
    assert [session.id for session in running.ask(protocol.List(version=1)).sessions] == ["2", "3"]
    assert f"collectord_samples_total {total:.1f}" in scraped(metrics)
    assert "collectord_runs_total 3.0" in scraped(metrics)


def test_a_session_that_is_killed_fails_alone(daemon: Callable[[str], Any], process: Callable[..., Any]) -> None:
    running = daemon("")
    targets = [process(os.geteuid(), "sleep", "1000") for _ in range(2)]
    for target in targets:
        running.ask(protocol.Attach(version=1, pids=(target.pid,), options=("-A", "off")))
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    until(lambda: running.session("1").state == "failed")
    assert running.session("1").message == "collect was ended by signal 9"
    assert running.session("2").state == "recording"
    assert running.session("1").experiments == ("1.1.er",)
    said = running.ctl("doctor")
    assert said.returncode == 1
    assert "wrong  session 1 is failed: collect was ended by signal 9" in said.stdout


def test_a_pause_is_no_loss(daemon: Callable[[str], Any], process: Callable[..., Any]) -> None:
    running = daemon("")
    process(os.geteuid(), sys.executable, "-c", PROGRAM, f"{MARK}-one")
    assert running.ctl("attach", "--command", f"{MARK}-one", "-p", "hi", "--label", "tier=front").stdout == (
        "session 1: recording\n")
    (run,) = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    os.kill(int(run), signal.SIGSTOP)  # it has all of them to read at once
    for action, state in (("pause", "paused"), ("resume", "recording"), ("sample", "recording")):
        assert running.ctl(action, "1").returncode == 0
        assert running.session("1").state == state
    os.kill(int(run), signal.SIGCONT)
    assert [session.id for session in running.ask(protocol.List(version=1, labels={"tier": "front"})).sessions] == ["1"]
    assert running.ask(protocol.List(version=1, labels={"tier": "back"})).sessions == ()
    assert running.ctl("stop", "1").returncode == 0
    session = running.ended("1")
    experiment = open_experiment(Path(session.directory, session.experiments[0]))
    kinds = [event.kind for event in experiment.log.events]
    assert kinds.index("pause") < kinds.index("resume") < kinds.index("exit")
    assert "signal" in [event.attributes.get("label") for event in experiment.log.events if event.kind == "sample"]
    assert experiment.log.labels["tier"] == "front"


def test_labels_disturb_no_other_reader(collect: Callable[..., Any], gprofng: Callable[..., Any],
                                        er_print: Callable[..., Any], tmp_path: Path) -> None:
    hostile = 'a<b>"&\n\x01'
    done = collect("-o", tmp_path / "a.er", "--label", "unit=a.service", "--label", f"x={hostile}", "true")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    gprofng("-header", experiment=tmp_path / "a.er")
    labels = open_experiment(tmp_path / "a.er").log.labels
    assert labels["unit"] == "a.service"
    assert labels["x"].startswith('a<b>"&')
    header = er_print("-header", tmp_path / "a.er").stdout
    assert "Label unit: a.service\nLabel x: a<b>" in header
    assert "\x01" not in header
    assert "--label =x: give NAME=VALUE" in collect("--label", "=x", "true").stderr
