"""Frames of runtimes in real experiments: code that is made at run time, and functions of CPython, by both readers."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from living import living, newest_ns
from sampling_error import of_share

Command = Callable[..., subprocess.CompletedProcess[str]]
Times = Callable[..., dict[str, float]]
INTERVAL_S = 0.010007
COLLECT = str(Path(sys.executable).with_name("collect"))
IMPORTS = Path(__file__).resolve().parent.parent / "workloads" / "imports.py"
# The one that runs the tests, the distribution's, and one whose library is a file of its own; more, by a pattern,
# where somebody asks for it.
PYTHONS = sorted({os.path.realpath(path) for path in (
    sys.executable, "/usr/bin/python3", *glob.glob(str(Path.home() / ".pyenv/versions/3.11.*/bin/python3.11")),
    *glob.glob(os.environ.get("PYTHONS", "")))
    if re.search(r"3\.(8|9|1[0-5])\b", os.path.realpath(path))})
# Of each version that is here.
VERSIONS = sorted({*PYTHONS, *map(os.path.realpath, glob.glob(
    str(Path.home() / ".pyenv/versions/3.1[2-5].*/bin/python3")))})
# Where it makes no difference how it was built.
ONE_PYTHON = PYTHONS if "PYTHONS" in os.environ else [os.path.realpath(sys.executable)]

PROGRAM = """
import json, sys, threading, time
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
def split(told):
    at = wall, begin = time.monotonic(), time.thread_time()
    n_more = 2
    while n_more:
        # The longest first: what a thread was in before the first look at it is not known if it is in another by then.
        for work, share in ((seven, 7), (three, 3), (one, 1)):
            before = time.thread_time()
            work(before + share * 0.03)
            told[work.__name__] = told.get(work.__name__, 0) + time.thread_time() - before
        told["rounds"].append((time.monotonic(), time.thread_time()))
        n_more -= len(is_over)
    told["cpu"] = time.thread_time()
    told["off_cpu"] = time.monotonic() - wall - (told["cpu"] - begin)
def worker():
    told = {"rounds": []}
    split(told)
    workers.append(told)
def nap():
    before = time.monotonic()
    time.sleep(1.7)
    waits["nap"] = time.monotonic() - before
def napper():
    nap()
def waited():
    before = time.monotonic()
    time.sleep(1.9)
    waits["waited"] = time.monotonic() - before
    yield 1
def consumer():
    for _ in waited(): pass
