"""Frames of runtimes in real experiments: code that is made at run time, and functions of CPython, by both readers."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.errors import ExperimentError
from collector.experiment.reader import open_experiment

Command = Callable[..., subprocess.CompletedProcess[str]]
Times = Callable[..., dict[str, float]]
INTERVAL_S = 0.010007
IMPORTS = Path(__file__).resolve().parent.parent / "workloads" / "imports.py"
# The one that runs the tests, the distribution's, and one whose library is a file of its own; more, by a pattern,
# where somebody asks for it.
PYTHONS = sorted({os.path.realpath(path) for path in (
    sys.executable, "/usr/bin/python3", *glob.glob(str(Path.home() / ".pyenv/versions/3.11.*/bin/python3.11")),
    *glob.glob(os.environ.get("PYTHONS", "")))
    if re.search(r"3\.(8|9|1[0-5])\b", os.path.realpath(path))})

PROGRAM = """
import threading, time
def one(end):
    x = 0
    while time.thread_time() < end:
        for i in range(100): x += i
def three(end):
    x = 1
    while time.thread_time() < end:
        for i in range(100): x += i
def seven(end):
    x = 2
    while time.thread_time() < end:
        for i in range(100): x += i
def split():
    now = time.thread_time()
    for _ in range(3):
        # The longest first: what a thread was in before the first look at it is not known if it is in another by then.
        for work, share in ((seven, 7), (three, 3), (one, 1)):
            now += share * 0.03
            work(now)
def worker():
    split()
def nap():
    time.sleep(1.7)
def napper():
    nap()
def waited():
    time.sleep(1.9); yield 1
def consumer():
    for _ in waited(): pass
threads = [threading.Thread(target=each) for each in (worker, worker, napper, consumer)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # who has none comes late to programs that are over soon
@pytest.mark.parametrize("python", PYTHONS)
def test_python_by_function(python: str, tmp_path: Path, collect: Command, er_print: Command, times: Times,
                            gprofng: Callable[..., Any], waits_recorded: None) -> None:
    program, experiment = tmp_path / "program.py", tmp_path / "python.er"
    program.write_text(PROGRAM)
    run = collect("--python", "on", "-o", experiment, python, program)
    assert run.returncode == 0, run.stderr
    assert re.search(r"\d+ Python frames", run.stderr)
    cpu = times(experiment, "i.totalcpu")
    in_split = sum(cpu[name] for name in ("one", "three", "seven"))
    # How near to 1 : 3 : 7 is what scripts/pyspy-check tells.
    assert 0 < cpu["one"] < cpu["three"] < cpu["seven"], cpu
    # What a thread was in before the first look at it is known less often, the later that comes.
    known_s = 2 * 3 * 11 * 0.03
    assert 0.97 * known_s - cpu.get("<Python functions, not known>", 0) <= in_split <= 1.03 * known_s
    assert in_split > 0.7 * known_s
    # From the thread's first function on, by all that call.
    first = "Thread._bootstrap" if "Thread._bootstrap" in cpu else "_bootstrap"
    for name in (first, f"{first}_inner", "worker", "split"):
        assert cpu[name] >= 0.98 * in_split, cpu
    # Functions of the interpreter itself are folded, unless asked for.
    assert "_PyEval_EvalFrameDefault" not in cpu
    machine = times(experiment, "i.totalcpu", "-viewmode", "machine")
    assert "seven" not in machine
    assert machine["_PyEval_EvalFrameDefault"] >= in_split
    sleep = times(experiment, "i.sleep")
    assert sleep["nap"] == pytest.approx(1.7, abs=2 * INTERVAL_S)
    assert sleep["napper"] >= 0.98 * 1.7
    assert sleep["consumer"] == pytest.approx(1.9, abs=2 * INTERVAL_S)
    assert sleep["waited"] >= 0.98 * 1.9
    # One of two threads waits while the other runs: for what, a frame says.
    lock = times(experiment, "i.lock")
    assert lock["<global interpreter lock>"] > 0.8 * in_split
    # gprofng tells the same, and finds the lines.
    listing = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=experiment).functions
    assert listing["seven"][0] == pytest.approx(cpu["seven"], abs=0.002)
    source = er_print("-source", "seven", experiment).stdout
    assert re.search(r"\d+\.\d+ +\d+\.\d+ +1[34]\. +(while|    for)", source), source
    assert "def seven" in gprofng("-source", "seven", experiment=experiment).text


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("python", PYTHONS)
def test_what_modules_call_while_they_are_imported(python: str, tmp_path: Path, collect: Command,
                                                   times: Times) -> None:
    """Who calls it is new each time, and soon gone."""
    experiment = tmp_path / "imports.er"
    run = collect("--python", "on", "-o", experiment, python, IMPORTS, 20)
    assert run.returncode == 0, run.stderr
    truth, cpu = json.loads(run.stdout), times(experiment, "i.totalcpu")
    assert cpu["work"] == pytest.approx(truth["work"], abs=0.1 * truth["work"] + 2 * INTERVAL_S)


