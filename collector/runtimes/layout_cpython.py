"""Where CPython keeps things: offsets in its structures by minor version, 3.8 to 3.13, for 64 bits.

Of 3.8 to 3.12 as the headers of these versions lay them out (``offsetof``); no release within a minor version has moved
any of them. 3.13 and later say so themselves: ``_PyRuntime`` begins with ``_Py_DebugOffsets``, after the cookie
``xdebugpy``. The positions in it are those of 3.13.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

COOKIE = b"xdebugpy"
N_OFFSETS = 80  # words of _Py_DebugOffsets that are read
_FREE_THREADED = 2
_UNKNOWN = -1


@dataclass(frozen=True)
class Layout:
    """Offsets in bytes; -1: this version has no such field."""

    version: tuple[int, int]
    interpreters_head: int
    threads_head: int
    interpreter_next: int
    thread_next: int
    thread_id: int
    native_thread_id: int
    frame: int  # in the thread: the innermost frame, or in 3.11 and 3.12 the _PyCFrame that has it
    cframe_current: int
    datastack_chunk: int
    previous: int
    code: int
    instruction: int  # a pointer into the bytecode; up to 3.10 an index
    owner: int
    is_entry: int
    code_first_line: int
    code_file: int
    code_name: int
    code_lines: int
    bytecode: int  # in the code object; up to 3.10 a pointer to bytes
    code_size: int  # of the code object, without what is behind it
    ascii_size: int
    compact_size: int

    @property
    def has_inlined_calls(self) -> bool:
        """Whether one evaluation of C may carry out several functions."""
        return self.version >= (3, 11)


_OLD = Layout((3, 8), 32, 8, 0, 8, 176, _UNKNOWN, 24, _UNKNOWN, _UNKNOWN, 24, 32, 104, _UNKNOWN, _UNKNOWN,
              40, 104, 112, 120, 48, 176, 48, 72)
LAYOUTS = {layout.version: layout for layout in (
    _OLD,
    replace(_OLD, version=(3, 9)),
    replace(_OLD, version=(3, 10), instruction=96),
    Layout((3, 11), 40, 16, 0, 8, 152, 160, 56, 8, 296, 48, 32, 56, 69, 68, 72, 112, 128, 136, 184, 192, 48, 72),
    Layout((3, 12), 40, 72, 0, 8, 136, 144, 56, 0, 232, 8, 0, 56, 70, _UNKNOWN, 68, 112, 128, 136, 192, 200, 40, 56),
    Layout((3, 13), 632, 7344, 7264, 8, 152, 160, 72, _UNKNOWN, 232, 8, 0, 56, 70, _UNKNOWN, 68, 112, 128, 136, 200,
           208, 40, 56),
)}
# Which word of 3.13's _Py_DebugOffsets tells which of them.
_TOLD_3_13 = {"interpreters_head": 5, "interpreter_next": 8, "threads_head": 9, "thread_next": 21, "frame": 23,
              "thread_id": 24, "native_thread_id": 25, "datastack_chunk": 26, "previous": 29, "code": 30,
              "instruction": 31, "owner": 33, "code_file": 35, "code_name": 37, "code_lines": 38, "code_first_line": 39,
              "bytecode": 43, "ascii_size": 70}
_LARGEST = 1 << 20


def layout_of(version: tuple[int, int], offsets: tuple[int, ...]) -> Layout | None:
    """The layout of a version; ``offsets``: the first words of ``_PyRuntime``, which tell it from 3.13 on. None where
    it is not known, or makes no sense."""
    layout = LAYOUTS.get(version)
    if layout is None or version < (3, 13):
        return layout
    if len(offsets) < N_OFFSETS or offsets[0] != int.from_bytes(COOKIE, "little") or offsets[_FREE_THREADED]:
        return None
    told = {name: offsets[at] for name, at in _TOLD_3_13.items()}
    return replace(layout, **told) if max(told.values()) < _LARGEST else None  # type: ignore[arg-type]
