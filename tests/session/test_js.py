"""Functions of JavaScript in real experiments, by both engines and both readers."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
Times = Callable[..., dict[str, float]]
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
"""


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # who has none comes late to programs that are over soon
@pytest.mark.parametrize("node", NODES)
def test_javascript_by_function(node: str, tmp_path: Path, collect: Command, er_print: Command, times: Times,
                                gprofng: Callable[..., Any], need: Callable[[str, str], str],
                                waits_recorded: None) -> None:
    experiment, fifo = tmp_path / "js.er", tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=_opened_late, args=(fifo,))
    writer.start()
    try:
        run = collect("-o", experiment, need(node, "nodejs"), SPLIT, 1.3, cwd=tmp_path,
                      env=os.environ | {"SPLIT_FIFO": str(fifo)})
    finally:
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))  # whoever has not been read is let go
        writer.join()
    assert run.returncode == 0, run.stderr
    assert re.search(r"\d+ JavaScript frames", run.stderr)
    cpu = times(experiment, "i.totalcpu")
    one, three, seven = (cpu[name] for name in ("one", "three", "seven"))
    # How near to 1 : 3 : 7 is what scripts/truth tells.
    assert 0 < one < three < seven, cpu
    # From the thread's first function on, by all that call.
    assert cpu["split"] >= 0.95 * (one + three + seven), cpu
    assert cpu["<module> (split.js)"] >= 0.95 * (one + three + seven), cpu
    # V8's own frames are folded, unless asked for; what has been compiled has its own name there.
    assert not [name for name in cpu if name.startswith("Builtins_") and cpu[name] > 0.5 * seven]
    machine = times(experiment, "i.totalcpu", "-viewmode", "machine")
    assert "seven" not in machine
    assert [name for name in machine if re.fullmatch(r"\[(Sparkplug|Maglev|TurboFan)\] (seven|spin|split)", name)]
    assert "Builtins_InterpreterEntryTrampoline" in machine
    spent = times(experiment, "i.total")
    true_s = json.loads(run.stdout)
    for name in ("waits", "executes", "reads"):
        assert spent.get(name, 0) >= 0.9 * true_s[name], (name, spent, true_s)
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
    with subprocess.Popen([need("node", "nodejs"), program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.1)
            run = collect("--engine", engine, "-t", "1", "-o", experiment, "-P", process.pid)
        finally:
            process.kill()
    assert run.returncode == 0, run.stderr
    tree = er_print("-metrics", "i.lock:i.sleep", "-calltree", experiment).stdout
    names = re.findall(r"[+|]-([\w<>. ()]+)$", tree, re.MULTILINE)
    path = ["<module> (waits.js)", "begins", *["deep"] * 8, "waits"]
    begin = names.index(path[0])
    assert names[begin:begin + len(path)] == path, tree


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # who has none comes late to programs that are over soon
@pytest.mark.parametrize("node", NODES)
def test_a_stack_is_whole_where_optimised_code_was_given_up(node: str, tmp_path: Path, collect: Command, times: Times,
                                                            need: Callable[[str, str], str],
                                                            waits_recorded: None) -> None:
    program, experiment = tmp_path / "resumed.js", tmp_path / "resumed.er"
    program.write_text(RESUMED)
    run = collect("-o", experiment, need(node, "nodejs"), "--allow-natives-syntax", program)
    assert run.returncode == 0, run.stderr
    waited = times(experiment, "i.lock")
    for name in ("waits", "inner", "outer", "<module> (resumed.js)", "_start"):
        assert waited.get(name, 0) >= 1.4, (name, waited, run.stderr)


def test_who_does_not_want_them_has_none(tmp_path: Path, collect: Command, times: Times,
                                         need: Callable[[str, str], str]) -> None:
    experiment = tmp_path / "off.er"
    run = collect("--js", "off", "-o", experiment, need("node", "nodejs"), "-e",
                  "for (const t = Date.now(); Date.now() - t < 300;);")
    assert run.returncode == 0, run.stderr
    assert "JavaScript" not in run.stderr
    assert "Builtins_JSEntry" in times(experiment, "i.totalcpu")
