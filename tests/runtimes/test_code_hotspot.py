"""What the instructions of compiled code say of its frames, looked for in a quick way and in a plain one."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from collector.runtimes.code_hotspot import _pushes, compiled, rows_of_compiled

PUSH, POP = rb"\x41?[\x50-\x57]", rb"\x41?[\x58-\x5f]"
PLAIN = re.compile(rb"(?s:(%b)(%b)(\xe8....%b)%b)" % (PUSH, PUSH, POP, POP))

PIECES = st.lists(st.sampled_from([b"\x41", b"\x50", b"\x57", b"\x58", b"\x5f", b"\xe8", b"\0\0\0\0",
                                   b"\xe8\1\2\3\4", b"\n"]), max_size=40).map(b"".join)


@given(PIECES)
@settings(max_examples=1500, deadline=None)
def test_calls_between_pushes_and_pops(text: bytes) -> None:
    expected = [(match.end(1), match.end(2), match.end(3), match.end()) for match in PLAIN.finditer(text)]
    assert list(_pushes(text)) == expected


def test_a_call_between_pushes_and_pops_has_a_larger_frame() -> None:
    """sub rsp, 16; push r8; push rax; call; pop rax; pop r8; add rsp, 16; pop rbp; ret."""
    text = bytes.fromhex("554883ec10 4150 50 e800000000 58 4158 4883c410 5d c3")
    sizes = dict(rows_of_compiled(0, text, 32))
    assert [sizes[at] for at in (5, 7, 8, 14, 16)] == [compiled(size) for size in (32, 40, 48, 40, 32)]