workers, waits, is_over = [], {}, []
threads = [threading.Thread(target=each) for each in (worker, worker, napper, consumer)]
for thread in threads: thread.start()
print(time.monotonic_ns(), flush=True)
sys.stdin.read()
is_over.append(True)
for thread in threads: thread.join()
print(json.dumps({"workers": workers, "waits": waits}))
"""
UNKNOWN = "<Python functions, not known>"
LOCK_WAIT_S = 0.005  # at most, until a thread asks for the interpreter's lock again (sys.getswitchinterval())


@pytest.mark.kernel_times
@pytest.mark.parametrize("python", PYTHONS)
def test_python_by_function(python: str, tmp_path: Path, er_print: Command, times: Times, gprofng: Callable[..., Any],
                            waits_recorded: None) -> None:
    program, experiment = tmp_path / "program.py", tmp_path / "python.er"
    program.write_text(PROGRAM)
    with living(experiment, "--python", "on", python, program) as run:
        run.says()
        looked_ns = run.wait_for_looks()
        said, told = run.end()
    assert re.search(r"\d+ Python frames", told)
    truth, cpu = json.loads(said), times(experiment, "i.totalcpu")
    unknown_s = cpu.get(UNKNOWN, 0)  # who or whose caller is not known, with all that they call
    workers = truth["workers"]
    # Each has its own time and none another's, but for what is not known, and for what samples cannot tell.
    true_s = {name: sum(each[name] for each in workers) for name in ("one", "three", "seven")}
    known_s = sum(true_s.values())
    for name, own_s in true_s.items():
        error_s = of_share(own_s / known_s, known_s / INTERVAL_S) * known_s
        assert own_s - unknown_s - error_s <= cpu.get(name, 0) <= own_s + error_s, (name, true_s, cpu)
    # Together they have all that their threads had, to an interval for each state of each thread. What is not known is
    # so by name, and came before the looks.
    in_split = sum(cpu.get(name, 0) for name in true_s)
    all_s, rounding_s = sum(each["cpu"] for each in workers), 2 * 2 * INTERVAL_S
    early_s = sum(min(cpu_s for at, cpu_s in each["rounds"] if at * 1e9 >= looked_ns) for each in workers)
    assert all_s - min(early_s, unknown_s) - rounding_s <= in_split <= all_s + rounding_s
    # From the thread's first function on, by all that call.
    first = "Thread._bootstrap" if "Thread._bootstrap" in cpu else "_bootstrap"
    for name in (first, f"{first}_inner", "worker", "split"):
        assert cpu[name] >= in_split - unknown_s - 0.001, cpu
    # Functions of the interpreter itself are folded, unless asked for.
    assert "_PyEval_EvalFrameDefault" not in cpu
    machine = times(experiment, "i.totalcpu", "-viewmode", "machine")
    assert "seven" not in machine
    assert machine["_PyEval_EvalFrameDefault"] >= in_split - 0.001  # each is printed to a millisecond
    # Who sleeps does so for as long as it asked for, at least, and is back when it has a CPU and the lock. As it gives
    # the lock away, who wanted that may have its CPU first: it sleeps until the same time then.
    sleep, wait = times(experiment, "i.sleep"), times(experiment, "i.wait")
    for name, caller, asked_s in (("nap", "napper", 1.7), ("waited", "consumer", 1.9)):
        assert asked_s - 2 * INTERVAL_S <= sleep[name] + wait.get(name, 0)
        assert sleep[name] <= truth["waits"][name] + INTERVAL_S
        assert sleep[caller] >= sleep[name]
    # One of two threads waits while the other runs, for what, a frame says; or else it waits for a CPU. A wait whose
    # stack is lost, which is told, has the one that its thread had last: that of a run has no such frame.
    lock, wait_s = times(experiment, "i.lock"), wait["<Total>"]
    least_s = sum(each["off_cpu"] for each in workers) - wait_s - rounding_s
    assert lock["start_thread"] >= least_s
    lost = re.search(r"(\d+) leave records? lost", told)
    assert lock["<global interpreter lock>"] >= least_s - int(lost[1] if lost else 0) * LOCK_WAIT_S
    # gprofng tells the same, and finds the lines.
    listing = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=experiment).functions
    assert listing["seven"][0] == pytest.approx(cpu["seven"], abs=0.002)
    source = er_print("-source", "seven", experiment).stdout
    assert re.search(r"\d+\.\d+ +\d+\.\d+ +1[34]\. +(while|    for)", source), source
    assert "def seven" in gprofng("-source", "seven", experiment=experiment).text


LINES = """
import time
def put(a, b):
    a[:] = b
    x = 1
    return x
def nested(a):
    return sum(
        sorted(
            a
        )
    )
a, b = list(range(1_000_000)), list(range(1_000_000))
for work in (lambda: put(a, b)), (lambda: nested(a)):
    end = time.thread_time() + 1.5
    while time.thread_time() < end: work()
