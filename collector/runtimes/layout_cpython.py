"""Where CPython keeps things: offsets in its structures by minor version, 3.8 to 3.15, for 64 bits.

Of 3.8 to 3.12 as the headers of these versions lay them out (``offsetof``); no release within a minor version has moved
any of them. 3.13 and later say so themselves: ``_PyRuntime`` begins with ``_Py_DebugOffsets``, after the cookie
``xdebugpy``. Which of its words is what depends on the minor version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

COOKIE = b"xdebugpy"
N_OFFSETS = 96  # words of _Py_DebugOffsets that are read
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

    @property
    def frame_size(self) -> int:
        """How many bytes of a frame are read."""
        return 80 if self.has_inlined_calls else 112

    @property
    def makes_sense(self) -> bool:
        """Whether what is needed of a frame lies in those bytes."""
        return max(self.previous, self.code, self.instruction) <= self.frame_size - 8 and self.owner < self.frame_size


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
    Layout((3, 14), 808, 7344, 7272, 8, 152, 160, 72, _UNKNOWN, 232, 8, 0, 56, 74, _UNKNOWN, 68, 112, 128, 136, 208,
           208, 40, 56),
    Layout((3, 15), 936, 7336, 7264, 8, 176, 184, 72, _UNKNOWN, 256, 8, 0, 56, 74, _UNKNOWN, 68, 112, 128, 136, 208,
           208, 40, 56),
)}
# Which word of _Py_DebugOffsets (internal/pycore_debug_offsets.h) tells which of them, by version.
_FIELDS = ("interpreters_head", "interpreter_next", "threads_head", "thread_next", "frame", "thread_id",
           "native_thread_id", "datastack_chunk", "previous", "code", "instruction", "owner", "code_file", "code_name",
           "code_lines", "code_first_line", "bytecode", "ascii_size")
_TOLD = {
    (3, 13): (5, 8, 9, 21, 23, 24, 25, 26, 29, 30, 31, 33, 35, 37, 38, 39, 43, 70),
    (3, 14): (5, 8, 9, 24, 26, 27, 28, 29, 32, 33, 34, 36, 40, 42, 43, 44, 48, 80),
    (3, 15): (5, 8, 9, 24, 26, 30, 31, 32, 40, 41, 42, 44, 48, 50, 51, 52, 56, 92),
}
_LARGEST = 1 << 20


def layout_of(version: tuple[int, int], offsets: tuple[int, ...]) -> Layout | None:
    """The layout of a version; ``offsets``: the first words of ``_PyRuntime``, which tell it from 3.13 on. None where
    it is not known, or makes no sense."""
    layout, positions = LAYOUTS.get(version), _TOLD.get(version)
    if layout is None or positions is None:
        return layout
    if not _are_offsets(offsets) or is_free_threaded(offsets):
        return None
    told = dict(zip(_FIELDS, (offsets[at] for at in positions), strict=True))
    found = replace(layout, **told)  # type: ignore[arg-type]
    return found if max(told.values()) < _LARGEST and found.makes_sense else None


def is_free_threaded(offsets: tuple[int, ...]) -> bool:
    """Whether _Py_DebugOffsets say that there is no global interpreter lock."""
    return _are_offsets(offsets) and offsets[_FREE_THREADED] == 1


def _are_offsets(words: tuple[int, ...]) -> bool:
    return len(words) >= N_OFFSETS and words[0] == int.from_bytes(COOKIE, "little")
