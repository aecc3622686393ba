"""Whole stacks of real programs, every frame compared with gdb's, at many instants each.

gdb steps the programs by odd numbers of instructions between the stops, so that prologues, epilogues, PLT entries and
signal handlers are hit as well as the middle of functions. gdb goes on where call frame information leads out of all
code (it guesses by reading the prologue): its frames count up to there.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.elf import open_object
from collector.unwind.batch import Frames, Stop, unwind

HERE = Path(__file__).parent
STEPS = ["stepi", "stepi 3", "stepi 11", "stepi 101", "stepi 307"]
SIGNAL_STEPS = [*STEPS, "tbreak handler;signal SIGALRM", "stepi", "stepi 7", "stepi 37", "stepi 401",
                "tbreak realigned;continue", "stepi 300", "stepi 201"]

PYTHON = """
import json, re
def f(n):
    if n: return g(n - 1)
    return len(re.findall('a(b|c)*d', 'abcbcbcd' * 50)) + len(json.dumps(list(range(100)))) + len(sorted('hello'))
def g(n): return f(n)
while True: f(6)
"""
SQL = ("with recursive c(x) as (select 1 union all select x+1 from c) "
       "select max(length(printf('%d %s',x,upper(hex(x))))) from c")
BASH = "f(){ if (($1 > 0)); then f $(($1-1)); else for i in {1..50}; do y=${i/1/2}; done; fi; }; while :; do f 7; done"
PERL = 'sub f { my $n = shift; $n < 2 ? 1 : f($n-1) + f($n-2) } while (1) { f(15); $_ = "a" x 50; s/(a+)b?$/x/ }'
GDB = """python
def f(n): return f(n - 1) + 1 if n else len(str(gdb.parse_and_eval('1+2*%d' % n)))
while True: f(9)
"""

Need = Callable[[str, str], str]
PROGRAMS: dict[str, Callable[[Need], list[str]]] = {
    "python": lambda need: [need("/usr/bin/python3", "python3"), "-c", PYTHON],
    "xz": lambda need: [need("xz", "xz-utils"), "-T2", "-c"],
    "sqlite": lambda need: [need("sqlite3", "sqlite3"), ":memory:", SQL],
    "bash": lambda need: [need("bash", "bash"), "-c", BASH],
    "perl": lambda need: [need("perl", "perl"), "-e", PERL],
    "rsa": lambda need: [need("openssl", "openssl"), "speed", "-seconds", "30", "rsa2048"],
    "aes": lambda need: [need("openssl", "openssl"), "speed", "-seconds", "30", "-evp", "aes-128-gcm"],
    "gdb": lambda need: [need("gdb", "gdb"), "-nx", "-batch", "-ex", GDB],
}


def gdb_pcs(stop: dict[str, Any]) -> list[int]:
    """gdb's frames in our terms: return addresses minus one, but the pc itself where a signal interrupted."""
    found: list[int] = []
    exact = True
    for pc, kind in stop["frames"]:
        at = pc if exact else pc - 1
        if found and not any(start <= at < end for start, end, *_ in stop["maps"]):
            break
        found.append(at)
        exact = kind == "signal"
    return found


def gdbs_end(stop: dict[str, Any]) -> Stop:
    """Whether gdb came to the root of a stack, or call frame information led it out of all code: that of libcrypto's
    bn_gather5 does not know of what the function puts on the stack."""
    return Stop.ROOT if len(gdb_pcs(stop)) == len(stop["frames"]) else Stop.NO_MAP


def our_pcs(frames: Frames, index: int) -> list[int]:
    found: list[int] = frames.pcs[index][:frames.length[index]].tolist()
    return found


def instructions(program: Path, function: str, need: Need) -> list[tuple[int, str]]:
    """Those of a function: their addresses in the program, and what they are."""
    listing = subprocess.run([need("objdump", "binutils"), "-d", "--no-show-raw-insn", program], check=True,
                             capture_output=True, text=True).stdout
    code = re.search(rf"<{function}>:\n(.*?)\n\n", listing, re.DOTALL)
    assert code is not None
    parts = [line.partition(":") for line in code[1].splitlines()]
    return [(int(at, 16), what.strip()) for at, _, what in parts]


def bias(stop: dict[str, Any], program: Path) -> int:
    """Where the code of a program is, less where it says that it is."""
    load_object = open_object(str(program))
    return next(int(start) - (load_object.vaddr_of(offset) or 0) for start, _, is_code, offset, path in stop["maps"]
                if is_code and path == str(program))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_frame_is_gdbs(name: str, world: Any, gdb_stops: Callable[..., Any], need: Need) -> None:
    world.stops = gdb_stops(PROGRAMS[name](need), 31, STEPS)
    frames = world.unwind()
    for index, stop in enumerate(world.stops):
        assert our_pcs(frames, index) == gdb_pcs(stop), f"stop {index}, {Stop(int(frames.stop[index])).name}"
    assert frames.stop.tolist() == [gdbs_end(stop) for stop in world.stops]
    assert name == "rsa" or (frames.stop == Stop.ROOT).all()
    assert world.tables.counters.expressions_unsupported == 0


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",), ("-O2", "-static"), ("-O2", "-m32"), ("-O0", "-m32")],
                         ids=" ".join)