# Functions one after another, the code of each where that of the one before was until it was thrown away.
REPLACED = """
import sys, time, types
turns = [(f"{name}{turn}", seconds) for turn in range(3) for name, seconds in (("long", 0.6), ("short", 0.2))]
for name, _ in turns:
    exec(f"def {name}(end):\\n while time.thread_time() < end: sum(range(500))")
def made(function, place):
    kept = []
    for _ in range(10000):
        code = function.__code__.replace()
        if place in (None, id(code)):
            return types.FunctionType(code, globals())
        kept.append(code)
    sys.exit("no code at the place of other code")
place, now = None, time.thread_time()
for name, seconds in turns:
    now += seconds
    function = made(globals()[name], place)
    place = id(function.__code__)
    function(now)
    del function
"""


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("python", PYTHONS)
def test_code_in_the_place_of_other_code_has_its_own_name(python: str, tmp_path: Path, collect: Command,
                                                          times: Times) -> None:
    program, experiment = tmp_path / "program.py", tmp_path / "replaced.er"
    program.write_text(REPLACED)
    run = collect("--python", "on", "-o", experiment, python, program)
    assert run.returncode == 0 and "recording ends here" not in run.stderr, run.stderr
    cpu = times(experiment, "i.totalcpu")
    # None has another one's time: what is not known to be either's, around changes, is nobody's. How much that is is a
    # matter of when the running thread was looked at.
    nobodys = cpu.get("<Python functions, not known>", 0)
    for name, own in (("long", 0.6), ("short", 0.2)):
        for turn in range(3):
            assert own - nobodys - 0.05 < cpu.get(f"{name}{turn}", 0) < own + 0.05, cpu
    assert nobodys < 1.2, cpu


AT_ONCE = "-l", "USR2"  # who asks for moments has no start that is put off, though others have the CPUs
SCRIPT = """
function hot(n) { let s = 0; for (let i = 0; i < n; i++) { s = (s * 31 + i) % 1000003; } return s; }
let x = 0;
for (const end = Date.now() + 700; Date.now() < end;) { x += hot(100000); }
console.log(x > 0);
"""


def _remove_maps(pid: str) -> None:
    Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True)


def _pid_of(experiment: Path) -> str:
    match = re.search(r'<process pid="(\d+)"', (experiment / "log.xml").read_text(errors="replace"))
    assert match is not None
    return match[1]


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # who has none comes late to programs that are over soon
def test_node_by_its_perf_map(tmp_path: Path, collect: Command, times: Times, gprofng: Callable[..., Any],
                              need: Callable[[str, str], str], perf_allowed: None) -> None:
    script, experiment = tmp_path / "hot.js", tmp_path / "node.er"
    script.write_text(SCRIPT)
    run = collect(*AT_ONCE, "-o", experiment, need("node", "nodejs"), "--perf-basic-prof", "--no-logfile-per-isolate",
                  script, cwd=tmp_path)
    try:
        assert run.stdout == "true\n", run.stderr
        cpu = times(experiment, "e.totalcpu")
        hot = sum(seconds for name, seconds in cpu.items() if "hot" in name)
        assert hot > 0.6 * cpu["<Total>"], cpu
        assert cpu.get("[anonymous code]", 0) < 0.1 * cpu["<Total>"], cpu
        # With its callees: V8's own builtins are functions to gprofng, and a part of their callers here.
        listing = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=experiment).functions
        assert listing["hot"][0] == pytest.approx(times(experiment, "i.totalcpu")["hot"], abs=0.002)
    finally:
        _remove_maps(_pid_of(experiment))


TRAMPOLINES = r"""
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static const unsigned char code[16] = {0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3};
__attribute__((noinline)) static long spin(long n, long b, long c, void *self) {
    for (clock_t end = clock() + n * CLOCKS_PER_SEC / 10; clock() < end;) b += c;
    return b;
}
__attribute__((noinline)) static long called(char *at) {
    return ((long (*)(long, long, long, void *))at)(8, 1, 2, (void *)spin) + 1;
}
int main(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4096; i += 16) memcpy(page + i, code, sizeof code);
    return called(page + 32) == 0;
}
"""


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # who has none comes late to programs that are over soon
def test_stacks_go_on_through_trampolines(tmp_path: Path, collect: Command, times: Times,
                                          need: Callable[[str, str], str], perf_allowed: None) -> None:
    """As CPython makes them with ``-X perf``: without a frame pointer, and nothing tells of their frames."""
    source, program, experiment = tmp_path / "made.c", tmp_path / "made", tmp_path / "made.er"
    source.write_text(TRAMPOLINES)
    subprocess.run([need("gcc", "gcc"), "-O2", "-fomit-frame-pointer", "-w", "-o", program, source], check=True)
    assert collect(*AT_ONCE, "-o", experiment, program).returncode == 0
    cpu = times(experiment, "i.totalcpu")
    for name in ("_start", "main", "called", "[anonymous code]", "spin"):
        assert cpu[name] >= 0.98 * 0.8, cpu


