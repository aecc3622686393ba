"""Functions of JavaScript in real experiments, by both engines and both readers."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from living import living, ready
from sampling_error import of_share

from collector.experiment.records import STATES

Command = Callable[..., subprocess.CompletedProcess[str]]
Times = Callable[..., dict[str, float]]
INTERVAL_S = 0.010007
UNKNOWN = "<JavaScript function, not known>"
# The distribution's, and further ones by a pattern, where somebody asks for it.
NODES = ["node", *sorted(glob.glob(os.environ.get("NODES", "")))]
SPLIT = Path(__file__).resolve().parent.parent / "workloads" / "split.js"

WAITS = """
const deep = (n, end) => n === 0 ? end() : deep(n - 1, end);
function waits() { return Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); }
function begins() { console.log("ready"); deep(7, waits); }
begins();
"""
# What waits had been inlined, and was never run, when that was compiled: its frames, and the caller's, are made anew.
RESUMED = """
const cell = new Int32Array(new SharedArrayBuffer(4));
function waits() { Atomics.wait(cell, 0, 0, 1500); }
function inner(isRare) { if (isRare) waits(); return 1; }
function outer(isRare) { return inner(isRare) + 1; }
%PrepareFunctionForOptimization(inner);
%PrepareFunctionForOptimization(outer);
for (let i = 0; i < 9; i++) outer(false);
%OptimizeFunctionOnNextCall(outer);
outer(false);
outer(true);
console.log('waited');
require('fs').readFileSync(0);
"""


@pytest.mark.kernel_times
@pytest.mark.parametrize("node", NODES)
def test_javascript_by_function(node: str, tmp_path: Path, er_print: Command, times: Times, gprofng: Callable[..., Any],
                                need: Callable[[str, str], str], waits_recorded: None) -> None:
    experiment, fifo = tmp_path / "js.er", tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=_opened_late, args=(fifo,))
    writer.start()
    # Whoever wants a function optimised waits for that: it does not come too late.
    command = need(node, "nodejs"), "--no-concurrent-recompilation", SPLIT, 1.3, "stay"
    try:
        with living(experiment, *command, cwd=tmp_path, env=os.environ | {"SPLIT_FIFO": str(fifo)}) as run:
            true_s = json.loads(run.says())
            run.wait_for_looks()
            _, told = run.end()
    finally:
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))  # whoever has not been read is let go
        writer.join()
    assert re.search(r"\d+ JavaScript frames", told)
    cpu, unknown_s = times(experiment, "i.totalcpu"), times(experiment, "e.totalcpu").get(UNKNOWN, 0)
    # Each has its part and none another's, but for what is not known, and for what samples cannot tell.
    of_all = {name: cpu.get(name, 0) for name in ("one", "three", "seven")}
    in_split, seven = sum(of_all.values()), of_all["seven"]
    assert in_split > 0
    for (name, recorded_s), part in zip(of_all.items(), (1, 3, 7), strict=True):
        error_s = of_share(part / 11, in_split / INTERVAL_S) * in_split
        assert recorded_s == pytest.approx(in_split * part / 11, abs=error_s + unknown_s), (name, cpu)
    # From the thread's first function on, by all that call.
    assert cpu["split"] >= 0.95 * in_split - unknown_s, cpu
    assert cpu["<module> (split.js)"] >= 0.95 * in_split - unknown_s, cpu
    # V8's own frames are folded, unless asked for; what has been compiled has its own name there.
    assert not [name for name in cpu if name.startswith("Builtins_") and cpu[name] > 0.5 * seven]
    machine = times(experiment, "i.totalcpu", "-viewmode", "machine")
    assert "seven" not in machine
    assert [name for name in machine if re.fullmatch(r"\[(Sparkplug|Maglev|TurboFan)\] (seven|spin|split)", name)]
    assert "Builtins_InterpreterEntryTrampoline" in machine
    # All their time, whatever they waited for; each state is rounded for itself. Some stacks of modules that are loaded
    # meanwhile are not whole.
    spent, slack_s = times(experiment, "i.total"), len(STATES) / 2 * INTERVAL_S
    for name in ("waits", "executes", "reads"):
        assert 0.9 * true_s[name] - slack_s <= spent.get(name, 0) <= true_s[name] + slack_s, (name, spent, true_s)
    # gprofng tells the same, opens it without a warning, and finds the lines.
    listing = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=experiment)
    assert listing.functions["seven"][0] == pytest.approx(seven, abs=0.002)
    assert "Warning" not in gprofng("-header", experiment=experiment).text
    source = er_print("-source", "split", experiment, cwd=tmp_path).stdout
    program = SPLIT.read_text()
    for call in ("x = three(n, x)", "x = seven(n, x)"):
        line = program[:program.index(call)].count("\n") + 1
        assert re.search(rf"\d\.\d+ .* {line}\. +{re.escape(call)}", source), source


def _opened_late(fifo: Path) -> None:
    """Whoever reads it waits for this."""
    with fifo.open("wb"):
        time.sleep(0.3)


@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_a_blocked_thread_is_where_it_says(engine: str, tmp_path: Path, collect: Command, er_print: Command,
                                           need: Callable[[str, str], str], perf_allowed: None,
                                           attach_allowed: None) -> None:
    """At a process that ran before."""
    program, experiment = tmp_path / "waits.js", tmp_path / "blocked.er"
    program.write_text(WAITS)
    with ready(need("node", "nodejs"), program) as pid:
        time.sleep(0.1)
        run = collect("--engine", engine, "-t", "1", "-o", experiment, "-P", pid)
    assert run.returncode == 0, run.stderr
    tree = er_print("-metrics", "i.lock:i.sleep", "-calltree", experiment).stdout
    names = re.findall(r"[+|]-([\w<>. ()]+)$", tree, re.MULTILINE)
    path = ["<module> (waits.js)", "begins", *["deep"] * 8, "waits"]
    begin = names.index(path[0])
    assert names[begin:begin + len(path)] == path, tree


@pytest.mark.kernel_times
@pytest.mark.parametrize("node", NODES)
def test_a_stack_is_whole_where_optimised_code_was_given_up(node: str, tmp_path: Path, times: Times,
                                                            need: Callable[[str, str], str],
                                                            waits_recorded: None) -> None:
    program, experiment = tmp_path / "resumed.js", tmp_path / "resumed.er"
    program.write_text(RESUMED)
    with living(experiment, need(node, "nodejs"), "--allow-natives-syntax", program) as run:
        assert run.says() == "waited\n"
        run.wait_for_looks()
        _, told = run.end()
    # It may lose its CPU before it is in the call, which then waits for the rest; and the kernel's account takes the
    # rest of a sleep for a wait if it moves who has just gone to sleep. Each state is rounded for itself.
    lock, wait = (times(experiment, f"i.{state}") for state in ("lock", "wait"))
    for name in ("waits", "inner", "outer", "<module> (resumed.js)", "_start"):
        assert lock.get(name, 0) + wait.get(name, 0) >= 1.5 - 2 * INTERVAL_S, (name, lock, wait, told)


def test_the_name_of_the_program_makes_no_difference(tmp_path: Path, times: Times, need: Callable[[str, str], str],
                                                     perf_allowed: None) -> None:
    program, script, experiment = tmp_path / "worker", tmp_path / "work.js", tmp_path / "worker.er"
    shutil.copy(need("node", "nodejs"), program)
    script.write_text("function work() { const t = Date.now(); let s = 0; while (Date.now() - t < 700) s += 1; }\n"
                      "work(); console.log('worked'); require('fs').readFileSync(0);")
    with living(experiment, program, script) as run:
        assert run.says() == "worked\n"
        run.wait_for_looks()
        _, told = run.end()
    assert re.search(r"\d+ JavaScript frames", told), told
    assert "work" in times(experiment, "i.totalcpu")


def test_who_does_not_want_them_has_none(tmp_path: Path, collect: Command, times: Times,
                                         need: Callable[[str, str], str]) -> None:
    experiment = tmp_path / "off.er"
    run = collect("--js", "off", "-o", experiment, need("node", "nodejs"), "-e",
                  "for (const t = Date.now(); Date.now() - t < 300;);")
    assert run.returncode == 0, run.stderr
    assert "JavaScript" not in run.stderr
    assert "Builtins_JSEntry" in times(experiment, "i.totalcpu")