def test_odd_frames_and_signal_handlers(flags: tuple[str, ...], world: Any, need: Need, gdb_stops: Callable[..., Any],
                                        compile_c: Callable[..., Path]) -> None:
    program = compile_c("odd", HERE / "odd.c", *flags)
    world.stops = gdb_stops([program], 61, SIGNAL_STEPS)
    frames = world.unwind()
    end = instructions(program, "realigned", need)
    at_leave = [at for at, code in end if code.startswith("leave")]
    astray = {at for at, _ in end if at_leave and at_leave[-1] < at < end[-1][0]}  # see the next test
    for index, stop in enumerate(world.stops):
        expected, moved = gdb_pcs(stop), bias(stop, program)
        if any(pc - moved in astray for pc in expected):
            continue
        assert our_pcs(frames, index) == expected, f"stop {index}, {Stop(int(frames.stop[index])).name}"
        if len(expected) == len(stop["frames"]):
            assert frames.stop[index] == Stop.ROOT
    in_handlers = [stop for stop in world.stops if any(kind == "signal" for _, kind in stop["frames"])]
    assert len(in_handlers) >= 20


@pytest.mark.parametrize("flags", [("-O0",), ("-O0", "-m32")], ids=" ".join)
def test_the_end_of_a_function_that_aligns_its_stack(flags: tuple[str, ...], world: Any, need: Need,
                                                     gdb_stops: Callable[..., Any],
                                                     compile_c: Callable[..., Path]) -> None:
    """At each of its last five instructions. gcc does not say where the frame pointer is back, and gdb goes by that."""
    program = compile_c("odd", HERE / "odd.c", *flags)
    places = {name: instructions(program, name, need) for name in ("realigned", "recurse")}
    last = [at - places["realigned"][0][0] for at, _ in places["realigned"][-5:]]
    world.stops = gdb_stops([program], 10, [f"tbreak *((char *)realigned + {place});continue" for place in last])
    frames = world.unwind()
    for index, stop in enumerate(world.stops[1:], 1):
        moved = bias(stop, program)
        at = [pc - moved for pc in our_pcs(frames, index)]
        assert at[0] - places["realigned"][0][0] in last
        assert sum(places["recurse"][0][0] < place <= places["recurse"][-1][0] for place in at) == 18
        assert frames.stop[index] == Stop.ROOT


@pytest.mark.parametrize("flags", [("-O2",), ("-O0", "-m32")], ids=" ".join)
def test_a_handler_on_another_stack_is_cut_short(flags: tuple[str, ...], world: Any, gdb_stops: Callable[..., Any],
                                                 compile_c: Callable[..., Path]) -> None:
    """Only the alternate stack was copied: the frames on it, the trampoline and the interrupted pc are known."""
    program = compile_c("odd", HERE / "odd.c", *flags)
    world.stops = gdb_stops([program], 31, SIGNAL_STEPS[4:10], env=os.environ | {"ALTERNATE": "1"})
    frames = world.unwind()
    cut = np.flatnonzero(frames.stop != Stop.ROOT)
    for index, stop in enumerate(world.stops):
        expected, found = gdb_pcs(stop), our_pcs(frames, index)
        assert found == expected[:len(found)]
        if index in cut and len(expected) == len(stop["frames"]):  # else gdb is lost, too, as in libc's assembler
            kinds = [kind for _, kind in stop["frames"][:len(found)]]
            assert kinds.count("signal") == 1
            assert kinds[-2:] == ["signal", "normal"]
            assert frames.stop[index] in (Stop.TRUNCATED, Stop.OUTSIDE)
    assert len(cut) >= 20


def test_a_short_copy_is_truncated_not_wrong(world: Any, gdb_stops: Callable[..., Any],
                                             compile_c: Callable[..., Path]) -> None:
    program = compile_c("odd", HERE / "odd.c", "-O2")
    world.stops = gdb_stops([program], 7, STEPS)
    whole, seen = world.unwind(), set()
    for cut in range(1, 200, 7):
        frames = unwind(world.stacks(cut_words=cut), world.maps(), world.tables)
        for index in range(len(world.stops)):
            found = our_pcs(frames, index)
            assert found == our_pcs(whole, index)[:len(found)]
            stop = Stop(int(frames.stop[index]))
            assert stop in (Stop.TRUNCATED, Stop.ROOT, Stop.NO_REGISTER)
            assert (stop == Stop.ROOT) == (len(found) == whole.length[index])
            seen.add(stop)
    assert Stop.TRUNCATED in seen
