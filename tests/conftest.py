"""What all tests share: workloads, the commands under test, the judge gprofng; and that nothing stays behind.

Tests marked ``kernel_times`` compare times of the real kernel, within bounds that hold beside other programs; they run
one on each CPU. One that fails is given another try only if a hypervisor took CPUs from it meanwhile; any other failure
is the code's. Those marked ``all_cpus`` run alone.

A test that lacks a tool is skipped with the name of its Debian package; where ``CI`` is set it fails instead.
``scripts/test`` finds what to install by looking for ``need("tool", "package")`` in the tests: write both as
literals.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import glob
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import go
import prefork
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# The same examples every time: whether a change passes depends on the change alone.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
# It would draw constants of our modules, too, that a process has imported by then, which the tests before decide.
assert hasattr(providers, "is_local_module_file")
providers.is_local_module_file = lambda _: False

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
COMMANDS = Path(sys.executable).parent

Completed = subprocess.CompletedProcess[str]


# --- tools ----------------------------------------------------------------------------------------


def unavailable(reason: str) -> NoReturn:
    """End the test: a skip for a developer, a failure under CI."""
    if os.environ.get("CI"):
        pytest.fail(f"under CI nothing is skipped: {reason}", pytrace=False)
    pytest.skip(reason)


def _need(tool: str, package: str) -> str:
    """Path of a tool, which is a command's name or a path (``*`` allowed); without it the test ends here."""
    found = next(iter(glob.glob(tool)), None) if "/" in tool else shutil.which(tool)
    if found is None:
        unavailable(f"{tool} is missing: apt-get install {package}")
    return found


def stolen_s() -> float:
    """For how long a hypervisor has let others have our CPUs so far."""
    return _cpu_times_s()[7]


def others_s() -> float:
    """For how long processes have had the CPUs so far that are neither we nor those whose end we have seen."""
    user, nice, system, _, _, interrupts, soft_interrupts = _cpu_times_s()[:7]
    return user + nice + system + interrupts + soft_interrupts - sum(os.times()[:4])


def _cpu_times_s() -> list[float]:
    """The first line of /proc/stat."""
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in _read("/proc/stat").splitlines()[0].split()[1:]]


def machine() -> str:
    """What there may be that other machines have not: of CPUs, kernel, groups that share CPUs, and speed."""
    best_us = dict.fromkeys(("schedstat", "stat", "status"), math.inf)
    for name in best_us:
        with open(f"/proc/thread-self/{name}", "rb", buffering=0) as file:
            for _ in range(100):
                began_ns = time.perf_counter_ns()
                os.pread(file.fileno(), 4096, 0)
                best_us[name] = min(best_us[name], (time.perf_counter_ns() - began_ns) / 1000)
    groups = [line for line in _read("/proc/self/cgroup").split() if "cpu" in line or line.startswith("0:")]
    clock = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip()
    return "; ".join((
        f"{os.uname().release}, CPUs {sorted(os.sched_getaffinity(0))} of {os.cpu_count()}",
        f"clock {clock or 'unknown'}",
        f"nice {os.getpriority(os.PRIO_PROCESS, 0)}, groups {' '.join(groups)}",
        _read("/proc/self/autogroup").strip() or "no autogroup",
        "us to read " + ", ".join(f"{name} {us:.1f}" for name, us in best_us.items())))