"""


def _line_times(source: str) -> dict[int, float]:
    """Seconds by line, of an annotated source with one metric."""
    return {int(line): float(seconds) for seconds, line in re.findall(r"^(?:##)? +(\d+\.\d*) +(\d+)\. ", source, re.M)}


@pytest.mark.kernel_times
@pytest.mark.parametrize("python", VERSIONS)
def test_lines_are_those_of_what_is_carried_out_and_not_the_next(python: str, tmp_path: Path,
                                                                 er_print: Command) -> None:
    program, experiment = tmp_path / "program.py", tmp_path / "lines.er"
    program.write_text(LINES)
    subprocess.run([COLLECT, "-p", "on", "--python", "on", "-o", experiment, python, program], check=True,
                   capture_output=True)
    lines = _line_times(er_print("-metrics", "e.totalcpu", "-source", "put", experiment).stdout)
    of_put, of_nested = sum(lines.get(n, 0) for n in range(3, 7)), sum(lines.get(n, 0) for n in range(7, 13))
    assert of_put > 1 and of_nested > 1, lines
    # Words that are left from earlier ones are told once there have been some looks.
    assert lines[4] >= 0.7 * of_put, lines
    assert lines[9] >= 0.2 * of_nested, lines
    assert lines.get(8, 0) + lines[9] >= 0.7 * of_nested, lines


BESIDE = """
import sys, threading
def work():
    while not is_over:
        for _ in range(1000): pass
