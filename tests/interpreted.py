"""An experiment of a program that an interpreter carries out: its functions stand above the interpreter's own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np

from collector.experiment.dyntext import Text
from collector.experiment.map import MADE_UP_FIRST
from collector.experiment.recorder import Header, Recorder

_START_NS, _BASE, _TICK_NS = 7_001_000_000_013, 0x5555_5555_4000, 10_007_000
_HEADER = Header(
    hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
    sid=70, cwd=b"/", arguments=b"interpreter run.py", wsize=64, interval_ns=_TICK_NS, sample_period_s=1,
    start_ns=_START_NS, start_unix=2_100_000_003, collector="collect")
_SOURCE = ("int list_sort(int n) { return n * 3; }\nint _PyEval_EvalFrameDefault(int n) { return list_sort(n); }\n"
           "int main(void) { return _PyEval_EvalFrameDefault(0); }\n")
_FUNCTIONS = b"<module>", b"quick", b"slow"


def recorded(path: Path, gcc: str, more: int = 0) -> Path:
    """Of ``slow``, which sorts, 23 ticks and so many more, of ``quick`` 11, of the program's own start 3."""
    program = path.with_suffix(".program")
    subprocess.run([gcc, "-O0", "-xc", "-o", program, "-"], input=_SOURCE, text=True, check=True)
    symbols = {words[2]: _BASE + int(words[0], 16) for line in subprocess.run(
        ["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
        if len(words := line.split()) == 3}
    sort, evaluation, main = (symbols[name] + 5 for name in ("list_sort", "_PyEval_EvalFrameDefault", "main"))
    module, quick, slow = (MADE_UP_FIRST + 0x100 * place + 1 for place in range(len(_FUNCTIONS)))
    stacks = [[sort, slow, evaluation, module, evaluation, main], [quick, evaluation, module, evaluation, main],
              [main]]
    path.mkdir()
    recorder = Recorder.create(path, replace(_HEADER, arguments=os.fsencode(program)))
    recorder.segment_mapped(_START_NS, _BASE + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5)
    for place, name in enumerate(_FUNCTIONS):
        recorder.code_mapped(_START_NS, MADE_UP_FIRST + 0x100 * place, 0x80, name, Text(b"", b"run.py", ((0, 7),)))
    pcs = np.array([[*stack, *[0] * (6 - len(stack))] for stack in stacks], np.uint64)
    uids = recorder.frames.intern(pcs, np.array([len(stack) for stack in stacks])).astype(np.int64)
    of_packet = np.repeat(uids, [23 + more, 11, 3])
    rows = np.arange(len(of_packet))
    recorder.clock(71 + rows % 2, rows * 0, _START_NS + rows * _TICK_NS, of_packet, rows * 0, rows * 0 + 1)
    recorder.close(_START_NS + (len(rows) + 1) * _TICK_NS)
    return path
