"""Exports, read back by software that nobody here wrote: the figures of ``er_print``, and hostile names as text.

``scripts/export-check`` opens them in viewers as well.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import interpreted
import numpy as np
import psutil
import pytest

from collector.cli import er_export, er_print
from collector.cli.exporting import SUFFIXES
from collector.elf import ET_EXEC, open_object
from collector.errors import UsageError
from collector.experiment.recorder import Header, Recorder
from collector.export import formats
from collector.export.formats import FORMATS, ExportError

TESTS = Path(__file__).resolve().parents[1]
COMMANDS = Path(sys.executable).parent
WAIT4 = {"x86_64": 61, "aarch64": 260}[os.uname().machine]  # the number of that call


def _module(name: str, path: Path) -> Any:
    """A module of a folder that is no package, or a script."""
    spec = spec_from_file_location(name, path) or spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


readers = _module("export_readers", Path(__file__).with_name("readers.py"))

START_NS = 7_001_000_000_013
BASE, DYNAMIC = 0x5555_5555_4000, 0x7F00_0000_0000
INTERVAL_US = 10_007
TRUNCATED, FAILED = 0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFF_FFFF_FFFD
STATES = ("user", "system", "trap", "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "wait", "stop")
# (as it goes in, as it is shown)
HOSTILE = (
    (b"</script><b>\"'&amp;", "</script><b>\"'&amp;"),
    (b"two\nlines\t\x1b[31m", "two\\nlines\\t\\x1b[31m"),
    (b"\xff\xfe no UTF-8 \x80", "\\xff\\xfe no UTF-8 \\x80"),
    ("\u05d0\u202eabc\u200f".encode(), "\u05d0\\u202eabc\\u200f"),
    (b"semi;colons; 12345", "semi;colons; 12345"),
    (b"(2) main", "(2) main"),
    (b"x" * 4000, "x" * 4000),
    (b"f<int>(char const*, g(long)) [clone .part.0]", "f<int>(char const*, g(long)) [clone .part.0]"),
    (b'{"a":[1,"\\u0000\\"]}', '{"a":[1,"\\u0000\\"]}'),
    (b"ob=(1) fl= calls=1 0", "ob=(1) fl= calls=1 0"),
)
HEADER = Header(
    hostname="some<where>", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500, 2501],
    pid=4711, ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp", arguments=b"prog '\n</script>\xff'", wsize=64,
    interval_ns=INTERVAL_US * 1000, sample_period_s=1, start_ns=START_NS, start_unix=2_100_000_003,
    collector="collect 0.1")


# --- experiments ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A program in a folder of a hostile name, and where its functions are."""
    folder = tmp_path_factory.mktemp("program") / os.fsdecode(b"</script>;\"\n\xff")
    folder.mkdir(parents=True)
    source = folder / "prog.c"
    source.write_text("int inner(int n) { return n * 3; }\nint outer(int n) { return inner(n) + 1; }\n"
                      "int main(int n, char **v) { return outer(n) + !v; }\n")
    subprocess.run([need("gcc", "gcc"), "-g", "-O0", "-pie", "-fPIE", "-o", folder / "prog", source], check=True)
    lines = subprocess.run(["nm", folder / "prog"], capture_output=True, text=True, check=True).stdout.splitlines()
    return folder / "prog", {words[2]: BASE + int(words[0], 16) for line in lines if len(words := line.split()) == 3}