def called(): work()
def first(): called()
is_over = []
threading.Thread(target=first).start()
print("ready", flush=True)
sys.stdin.read()
is_over.append(True)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_threads_of_a_container_have_their_callers(python: str, tmp_path: Path, times: Times,
                                                   need: Callable[[str, str], str], perf_allowed: None) -> None:
    """They have other numbers there than here. Without looks at a thread the innermost function alone is known."""
    if os.geteuid():
        pytest.skip("only root makes a PID namespace")
    experiment = tmp_path / "container.er"
    unshare = [need("unshare", "util-linux"), "--pid", "--fork", "--kill-child"]
    with subprocess.Popen([*unshare, python, "-c", BESIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outside:
        assert outside.stdout is not None
        assert outside.stdout.readline() == b"ready\n"
        (pid,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        subprocess.run([COLLECT, "-p", "on", "--python", "on", "-A", "off", "-o", experiment, "-P", pid, "-t", "2"],
                       check=True, capture_output=True)
        outside.communicate()
    cpu = times(experiment, "i.totalcpu")
    assert cpu["first"] == cpu["called"] == cpu["work"] >= 0.9 * cpu["<Total>"] > 0


@pytest.mark.kernel_times
@pytest.mark.parametrize("python", ONE_PYTHON)
def test_what_modules_call_while_they_are_imported(python: str, tmp_path: Path, times: Times) -> None:
    """Who calls it is new each time, and soon gone; what is called is there to the end."""
    experiment = tmp_path / "imports.er"
    with living(experiment, "--python", "on", python, IMPORTS, 20, "stay") as run:
        work_s = json.loads(run.says())["work"]
        run.wait_for_looks()
        run.end()
    cpu = times(experiment, "i.totalcpu")
    error_s = of_share(work_s / cpu["<Total>"], cpu["<Total>"] / INTERVAL_S) * cpu["<Total>"]
    assert work_s - cpu.get(UNKNOWN, 0) - error_s <= cpu["work"] <= work_s + error_s


# Makes functions that work until there is a line of input more, and for a while behind that.
UNTIL_TOLD = """
import json, select, sys, time, types
told = select.poll()
told.register(0)
def define(name):
    exec(f"def {name}(seconds):\\n"
         " while not told.poll(0): sum(range(500))\\n"
         " end = time.thread_time() + seconds\\n"
         " while time.thread_time() < end: sum(range(500))", globals())
"""


# One that is thrown away as soon as it returns; nothing is made after that.
FREED = UNTIL_TOLD + """
define("works")
print("begins", flush=True)
begin = time.thread_time()
works(1.3)
spent = time.thread_time() - begin
del works
time.sleep(1.7)
print(json.dumps(spent))
"""


@pytest.mark.kernel_times
@pytest.mark.parametrize("python", ONE_PYTHON)
def test_a_function_that_is_thrown_away_has_its_time_to_the_end(python: str, tmp_path: Path, times: Times) -> None:
    """Its code is gone by the look after that, which may be long after the one before, but no other's."""
    program, experiment = tmp_path / "program.py", tmp_path / "freed.er"
    program.write_text(FREED)
    with living(experiment, "--python", "on", python, program) as run:
        run.says()
        run.wait_for_looks()
        run.tell()
        spent_s = json.loads(run.end()[0])
    cpu = times(experiment, "i.totalcpu")
    assert cpu["works"] == pytest.approx(spent_s, abs=5 * INTERVAL_S), cpu


# One after another, the code of each where that of the one before was until it was thrown away.
REPLACED = UNTIL_TOLD + """
turns = [(f"{name}{turn}", seconds) for turn in range(2) for name, seconds in (("long", 0.3), ("short", 0.1))]
for name, _ in turns:
    define(name)
def made(function, place):
    kept = []
    for _ in range(10000):
        code = function.__code__.replace()
        if place in (None, id(code)):
            return types.FunctionType(code, globals())
        kept.append(code)
    sys.exit("no code at the place of other code")
place, spent = None, {}
for name, seconds in turns:
    function = made(globals()[name], place)
    place = id(function.__code__)
    print(name, flush=True)
    begin = time.thread_time()
    function(seconds)
    spent[name] = time.thread_time() - begin
    sys.stdin.buffer.raw.read(1)
    del function
print(json.dumps(spent))
"""


@pytest.mark.kernel_times
@pytest.mark.parametrize("python", ONE_PYTHON)
def test_code_in_the_place_of_other_code_has_its_own_name(python: str, tmp_path: Path, times: Times) -> None:
    program, experiment = tmp_path / "program.py", tmp_path / "replaced.er"
    program.write_text(REPLACED)
    with living(experiment, "--python", "on", python, program) as run:
        for name in ("long0", "short0", "long1", "short1"):
            assert run.says() == name + "\n"
            run.wait_for_looks()
            run.tell()
        said, told = run.end()
    assert "recording ends here" not in told, told
    cpu = times(experiment, "i.totalcpu")
    # None has another one's time: what is not known to be either's, around changes, is nobody's. How much that is is a
    # matter of when the running thread was looked at; in each it was, twice.
    spent, nobodys, total = json.loads(said), cpu.get(UNKNOWN, 0), cpu["<Total>"]
    for name, own in spent.items():
        error = of_share(own / total, total / INTERVAL_S) * total
        assert max(own - nobodys - error, 0) < cpu.get(name, 0) < own + error, (spent, cpu)
    in_all = sum(spent.values())
    error = of_share(in_all / total, total / INTERVAL_S) * total
    # What is not known may have called one that is, or have been called by it.
    named = sum(cpu[name] for name in spent)
    assert in_all - error - nobodys <= named <= total + len(spent) * 0.0005  # each is printed to a millisecond


AT_ONCE = "-l", "USR2"  # who asks for moments has no start that is put off, though others have the CPUs
SCRIPT = """
function hot(n) { let s = 0; for (let i = 0; i < n; i++) { s = (s * 31 + i) % 1000003; } return s; }
let x = 0, spent = 0, isOver = false;
process.stdin.on('end', () => { isOver = true; }).resume();
function turn() {
  const begin = process.cpuUsage();
  x += hot(10000000);
  const { user, system } = process.cpuUsage(begin);
  spent += (user + system) / 1e6;
  if (isOver && spent > 1) console.log(JSON.stringify({ spent, x })); else setImmediate(turn);
}
console.log('begun');
turn();
"""


def _remove_maps(pid: str) -> None:
    Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True)


def _pid_of(experiment: Path) -> str:
    match = re.search(r'<process pid="(\d+)"', (experiment / "log.xml").read_text(errors="replace"))
    assert match is not None
    return match[1]


@pytest.mark.kernel_times
def test_node_by_its_perf_map(tmp_path: Path, times: Times, gprofng: Callable[..., Any],
                              need: Callable[[str, str], str], perf_allowed: None) -> None:
    script, experiment = tmp_path / "hot.js", tmp_path / "node.er"
    script.write_text(SCRIPT)
    node = need("node", "nodejs"), "--perf-basic-prof", "--no-logfile-per-isolate", script
    try:
        with living(experiment, *AT_ONCE, *node, cwd=tmp_path) as run:
            assert run.says() == "begun\n"
            run.wait_for_looks()
            said, _ = run.end()
        cpu, spent_s = times(experiment, "e.totalcpu"), json.loads(said)["spent"]
        hot_s, total_s = sum(seconds for name, seconds in cpu.items() if "hot" in name), cpu["<Total>"]
        error_s = of_share(spent_s / total_s, total_s / INTERVAL_S) * total_s
        assert hot_s == pytest.approx(spent_s, abs=error_s), cpu
        assert cpu.get("[anonymous code]", 0) <= total_s - spent_s + error_s, cpu
        # With its callees: V8's own builtins are functions to gprofng, and a part of their callers here.
        listing = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=experiment).functions
        assert listing["hot"][0] == pytest.approx(times(experiment, "i.totalcpu")["hot"], abs=0.002)
    finally:
        _remove_maps(_pid_of(experiment))


# Who waits for a line of input, by looking for it again and again.
TOLD = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static int is_told(void) {
    struct pollfd input = {0, POLLIN, 0};
    char byte;
    return poll(&input, 1, 0) == 1 && read(0, &byte, 1) >= 0;
}
static void says_time(void) {
    printf("%.6f\n", (double)clock() / CLOCKS_PER_SEC);
    fflush(stdout);
}
"""
TRAMPOLINES = TOLD + r"""
static const unsigned char code[16] = {0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3};
__attribute__((noinline)) static long spin(long n, long b, long c, void *self) {
    clock_t begin = clock();
    while (clock() - begin < n * CLOCKS_PER_SEC / 10 || !is_told()) b += c;
    printf("%.6f\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    return b;
}
__attribute__((noinline)) static long called(char *at) {
    return ((long (*)(long, long, long, void *))at)(8, 1, 2, (void *)spin) + 1;
}
int main(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4096; i += 16) memcpy(page + i, code, sizeof code);
    says_time();
    return called(page + 32) == 0;
}
"""


@pytest.mark.kernel_times
def test_stacks_go_on_through_trampolines(tmp_path: Path, times: Times, need: Callable[[str, str], str],
                                          perf_allowed: None) -> None:
    """As CPython makes them with ``-X perf``: without a frame pointer, and nothing tells of their frames."""
    source, program, experiment = tmp_path / "made.c", tmp_path / "made", tmp_path / "made.er"
    source.write_text(TRAMPOLINES)
    subprocess.run([need("gcc", "gcc"), "-O2", "-fomit-frame-pointer", "-w", "-o", program, source], check=True)
    with living(experiment, *AT_ONCE, program) as run:
        run.says()
        run.wait_for_looks()
        said, _ = run.end()
    cpu = times(experiment, "i.totalcpu")
    # All that it had, but for what came before main, as samples tell, and the rounding of each state.
    spent_s, total_s = float(said), cpu["<Total>"]
    least_s = spent_s - 3 * INTERVAL_S - of_share(min(spent_s / total_s, 1), total_s / INTERVAL_S) * total_s
    for name in ("_start", "main", "called", "[anonymous code]", "spin"):
        assert cpu[name] >= least_s, cpu


JITTED = TOLD + r"""
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xb8, 0x41, 0x42, 0x0f, 0, 0xff, 0xc8, 0x75, 0xfc, 0x5d,
                                     0xc3};
