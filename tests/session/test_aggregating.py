"""``collect --aggregate`` and ``er_print -aggregations`` on programs whose counts are known."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import prefork
import pytest
from children import children_of
from naps import n_naps

from collector.aggregate.spans import Spans
from collector.aggregate.syntax import FUNCTIONS, KEYS, STACKS, VALUES
from collector.experiment.aggregations import unpack
from collector.experiment.reader import open_experiment
from collector.session.aggregating import WholeStretches
from collector.session.asked import asked_of

Run = Callable[..., Any]

COMMANDS = Path(sys.executable).parent
INTERVAL_S = 10.007e-3
TURNS, TURN_MS = 23, 1
NAPS = 'naps[tid] = count() / state == "sleep" /'
LIBC_SLEEP = "libc.so.6`clock_nanosleep"


def numbers(listing: str) -> Counter[tuple[str, ...]]:
    """The sum of the values of each key of an aggregation whose values are numbers: those that were seen, and those
    that accounts alone tell of are listed below each other. What is said of them is not indented."""
    found: Counter[tuple[str, ...]] = Counter()
    for *key, value in (line.split() for line in listing.splitlines() if line.startswith(" ")):
        found[tuple(key)] += int(value)
    return found


def in_buckets(listing: str) -> dict[str, int]:
    """How many values each distribution has, by key."""
    found: dict[str, int] = {}
    key = ""
    for line in listing.splitlines()[1:]:
        bucket = re.fullmatch(r" *-?\d+ \|[@ ]{40} (\d+) *", line)
        if bucket:
            found[key] = found.get(key, 0) + int(bucket[1])
        elif line.strip() and "Distribution" not in line:
            key = line.strip()
    return found


@pytest.fixture
def aggregated(collect: Run, tmp_path: Path, perf_allowed: None) -> Run:
    """``aggregated("naps", program, "7")``: the experiment of a program under these, and what it printed."""

    def run(asked: list[str], *command: str | Path, options: tuple[str, ...] = ()) -> tuple[Path, str]:
        path = tmp_path / "run.er"
        done = collect("-o", path, *options, *[word for each in asked for word in ("--aggregate", each)], *command)
        assert done.returncode == 0, done.stderr
        return path, done.stdout

    return run


@contextmanager
def going_on(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed at the end, however late that comes."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def attached(options: list[str], path: Path, is_enough: Callable[[], bool]) -> None:
    """Records programs that go on until that is enough, however long it takes to attach to them."""
    command = [COMMANDS / "collect", "-A", "off", "-o", path, *options]
    with prefork.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not is_enough():
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.02)
        finally:  # or it would go on with them
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said


def test_each_nap_is_one_value(aggregated: Run, er_print: Run, workload: Run, gprofng: Run) -> None:
    """A thread's accounts may cover several naps, and then what it has waited for a CPU is dealt out to all of them:
    one nap may be told too short and another too long, but their sum is right."""
    asked = ["rq[execname] = quantize(waitcpu)", "block[usym] = quantize(sleep)", NAPS, "top[tid] = count()", "cswch"]
    sums = ["slept[tid] = sum(sleep)", "queued[tid] = sum(waitcpu)"]
    path, out = aggregated(asked + sums, workload("states"), "nanosleep", TURNS, TURN_MS)
    (thread,) = json.loads(out)["threads"]
    tid, n_napped = (str(thread["tid"]),), n_naps(out)

    def listed(name: str) -> str:
        done = er_print("-aggregations", name, path)
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout)

    assert numbers(listed("naps"))[tid] == n_napped
    assert in_buckets(listed("block"))[LIBC_SLEEP] == n_napped
    assert in_buckets(listed("rq")).keys() <= {workload("states").name}  # an idle CPU's wake-ups may not be told
    # Of each there is the nap and the run behind it, and a wait between them where it is recorded.
    assert numbers(listed("top"))[tid] >= 2 * n_napped
    (switches,) = numbers(listed("cswch")).values()
    assert switches > n_napped
    names = ("rq", "block", "naps", "top", "cswch", "slept", "queued")
    assert er_print("-aggregations", path).stdout == "".join(map(listed, names))
    assert "No errors\nNo warnings\n" in gprofng("-header", experiment=path).text
    (block,) = json.loads(er_print("-json_aggregations", "block", path).stdout)["aggregations"]
    (buckets,) = [entry["buckets"] for entry in block["recorded"] if entry["key"] == [LIBC_SLEEP]]
    assert sum(bucket["count"] for bucket in buckets) == n_napped
    assert all(bucket["max"] == 2 * bucket["min"] - 1 for bucket in buckets)
    slept, queued = (numbers(listed(name))[tid] for name in ("slept", "queued"))
    assert sum(bucket["count"] * bucket["min"] for bucket in buckets) <= slept
    assert slept <= sum(bucket["count"] * bucket["max"] for bucket in buckets)
    # The kernel's timer begins before the thread has left its CPU.
    assert slept >= n_napped * TURN_MS * 1_000_000 - queued - thread["cpu_s"] * 1e9


def by_bucket(done: Any, name: str) -> dict[tuple[Any, ...], dict[int, int]]:
    """Of an aggregation's JSON: by key, how many values each bucket has, by its least one."""
    (found,) = [one for one in json.loads(done.stdout)["aggregations"] if one["name"] == name]
    return {tuple(entry["key"]): {bucket["min"]: bucket["count"] for bucket in entry["buckets"]}
            for entry in found["recorded"]}