@pytest.fixture(scope="module")
def made(program: tuple[Path, dict[str, int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes of three threads each, in all states, with stacks of every kind."""
    path = tmp_path_factory.mktemp("made") / "made.1.er"
    path.mkdir()
    for number, place in enumerate((path, path / "_f1.er")):
        if number:
            place.mkdir(exist_ok=True)
        recorder = Recorder.create(place, replace(HEADER, pid=4711 + 100 * number))
        filled(recorder, program, number)
        recorder.warning("loss\n</script>: 3 samples", START_NS + 5)
        recorder.close(START_NS + 9 * 10**9)
    return path


def filled(recorder: Recorder, program: tuple[Path, dict[str, int]], number: int) -> None:
    """Packets with known stacks: leaf first, a hostile function, ``inner``, ``outer``, ``main``, or what is cut."""
    file, symbols = program
    pid = recorder.header.pid
    tids = [pid, pid + 1, pid + 2]
    for tid, name in zip(tids, (b"main", *(raw for raw, _ in HOSTILE[number:number + 2])), strict=True):
        recorder.thread_started(tid, START_NS, name[:100])
    recorder.segment_mapped(START_NS, BASE + 0x1000, 0x1000, 0x1000, os.fsencode(file))
    for place, (name, _) in enumerate(HOSTILE):
        recorder.function_mapped(START_NS, DYNAMIC + 0x1000 * place, 0x800, name)
    main, outer, inner = (symbols[name] + 6 for name in ("main", "outer", "inner"))
    stacks = [(DYNAMIC + 0x1000 * place + 4, inner, outer, main) for place in range(len(HOSTILE))]
    stacks += [(inner, outer, main), (inner, inner, outer, outer, main), (inner, outer, TRUNCATED), (outer, FAILED),
               (), (0x42,)]
    depth = max(map(len, stacks))
    pcs = np.array([[*stack, *[0] * (depth - len(stack))] for stack in stacks], np.uint64)
    uids = recorder.frames.intern(pcs, np.array([len(stack) for stack in stacks])).astype(np.int64)
    uids = np.append(uids, [0, 999_999])  # none; one that is not there
    rows = np.arange(1009)
    recorder.clock(np.array(tids)[rows % 3], rows % 2, START_NS + 10**7 * (1 + rows), uids[rows * 7 % len(uids)],
                   rows * rows % 10, 1 + rows % 5 * (rows % 11))


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A founder, and a child that becomes another program twice: of one pid. Each has two threads and a note."""
    path = tmp_path_factory.mktemp("executed") / "run.1.er"
    for pid, place in ((4711, path), *((4811, path / f"_f1{execs}.er") for execs in ("", "_x1", "_x1_x1"))):
        place.mkdir(exist_ok=True)
        recorder = Recorder.create(place, replace(HEADER, pid=pid))
        rows = np.arange(10)
        recorder.clock(pid + rows % 2, rows * 0, START_NS + 10**7 * (1 + rows), rows * 0, rows * 0, 1 + rows)
        recorder.warning(f"loss: {place.stem}", START_NS + 5)
        recorder.close(START_NS + 10**9)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``exported("pprof", experiment, "-lines", "off")``: the file."""
    folder = tmp_path_factory.mktemp("exports")
    known: dict[tuple[object, ...], Path] = {}

    def export(name: str, experiment: Path, *options: str) -> Path:
        key = name, experiment, options
        if key not in known:
            known[key] = folder / f"{len(known)}{FORMATS[name].suffix}"
            assert er_export.run([name, str(experiment), "-o", str(known[key]), *options]) == 0
        return known[key]

    return export


Reported = tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]


def reported(experiment: Path, *settings: str, metrics: tuple[str, ...] = STATES, sign: str = ".") -> Reported:
    """What er_print says, by (function, metric): exclusive and inclusive microseconds; ``sign`` +: counts."""
    columns, scale = ":".join(f"e{sign}{one}:i{sign}{one}" for one in metrics), 1e6 if sign == "." else 1
    with redirect_stdout(io.StringIO()) as out:
        assert er_print.run(["-printmode", "json", *settings, "-metrics", f"{columns}:name", "-functions",
                             str(experiment)]) == 0
    own: Counter[tuple[str, str]] = Counter()
    whole: Counter[tuple[str, str]] = Counter()
    called = {"<Truncated-stack>": "[truncated]", "<Stack-unwind-failed>": "[unwind failed]"}
    for row in json.loads(out.getvalue().splitlines()[-1])["rows"]:
        name = called.get(row["name"], row["name"])
        for metric in metrics:
            own[name, metric] += round(row[f"e{sign}{metric}"] * scale)
            whole[name, metric] += round(row[f"i{sign}{metric}"] * scale)
    for metric in metrics:
        total = own.pop(("<Total>", metric))
        whole.pop(("<Total>", metric))
        missing = total - sum(value for (_, other), value in own.items() if other == metric)
        own["[no stack]", metric] = whole["[no stack]", metric] = missing
    return own, whole


def titles(exported: Callable[..., Path], experiment: Path) -> dict[str, str]:
    """The names of quantities by their titles."""
    found = json.loads(exported("json", experiment).read_text())
    return {one["title"]: one["name"] for one in found["quantities"]}


def agrees(found: Any, wanted: Reported, called: Callable[[str], str] = str) -> None:
    """Both kinds of sums are those of er_print; ``called``: how names are changed on their way."""
    for some, all_ in zip(found, wanted, strict=True):
        if some is not None:
            sums: Counter[tuple[str, str]] = Counter()
            for (name, quantity), value in all_.items():
                sums[called(name), quantity] += value
            got = {key: value for key, value in some.items() if value and key[0] != "<Total>"}
            assert got == {key: value for key, value in sums.items() if value}


# --- figures and names ----------------------------------------------------------------------------


def test_what_is_made_has_everything(made: Path) -> None:
    own, whole = reported(made)
    assert {name for name, _ in own} >= {shown for _, shown in HOSTILE} | {"inner", "outer", "[no stack]"}
    assert {name for name, _ in whole} >= {"[truncated]", "[unwind failed]", "<Unknown>"}
    assert {state for (_, state), value in own.items() if value} >= {"user", "system", "datapfault", "lock", "stop"}


def test_pprof_by_go(made: Path, exported: Callable[..., Path], need: Callable[[str, str], str]) -> None:
    need("go", "golang-go")
    agrees(readers.go_pprof(exported("pprof", made), STATES), reported(made))


CODE = """
int work(int n) { return n * 3; }
__attribute__((section(".other"))) int other(int n) { return n * 5; }
int main(int n, char **v) { return work(n) + other(n) + !v; }
"""


def recorded_at_work(need: Callable[[str, str], str], folder: Path, *options: str) -> tuple[Path, dict[str, int]]:
    """An experiment on a program that is linked so: packets of 1, 2, 3 and 4 ticks at two instructions of ``work``, one
    of ``other`` and one that was made while it ran; and its functions by the addresses that the link editor gave."""
    file, path = folder / "prog", folder / "run.1.er"
    path.mkdir()
    (folder / "prog.c").write_text(CODE)
    subprocess.run([need("gcc", "gcc"), "-g", "-O0", *options, "-o", file, folder / "prog.c"], check=True)
    lines = subprocess.run(["nm", file], capture_output=True, text=True, check=True).stdout.splitlines()
    vaddrs = {words[2]: int(words[0], 16) for line in lines if len(words := line.split()) == 3}
    recorder = Recorder.create(path, replace(HEADER, arguments=b"prog"))
    with open_object(str(file)) as elf:
        base = 0 if elf.type == ET_EXEC else BASE
        for text in (load for load in elf.loads if load.is_executable):
            inside = text.vaddr % 4096
            recorder.segment_mapped(START_NS, base + text.vaddr - inside, inside + text.file_size,
                                    text.file_offset - inside, os.fsencode(file))
    recorder.function_mapped(START_NS, DYNAMIC, 0x800, b"made")
    pcs = [base + vaddrs["work"], base + vaddrs["work"] + 4, base + vaddrs["other"], DYNAMIC + 8]
    uids = recorder.frames.intern(np.array([pcs], np.uint64).T, np.ones(4, np.int64)).astype(np.int64)
    rows = np.arange(4)
    recorder.clock(4711 + rows * 0, rows * 0, START_NS + 10**7 * (1 + rows), uids, rows * 0, 1 + rows)
    recorder.close(START_NS + 10**9)
    return path, vaddrs


@pytest.mark.parametrize("options", [
    ("-pie", "-fPIE"), ("-no-pie",), ("-no-pie", "-static"), ("-no-pie", "-Wl,-Ttext-segment=0x30000000"),
    ("-no-pie", "-Wl,-z,noseparate-code"), ("-no-pie", "-Wl,--section-start=.other=0x800000"),
    ("-shared", "-fPIC", "-Wl,-Ttext-segment=0x7000000")], ids=" ".join)
def test_pprof_finds_instructions(options: tuple[str, ...], need: Callable[[str, str], str], tmp_path: Path) -> None:
    """Of programs that lie where they must or anywhere, of libraries that were given addresses: by the file itself."""
    need("go", "golang-go")
    path, vaddrs = recorded_at_work(need, tmp_path, *options)
    assert er_export.run(["pprof", str(path), "-o", str(tmp_path / "run.gz")]) == 0
    done = subprocess.run(["go", "tool", "pprof", "-sample_index=user", "-unit=us", r"-disasm=\bwork\b",
                           tmp_path / "run.gz"], capture_output=True, text=True, check=True)
    found = {int(address, 16): int(own) for own, address in re.findall(r"(\d+)us +\d+us +([0-9a-f]+):", done.stdout)}
    assert found == {vaddrs["work"]: INTERVAL_US, vaddrs["work"] + 4: 2 * INTERVAL_US}


def test_mappings_of_pprof(need: Callable[[str, str], str], tmp_path: Path) -> None:
    """Each segment with code is one; a file that is not there is one as a whole, as is what has no file."""
    need("go", "golang-go")
    path, vaddrs = recorded_at_work(need, tmp_path, "-no-pie", "-Wl,--section-start=.other=0x800000")
    with open_object(str(tmp_path / "prog")) as elf:
        offsets = {elf.offset_of(vaddrs["work"]), elf.offset_of(vaddrs["work"] + 4), elf.offset_of(vaddrs["other"])}
        other = elf.offset_of(0x800000)

    def raw() -> tuple[set[tuple[int, str]], list[tuple[str, str]]]:
        """Locations with their mappings; mappings with their files."""
        assert er_export.run(["pprof", str(path), "-o", str(tmp_path / "run.gz")]) == 0
        text = subprocess.run(["go", "tool", "pprof", "-raw", tmp_path / "run.gz"], capture_output=True, text=True,
                              check=True).stdout
        return ({(int(address, 16), mapping) for address, mapping in re.findall(r"^ +\d+: 0x(\w+) M=(\d)", text, re.M)},
                re.findall(r"^\d: 0x(\S+) (?:\S*/)?(\S+)", text, re.M))

    made = (DYNAMIC + 8, "3")
    assert raw() == ({(vaddrs["work"], "1"), (vaddrs["work"] + 4, "1"), (0x800000, "2"), made}, [
        ("401000/0x402000/0x1000", "prog"), (f"800000/0x801000/{other:#x}", "prog"),
        ("0/0x4000000000000000/0x0", "DYNAMIC_FUNCTIONS")])
    (tmp_path / "prog").unlink()
    whole = "0/0x4000000000000000/0x0"
    assert raw() == ({*((offset, "1") for offset in offsets), (DYNAMIC + 8, "2")},
                     [(whole, "prog"), (whole, "DYNAMIC_FUNCTIONS")])


@pytest.fixture(scope="module")
def modules(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with npm's pprof-format."""
    need("npm", "npm")
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, "pprof-format@2"],
                   check=True, capture_output=True, timeout=120)
    return folder


def test_pprof_by_npm(made: Path, exported: Callable[..., Path], modules: Path) -> None:
    decoded = readers.pprof_format(exported("pprof", made), modules)
    agrees(readers.of_pprof_format(decoded, STATES), reported(made))
    assert [name for name, _ in decoded["types"]] == [*STATES, "total", "totalcpu"]
    for _, values, labels in decoded["samples"]:
        (state,) = (name for (name, _), value in zip(decoded["types"], values, strict=True) if value and name in STATES)
        assert labels["state"] == state
        assert labels["pid"] in (4711, 4811)
        assert labels["tid"] in range(labels["pid"], labels["pid"] + 3)
    assert {labels["thread"] for _, _, labels in decoded["samples"]} >= {
        f"prog (4711), thread 2, {HOSTILE[0][1]}", f"prog (4711), thread 3, {HOSTILE[1][1]}"}
    assert "process 4711: loss\\n</script>: 3 samples" in decoded["comments"]


def test_speedscope(made: Path, exported: Callable[..., Path]) -> None:
    agrees(readers.speedscope(exported("speedscope", made), titles(exported, made)), reported(made))


def test_threads_apart(made: Path, exported: Callable[..., Path]) -> None:
    found = json.loads(exported("speedscope", made, "-by_thread").read_text())
    sums = Counter[str]()
    for profile in found["profiles"]:
        sums[profile["name"]] += sum(profile["weights"])
    own, _ = reported(made, "-thread_select", "2:2")
    wanted = sum(value for (_, state), value in own.items() if state == "sleep")
    assert sums[f"prog (4811), thread 2, {HOSTILE[1][1]}: Sleep Time"] == pytest.approx(0, abs=0) or wanted
    lines = exported("collapsed", made, "-by_thread", "-metric", "sleep").read_text().splitlines()
    by_thread = Counter[str]()
    for line in lines:
        by_thread[line.partition(";")[0]] += int(line.rpartition(" ")[2])
    assert by_thread == {name.removesuffix(": Sleep Time").replace(";", ":"): value for name, value in sums.items()
                         if name.endswith(": Sleep Time")}


def test_firefox(made: Path, exported: Callable[..., Path]) -> None:
    path = exported("firefox", made)
    agrees(readers.firefox(path, titles(exported, made)), reported(made))
    found = json.loads(path.read_text())
    assert found["meta"]["preprocessedProfileVersion"] == 60
    assert [thread["pid"] for thread in found["threads"]] == ["4711"] * 3 + ["4811"] * 3
    for thread in found["threads"]:
        samples, markers = thread["samples"], thread["markers"]
        assert {len(samples[name]) for name in ("stack", "time", "weight", "threadCPUDelta")} == {samples["length"]}
        assert samples["time"] == sorted(samples["time"])
        assert {len(markers[name]) for name in ("name", "startTime", "endTime", "phase", "category", "data")} == {
            markers["length"]}
    own, _ = reported(made)
    waited_ms = sum(value for (_, state), value in own.items() if state not in STATES[:3]) / 1e3
    assert sum(float(data["worth"].split()[0]) for thread in found["threads"]
               for data in thread["markers"]["data"]) == pytest.approx(waited_ms, abs=0.01)


def test_firefox_shows_the_threads_of_all_programs_of_a_process(executed: Path, exported: Callable[..., Path]) -> None:
    """The viewer shows of each pid the threads that are not main ones and, of those that are, the last."""
    threads = json.loads(exported("firefox", executed).read_text())["threads"]
    assert [(thread["pid"], thread["tid"]) for thread in threads if thread["isMainThread"]] == [
        ("4711", 4711), ("4811", 4811), ("4811.2", 4811), ("4811.3", 4811)]
    assert [thread["pid"] for thread in threads if not thread["isMainThread"]] == ["4711", "4811", "4811.2", "4811.3"]


def test_collapsed(made: Path, exported: Callable[..., Path]) -> None:
    paths = {state: exported("collapsed", made, "-metric", state) for state in STATES}
    agrees(readers.collapsed(paths), reported(made), lambda name: name.replace(";", ":"))
    agrees(readers.collapsed({"total": exported("collapsed", made)}), reported(made, metrics=("total",)),
           lambda name: name.replace(";", ":"))


def test_perfetto(made: Path, exported: Callable[..., Path]) -> None:
    path = exported("perfetto", made)
    agrees(readers.perfetto(path), reported(made))
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace.FromString(path.read_bytes())
    threads = [packet.track_descriptor.thread for packet in trace.packet if packet.track_descriptor.HasField("thread")]
    assert [(one.pid, one.tid) for one in threads] == [(pid, pid + n) for pid in (4711, 4811) for n in range(3)]
    opened: dict[int, int] = {}
    for packet in sorted((packet for packet in trace.packet if packet.HasField("track_event")),
                         key=lambda packet: int(packet.timestamp)):
        event = packet.track_event
        opened[event.track_uuid] = opened.get(event.track_uuid, 0) + (1 if event.type == 1 else -1)
        assert opened[event.track_uuid] in (0, 1), "slices of a thread overlap"


def tracks(path: Path) -> list[Any]:
    """The descriptors of a trace's tracks."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace.FromString(path.read_bytes())
    return [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]


def test_perfetto_has_the_threads_of_a_process_behind_it(executed: Path, exported: Callable[..., Path]) -> None:
    """The second process of a pid ends the first one: a thread belongs to the last one described."""
    found = [("process", track.process.pid) if track.HasField("process") else ("thread", track.thread.tid)
             for track in tracks(exported("perfetto", executed))]
    assert found == [("process", 4711), ("thread", 4711), ("thread", 4712),
                     *[("process", 4811), ("thread", 4811), ("thread", 4812)] * 3]


def test_perfetto_has_slices_as_long_as_what_was_traced(exported: Callable[..., Path], tmp_path: Path) -> None:
    """Reads, writes and waits by turns: each second is of one of them, whatever has been written before."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    path, seconds = tmp_path / "turns.1.er", np.arange(12)
    path.mkdir()
    Recorder.create(path, HEADER).close(START_NS + 20 * 10**9)
    add = _module("kinds_for_exports", TESTS / "workloads" / "kinds.py").Traces(path)
    begins = START_NS + 10**9 * seconds
    reads, writes, waits = (seconds % 3 == turn for turn in range(3))
    who = {"LWPID": 4711, "THRID": 4711}
    add.io([b""] * 8, **who, TSTAMP=begins[~waits] + 10**9, IORQST=begins[~waits], IOTYPE=writes[~waits] * 1)
    add.locks(**who, TSTAMP=begins[waits] + 10**9, SRQST=begins[waits])
    trace = perfetto_trace_pb2.Trace.FromString(exported("perfetto", path).read_bytes())
    kinds = {one.iid: one.name for packet in trace.packet for one in packet.interned_data.event_categories}
    found: Counter[tuple[str, float, float]] = Counter()
    open_: dict[int, tuple[str, float]] = {}
    for packet in trace.packet:
        event, second = packet.track_event, (packet.timestamp - START_NS) / 10**9
        if event.type == 1:
            open_[event.track_uuid] = kinds[event.category_iids[0]], second
        elif event.type == 2:
            found[*open_.pop(event.track_uuid), second] += 1
    assert found == {(name, second, second + 1): 1 for name, turn in (
        ("ioreadtime", reads), ("iowritetime", writes), ("sync", waits)) for second in seconds[turn].tolist()}


def test_each_process_has_its_own_notes(executed: Path, exported: Callable[..., Path]) -> None:
    """With those of all in each, an export would grow with the square of the processes."""
    wanted = [f"process {pid}: loss: {stem}" for pid, stem in (
        (4711, "run.1"), (4811, "_f1"), (4811, "_f1_x1"), (4811, "_f1_x1_x1"))]
    found = tracks(exported("perfetto", executed))
    assert [track.description for track in found if track.HasField("process")] == wanted
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    sent = profiles_pb2.ProfilesData.FromString(exported("otlp", executed).read_bytes())
    table = sent.dictionary.attribute_table
    for resource, note in zip(sent.resource_profiles, wanted, strict=True):
        profiles = resource.scope_profiles[0].profiles
        assert profiles
        assert all([said.string_value for one in profile.attribute_indices
                    for said in table[one].value.array_value.values] == [note] for profile in profiles)
    assert json.loads(exported("json", executed).read_text())["notes"] == wanted


def test_callgrind(made: Path, exported: Callable[..., Path], need: Callable[[str, str], str]) -> None:
    need("callgrind_annotate", "valgrind")
    wanted = reported(made)
    spent = [state for state in STATES if any(value for (_, one), value in wanted[0].items() if one == state)]
    agrees(readers.callgrind(exported("callgrind", made, "-lines", "off"), spent), wanted)


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_parquet(reader: str, made: Path, exported: Callable[..., Path]) -> None:
    agrees(getattr(readers, reader)(exported("parquet", made)), reported(made))


def test_every_packet_is_a_row(made: Path, exported: Callable[..., Path]) -> None:
    import polars

    frame = polars.read_parquet(exported("parquet", made))
    assert len(frame) == 2 * 1009
    assert set(frame["tid"]) == {pid + n for pid in (4711, 4811) for n in range(3)}
    assert frame["duration_ns"].to_list() == [1000 * one for one in frame["time_us"]]


def test_parquet_of_long_names_is_made_in_pieces(tmp_path: Path, exported: Callable[..., Path]) -> None:
    """Of 601 packets each has 404,000 bytes of names: more than should be in memory at once."""
    import polars
    import pyarrow.parquet

    path, rows, depth = tmp_path / "deep.1.er", np.arange(601), 101
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    for place in range(2):
        recorder.function_mapped(START_NS, DYNAMIC + 0x1000 * place, 0x1000, b"%d" % place * 4000)
    pcs = DYNAMIC + 0x1000 * (np.arange(depth) % 2)
    uids = recorder.frames.intern(np.array([pcs], np.uint64), np.array([depth])).astype(np.int64)
    recorder.clock(HEADER.pid + rows * 0, rows * 0, START_NS + 10**7 * (1 + rows), uids[rows * 0], rows * 0, 1 + rows)
    recorder.close(START_NS + 10**10)
    file = exported("parquet", path)
    assert pyarrow.parquet.ParquetFile(file).metadata.num_row_groups == 2
    frame = polars.read_parquet(file, columns=["time_us"])
    assert frame["time_us"].to_list() == [INTERVAL_US * (1 + row) for row in rows.tolist()]


def test_otlp(made: Path, exported: Callable[..., Path]) -> None:
    agrees(readers.otlp(exported("otlp", made)), reported(made))


def test_otlp_has_each_attribute_once(made: Path, exported: Callable[..., Path]) -> None:
    """The schema forbids several of one key: several notes are one attribute."""
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    found = profiles_pb2.ProfilesData.FromString(exported("otlp", made).read_bytes())
    tables = found.dictionary
    keys = [tables.string_table[one.key_strindex] for one in tables.attribute_table]
    for profile in (one for resource in found.resource_profiles for one in resource.scope_profiles[0].profiles):
        for one in (profile, *profile.samples):
            assert len({keys[place] for place in one.attribute_indices}) == len(one.attribute_indices)
    notes = [[said.string_value for said in one.value.array_value.values]
             for key, one in zip(keys, tables.attribute_table, strict=True) if key == "collect.notes"]
    assert [(len(one), one[0]) for one in notes] == [(2, f"process {pid}: loss\\n</script>: 3 samples")
                                                     for pid in (4711, 4811)]


def test_json(made: Path, exported: Callable[..., Path]) -> None:
    agrees(readers.own_json(exported("json", made)), reported(made))
    found = json.loads(exported("json", made).read_text())
    assert found["processes"][0]["arguments"] == "prog '\\n</script>\\xff'"
    assert any(one["path"].endswith('/</script>;"\\n\\xff/prog') for one in found["objects"])
    assert found["notes"][0] == "process 4711: loss\\n</script>: 3 samples"


def test_filters_are_those_of_er_print(made: Path, exported: Callable[..., Path]) -> None:
    options = ("-filters", 'THRID == 2 && (FNAME("inner") SOME IN STACK)')
    wanted = reported(made, *options)
    assert sum(wanted[0].values())
    for name in ("json", "perfetto", "otlp"):
        reader = readers.own_json if name == "json" else getattr(readers, name)
        agrees(reader(exported(name, made, *options)), wanted)
    agrees(readers.duckdb(exported("parquet", made, *options)), wanted)
    agrees(readers.own_json(exported("json", made, "-thread_select", "1")), reported(made, "-thread_select", "1"))


@pytest.mark.parametrize("name", FORMATS)
def test_filters_may_leave_nothing(name: str, made: Path, exported: Callable[..., Path]) -> None:
    assert exported(name, made, "-filters", "THRID == 99").stat().st_size or name == "collapsed"


def test_files_of_defaults_hold(made: Path, exported: Callable[..., Path], tmp_path: Path, capsys: Any,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gprofng.rc").write_text("en_desc off\n")
    found = exported("collapsed", made, "-metric", "total")
    assert "er_export: defaults of " in capsys.readouterr().err
    wanted = reported(made, metrics=("total",))
    agrees(readers.collapsed({"total": found}), wanted, lambda name: name.replace(";", ":"))
    monkeypatch.chdir(made.parent)
    assert sum(wanted[0].values()) < sum(reported(made, metrics=("total",))[0].values())


@pytest.mark.parametrize("mode", ["user", "expert", "machine"])
def test_frames_of_an_interpreter_are_those_of_er_print(mode: str, exported: Callable[..., Path], tmp_path: Path,
                                                        need: Callable[[str, str], str],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """By default without its own, as there; or as a file of defaults says."""
    path = interpreted.recorded(tmp_path / "run.1.er", need("gcc", "gcc"))
    monkeypatch.chdir(tmp_path)
    if mode != "user":
        (tmp_path / ".gprofng.rc").write_text(f"viewmode {mode}\n")
    wanted = reported(path, "-viewmode", mode)
    assert (wanted[0]["slow", "user"] == 23 * INTERVAL_US) == (mode == "user")
    agrees(readers.own_json(exported("json", path)), wanted)
    agrees(readers.speedscope(exported("speedscope", path), titles(exported, path)), wanted)
    agrees(readers.collapsed({"user": exported("collapsed", path, "-metric", "user")}), wanted)
    agrees(readers.otlp(exported("otlp", path)), wanted)
    agrees(readers.duckdb(exported("parquet", path)), wanted)


def test_lines_of_source(made: Path, exported: Callable[..., Path]) -> None:
    found = json.loads(exported("json", made).read_text())
    lines = {(found["functions"][frame["function"]]["name"], frame["line"]) for frame in found["frames"]}
    assert lines >= {("inner", 1), ("outer", 2), ("main", 3)}
    found = json.loads(exported("json", made, "-lines", "off").read_text())
    assert {frame["line"] for frame in found["frames"]} == {0}


# --- inlined functions ----------------------------------------------------------------------------

INLINED = """
#define ALWAYS static inline __attribute__((always_inline))
ALWAYS int innermost(int n) { volatile int a = n * 3; return a; }
ALWAYS int middle(int n) { volatile int b = innermost(n) + 1; return b; }
int outer(int n) { volatile int c = middle(n) * 7; return c; }
int main(int n, char **v) { return outer(n) + !v; }
"""


@pytest.fixture(scope="module")
def inlining(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tick at every byte of a function with two levels of inlined ones, called by ``main``."""
    folder = tmp_path_factory.mktemp("inlining")
    (folder / "prog.c").write_text(INLINED)
    subprocess.run([need("gcc", "gcc"), "-g", "-O0", "-pie", "-fPIE", "-o", folder / "prog", folder / "prog.c"],
                   check=True)
    lines = subprocess.run(["nm", "-S", folder / "prog"], capture_output=True, text=True, check=True).stdout
    places = {words[3]: (BASE + int(words[0], 16), int(words[1], 16)) for line in lines.splitlines()
              if len(words := line.split()) == 4}
    (folder / "run.er").mkdir()
    recorder = Recorder.create(folder / "run.er", replace(HEADER, arguments=b"prog"))
    recorder.segment_mapped(START_NS, BASE + 0x1000, 0x1000, 0x1000, os.fsencode(folder / "prog"))
    begin, size = places["outer"]
    pcs = np.array([(begin + i, places["main"][0] + 6) for i in range(size)], np.uint64)
    uids = recorder.frames.intern(pcs, np.full(size, 2)).astype(np.int64)
    rows = np.arange(size)
    recorder.clock(rows * 0 + 4711, rows % 2, START_NS + 10**7 * (1 + rows), uids, rows % 2, 1 + rows % 3)
    recorder.close(START_NS + 9 * 10**9)
    return folder / "run.er"


@pytest.mark.parametrize("name", FORMATS)
def test_inlined_functions_are_frames(name: str, inlining: Path, exported: Callable[..., Path],
                                      need: Callable[[str, str], str]) -> None:
    """Marked as such, by the format's own means where it has any; figures are those of er_print -inlines on."""
    used = STATES[:2]
    wanted = reported(inlining, "-inlines", "on", metrics=used)
    assert {function for (function, _), value in wanted[0].items() if value} == {"innermost", "middle", "outer"}
    plain = reported(inlining, metrics=used)
    assert {function for (function, _), value in plain[0].items() if value} == {"outer"}
    mark = {"pprof": "", "firefox": "", "otlp": "", "json": "", "collapsed": "_[i]"}.get(name, " (inlined)")
    for options, figures in ((("-inlines", "on"), wanted), ((), plain)):
        path = exported(name, inlining, *options)
        if name == "pprof":
            need("go", "golang-go")
            found = readers.go_pprof(path, used)
            found = tuple(Counter({(function.removesuffix(" (inline)"), state): value
                                   for (function, state), value in some.items()}) for some in found)
        elif name == "collapsed":
            found = readers.collapsed({state: exported(name, inlining, "-metric", state, *options) for state in used})
        elif name in ("speedscope", "firefox"):
            found = getattr(readers, name)(path, titles(exported, inlining))
        elif name == "callgrind":
            need("callgrind_annotate", "valgrind")
            found = readers.callgrind(exported(name, inlining, "-lines", "off", *options), used)
        else:
            found = getattr(readers, {"parquet": "duckdb", "json": "own_json"}.get(name, name))(path)
        agrees(found, figures, lambda function: function + mark if function in ("innermost", "middle") else function)


def test_what_is_inlined_is_told_from_what_is_called(inlining: Path, exported: Callable[..., Path],
                                                     modules: Path) -> None:
    """Levels of one location, and their depth; each at its own line."""
    found = json.loads(exported("json", inlining, "-inlines", "on").read_text())
    frames = {(found["functions"][one["function"]]["name"], one["inline_depth"], one["line"])
              for one in found["frames"] if one["address"]}
    assert frames >= {("innermost", 2, 3), ("middle", 1, 4), ("outer", 0, 5), ("main", 0, 6)}
    decoded = readers.pprof_format(exported("pprof", inlining, "-inlines", "on"), modules)
    assert {len(stack) for stack, _, _ in decoded["samples"]} == {2}  # locations
    shared = json.loads(exported("firefox", inlining, "-inlines", "on").read_text())["shared"]
    assert set(shared["frameTable"]["inlineDepth"]) == {0, 1, 2}


# --- other experiments ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damage() -> Any:
    """``scripts/damage`` as a module."""
    return _module("damage_for_exports", TESTS.parent / "scripts" / "damage")


@pytest.fixture(scope="module")
def victim(damage: Any, need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with every kind of data."""
    need("gcc", "gcc")
    folder = tmp_path_factory.mktemp("victim")
    return Path(damage.of_every_kind(folder, damage.compiled(folder)))


@pytest.mark.parametrize("name", FORMATS)
def test_an_experiment_without_packets(name: str, exported: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "empty.1.er"
    path.mkdir()
    Recorder.create(path, HEADER).close(START_NS + 10)
    assert exported(name, path).stat().st_size or name == "collapsed"
    shutil.rmtree(path)


@pytest.mark.parametrize("name", FORMATS)
def test_what_others_trace(name: str, victim: Path, exported: Callable[..., Path]) -> None:
    assert exported(name, victim).stat().st_size


def test_figures_of_what_others_trace(victim: Path, exported: Callable[..., Path]) -> None:
    metrics = {"sync": ("i.sync", 1e6), "heapallocbytes": ("i+heapallocbytes", 1), "ioreadtime": ("i.ioreadtime", 1e6),
               "ioreadbytes": ("i+ioreadbytes", 1)}
    with redirect_stdout(io.StringIO()) as out:
        er_print.run(["-printmode", "json", "-metrics", ":".join(one for one, _ in metrics.values()), "-functions",
                      str(victim)])
    (total,) = (row for row in json.loads(out.getvalue().splitlines()[-1])["rows"] if row["name"] == "<Total>")
    wanted = {name: round(total[key] * scale) for name, (key, scale) in metrics.items()}
    assert all(wanted.values())
    found = readers.perfetto(exported("perfetto", victim))[0]
    assert {one: sum(value for (_, name), value in found.items() if name == one) for one in metrics} == wanted
    import duckdb

    sums = ", ".join(f"sum({one})::BIGINT" for one in metrics)
    assert duckdb.sql(f"SELECT {sums} FROM '{exported('parquet', victim)}'").fetchall() == [tuple(wanted.values())]


def test_experiments_of_gprofng(damage: Any, need: Callable[[str, str], str], exported: Callable[..., Path],
                                tmp_path: Path) -> None:
    need("gprofng", "binutils")
    path = damage.of_gprofng(tmp_path, damage.compiled(tmp_path), "-s", "on", "-H", "on")
    wanted = reported(path, metrics=("heapallocbytes",), sign="+")
    assert sum(wanted[0].values())
    sums = {"heapallocbytes": exported("collapsed", path, "-metric", "heapallocbytes")}
    agrees(readers.collapsed(sums), wanted)
    for name in FORMATS:  # there may be no clock samples at all
        assert exported(name, path).stat().st_size or name == "collapsed"


def test_damage(damage: Any, victim: Path, tmp_path: Path) -> None:
    """As er_print: a line and a status, or warnings and what is sound."""
    import random

    outcomes: Counter[tuple[bool, bool]] = Counter()
    for number in range(8):
        copy = tmp_path / f"damaged.{number}.er"
        shutil.copytree(victim, copy, symlinks=True)
        chance = random.Random(f"exports {number}")
        damager = damage.Damager(copy, chance)
        done = [damager.damage() for _ in range(chance.choice((1, 2, 3)))]
        for name in FORMATS if number < 3 else list(FORMATS)[number % 3::3]:
            out, err = tmp_path / "out", tmp_path / "err"
            status, said = damage._called("er_export", er_export.run, [name, "-o", os.devnull, str(copy)], out, err)
            assert status in (0, 1), (done, name, said)
            outcomes[bool(status), bool(said)] += 1
        shutil.rmtree(copy)
    assert outcomes[False, True], "nothing was damaged so little that the rest could be exported"


@pytest.mark.parametrize("name", FORMATS)
def test_there_is_room_for_all_numbers_of_a_log(name: str, executed: Path, tmp_path: Path) -> None:
    """The largest that are read, and those beyond, which are not."""
    for more in (0, 1):
        path = shutil.copytree(executed, tmp_path / f"{more}.er")
        for log in path.rglob("log.xml"):
            text = log.read_text()
            for attribute, most in (("process pid", 2**31 - 1), (" time", 9_223_372_036)):
                text, n = re.subn(f'{attribute}="[^"]*"', f'{attribute}="{most + more}"', text)
                assert n == 1
            log.write_text(text)
        assert er_export.run([name, str(path), "-o", os.devnull]) == 0


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "words"), [
    (["svg", "x.er"], "give one of pprof, speedscope"), (["pprof"], "no experiment given"),
    (["pprof", "EXPERIMENT", "-x"], "-x"), (["collapsed", "EXPERIMENT", "-metric", "cpu"], "give one of user"),
    (["json", "EXPERIMENT", "-lines", "yes"], "give on or off"),
    (["json", "EXPERIMENT", "-filters", "THRID =="], "filters")])
def test_what_cannot_be_meant(arguments: list[str], words: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        er_export.run([str(made) if one == "EXPERIMENT" else one for one in arguments])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="No such file"):
        er_export.run(["json", str(made), "-o", str(tmp_path / "none" / "x")])
    with pytest.raises(ExportError, match="Is a directory"):
        er_export.run(["json", str(made), "-o", str(tmp_path)])
    full = Path("/dev/full")
    if full.exists():
        with pytest.raises(OSError, match="No space"):
            er_export.run(["json", str(made), "-o", str(full)])
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "collector.export.parquet", raising=False)
    with pytest.raises(ExportError, match="parquet needs pyarrow: pip install pyarrow"):
        formats.FORMATS["parquet"].writer()


def test_collect_knows_the_formats_without_their_room() -> None:
    assert {name: one.suffix for name, one in FORMATS.items()} == SUFFIXES


def test_when_a_recording_is_over(collect: Callable[..., Any], er_print: Callable[..., Any], tmp_path: Path) -> None:
    """Exports are written beside the experiment or where asked for; one that fails is told, and the status is kept."""
    script = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sleep 0.05; exit 7"
    result = collect("-p", "2m", "-o", "run.1.er", "--export", "collapsed", "--export", f"json={tmp_path}/none/x",
                     "--export", f"pprof={tmp_path}/run.gz", "sh", "-c", script, cwd=tmp_path)
    assert result.returncode == 7
    complaints = [line for line in result.stderr.splitlines() if "none/x" in line]
    assert complaints == [f"er_export: {tmp_path}/none/x: No such file or directory"]
    assert "Traceback" not in result.stderr
    assert gzip.decompress((tmp_path / "run.gz").read_bytes())
    agrees(readers.collapsed({"total": tmp_path / "run.1.collapsed.txt"}),
           reported(tmp_path / "run.1.er", metrics=("total",)))
    for wrong in ("svg", "pprof=", ""):
        result = collect("--export", wrong, "true", cwd=tmp_path)
        assert result.returncode == 2
        assert "give FORMAT or FORMAT=FILE" in result.stderr


def exports(pid: int) -> bool:
    """Whether a process is waiting for an export, in wait4: who ends it now ends the export, if it has begun."""
    with suppress(psutil.Error):  # one that has ended
        return (Path(f"/proc/{pid}/syscall").read_text().startswith(f"{WAIT4} ")
                and any("er_export" in word for child in psutil.Process(pid).children() for word in child.cmdline()))
    return False


def test_who_is_tired_of_an_export(tmp_path: Path) -> None:
    """A signal ends the export that is being made, and no other begins; the experiment and the status are kept."""
    os.mkfifo(tmp_path / "nobody reads")
    command = [COMMANDS / "collect", "-o", "run.1.er", "--export", "json=nobody reads", "--export", "collapsed",
               "sh", "-c", "exit 3"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("collect: run.1.er: ")
        while not exports(process.pid):
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.stderr.read() == ("collect: --export json: interrupted; er_export json run.1.er does it again\n")
    assert process.returncode == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nobody reads", "run.1.er"]


WAITS_FOR_IT = """
import os, threading, time
end = time.monotonic() + 60
def waits():
    while time.monotonic() < end: time.sleep(1e-4)
for _ in range(15): threading.Thread(target=waits).start()
while time.monotonic() < end:
    time.sleep(1e-5)
    if all(os.path.exists(name) and os.path.getsize(name) for name in ("run.1.collapsed.txt", "run.1.html")):
        os._exit(7)
print("in vain")
"""


@pytest.mark.parametrize("limit", [("-t", "0.2"), ("-L", "1", "-p", "0.5")], ids=["time", "size"])
def test_the_end_of_a_program_that_runs_on_is_not_waited_for(limit: tuple[str, ...], collect: Callable[..., Any],
                                                             tmp_path: Path) -> None:
    """The program itself waits for what is made when recording is over."""
    result = collect(*limit, "-o", "run.1.er", "--export", "collapsed", "--html", sys.executable, "-c", WAITS_FOR_IT,
                     cwd=tmp_path)
    assert (result.returncode, result.stdout) == (7, ""), result.stderr


def test_a_signal_ends_an_export_and_a_program_that_runs_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nobody reads")
    command = [COMMANDS / "collect", "-t", "0.2", "-o", "run.1.er", "--export", "json=nobody reads",
               "sh", "-c", "trap 'exit 9' TERM; for n in $(seq 1200); do sleep 0.05; done"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not exports(process.pid):
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.stderr is not None
        assert "--export json: interrupted" in process.stderr.read()
    assert process.returncode == 9


@pytest.mark.parametrize(("name", "ignored", "left"), [("TERM", "HUP", []), ("HUP", "TERM", []),
                                                       ("HUP", "HUP", ["x.json"])])
def test_an_export_that_is_ended_leaves_no_file(name: str, ignored: str, left: list[str], tmp_path: Path) -> None:
    """The signal comes while the file is being written; who called us with it ignored (nohup) has the file."""
    code = ("import os, signal, sys\nfrom collector.export.formats import destination\n"
            "signal.signal(signal.Signals[sys.argv[3]], signal.SIG_IGN)\n"
            "with destination(sys.argv[1]) as out:\n    out.write(b'{')\n    out.flush()\n"
            "    os.kill(os.getpid(), signal.Signals[sys.argv[2]])\n    out.write(b'}')\n")
    command = [sys.executable, "-c", code, tmp_path / "x.json", f"SIG{name}", f"SIG{ignored}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0 if left else -signal.Signals[f"SIG{name}"], "")
    assert [path.name for path in tmp_path.iterdir()] == left


def test_nothing_is_recorded_of_an_export(collect: Callable[..., Any], tmp_path: Path) -> None:
    result = collect("-o", "run.1.er", "--export", "json", "/nonexistent", cwd=tmp_path)
    assert result.returncode == 127
    assert list(tmp_path.iterdir()) == []


def test_a_dash_is_the_standard_output(victim: Path, exported: Callable[..., Path], tmp_path: Path,
                                       capfdbinary: pytest.CaptureFixture[bytes],
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert er_export.run(["collapsed", str(victim), "-o", "-"]) == 0
    assert capfdbinary.readouterr().out == exported("collapsed", victim).read_bytes() != b""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("path", "redirection"), [
    ("/dev/stdout", ">all"), ("/dev/stderr", "2>all"), ("/proc/self/fd/3", "3>all"), ("all", ">all")])
def test_what_a_stream_is_redirected_to_keeps_what_others_write(path: str, redirection: str, tmp_path: Path) -> None:
    """Before and behind the export; a descriptor of ours to that file, not of who called us, is none of these."""
    code = ("import sys\nfrom collector.export.formats import destination\nours = open('all')\n"
            "with destination(sys.argv[1]) as out:\n    out.write(b'body ')\n")
    stream = redirection[:-len(">all")] or "1"
    script = f'(printf "head " >&{stream}; "$@"; printf "foot" >&{stream}) {redirection}'
    subprocess.run(["sh", "-c", script, "sh", sys.executable, "-c", code, path], cwd=tmp_path, check=True)
    assert (tmp_path / "all").read_text() == "head body foot"
    assert [one.name for one in tmp_path.iterdir()] == ["all"]
    code = code.replace("open('all')", "open('all', 'a')")
    subprocess.run([sys.executable, "-c", code, "all"], cwd=tmp_path, check=True)
    assert (tmp_path / "all").read_text() == "body "
