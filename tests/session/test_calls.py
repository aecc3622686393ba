"""In which system call threads wait: as often as they do, and never a wrong one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import unread

from collector.aggregate.spans import Source, Spans
from collector.engines.perf.kernel_calls import KernelCalls
from collector.events import IN_NO_CALL, ClockSamples
from collector.experiment.reader import open_experiment
from collector.linux import abi, proc
from collector.session.calls import Calls
from collector.session.placing import Placed

Run = Callable[..., Any]
COMMANDS = Path(sys.executable).parent
N = 37
SLEEP, WAIT, ON_CPU = 7, 8, 10


def values(er_print: Run, path: Path, name: str, source: str) -> dict[tuple[Any, ...], int]:
    done = er_print("-json_aggregations", name, path)
    assert (done.returncode, done.stdout != "") == (0, True), done
    (one,) = json.loads(done.stdout)["aggregations"]
    return {tuple(entry["key"]): entry["value"] for entry in one[source]}


def counts(er_print: Run, path: Path, name: str) -> dict[tuple[Any, ...], int]:
    assert values(er_print, path, name, "synthetic") == {}
    return values(er_print, path, name, "recorded")


@pytest.mark.parametrize(("flags", "calls"), [
    ((), {("futex", "lock"): N, ("read", "sleep"): 2 * N, ("poll", "sleep"): N, ("epoll_wait", "sleep"): N}),
    (("-m32",), {("futex_time32", "lock"): N, ("read", "sleep"): 2 * N, ("poll", "sleep"): N,
                 ("epoll_wait", "sleep"): N}),
], ids=["64-bit", "32-bit"])
def test_each_wait_is_in_its_call(collect: Run, er_print: Run, workload: Run, tmp_path: Path, kernel_shown: None,
                                  flags: tuple[str, ...], calls: dict[tuple[str, str], int]) -> None:
    path = tmp_path / "run.er"
    done = collect("-o", path, "--aggregate", 'c[comm, syscall, state] = count() / state != "wait" /', "--aggregate",
                   "syscallwait", "--aggregate", 'f[comm] = count() / syscall == "epoll_wait" && sleep > 0 /',
                   workload("wakes", *flags), N)
    assert done.returncode == 0, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    found, n_unknown = counts(er_print, path, "c"), unread.n_unread(open_experiment(path))
    waits = {key[1:]: n for key, n in found.items() if key[0] == "wakee" and key[2] in ("sleep", "lock")}
    assert waits.pop(("<Unknown>", "sleep"), 0) <= n_unknown
    assert waits.keys() <= calls.keys()
    assert all(0 <= n - waits.get(call, 0) <= n_unknown for call, n in calls.items())
    # Nobody waits for a page in a call, but who gives the kernel an address.
    assert {key[1] for key in found if key[2] in ("textpfault", "datapfault")} <= {"<none>"}
    assert {key[1] for key in found if key[2] == "oncpu"} == {"<Unknown>"}
    assert N - n_unknown <= counts(er_print, path, "f")[("wakee",)] <= N
    assert {key[1] for key in counts(er_print, path, "syscallwait")} >= {call for call, _ in calls}


def test_a_long_wait_told_in_parts_keeps_its_call(collect: Run, er_print: Run, workload: Run, tmp_path: Path,
                                                  kernel_shown: None) -> None:
    """The kernel's timer begins before the thread has left its CPU: see the same in test_aggregating. A wake-up on a
    CPU that idles may be untold; how long the thread waited then is the account's word alone."""
    path = tmp_path / "run.er"
    done = collect("-o", path, "--aggregate", "c[syscall] = max(sleep)", "--aggregate", "queued[tid] = sum(waitcpu)",
                   workload("states"), "nanosleep", 1, 1300)
    assert done.returncode == 0, done.stderr
    (thread,) = json.loads(done.stdout)["threads"]
    queued_ns = sum(values(er_print, path, "queued", source).get((thread["tid"],), 0)
                    for source in ("recorded", "synthetic"))
    assert counts(er_print, path, "c")["clock_nanosleep",] >= 1_300_000_000 - queued_ns - thread["cpu_s"] * 1e9