def pytest_configure(config: pytest.Config) -> None:
    """What is started has the dispositions of a terminal's job, though we may run below nohup or behind a script's "&".

    And binutils' reader opens experiments in one thread: the workers of its pool ask whether all is done, and only then
    take the lock to wait; one that is told in between sleeps for ever, and the reader waits for it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["GPROFNG_DBE_NTHREADS"] = "0"
    config.addinivalue_line("markers", "long: takes half a minute; begins first, and nobody waits for it at the end")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One more try for those who compare times, where CPUs were stolen meanwhile. Long ones begin first."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        for name in ("kernel_times", "all_cpus"):
            if item.get_closest_marker(name) and f"mark.{name}" not in _read(str(item.path)):
                raise pytest.UsageError(f"{item.path} has tests that are {name} and does not say so")
        if item.get_closest_marker("kernel_times"):
            item.add_marker(pytest.mark.flaky(reruns=1, condition=partial(was_disturbed, item)))


def pytest_collection_finish() -> None:
    """What is there by now stays: four thousand tests and what they import. Nobody looks for garbage in it again, nor
    do children of ours, which would copy it for that."""
    gc.collect()
    gc.freeze()


def was_disturbed(item: pytest.Item) -> bool:
    """Whether a hypervisor let others have our CPUs since the test began, or while what it looks at was recorded."""
    return stolen_s() > item.stash.get(STOLEN_BEFORE, math.inf)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the report of a failure is measured against. Another try waits until the machine is there.

    Who compares times starts commands as users do: they import what they need while the program runs.
    """
    prefork.forks = item.get_closest_marker("kernel_times") is None
    deadline = time.monotonic() + CALM_WITHIN_S
    before = stolen_s()
    while getattr(item, "execution_count", 1) > 1 and time.monotonic() < deadline:
        time.sleep(CALM_FOR_S)
        if stolen_s() == before:
            break
        before = stolen_s()
    item.stash[STOLEN_BEFORE], item.stash[OTHERS_BEFORE] = stolen_s(), others_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says whether the machine was there all the time, and for us."""
    report = yield
    if report.failed:
        lost_s = stolen_s() - item.stash.get(STOLEN_BEFORE, 0.0)
        used_s = others_s() - item.stash.get(OTHERS_BEFORE, 0.0)
        report.sections.append(("machine", (
            f"during this test the hypervisor had our CPUs for {lost_s:.2f} s, and processes that are not the tests' "
            f"about {max(used_s, 0):.2f} s; now {_read('/proc/loadavg').split()[3]} threads are runnable\n"
            f"{machine()}")))
        _keep(item, report)
    return report


def _keep(item: pytest.Item, report: pytest.TestReport) -> None:
    """Copies what a failed test has written to the folder COLLECT_TEST_KEEP, if there is one, with the failure: another
    try that passes takes both away."""
    folder, written = os.environ.get("COLLECT_TEST_KEEP"), getattr(item, "funcargs", {}).get("tmp_path")
    if not folder:
        return
    name = re.sub(r"[^\w.-]+", "-", item.name)
    kept = Path(folder) / f"{name}-{time.time_ns()}"
    with suppress(OSError, shutil.Error):  # a socket, or nothing is there any more
        if written is not None:
            shutil.copytree(written, kept, symlinks=True)
    told = [report.longreprtext, *(f"-- {name}\n{content}" for name, content in report.sections)]
    with suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "failure.txt").write_text("\n".join(told), errors="replace")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were given another try."""
    for report in terminalreporter.stats.get("rerun", []):
        where = getattr(report.longrepr, "reprcrash", None)
        why = f"line {where.lineno}: {where.message}" if where else str(report.longrepr)
        terminalreporter.write_line(f"{report.nodeid}: {' '.join(why.split())[:300]}")


@pytest.fixture
def stolen() -> Callable[[], float]:
    """``stolen()``: seconds that a hypervisor has let others have our CPUs since the test began."""
    before = stolen_s()
    return lambda: stolen_s() - before


@pytest.fixture
def is_repeated(request: pytest.FixtureRequest) -> bool:
    """Whether the test has failed before and is given another try, for which nothing recorded before will do."""
    return bool(getattr(request.node, "execution_count", 1) > 1)