def test_sleeps_of_known_lengths_are_in_their_buckets(aggregated: Run, er_print: Run, workload: Run) -> None:
    """Each in the middle of a power of two, of which no other one of the program's sleeps is. One that took so long by
    the program's own clock that it may be in a later bucket may be there. And where an account covers several sleeps,
    what the thread has waited behind one may be taken from another: those that waits in all are enough for may be in
    an earlier bucket. Waits are what the kernel's account says, too: it takes the rest of a sleep for one if it moves
    who has just gone to sleep. One whose timer fired before its thread had left its CPU is none."""
    kinds = {3_000_000: 43, 12_000_000: 19, 49_000_000: 7}
    path, out = aggregated(["block[usym] = quantize(sleep)"], workload("naps"), "sleep",
                           *(word for length, n in kinds.items() for word in (str(n), str(length))))
    found = by_bucket(er_print("-json_aggregations", path), "block")[LIBC_SLEEP,]
    told = json.loads(out)["kinds"]
    waited_ns = max(sum(kind[3] for kind in told), json.loads(out)["delay_ns"])
    buckets_ns = [1 << length_ns.bit_length() - 1 for length_ns in kinds]
    shortened = [waited_ns // (length_ns - bucket_ns) for length_ns, bucket_ns in zip(kinds, buckets_ns, strict=True)]
    for i, (n, (_, _, n_beyond, _, n_awake)) in enumerate(zip(kinds.values(), told, strict=True)):
        n_more = sum(kind[2] for kind in told) + sum(shortened[i + 1:])
        assert n - n_awake - n_beyond - shortened[i] <= found[buckets_ns[i]] <= n + n_more, out
    assert sum(found.values()) == sum(kinds.values()) - sum(kind[4] for kind in told), (found, out)


def test_waits_of_known_lengths_are_in_their_buckets(aggregated: Run, er_print: Run, workload: Run) -> None:
    """By the program's own clock, which tells of each how long it was at least and at most, and reads a little more:
    what is that near to a power of two may be on either side of it; and who is preempted before it has read its clock
    has waited twice."""
    path, out = aggregated(["rq[execname] = quantize(waitcpu)", "each[tid] = quantize(waitcpu)"], workload("naps"),
                           "wait", "31", "6000000", "7", "24000000")
    said, done = json.loads(out), er_print("-json_aggregations", path)
    each, (all_of_it,) = by_bucket(done, "each"), by_bucket(done, "rq").values()
    mine = each[said["waiter"],]
    for bucket in (1 << 22, 1 << 24):
        waits_ns = [least for least, _ in said["waits_ns"] if bucket <= least < 2 * bucket]
        near = [most for least, most in said["waits_ns"] if any(
            least - bucket // 8 < bound < most + bucket // 8 for bound in (bucket, 2 * bucket))]
        off = abs(mine.get(bucket, 0) - len(waits_ns))
        assert off <= len(near) + 2 * said["n_preempted"], (bucket, mine, said)
    assert all_of_it == {least: sum(one.get(least, 0) for one in each.values()) for least in all_of_it}


def test_a_long_sleep_is_one_value_though_it_is_told_in_parts(aggregated: Run, er_print: Run, workload: Run) -> None:
    """As long as the program asked for: the kernel's timer begins before the thread has left its CPU, so the call's CPU
    time belongs to it, and what others took of that CPU meanwhile."""
    path, out = aggregated([NAPS, "least[tid] = min(sleep)", "queued[tid] = sum(waitcpu)"],
                           workload("states"), "nanosleep", 1, 1300)
    (thread,) = json.loads(out)["threads"]
    tid = (str(thread["tid"]),)
    naps, least, queued = (numbers(er_print("-aggregations", name, path).stdout)[tid]
                           for name in ("naps", "least", "queued"))
    assert naps == 1
    assert least >= 1_300_000_000 - queued - thread["cpu_s"] * 1e9


def test_a_family_is_merged_by_its_functions(aggregated: Run, er_print: Run, workload: Run) -> None:
    """Two programs, mapped at other addresses, one after the other below a shell."""
    program = workload("states")
    path, out = aggregated(["block[execname, ustack(1)] = quantize(sleep)"], "sh", "-c",
                         f"{program} nanosleep 5 1; {program} nanosleep 6 1; true")
    frames = in_buckets(er_print("-aggregations", path).stdout)
    (nap,) = [key for key in frames if key.startswith(LIBC_SLEEP)]
    n_first, n_second = map(n_naps, out.splitlines())
    assert frames[nap] == n_first + n_second
    assert {(child / "aggregations").is_file() for child in path.glob("_*.er")} == {True}


def test_what_a_pause_hides_is_in_no_aggregation(aggregated: Run, er_print: Run, workload: Run) -> None:
    path, _ = aggregated([NAPS], workload("states"), "nanosleep", TURNS, TURN_MS, options=("-y", "USR1"))
    done = er_print("-aggregations", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [NAPS, "no values", ""]


def test_what_no_record_tells_is_synthetic(collect: Run, er_print: Run, workload: Run, tmp_path: Path) -> None:
    """By looks now and then, of which one may find several sleeps since the last one."""
    path, n_turns, turn_ms = tmp_path / "run.er", 211, 2
    done = collect("-o", path, "--engine", "signal", "--aggregate", "slept[tid] = sum(sleep)", "--aggregate", NAPS,
                   workload("states"), "nanosleep", n_turns, turn_ms)
    (thread,) = json.loads(done.stdout)["threads"]
    for name in ("slept", "naps"):
        head, mark, *_ = er_print("-aggregations", name, path).stdout.splitlines()
        assert mark.startswith("synthetic: ")
        assert head.startswith(f"{name}[tid]")
    (stored, _) = open_experiment(path).aggregations
    assert stored.n_recorded == 0
    (slept_ns,) = stored.states[stored.keys[:, 0] == thread["tid"], 0].tolist()
    assert n_turns * turn_ms * 1e6 * 0.9 < slept_ns <= thread["life_s"] * 1e9 * 1.1


def test_who_is_found_has_the_name_that_the_kernel_tells(tmp_path: Path, er_print: Run, workload: Run,
                                                         perf_allowed: None) -> None:
    """A program that was started by a link: its mapping has the name of the link's target."""
    link, path = tmp_path / "other-name", tmp_path / "run.er"
    link.symlink_to(workload("states"))
    asked = [word for key in ("comm", "execname") for word in ("--aggregate", f"{key}[{key}] = sum(sleep)")]
    with going_on(link, "nanosleep", "endless", "2") as one:
        attached([*asked, "-P", str(one.pid)], path, lambda: has_keys(path / "aggregations"))
    for name in ("comm", "execname"):
        (found,) = json.loads(er_print("-json_aggregations", name, path).stdout)["aggregations"]
        assert {tuple(entry["key"]) for entry in found["recorded"]} == {("other-name",)}


def test_who_asks_for_waits_is_told_each() -> None:
    assert asked_of(("a = quantize(waitcpu)",)) == asked_of(("b[state] = count()",)) == {"waits"}
    assert asked_of(("c = count() / offcpu > 3ms /", "d[waker] = count()")) == {"waits", "waker"}
    assert asked_of(("e[tid] = sum(sleep)", "f = quantize(runlength)")) == frozenset()


def has_keys(file: Path) -> bool:
    """Whether something was aggregated; the file is whole whenever there is one."""
    return file.exists() and any(len(one.keys) for one in unpack(file.read_bytes()))


def test_a_collector_that_is_killed_leaves_the_last_state(tmp_path: Path, er_print: Run, workload: Run,
                                                          perf_allowed: None) -> None:
    path = tmp_path / "run.er"
    command = [COMMANDS / "collect", "-o", path, "--aggregate", NAPS, workload("states"), "nanosleep", "endless", "5"]
    with prefork.Popen(command, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 30
        while not has_keys(path / "aggregations") and time.monotonic() < until:
            time.sleep(0.01)
        children = children_of(process.pid)
        process.kill()
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    done = er_print("-aggregations", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(numbers(done.stdout).values()) >= 1


@pytest.mark.parametrize(("asked", "told"), [
    ("a = quantise(sleep)", "unknown function quantise"),
    ("a[tid, usym] = sum(switches)", "a run may have several stacks, or none"),
    ('a = sum(sleep) / usym == "main" /', "it can be a key, not a condition"),
    ('a = count() / pid == 3 || !(state == "user") /', 'the state is "oncpu"'),
    ("a = llquantize(sleep, 10, 0, 5, 3)", "multiple of the factor"),
])
def test_a_bad_expression_is_shown_and_nothing_starts(collect: Run, tmp_path: Path, asked: str, told: str) -> None:
    done = collect("-o", tmp_path / "x.er", "--aggregate", asked, "touch", tmp_path / "started")
    assert (done.returncode, done.stdout) == (2, "")
    reason, expression, caret = done.stderr.splitlines()
    assert reason.startswith("collect: ")
    assert told in reason
    assert expression == asked
    assert caret.strip() == "^"
    assert asked[caret.index("^")].strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "told"), [
    (("--aggregate", "runqlatt"), "there is no ready one of that name"),
    (("--aggregate", "cswch", "--aggregate", "@cswch = count()"), "there are two of the name cswch"),
    (("-p", "off", "--aggregate", "cswch"), "leave out -p off"),
])
def test_what_cannot_be_aggregated_is_one_line(collect: Run, tmp_path: Path, options: tuple[str, ...],
                                               told: str) -> None:
    done = collect("-o", tmp_path / "x.er", *options, "true")
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_ready_ones_are_printed_and_can_be_asked_for(collect: Run, tmp_path: Path) -> None:
    done = collect("--aggregate", "help")
    words, meaning, ready = done.stdout.split("\n\n")
    assert {*KEYS, *VALUES} <= {*words.split()}
    assert all(f" {name}(" in words for name in FUNCTIONS)
    names = [line.partition("=")[0].partition("[")[0].strip() for line in ready.splitlines()[1:]]
    assert {"runqlat", "offcpu", "offcputime", "cpudist", "futex"} <= set(names)
    assert all(re.search(rf"\b{name}\b", meaning) for name in (*VALUES, *STACKS, "waker", "syscall"))
    asked = [word for name in names for word in ("--aggregate", name)]
    assert collect("-n", "-o", tmp_path / "x.er", *asked, "true").returncode == 0


def test_more_threads_than_there_is_room_for_are_told(collect: Run, er_print: Run, tmp_path: Path,
                                                      perf_allowed: None) -> None:
    """What has many buckets has room for few keys."""
    code = "from threading import Thread\nfor i in range(70): t = Thread(target=id, args=(i,)); t.start(); t.join()"
    path = tmp_path / "many.er"
    done = collect("-o", path, "--aggregate", "a[tid] = lquantize(oncpu / 1us, 0, 65535)", "--aggregate",
                   "b[tid] = count()", sys.executable, "-S", "-c", code)
    assert done.returncode == 0
    told = re.search(r"[;,] (\d+) values? (?:is|are) in no aggregation, which had no room for more keys", done.stderr)
    assert told is not None and int(told[1]) >= 71 - 63
    few, all_of_them = json.loads(er_print("-json_aggregations", path).stdout)["aggregations"]
    assert (len(few["recorded"]), few["dropped"]) == (63, int(told[1]))
    assert (len(all_of_them["recorded"]), all_of_them["dropped"]) == (71, 0)


def spans(*rows: tuple[int, int, int, int]) -> Spans:
    """Of (slot, start, end, state)."""
    slot, start, end, state = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    none = np.zeros(len(slot), dtype=np.int64)
    return Spans(start, end, state.astype(np.uint8), slot, none, none, none, none, none.astype(np.uint8))


def told(found: Spans | None) -> list[tuple[int, ...]]:
    assert found is not None
    return list(zip(*(column.tolist() for column in (found.slot, found.start_ns, found.end_ns, found.state)),
                    strict=True))


def test_parts_are_joined_and_neighbours_are_not() -> None:
    sleep, wait, on_cpu = 7, 8, 10
    whole = WholeStretches()
    assert told(whole.complete(spans((1, 0, 5, sleep), (2, 0, 5, sleep)))) == []
    assert told(whole.complete(spans((1, 5, 9, sleep)))) == []
    # One goes on, sleep after sleep with a gap are two; the other waits for a CPU and runs.
    assert told(whole.complete(spans((2, 5, 7, sleep), (1, 11, 12, sleep), (2, 7, 8, wait), (2, 8, 9, on_cpu)))) == [
        (1, 0, 9, sleep), (2, 0, 7, sleep), (2, 7, 8, wait), (2, 8, 9, on_cpu)]
    assert told(whole.close(np.array([1]))) == [(1, 11, 12, sleep)]
    assert told(whole.complete(spans((1, 20, 21, on_cpu)))) == [(1, 20, 21, on_cpu)]


ALL_KEYS = ("pid", "tid", "execname", "comm", "cpu", "state", "syscall", "ustack", "ustack(2)", "usym", "umod", "ufunc",
            "waker", "wakertid", "wakerstack", "wakerstack(1)")


def test_keys_of_every_type_together(aggregated: Run, er_print: Run, workload: Run, waits_recorded: None) -> None:
    """A sleep that a timer ends, by all there is to know of it: each key with all others is what it is alone."""
    if os.geteuid() != 0:
        pytest.skip("who wakes whom, and in which system call threads wait, is told to root")
    alone = [f"a{place}[{key}] = sum(sleep)"
             for place, key in enumerate(ALL_KEYS)]
    path, out = aggregated([f"all[{', '.join(ALL_KEYS)}] = sum(sleep)", *alone], workload("states"), "nanosleep", TURNS,
                           TURN_MS)
    (thread,) = json.loads(out)["threads"]
    together, *each = json.loads(er_print("-json_aggregations", path).stdout)["aggregations"]
    assert together["keys"] == list(ALL_KEYS)
    for place, one in enumerate(each):
        sums: dict[str, int] = {}
        for entry in together["recorded"]:
            key = json.dumps(entry["key"][place])
            sums[key] = sums.get(key, 0) + entry["value"]
        assert {json.dumps(entry["key"][0]): entry["value"] for entry in one["recorded"]} == sums
    naps = dict(zip(ALL_KEYS, max(together["recorded"], key=lambda entry: int(entry["value"]))["key"], strict=True))
    assert (naps["pid"], naps["tid"]) == (thread["tid"], thread["tid"])
    assert naps["execname"] == naps["comm"] == workload("states").name
    assert (naps["state"], naps["syscall"]) == ("sleep", "clock_nanosleep")
    assert naps["usym"] == naps["ufunc"] == LIBC_SLEEP
    assert naps["umod"] == "libc.so.6"
    assert naps["ustack"][:2] == naps["ustack(2)"]
    assert naps["cpu"] in os.sched_getaffinity(0)


@pytest.mark.parametrize("key", ["waker", "wakertid", "wakerstack", "syscall"])
def test_who_attaches_without_what_it_takes_is_told(collect: Run, tmp_path: Path, workload: Run, key: str) -> None:
    """The program goes on, and nothing is left behind."""
    with going_on(workload("states"), "nanosleep", "endless", "5") as one:
        done = collect("-o", tmp_path / "x.er", "--engine", "signal", "-t", "1", "--aggregate", f"a[{key}] = count()",
                       "-P", one.pid)
        assert one.poll() is None
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--aggregate" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_attached_recording_aggregates_what_it_sees_from_beginning_to_end(
        er_print: Run, tmp_path: Path, workload: Run, perf_allowed: None) -> None:
    """Another process sleeps all the time: that is no sleep as long as the recording."""
    path = tmp_path / "run.er"
    with going_on(workload("states"), "nanosleep", "endless", "5") as one, going_on("sleep", "1000") as other:
        def is_enough() -> bool:
            """Naps of the one, and of the other's sleep."""
            children = open_experiment(path).children if has_keys(path / "aggregations") else []
            if not children:
                return False
            naps, _ = unpack((path / "aggregations").read_bytes())
            slept_s = children[0].packets()["NTICK"].sum() * INTERVAL_S
            return bool(naps.states[naps.keys[:, 0] == one.pid, 0].sum() > 20 and slept_s > 0.6)

        attached(["--aggregate", NAPS, "--aggregate", "slept[tid] = sum(sleep / 1ms)", "-P", str(one.pid), "-P",
                  str(other.pid)], path, is_enough)
    found = {each["name"]: {kind: {entry["key"][0]: entry["value"] for entry in each[kind]}
                            for kind in ("recorded", "synthetic")}
             for each in json.loads(er_print("-json_aggregations", path).stdout)["aggregations"]}
    assert found["naps"]["recorded"].keys() == {one.pid}
    assert found["naps"]["recorded"][one.pid] > 10
    assert found["naps"]["synthetic"][other.pid] == 1
    assert found["slept"]["synthetic"][other.pid] > 500