def test_every_call_of_this_machine_has_its_name(need: Run, kernel_shown: None) -> None:
    """Those in the C library's headers that the kernel has; it may have been built without some."""
    header = Path(need("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "linux-libc-dev")).read_text()
    names = {name.encode() for name in re.findall(r"#define __NR_(\w+)", header)}
    told = set(KernelCalls().names)
    assert len(names & told) > 0.9 * len(names)
    assert {b"read", b"futex", b"epoll_wait", b"wait4", b"clock_nanosleep", b"stat", b"uname", b"umount2"} <= told


def test_the_function_inside_the_doors_tells(kernel_shown: None) -> None:
    """Chains of this kernel's own functions, with the return address somewhere in each."""
    address = {name: start + 9 for start, _, name in proc.kernel_functions(rb"\w+")}
    door = [b"do_syscall_64", b"entry_SYSCALL_64_after_hwframe"]
    chains = {(b"schedule", b"do_futex", b"__x64_sys_futex", *door): b"futex",
              (b"schedule", b"vfs_read", b"ksys_read", *door): b"read",
              (b"schedule", b"ksys_read", b"__x64_sys_pread64", *door): b"pread64",
              (b"schedule", b"vfs_read", *door): b"",  # whose that is is not known: not read's alone
              (b"schedule", b"ksys_read", b"vfs_read", *door): b"",  # a call that reads on the way
              (b"schedule", b"asm_exc_page_fault"): IN_NO_CALL,
              (b"schedule", b"asm_exc_page_fault", b"__x64_sys_futex", *door): b"futex",
              (b"schedule", b"ret_from_fork_asm"): b"", (): b"", tuple(door): b""}
    words = [[address[name] for name in chain] for chain in chains]
    marked = [[abi.CONTEXT_MAX + 0xF7F, *chain] if chain else [] for chain in words]
    n_chain = np.array([len(chain) for chain in marked])
    chain = np.array([word for chain in marked for word in chain], dtype=np.uint64)
    found = KernelCalls().calls(chain, np.cumsum(n_chain) - n_chain, n_chain)
    assert found.tolist() == list(chains.values())


def test_where_it_is_not_told_is_one_line(collect: Run, tmp_path: Path, as_nobody: list[str], public_directory: Path,
                                          perf_allowed: None) -> None:
    done = collect("-o", tmp_path / "x.er", "--engine", "signal", "--aggregate", "syscallwait", "touch",
                   tmp_path / "started")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "in which system call a thread waits is told by call chains of the kernel" in done.stderr
    assert list(tmp_path.iterdir()) == []
    command = [*as_nobody, COMMANDS / "collect", "-o", "x.er", "--aggregate", "syscallwait", "touch", "started"]
    done = subprocess.run(command, cwd=public_directory, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "in which system call a thread waits is told by" in done.stderr.splitlines()[-1]
    assert list(public_directory.iterdir()) == []


# --- without a kernel


def left(calls: Calls, *departures: tuple[int, int, int, bytes]) -> None:
    """Of (slot, time, uid, call), all in the image 3."""
    n = len(departures)
    slot, time_ns, uid = np.array([row[:3] for row in departures], dtype=np.int64).reshape(n, 3).T
    none = np.zeros(n, dtype=np.int64)
    samples = ClockSamples(time_ns, *[none] * 12)
    placed = Placed(slot, none + 3, uid.astype(np.uint64), none == 0, none != 0)
    calls.saw(samples, placed, np.array([row[3] for row in departures], dtype=np.bytes_))


def told(calls: Calls, *rows: tuple[int, ...]) -> list[str]:
    """The calls of spans of (slot, start, end, state[, uid[, source]])."""
    slot, start, end, state, uid, source = np.array([(*row, 0, 0)[:6] for row in rows], dtype=np.int64).T
    none = np.zeros(len(slot), dtype=np.int64)
    spans = Spans(start, end, state.astype(np.uint8), slot, none, none, none, uid, source.astype(np.uint8))
    return [calls.names[number].decode() for number in calls.of(spans, none + 3).tolist()]


def test_a_departure_tells_the_call_until_the_thread_runs_again() -> None:
    calls = Calls()
    left(calls, (1, 10, 5, b"read"), (2, 10, 6, IN_NO_CALL), (1, 30, 5, b"poll"))
    assert told(calls, (1, 0, 10, ON_CPU), (1, 10, 15, SLEEP), (1, 15, 20, WAIT), (1, 20, 30, ON_CPU),
                (2, 0, 10, ON_CPU), (2, 10, 12, WAIT)) == ["<Unknown>", "read", "read", "<Unknown>", "<Unknown>",
                                                           "<none>"]
    # Of the next departure the record was lost.
    assert told(calls, (1, 20, 30, ON_CPU), (1, 30, 31, SLEEP), (1, 31, 35, ON_CPU), (1, 35, 36, SLEEP)) == [
        "<Unknown>", "poll", "<Unknown>", "<Unknown>"]
    assert told(calls, (1, 20, 30, ON_CPU)) == ["<Unknown>"]
    # The rest of what is told in parts, in a batch without departures.
    calls.saw(None, None, None)
    assert told(calls, (1, 30, 40, SLEEP), (2, 12, 13, WAIT)) == ["poll", "<none>"]
    assert told(calls, (1, 40, 41, WAIT), (2, 13, 50, ON_CPU), (2, 50, 51, SLEEP)) == ["poll", "<Unknown>", "<Unknown>"]
    # Another thread at the slot.
    calls.forget(np.array([1]))
    assert told(calls, (1, 60, 70, SLEEP)) == ["<Unknown>"]


def test_without_a_record_the_stack_tells_if_it_is_always_the_same_call() -> None:
    calls = Calls()
    left(calls, (1, 10, 5, b"read"), (1, 30, 6, b"poll"), (1, 50, 6, b"futex"), (1, 70, 7, IN_NO_CALL), (1, 90, 5, b""))
    told(calls, (1, 0, 10, ON_CPU), (1, 10, 20, SLEEP), (1, 20, 90, ON_CPU))
    calls.saw(None, None, None)
    assert told(calls, (2, 0, 9, ON_CPU), (2, 9, 11, SLEEP, 5), (3, 9, 11, SLEEP, 6), (4, 9, 11, WAIT, 7),
                (5, 9, 11, SLEEP, 8), (6, 9, 11, SLEEP), (7, 9, 11, SLEEP, 5, Source.SYNTHETIC)) == [
        "<Unknown>", "read", *["<Unknown>"] * 5]
