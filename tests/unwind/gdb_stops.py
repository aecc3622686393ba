"""Runs inside gdb: stops a process again and again, writes what unwinding needs and what gdb itself finds.

``gdb -batch -ex 'python OUT, PID, STOPS, STEPS = ...' -x gdb_stops.py``. STEPS are gdb commands (``a;b;c``) that lead
from one stop to the next, taken in turn. One JSON object per line and stack: registers, the words of the stack, the
executable mappings, and gdb's frames leaf first.
"""
# mypy: ignore-errors

import contextlib
import json

import gdb  # provided by gdb itself

STACK_BYTES = 1 << 18
NAMES = {
    "i386:x86-64": ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
                    "r14", "r15", "rip"],
    "i386": ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"],
}


def mappings(pid):
    """(start, end, executable, file offset, path) of all mappings."""
    found = []
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            part = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(x, 16) for x in part[0].split("-"))
            found.append((start, end, "x" in part[1], int(part[2], 16), part[5] if len(part) > 5 else ""))
    return found


def frames_of(frame):
    """[(pc, kind)]; frames that share a machine frame with another one (inlined, tail calls) left out."""
    found = []
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            found.append((frame.pc(), "signal" if frame.type() == gdb.SIGTRAMP_FRAME else "normal"))
        frame = frame.older()
    return found


def vdso_of(maps):
    """The image of the process's vDSO, which depends on its word size."""
    for start, end, *_, path in maps:
        if path == "[vdso]":
            return bytes(gdb.selected_inferior().read_memory(start, end - start)).hex()
    return ""


def stop_of(maps):
    frame = gdb.newest_frame()
    names = NAMES[frame.architecture().name()]
    width = 8 if len(names) == 17 else 4
    values = [int(frame.read_register(name)) & ((1 << 8 * width) - 1) for name in names]
    sp = values[names.index("rsp" if width == 8 else "esp")]
    low = sp & -width
    end = next((end for start, end, *_ in maps if start <= low < end), low)
    words = bytes(gdb.selected_inferior().read_memory(low, min(end - low, STACK_BYTES)))
    return {"regs": values, "low": low, "stack": words.hex(), "frames": frames_of(frame),
            "maps": [m for m in maps if m[2]], "vdso": vdso_of(maps)}


def run(out_path, pid, n_stops, steps):
    for setting in ("pagination off", "backtrace past-main on", "backtrace past-entry off", "debuginfod enabled off",
                    "confirm off", "scheduler-locking step"):
        with contextlib.suppress(gdb.error):  # not every version of gdb has every setting
            gdb.execute(f"set {setting}")
    gdb.execute(f"attach {pid}", to_string=True)
    with open(out_path, "w") as out:
        for i in range(n_stops):
            maps = mappings(pid)
            for thread in sorted(gdb.selected_inferior().threads(), key=lambda t: t.num):
                if i and thread.num != 1:
                    continue
                thread.switch()
                json.dump(stop_of(maps), out)
                out.write("\n")
            try:
                gdb.selected_inferior().threads()[-1].switch()
                for command in steps[i % len(steps)].split(";"):
                    gdb.execute(command, to_string=True)
            except gdb.error:
                break
            if not gdb.selected_inferior().pid:
                break
    gdb.execute("detach", to_string=True)


run(OUT, PID, STOPS, STEPS)  # noqa: F821
