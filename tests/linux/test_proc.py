"""What /proc says, compared with what this process and its children know of themselves."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.linux import proc


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input to end, with odd arguments."""
    command = ["/bin/sh", "-c", "read line", "a b", "", "new\nline", b"\xff\xfe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        while b"\xff" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def test_the_machine() -> None:
    machine = proc.machine()
    assert machine.hostname == socket.gethostname()
    assert machine.system == f"Linux {os.uname().release}"
    assert machine.architecture == os.uname().machine
    assert machine.page_size == resource.getpagesize()
    total_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert machine.n_pages == total_kib * 1024 // machine.page_size
    assert len(machine.cpu_mhz) == os.sysconf("SC_NPROCESSORS_ONLN")


def test_a_command_line_is_kept_byte_by_byte(child: subprocess.Popen[bytes]) -> None:
    assert proc.command_line(child.pid) == [b"/bin/sh", b"-c", b"read line", b"a b", b"", b"new\nline", b"\xff\xfe"]
    assert proc.comm(child.pid, child.pid) == b"sh"


def test_threads_come_in_ascending_order() -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(7)]
    for thread in threads:
        thread.start()
    tids = proc.threads(os.getpid())
    done.set()
    for thread in threads:
        thread.join()
    assert tids == sorted(tids)
    assert {os.getpid(), *(thread.native_id for thread in threads)} <= set(tids)


def test_a_name_may_hold_anything() -> None:
    path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    before = path.read_bytes()
    try:
        path.write_bytes(b"a) R (\n<&")
        assert proc.comm(os.getpid(), threading.get_native_id()) == b"a) R (\n<&"
    finally:
        path.write_bytes(before[:-1])


def test_those_that_are_gone() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    assert proc.process_usage(process.pid) is None
    with pytest.raises(FileNotFoundError):
        proc.threads(process.pid)


def test_a_zombie_still_says_what_it_used() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        while "\nState:\tZ" not in Path(f"/proc/{process.pid}/status").read_text():
            time.sleep(0.001)
        usage = proc.process_usage(process.pid)
    assert usage is not None
    assert usage.minor_faults > 0


def test_usage_is_that_of_getrusage() -> None:
    before, switches = proc.process_usage(os.getpid()), proc.process_switches(os.getpid())
    times = os.times()
    truth = resource.getrusage(resource.RUSAGE_SELF)
    assert before is not None
    assert 0 <= truth.ru_minflt - before.minor_faults < 50
    assert 0 <= truth.ru_majflt - before.major_faults < 5
    assert (before.user_ns / 1e9, before.system_ns / 1e9) == pytest.approx((times.user, times.system), abs=0.05)
    with open("/dev/zero", "rb", buffering=0) as zero:
        for _ in range(101):
            zero.read(1009)
    time.sleep(0.001)
    after = proc.process_usage(os.getpid())
    assert after is not None
    # Threads that have ended count there, and not here.
    assert switches[0] <= truth.ru_nvcsw
    assert switches[1] <= truth.ru_nivcsw
    assert proc.process_switches(os.getpid())[0] > switches[0]
    assert after.system_calls - before.system_calls >= 101
    assert after.io_characters - before.io_characters >= 101 * 1009


@pytest.mark.parametrize(("name", "expected"), [
    ("kernel/pid_max", int), ("kernel/osrelease", None), ("no/such/parameter", None)])
def test_parameters_are_numbers_or_nothing(name: str, expected: type | None) -> None:
    found = proc.parameter(name)
    assert found is None if expected is None else isinstance(found, expected)


def test_kernel_functions_lie_between_their_neighbours() -> None:
    lines = Path("/proc/kallsyms").read_text().splitlines()
    addresses = sorted({int(line.split()[0], 16) for line in lines})
    functions = proc.kernel_functions(rb"do_futex|schedule|handle_mm_\w+")
    if addresses == [0]:
        assert functions == []  # hidden from this user
        return
    by_name = {name: (start, end) for start, end, name in functions}
    assert functions == sorted(functions)
    assert {b"do_futex", b"schedule", b"handle_mm_fault"} <= by_name.keys()
    assert b"schedule_timeout" not in by_name  # the pattern is for whole names
    for name, (start, end) in by_name.items():
        assert any(line.split()[0] == f"{start:016x}" and line.split()[2].encode() == name for line in lines)
        assert end == addresses[addresses.index(start) + 1]


def test_what_follows_the_landmarks_is_left_unread_unless_they_are_shuffled() -> None:
    pattern = rb"do_futex|handle_mm_fault|exc_page_fault"
    every = proc.kernel_functions(pattern)
    if not every:
        return  # hidden from this user
    order = [name for _, _, name in every]
    assert proc.kernel_functions(pattern, order) == every
    assert proc.kernel_functions(pattern, order[:1]) == every[:1]
    assert proc.kernel_functions(pattern, order[1::-1]) == every


def test_hidden_kernel_functions_cost_no_time() -> None:
    """An ordinary user sees zeros; looking for what is behind them must not take a hundred times as long as it takes
    the kernel to print them."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")
    code = """
import time
from collector.linux import proc
times = [time.process_time()]
with open("/proc/kallsyms", "rb") as file:
    file.read()
times.append(time.process_time())
found = proc.kernel_functions(rb"\\w*fault\\w*")
times.append(time.process_time())
print(found, (times[2] - times[1]) / (times[1] - times[0]))
"""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "Permission denied" in result.stderr:
        pytest.skip("this Python is private to root")
    found, times_as_long = result.stdout.rsplit(" ", 1)
    assert found == "[]"
    assert float(times_as_long) < 10


def test_the_vdso_is_elf_in_memory() -> None:
    ((start, end),) = proc.vdso_ranges(os.getpid())
    image = proc.read_memory(os.getpid(), start, end - start)
    assert (len(image), image[:4]) == (end - start, b"\x7fELF")
    with pytest.raises(OSError, match="Input/output error"):
        proc.read_memory(os.getpid(), 8, 16)


def test_a_process_that_ends_before_its_memory_is_read_is_gone() -> None:
    with subprocess.Popen(["sleep", "1009"]) as process:
        while not proc.vdso_ranges(process.pid):
            time.sleep(0.001)
        ((start, _),) = proc.vdso_ranges(process.pid)
        fd = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY)
        try:
            assert proc.memory_in(fd, start, 4) == b"\x7fELF"
            process.kill()
            process.wait()
            with pytest.raises(ProcessLookupError):
                proc.memory_in(fd, start, 4)
        finally:
            os.close(fd)


PARAMETERS = {name for path in Path(proc.__file__).parents[1].rglob("*.py")
              for name in re.findall(r'\bparameter\("([^"]+)"\)', path.read_text())}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_of_the_kernel_are_called_by_their_names(name: str) -> None:
    """Those of Yama are there where it is."""
    assert os.path.exists("/proc/sys/kernel") and "kernel/perf_event_paranoid" in PARAMETERS
    if not name.startswith("kernel/yama/") or os.path.exists("/proc/sys/kernel/yama"):
        assert proc.parameter(name) is not None