JITTED = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xb8, 0xa3, 0x86, 0x01, 0, 0xff, 0xc8, 0x75, 0xfc, 0x5d,
                                     0xc3};
static void run(char *at, double seconds) {
    for (clock_t end = clock() + seconds * CLOCKS_PER_SEC; clock() < end;) ((void (*)(void))at)();
}
int main(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), name[64];
    memcpy(page + 64, code, sizeof code);
    memcpy(page + 256, code, sizeof code);
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx %lx first <&> one\n%lx %lx other\n", (long)page + 64, (long)sizeof code, (long)page + 256,
            (long)sizeof code);
    fflush(map);
    run(page + 64, 1.6);
    fprintf(map, "%lx %lx second one\n", (long)page + 60, (long)sizeof code + 8);
    fclose(map);
    run(page + 64, 1.6);
    run(page + 256, 0.3);
    return 0;
}
"""


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # who has none comes late to programs that are over soon
def test_code_that_is_replaced_is_told_by_time(tmp_path: Path, collect: Command, er_print: Command, times: Times,
                                               gprofng: Callable[..., Any], need: Callable[[str, str], str],
                                               perf_allowed: None) -> None:
    source, program, experiment = tmp_path / "jitted.c", tmp_path / "jitted", tmp_path / "jitted.er"
    source.write_text(JITTED)
    subprocess.run([need("gcc", "gcc"), "-O1", "-w", "-o", program, source], check=True)
    run = collect(*AT_ONCE, "-o", experiment, program)
    try:
        assert run.returncode == 0, run.stderr
        cpu = times(experiment, "e.totalcpu")
        both = cpu["first <&> one"] + cpu["second one"]
        # The map says nothing of times: what is new counts from the reading before, about a second ago.
        assert both == pytest.approx(3.2, rel=0.1)
        assert 0.5 < cpu["first <&> one"] < 2.0, cpu
        assert cpu["other"] == pytest.approx(0.3, abs=0.1)
        listing = gprofng("-metrics", "e.totalcpu:name", "-functions", experiment=experiment).functions
        assert listing["second one"][0] == pytest.approx(cpu["second one"], abs=0.002)
        assert "dec" in er_print("-disasm", "second one", experiment).stdout
        assert "dec" in gprofng("-disasm", "second one", experiment=experiment).text
    finally:
        _remove_maps(_pid_of(experiment))


BROKEN = """
import sys
import {module} as broken
def fail(*arguments, **named):
    raise ValueError("no such thing")
broken.{function} = fail
from collector.cli.main import collect
sys.exit(collect())
"""
# Works until its input ends.
WORKS = """
import select, sys, time
def works():
    while not told.poll(0): sum(range(500))
told = select.poll()
told.register(sys.stdin)
print(time.monotonic_ns(), flush=True)
works()
"""


def _newest_ns(experiment: Path) -> int:
    """The time of the newest packet; 0 if there is none yet."""
    try:
        return int(open_experiment(experiment).packets()["TSTAMP"].max(initial=0))
    except ExperimentError:
        return 0


@pytest.mark.parametrize(("module", "function", "what"), [
    ("collector.session.python_stacks", "functions_of", "functions of Python"),
    ("collector.experiment.dyntext", "packed", "names of code made at run time")])
def test_what_fails_in_a_runtime_costs_its_functions_alone(module: str, function: str, what: str, tmp_path: Path,
                                                           gprofng: Callable[..., Any]) -> None:
    path = tmp_path / "broken.er"
    command = [sys.executable, "-c", BROKEN.format(module=module, function=function), "--python", "on", "-o", path,
               "/usr/bin/python3", "-c", WORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        begun_ns = int(process.stdout.readline())
        for _ in range(2):  # it fails; and the recording goes on
            while _newest_ns(path) < begun_ns:
                time.sleep(0.02)
            begun_ns = time.monotonic_ns()
        _, said = process.communicate()
    told = f"{what} are told no longer: internal error, ValueError('no such thing') (<string>:5)"
    assert process.returncode == 0
    assert said.count(told) == said.count("\n") == 1, said
    header = gprofng("-header", experiment=path).text
    assert "No errors" in header
    assert told in header
    functions = gprofng("-functions", experiment=path).functions
    assert functions["_start"][1] >= 0.9 * functions["<Total>"][1] > 0
    assert what != "functions of Python" or "works" not in functions
