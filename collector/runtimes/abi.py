"""Byte layouts of what runtimes write, declared once.

jitdump is described in the Linux kernel's tools/perf/Documentation/jitdump-specification.txt. Only the byte order of
this machine is read.
"""

from __future__ import annotations

from collector.layout import Field, Record

JITDUMP_MAGIC = 0x4A695444
JITDUMP_ARCH_TIMES = 1  # flag: times are of the CPU's own counter
JITDUMP = Record(
    -1, "jitdump",
    Field("magic", "<u4"), Field("version", "<u4"), Field("size", "<u4"), Field("machine", "<u4"),
    Field("pad", "<u4"), Field("pid", "<u4"), Field("time", "<u8"), Field("flags", "<u8"),
)
JIT_LOAD, JIT_MOVE, JIT_LINES, JIT_CLOSE, JIT_UNWINDING = range(5)
JIT_HEAD = Record(-1, "jit_head", Field("kind", "<u4"), Field("size", "<u4"), Field("time", "<u8"))
# Behind the head. A name, ended by NUL, and the code follow.
LOAD = Record(
    -1, "jit_load", Field("pid", "<u4"), Field("tid", "<u4"), Field("vma", "<u8"), Field("address", "<u8"),
    Field("length", "<u8"), Field("index", "<u8"),
)
MOVE = Record(
    -1, "jit_move", Field("pid", "<u4"), Field("tid", "<u4"), Field("vma", "<u8"), Field("old_address", "<u8"),
    Field("address", "<u8"), Field("length", "<u8"), Field("index", "<u8"),
)
# Of the code that is loaded next; so many lines follow, each with the name of its file, ended by NUL.
LINES = Record(-1, "jit_lines", Field("address", "<u8"), Field("n", "<u8"))
LINE = Record(-1, "jit_line", Field("address", "<u8"), Field("line", "<i4"), Field("discriminator", "<i4"))
SAME_FILE = b"\xff"  # in place of a name: that of the line before
V8_MARK = b"v8dbg_off_fp_function"  # the symbol of V8's that tells who has it in it