@pytest.fixture
def was_stolen(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """``was_stolen(0.2)``: for so long a hypervisor let others have our CPUs while an earlier test recorded what this
    one looks at, too. That counts as if it were now: a failure is given another try."""
    def note(seconds: float) -> None:
        request.node.stash[STOLEN_BEFORE] -= seconds

    return note


@pytest.fixture(scope="session")
def need() -> Callable[[str, str], str]:
    """``need("gdb", "gdb")``: a tool's path, or the end of the test with the package to install."""
    return _need


def _perf_refused() -> str | None:
    """Why this user may not profile with perf events, or None."""
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except OSError:
        return "this kernel has no perf events"
    if os.geteuid() != 0 and paranoid > 2:
        return f"kernel.perf_event_paranoid is {paranoid}: an ordinary user needs 2 or less"
    return None


@pytest.fixture(scope="session")
def perf_allowed() -> None:
    """For tests that record with the perf engine: ends the test where the kernel does not allow it."""
    reason = _perf_refused()
    if reason is not None:
        unavailable(reason)


@pytest.fixture(scope="session")
def last_accounts_told() -> None:
    """For tests of the accounts that the kernel tells of threads as they end."""
    if os.geteuid() != 0:
        unavailable("accounts of threads that end are told to root")


@pytest.fixture(scope="session")
def waits_recorded(perf_allowed: None) -> None:
    """For tests that need the perf engine with records of waits."""
    if os.geteuid() != 0 and int(_read("/proc/sys/kernel/perf_event_paranoid")) > 1:
        unavailable("waits are recorded for root or with sysctl kernel.perf_event_paranoid=1")


@pytest.fixture(scope="session")
def attach_allowed() -> None:
    """For tests that attach with the signal engine to processes that are no children of collect."""
    if os.geteuid() != 0 and _read("/proc/sys/kernel/yama/ptrace_scope").strip() not in ("", "0"):
        unavailable("attaching by ptrace needs root or sysctl kernel.yama.ptrace_scope=0")


@pytest.fixture(scope="session")
def may_hurry() -> None:
    """The tests that need this are right only where a process may have a higher priority."""
    refusal = subprocess.run(["nice", "-n", "-20", "true"], capture_output=True, text=True, check=False).stderr
    if refusal:
        unavailable(f"no higher priority here: {refusal.strip()}")


@pytest.fixture(scope="session")
def autogroups() -> None:
    """For tests of the groups that the kernel makes of sessions."""
    if not Path("/proc/self/autogroup").exists():
        unavailable("this kernel makes no groups of sessions: CONFIG_SCHED_AUTOGROUP")


@pytest.fixture(scope="session")
def userfaultfd_allowed() -> None:
    """For tests whose target answers page faults of the kernel itself: root, or the kernel's permission."""
    if os.geteuid() != 0 and _read("/proc/sys/vm/unprivileged_userfaultfd").strip() != "1":
        unavailable("userfaultfd needs root or sysctl vm.unprivileged_userfaultfd=1")


# --- workloads ------------------------------------------------------------------------------------


def _load_builder() -> ModuleType:
    """``workloads/build.py`` as a module (the test folders are no packages)."""
    spec = importlib.util.spec_from_file_location("workloads_build", TESTS / "workloads" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled programs are kept: a folder of this session, or one for all that are given the same."""
    given = os.environ.get("COLLECT_TEST_PROGRAMS")
    return Path(given) if given else tmp_path_factory.mktemp("workloads")


@pytest.fixture(scope="session")
def workload(programs: Path) -> Callable[..., Path]:
    """``workload("split", "-O0", "-static")``: a program of ``tests/workloads``, compiled once for all."""
    builder = _load_builder()

    def program(name: str, *flags: str) -> Path:
        _need("gcc", "gcc")
        _need("/usr/include/stdio.h", "libc6-dev")
        if "-m32" in flags:
            _need("/usr/lib32/libc.so.6", "gcc-multilib")
        with open(programs / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = builder.build(name, programs, *flags)
        assert isinstance(path, Path)
        return path

    return program


@pytest.fixture(scope="session")
def go_program(programs: Path) -> Callable[..., Path]:
    """``go_program("split", "-s -w", "-buildmode=pie")``: the same in Go, with flags of its linker, and others."""

    def program(name: str, linking: str = "", *flags: str) -> Path:
        compiler, sources = _need("go", "golang-go"), Path(__file__).parent / "workloads"
        path = programs / "".join((name, ".go", linking, *flags)).replace(" ", "")
        with open(programs / "lock.go", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                subprocess.run([compiler, "build", *flags, "-ldflags", linking, "-o", path, sources / f"{name}.go"],
                               check=True, env=os.environ | go.environment(programs))
        return path

    return program


# --- the commands under test ----------------------------------------------------------------------


def _run(command: list[str], **options: Any) -> Completed:
    """Run to the end with captured text; two minutes unless told otherwise."""
    defaults: dict[str, Any] = {"capture_output": True, "text": True, "errors": "surrogateescape"}
    return prefork.run(command, **(defaults | {"timeout": 120} | options))


def _command(name: str) -> Callable[..., Completed]:
    def run(*arguments: str | Path, **options: Any) -> Completed:
        return _run([str(COMMANDS / name), *map(str, arguments)], **options)

    return run


@pytest.fixture(scope="session")
def collect() -> Callable[..., Completed]:
    """``collect("-p", "on", "-o", path, program)``: the command; keywords go to ``subprocess.run``."""
    return _command("collect")


@pytest.fixture(scope="session")
def er_print() -> Callable[..., Completed]:
    """The installed ``er_print``, like ``collect``."""
    return _command("er_print")


@pytest.fixture(scope="session")
def er_archive() -> Callable[..., Completed]:
    """The installed ``er_archive``, like ``collect``."""
    return _command("er_archive")


# --- the judge ------------------------------------------------------------------------------------

_ROW = re.compile(r"\s*((?:-?\d+\.?\d*\s+)+)(\S.*?)\s*")


@dataclass(frozen=True)
class Listing:
    """What ``gprofng display text`` (or ``er_print``) printed, and the last table in it."""

    text: str

    @cached_property
    def rows(self) -> list[tuple[str, tuple[float, ...]]]:
        """The rows of the last table: name and metrics, without those that are percentages."""
        found: list[tuple[str, tuple[float, ...]]] = []
        above, units = "", ""
        for line in self.text.splitlines():
            row = _ROW.fullmatch(line)
            if row is not None:
                if _ROW.fullmatch(above) is None:
                    found, units = [], above
                found.append((row[2], _without_percentages(row[1].split(), units.split())))
            above = line
        return found

    @cached_property
    def tree(self) -> dict[tuple[str, ...], tuple[float, ...]]:
        """A ``-calltree`` listing: ``{("<Total>", "_start", "main"): (attributed, ...)}``."""
        found: dict[tuple[str, ...], tuple[float, ...]] = {}
        path: list[tuple[int, str]] = []
        lines = [line for line in self.text.splitlines() if _ROW.fullmatch(line)][-len(self.rows) :]
        for line, (_, values) in zip(lines, self.rows, strict=True):
            column, name = line.index("+-"), line.split("+-", 1)[1].strip()
            path = [step for step in path if step[0] < column] + [(column, name)]
            found[tuple(name for _, name in path)] = values
        return found

    @cached_property
    def functions(self) -> dict[str, tuple[float, ...]]:
        """``{name: (exclusive, incl.)}``, all metrics of the listing; functions of one name are added up."""
        sums: dict[str, tuple[float, ...]] = {}
        for name, values in self.rows:
            before = sums.get(name, (0.0,) * len(values))
            sums[name] = tuple(a + b for a, b in zip(before, values, strict=True))
        return sums


def _without_percentages(numbers: list[str], units: list[str]) -> tuple[float, ...]:
    """The line above a table's first row has one unit per metric when the metrics are times."""
    if len(units) != len(numbers):
        units = [""] * len(numbers)
    return tuple(float(number) for number, unit in zip(numbers, units, strict=True) if unit != "%")


@pytest.fixture(scope="session")
def gprofng() -> Callable[..., Listing]:
    """``gprofng("-functions", experiment=path)``: what binutils' reader prints, nothing on stderr."""

    def display(*commands: str, experiment: str | Path) -> Listing:
        reader = _need("gprofng", "binutils")
        environment = os.environ | {"LC_ALL": "C"}
        result = _run([reader, "display", "text", *commands, str(experiment)], env=environment)
        assert result.stderr == ""
        assert result.returncode == 0, result.stdout
        return Listing(result.stdout)

    return display


# --- nothing stays behind -------------------------------------------------------------------------

SYSCTLS = (
    "kernel/perf_event_paranoid",
    "kernel/perf_event_mlock_kb",
    "kernel/perf_event_max_stack",
    "kernel/perf_cpu_time_max_percent",
    "kernel/yama/ptrace_scope",
    "kernel/randomize_va_space",
    "vm/unprivileged_userfaultfd",
)
PR_SET_CHILD_SUBREAPER = 36
STOLEN_BEFORE, OTHERS_BEFORE = pytest.StashKey[float](), pytest.StashKey[float]()
CALM_FOR_S, CALM_WITHIN_S = 0.5, 20
GRACE_S = 30.0  # what ends by itself does so at some time; what tests let sleep does not for longer


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _sysctls() -> dict[str, str]:
    return {name: _read(f"/proc/sys/{name}") for name in SYSCTLS}


def _children() -> set[int]:
    """PIDs of all children of this process that tests have, those that have ended included."""
    paths = glob.glob("/proc/self/task/*/children")
    return {int(pid) for path in paths for pid in _read(path).split()} - prefork.forkers()


def _lives(pid: int) -> bool:
    """False for a process that has ended, which is put away."""
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _left_behind(before: set[int]) -> set[int]:
    """Children that were not there before and do not end within the grace period."""
    deadline = time.monotonic() + GRACE_S
    while (left := set(filter(_lives, _children() - before))) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@pytest.fixture(scope="session", autouse=True)
def _adopt_orphans() -> None:
    """Descendants whose parent died come to us instead of init, so that none escapes the check below."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(autouse=True)
def _nothing_stays_behind(_adopt_orphans: None) -> Iterator[None]:
    """No process started by a test outlives it, and no setting of the kernel is changed. What a recording inside this
    process takes among many threads, its priority, is given back: the next test's programs would inherit it, and they
    would inherit signals that are blocked."""
    children, sysctls, nice = _children(), _sysctls(), os.getpriority(os.PRIO_PROCESS, 0)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    left_blocked = signal.pthread_sigmask(signal.SIG_SETMASK, blocked) - blocked
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    left = {pid: _read(f"/proc/{pid}/cmdline").replace("\0", " ") for pid in _left_behind(children)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not left, f"processes left behind (and killed now): {left}"
    assert not left_blocked, f"signals left blocked: {left_blocked}"
    assert _sysctls() == sysctls
