"""The closed set of rules by which a frame finds its caller. Pure values.

Call frame information says, for every instruction, how the caller's registers are found from those of this frame.
All of it is translated into rules of the few forms below; stepping a frame is then the evaluation of two equations.
With ``[a]`` the word of the stack at address a, ``r`` a register of this frame and ``r'`` the same of the caller:

    the canonical frame address (CFA), which is the caller's stack pointer unless a rule for sp says otherwise:
        REGISTER      cfa = r + offset
        DEREF         cfa = [r + offset] + addend               (realigned frames, signal frames)
        PLT           cfa = sp + offset + (word if (ip & 15) >= threshold else 0)
        EXPRESSION    cfa = any DWARF expression

    each register of the caller, the return address being the caller's ip:
        SAME              r' = r
        SAVED             r' = [cfa + offset]
        SAVED_AT          r' = [s + offset]                     s another register of this frame
        VALUE             r' = cfa + offset
        REGISTER_VALUE    r' = s + offset
        UNDEFINED         r' is lost; an undefined return address marks the outermost frame
        EXPRESSION        r' = [expression], VALUE_EXPRESSION  r' = expression

A register that a rule does not mention is SAME if the architecture's calling convention keeps it over a call, else it
is lost. An architecture is numbers and a few byte patterns, one file each (``x86_64.py``, ``i386.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple


class CfaKind(IntEnum):
    """How the canonical frame address is found; see the equations above."""

    REGISTER = 0
    DEREF = 1
    PLT = 2
    EXPRESSION = 3

    __hash__ = int.__hash__  # rules are looked up all the time, and the one of enums is not in C


class Kind(IntEnum):
    """How one register of the caller is found; see the equations above."""

    SAME = 0
    SAVED = 1
    SAVED_AT = 2
    VALUE = 3
    REGISTER_VALUE = 4
    UNDEFINED = 5
    EXPRESSION = 6
    VALUE_EXPRESSION = 7

    __hash__ = int.__hash__


class Cfa(NamedTuple):
    """The rule of the frame address. ``register`` is a DWARF number."""

    kind: CfaKind
    register: int = 0
    offset: int = 0
    threshold: int = 0
    addend: int = 0
    expression: bytes = b""


class How(NamedTuple):
    """The rule of one register. ``register`` is the other register s, a DWARF number."""

    kind: Kind
    offset: int = 0
    register: int = 0
    expression: bytes = b""


class Rule(NamedTuple):
    """One row of a table: the frame address, the registers mentioned in ascending order, and whether the frame was
    interrupted by a signal (then its caller's pc is the interrupted instruction, not a return address)."""

    cfa: Cfa
    registers: tuple[tuple[int, How], ...]
    is_signal: bool = False


class LeafHint(NamedTuple):
    """Where code without any frame information keeps its return address, told by the instructions around the pc.

    ``before`` matches the bytes that end at the pc, ``after`` those that begin there. The return address is the word
    number ``return_word`` from sp up, the saved frame pointer word ``fp_word`` (-1: still in its register). Where a
    thread ``may_begin``, it is the root if that word does not follow a call. Patterns are compiled when one is first
    looked for: many recordings need none, and all of them together take 2 ms.
    """

    before: bytes
    after: bytes
    return_word: int
    fp_word: int
    may_begin: bool = False


class Trampoline(NamedTuple):
    """The code that a signal handler returns to, known by its bytes, and the rule of its frame."""

    code: bytes
    rule: Rule


class Architecture(NamedTuple):
    """Register numbers (DWARF) and byte patterns of one architecture."""

    name: str
    machine: int
    word_size: int
    n_registers: int
    sp: int
    fp: int
    ip: int
    callee_saved: frozenset[int]
    register_names: tuple[str, ...]
    is_call_before: Callable[[bytes], bool]
    longest_call: int
    frame_prologue: re.Pattern[bytes]
    plt_jump: re.Pattern[bytes]
    leaf_hints: tuple[LeafHint, ...] = ()
    caller_hints: tuple[LeafHint, ...] = ()  # matched where a call returns to
    trampolines: tuple[Trampoline, ...] = ()
    # What has no call frame information and is the same in all programs; the rule is that of its first group.
    known_code: tuple[tuple[re.Pattern[bytes], Rule], ...] = ()

    @property
    def fast_columns(self) -> tuple[int, ...]:
        """The registers that nearly every frame gets by with, in the order fp, ip, sp."""
        return (self.fp, self.ip, self.sp)

    @property
    def all_columns(self) -> tuple[int, ...]:
        """All registers; the last three are fp, ip, sp as well."""
        last = self.fast_columns
        return tuple(r for r in range(self.n_registers) if r not in last) + last


def sigreturn_rule(arch_sp: int, sp_offset: int, saved: dict[int, int]) -> Rule:
    """The rule of a signal trampoline: everything lies at a fixed distance from sp. ``saved``: register to offset."""
    registers = tuple(sorted((r, How(Kind.SAVED_AT, offset, arch_sp)) for r, offset in saved.items()))
    return Rule(Cfa(CfaKind.DEREF, arch_sp, sp_offset), registers, is_signal=True)