static void run(char *at) {
    clock_t begin = clock();
    while (clock() - begin < CLOCKS_PER_SEC / 2 || !is_told()) ((void (*)(void))at)();
    says_time();
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
    says_time();
    run(page + 64);
    run(page + 64);
    fprintf(map, "%lx %lx second one\n", (long)page + 60, (long)sizeof code + 8);
    fclose(map);
    run(page + 64);
    run(page + 256);
    return 0;
}
"""


SPAWNS = r"""
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static const unsigned char code[] = {0xb8, 0x41, 0x42, 0x0f, 0, 0xff, 0xc8, 0x75, 0xfc, 0xc3};
int main(int argc, char **argv) {
    char *page = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), name[64];
    memcpy(page, code, sizeof code);
    if (argc == 1) {
        snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
        FILE *map = fopen(name, "w");
        fprintf(map, "%lx %lx made\n", (long)page, (long)sizeof code);
        fclose(map);
        puts(name);
        fflush(stdout);
    }
    while (clock() < CLOCKS_PER_SEC * 3 / 10) ((void (*)(void))page)();
    if (argc == 1 && fork() == 0) execl(argv[0], argv[0], "child", NULL);
    wait(NULL);
    return 0;
}
"""


def test_a_program_inherits_no_code_from_who_has_called_it(tmp_path: Path, collect: Command, times: Times,
                                                           need: Callable[[str, str], str],
                                                           perf_allowed: None) -> None:
    """Where a process was forked from one that has a map, and went on to be another program."""
    source, program, experiment = tmp_path / "spawns.c", tmp_path / "spawns", tmp_path / "spawns.er"
    source.write_text(SPAWNS)
    subprocess.run([need("gcc", "gcc"), "-O1", "-w", "-o", program, source], check=True)
    run = collect("-o", experiment, program)
    Path(run.stdout.strip()).unlink()
    assert run.returncode == 0, run.stderr
    cpu = times(experiment, "e.totalcpu")
    assert {"made", "[anonymous code]"} <= cpu.keys(), cpu


MAKES_CODE = r"""
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static const unsigned char code[] = {0xb8, 0x41, 0x42, 0x0f, 0, 0xff, 0xc8, 0x75, 0xfc, 0xc3};
int main(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), name[64];
    memcpy(page, code, sizeof code);
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx %lx made\n", (long)page, (long)sizeof code);
    fclose(map);
