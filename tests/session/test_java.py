"""Methods of Java in real experiments, by both engines and both readers; and against the machine's own thread dump."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from living import living, ready
from sampling_error import of_share

from collector.experiment.records import STATES

Command = Callable[..., subprocess.CompletedProcess[str]]
Times = Callable[..., dict[str, float]]
INTERVAL_S = 0.010007
UNKNOWN = "<Java method, not known>"
# The distribution's, and further ones by a pattern, where somebody asks for it.
JAVAS = ["java", *sorted(glob.glob(os.environ.get("JAVAS", "")))]
SMALL = ("-XX:+UseSerialGC", "-Xmx64m")

SPLIT = Path(__file__).resolve().parent.parent / "workloads" / "Split.java"

WAITS = """
import java.util.concurrent.*;
import java.util.concurrent.locks.*;
public class Blocked {
    static final Object lock = new Object();
    static int deep(int n, Runnable end) { if (n == 0) { end.run(); return 0; } return deep(n - 1, end) + 1; }
    static void sleeps() { try { Thread.sleep(100_000); } catch (InterruptedException e) { } }
    static void waits() { synchronized (lock) { try { lock.wait(); } catch (InterruptedException e) { } } }
    static void accepts() { try { new java.net.ServerSocket(0).accept(); } catch (java.io.IOException e) { } }
    static void takes() { try { new LinkedBlockingQueue<Object>().take(); } catch (InterruptedException e) { } }
    public static void main(String[] arguments) throws Exception {
        Runnable[] all = { Blocked::sleeps, Blocked::waits, Blocked::accepts, Blocked::takes };
        for (Runnable one : all) {
            Thread thread = new Thread(() -> deep(7, one), "blocked");
            thread.setDaemon(true);
            thread.start();
        }
        Thread.sleep(500);
        System.out.println("ready");
        System.in.read();
    }
}
"""


@pytest.fixture(scope="module")
def classes(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    (folder / "Blocked.java").write_text(WAITS)
    shutil.copy(SPLIT, folder)
    subprocess.run([need("javac", "openjdk-17-jdk-headless"), "Blocked.java", "Split.java"], cwd=folder, check=True)
    return folder


@pytest.mark.kernel_times
@pytest.mark.parametrize("java", JAVAS)
def test_java_by_method(java: str, classes: Path, tmp_path: Path, er_print: Command, times: Times,
                        gprofng: Callable[..., Any], need: Callable[[str, str], str], waits_recorded: None) -> None:
    experiment = tmp_path / "java.er"
    # Whoever wants a method compiled waits for that: it does not come too late.
    command = need(java, "openjdk-17-jdk-headless"), *SMALL, "-Xbatch", "-cp", classes, "Split", 2, "stay"
    with living(experiment, *command, cwd=classes) as run:
        true_s = json.loads(run.says())
        run.wait_for_looks()
        _, told = run.end()
    assert re.search(r"\d+ Java frames", told)
    cpu, unknown_s = times(experiment, "i.totalcpu"), times(experiment, "e.totalcpu").get(UNKNOWN, 0)
    # Each has its own time and none another's, but for what is not known, and for what samples cannot tell.
    total_s, of_all = cpu["<Total>"], {name: cpu.get(f"Split.{name}(long)", 0) for name in ("one", "three", "seven")}
    for name, recorded_s in of_all.items():
        error_s = of_share(true_s[name] / total_s, total_s / INTERVAL_S) * total_s
        assert true_s[name] - unknown_s - error_s <= recorded_s <= true_s[name] + error_s, (name, true_s, cpu)
    in_split, seven = sum(of_all.values()), of_all["seven"]
    error_s = of_share(sum(map(true_s.get, of_all)) / total_s, total_s / INTERVAL_S) * total_s
    assert in_split >= sum(map(true_s.get, of_all)) - unknown_s - error_s, (true_s, cpu)
    # From the thread's first function on, by all that call. (Some stacks of compiled code end where it is entered.)
    for name in ("clone3", "start_thread", "java.lang.Thread.run()", "Split.split()"):
        assert cpu[name] >= 0.9 * in_split - unknown_s, (name, cpu)
    # The machine's own frames are folded, unless asked for; what has been compiled has its own name there. (A thread
    # that is about to enter its first method has no others.)
    assert "[HotSpot] Interpreter" not in cpu
    printed = er_print("-metrics", "i.totalcpu:name", "-calltree", experiment).stdout
    tree = type(gprofng("-header", experiment=experiment))(printed).tree
    assert ("Split.split()", "Split.seven(long)") in {path[-2:] for path in tree}
    assert not [path for path in tree if "JavaCalls::" in "".join(path) and "java.lang.Thread.run()" in path]
    machine = times(experiment, "i.totalcpu", "-viewmode", "machine")
    assert "Split.seven(long)" not in machine
    compiled = [name for name in machine if re.fullmatch(r"\[C[12]\] Split.seven\(long\)", name)]
    assert compiled, machine
    assert "[HotSpot] Interpreter" in machine
    # They wait for as long as they asked for, at least; classes are loaded meanwhile, and CPUs waited for, also before
    # a call is in the kernel, which then waits for the rest alone; and the kernel's account takes the rest of a sleep
    # for a wait for a CPU if it moves who has just gone to sleep. Each state is rounded for itself.
    total, waited = times(experiment, "i.total"), [times(experiment, metric) for metric in ("i.sleep", "i.lock")]
    wait = times(experiment, "i.wait")
    for name, asked_s in (("sleeps", 0.9), ("waits", 1.1), ("parks", 0.7), ("accepts", 1.3)):
        told_s, waited_s = total[f"Split.{name}()"], sum(of_state.get(f"Split.{name}()", 0) for of_state in waited)
        assert waited_s + wait.get(f"Split.{name}()", 0) >= asked_s - 3 * INTERVAL_S, (name, waited_s)
        assert waited_s <= told_s <= true_s[name] + len(STATES) * INTERVAL_S, (name, told_s, waited_s, true_s)
    # gprofng tells the same, opens it without a warning, and finds the lines.
    listing = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=experiment)
    assert listing.functions["Split.seven(long)"][0] == pytest.approx(seven, abs=0.002)
    assert "Warning" not in gprofng("-header", experiment=experiment).text
    source = er_print("-source", "Split.seven(long)", experiment, cwd=classes).stdout
    program = SPLIT.read_text()
    line = program[:program.index("seven(second")].count("\n") + 1
    assert re.search(rf"\d\.\d+ .* {line}\. +seven\(second", source), source


@pytest.fixture
def blocked(classes: Path, need: Callable[[str, str], str]) -> Iterator[int]:
    command = [need("java", "openjdk-17-jdk-headless"), *SMALL, "-cp", str(classes), "Blocked"]
    with ready(*command) as pid:
        yield pid


def dumped(text: str) -> list[list[str]]:
    """The methods of the blocked threads in a thread dump, innermost first."""
    found = []
    for part in text.split("\n\n"):
        if part.startswith('"blocked"'):
            names = re.findall(r"^\tat ([^(]+)\(", part, re.MULTILINE)
            found.append([re.sub(r"/0x[0-9a-f]+", "", name) for name in names])
    return found


@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_blocked_threads_are_where_the_thread_dump_has_them(engine: str, blocked: int, tmp_path: Path, collect: Command,
                                                            need: Callable[[str, str], str],
                                                            perf_allowed: None, attach_allowed: None) -> None:
    """At a process that ran before."""
    experiment = tmp_path / "blocked.er"
    run = collect("--engine", engine, "-t", "1", "-o", experiment, "-P", blocked)
    assert run.returncode == 0, run.stderr
    dump = subprocess.run([need("jstack", "openjdk-17-jdk-headless"), str(blocked)], capture_output=True, text=True,
                          check=True)
    expected = dumped(dump.stdout)
    assert len(expected) == 4
    stacks = _java_stacks(experiment)
    for names in expected:
        assert names in stacks, (names, stacks)


def _java_stacks(experiment: Path) -> list[list[str]]:
    """The Java methods of all stacks, innermost first, without their parameters."""
    er_export = Path(sys.executable).parent / "er_export"
    text = subprocess.run([er_export, "collapsed", experiment, "-lines", "off"], capture_output=True, text=True,
                          check=True).stdout
    method = re.compile(r"[\w$.<>+/]+\.[\w$<>]+\([^:]*\)")
    found = []
    for line in text.splitlines():
        frames = re.split(r";(?![^(]*\))", line.rpartition(" ")[0])
        names = [frame.partition("(")[0] for frame in frames if method.fullmatch(frame)]
        found.append([re.sub(r"\+0x[0-9a-f]+", "", name) for name in reversed(names)])
    return found