"""
ATTACHED = MAKES_CODE + r"""    puts(name);
    fflush(stdout);
    for (;;) ((void (*)(void))page)();
}
"""


@contextmanager
def in_made_code(directory: Path, need: Callable[[str, str], str]) -> Iterator[tuple[int, Path]]:
    """A program that runs in code that it has made, and its map, which is complete."""
    source, program = directory / "attached.c", directory / "attached"
    source.write_text(ATTACHED)
    subprocess.run([need("gcc", "gcc"), "-O1", "-w", "-o", program, source], check=True)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        try:
            yield process.pid, path
        finally:
            process.kill()
            path.unlink()


@pytest.mark.parametrize("is_its_own", [True, False])
@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_a_map_that_was_complete_before_we_came_counts(engine: str, is_its_own: bool, tmp_path: Path, collect: Command,
                                                       times: Times, need: Callable[[str, str], str],
                                                       perf_allowed: None, attach_allowed: None) -> None:
    """But not one that is older than its process."""
    experiment = tmp_path / "attached.er"
    with in_made_code(tmp_path, need) as (pid, path):
        written_s = path.stat().st_mtime - (0 if is_its_own else 60)
        os.utime(path, (written_s, written_s))
        time.sleep(max(written_s + 4 - time.time(), 0))  # the clock of files is coarse, which is allowed for
        run = collect("--engine", engine, "-t", "1", "-o", experiment, "-P", pid)
    assert run.returncode == 0, run.stderr
    cpu = times(experiment, "e.totalcpu")
    assert ("made" in cpu, "[anonymous code]" in cpu) == (is_its_own, not is_its_own), cpu


@pytest.mark.parametrize("n_lines", [4000, 20000])
def test_the_last_line_of_a_long_map_counts(n_lines: int, tmp_path: Path, collect: Command, times: Times,
                                            need: Callable[[str, str], str], perf_allowed: None,
                                            attach_allowed: None) -> None:
    """Which is read in parts, and may be longer than what can be read until the end."""
    experiment = tmp_path / "attached.er"
    with in_made_code(tmp_path, need) as (pid, path):
        last = path.read_bytes()
        between = b"".join(b"%x 10 %s\n" % (4096 + 16 * i, b"f" * 4000) for i in range(n_lines))
        path.write_bytes(last.replace(b"made", b"stale") + between + last)
        run = collect("-t", "1", "-o", experiment, "-P", pid)
    assert run.returncode == 0, run.stderr
    cpu = times(experiment, "e.totalcpu")
    assert cpu["made"] >= cpu["<Total>"] - 2 * INTERVAL_S > 0, cpu


MAPPED = MAKES_CODE + r"""    while (clock() < CLOCKS_PER_SEC / 10) ((void (*)(void))page)();
    puts(name);
    return 0;
}
"""


def test_maps_of_processes_that_are_over_are_closed(tmp_path: Path, times: Times, need: Callable[[str, str], str],
                                                    perf_allowed: None) -> None:
    source, program, n = tmp_path / "mapped.c", tmp_path / "mapped", 12
    source.write_text(MAPPED)
    subprocess.run([need("gcc", "gcc"), "-O1", "-w", "-o", program, source], check=True)
    script = f"for i in $(seq {n}); do {program}; done; read line || true"
    written = []
    try:
        with living(tmp_path / "mapped.er", *AT_ONCE, "sh", "-c", script) as run:
            written = [run.says().strip() for _ in range(n)]
            run.wait_for_looks()
            fds = Path(f"/proc/{run.process.pid}/fd")
            opened = {os.readlink(fd) for fd in fds.iterdir() if fd.is_symlink()}
            run.end()
        assert times(tmp_path / "mapped.er", "e.totalcpu")["made"] > n * INTERVAL_S
        assert len(opened & set(written)) <= 2
    finally:
        for path in written:
            Path(path).unlink(missing_ok=True)


@pytest.mark.kernel_times
def test_code_that_is_replaced_is_told_by_time(tmp_path: Path, er_print: Command, times: Times,
                                               gprofng: Callable[..., Any], need: Callable[[str, str], str],
                                               perf_allowed: None) -> None:
    source, program, experiment = tmp_path / "jitted.c", tmp_path / "jitted", tmp_path / "jitted.er"
    source.write_text(JITTED)
    subprocess.run([need("gcc", "gcc"), "-O1", "-w", "-o", program, source], check=True)
    try:
        with living(experiment, *AT_ONCE, program) as run:
            moments_s = [float(run.says())]
            for _ in range(4):
                run.wait_for_looks()
                run.tell()
                moments_s.append(float(run.says()))
            run.end()
        cpu = times(experiment, "e.totalcpu")
        begun_s, read_s, replaced_s, other_s, end_s = moments_s
        total_s = cpu["<Total>"]
        error_s = of_share(0.5, total_s / INTERVAL_S) * total_s
        # The map says nothing of times: what is new counts from the reading before, which came behind ``read_s``.
        assert read_s - begun_s - error_s <= cpu["first <&> one"] <= replaced_s - begun_s + error_s, (moments_s, cpu)
        assert other_s - replaced_s - error_s <= cpu["second one"] <= other_s - read_s + error_s, (moments_s, cpu)
        for recorded_s, true_s in ((cpu["first <&> one"] + cpu["second one"], other_s - begun_s),
                                   (cpu["other"], end_s - other_s)):
            error_s = of_share(min(true_s / total_s, 1), total_s / INTERVAL_S) * total_s
            assert recorded_s == pytest.approx(true_s, abs=error_s + INTERVAL_S), (moments_s, cpu)
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
            while newest_ns(path) < begun_ns:
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
