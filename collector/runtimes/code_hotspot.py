"""How frames of HotSpot's code find their callers, told by rules, as call frame information would. Pure. x86-64.

    compiled, native wrapper    CFA = sp + frame size; below it the return address and the caller's fp (frame.cpp,
                                sender_for_compiled_frame). Not yet at the entry, and not any more at a return: what is
                                before and behind the pushes is found by the instructions
    interpreter                 CFA = fp + 16; the caller's sp is in the frame, at fp - 8: who has been compiled and
                                calls what is interpreted has made room for its locals
    call stub                   where C++ has called Java; keeps the registers of its caller at fixed places below fp
                                (stubGenerator_x86_64.cpp)
    continuation's entry        CFA = fp + 16; whoever returns to it has its fp (continuationFreezeThaw_x86)
    adapters, vtable stubs      make no frame
    other stubs                 by frame pointers and instructions, as all code of which nothing is known

Of a frame that has been deoptimised only the return address is another, in the same code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from collector.unwind.rules import Cfa, CfaKind, How, Kind, Rule
from collector.unwind.table import HOLE
from collector.unwind.x86_64 import R12, R13, R14, R15, RBP, RBX, RIP, RSP

Rows = tuple[tuple[int, Rule | int], ...]  # (from this address on, rule or number of a special one), ascending

_RETURN = (RIP, How(Kind.SAVED, -8))
_LINK = (RBP, How(Kind.SAVED, -16))
FRAMELESS = Rule(Cfa(CfaKind.REGISTER, RSP, 8), (_RETURN,))
PUSHED = Rule(Cfa(CfaKind.REGISTER, RSP, 16), (_LINK, _RETURN))
INTERPRETED = Rule(Cfa(CfaKind.REGISTER, RBP, 16), (_LINK, (RSP, How(Kind.SAVED, -24)), _RETURN))
ENTERED = Rule(Cfa(CfaKind.REGISTER, RBP, 16), (_LINK, _RETURN))
CALL_STUB = Rule(Cfa(CfaKind.REGISTER, RBP, 16),
                 ((RBX, How(Kind.SAVED, -72)), _LINK, *((register, How(Kind.SAVED, -80 - 8 * i))
                                                        for i, register in enumerate((R12, R13, R14, R15))), _RETURN))
_KEPT = (RBX, R12, R13, R14, R15)  # by nobody who is compiled
_LINKED = re.compile(rb"\x48(?:\x8b\xec|\x89\xe5)")  # mov rbp, rsp
# What is between the last pop and the return, or the jump to who goes on with an exception: a poll for safepoints, by
# its page or by its limit.
_TO_RETURN = re.compile(rb"(?s:(?:\xc5\xf8\x77|\x4d\x8b\x97.{4}|\x41\x85\x02|\x49\x3b(?:\xa7.{4}|\x67.)|"
                        rb"\x0f[\x82\x87].{4})*(?:\xc3|\xe9.{4}))")
_LEAVE = re.compile(rb"\xc9|\x48\x8b\xe5\x5d")
# Where such a poll leads to: mov r10, the poll's address; mov [r15+...], r10; jmp to the handler.
_POLL = re.compile(rb"(?s:\x49\xba.{8}\x4d\x89(?:\x97.{4}|\x57.)\xe9.{4})")
# C1 calls some of its stubs with two words on the stack, or a number that is to be converted.
# Looked for by the calls, which are rarer than pushes.
_PUSH, _POP = rb"\x41?[\x50-\x57]", rb"\x41?[\x58-\x5f]"
_TWO_PUSHES, _PUSHES_MAX = re.compile(rb"(%b)(%b)\Z" % (_PUSH, _PUSH)), 4
_POPPED_CALL = re.compile(rb"(?s:\xe8(?=(....%b)(%b)))" % (_POP, _POP))
# C2 moves a word within its frame by push and pop.
_MOVE = re.compile(rb"(?s:(\xff(?:\x34\x24|\x74\x24.|\xb4\x24.{4}))\x48?\x8f(?:\x04\x24|\x44\x24.|\x84\x24.{4}))")
_ROOM = re.compile(rb"(?s:(\x48\x83\xec\x08).{0,16}?\xe8.{4}(?:\x48\x83\xc4\x08|%b))" % _POP)
# Since 24 the slow paths of C2's barriers make room for the registers that they keep (barrierSetAssembler_x86.cpp,
# SaveLiveRegisters), call, and give it back.
_KEEPS, _KEEPS_MAX = re.compile(rb"(?s:\x48\x83\xec(.)|\x48\x81\xec(.{4}))"), 1024


@lru_cache(1 << 10)
def compiled(frame_size: int) -> Rule:
    """The rule of a frame that is whole."""
    lost = How(Kind.UNDEFINED)
    registers = sorted((_LINK, _RETURN, *((register, lost) for register in _KEPT)))
    return Rule(Cfa(CfaKind.REGISTER, RSP, frame_size), tuple(registers))


@lru_cache(1 << 10)
def _unlinked(frame_size: int) -> Rule:
    return Rule(Cfa(CfaKind.REGISTER, RSP, frame_size), (_RETURN,))


def rows_of_compiled(start: int, text: bytes, frame_size: int, is_native: bool = False) -> Rows:
    """The rows of compiled code, or of the wrapper of a native method, that lies at ``start``."""
    whole = compiled(frame_size)
    found: list[tuple[int, Rule | int]] = []
    first = True
    prologues = _prologues(text, frame_size)
    for begin, pushed, end, saved in prologues:
        # Up to here there is no frame; of a further entry, for a loop that is under way, the beginning is not known.
        found.append((0 if first else begin, FRAMELESS))
        found.append((pushed, PUSHED) if pushed else (end, _unlinked(frame_size)))
        found.append((saved, whole))
        first = False
    if first:
        found.append((0, whole))
    for popped, pop, end in _epilogues(text, frame_size, is_native):
        found += [(popped, PUSHED)] if popped else []
        found += [(pop, FRAMELESS), (end, whole)]
    for one, two, popped, end in _pushes(text):
        found += [(one, compiled(frame_size + 8)), (two, compiled(frame_size + 16)),
                  (popped, compiled(frame_size + 8)), (end, whole)]
    for pattern in (_ROOM, _MOVE) if frame_size > 24 else ():
        for match in pattern.finditer(text):
            found += [(match.end(1), compiled(frame_size + 8)), (match.end(), whole)]
    for begin, end, room in _kept_registers(text):
        if begin not in {end for _, _, end, _ in prologues}:
            found += [(begin, compiled(frame_size + room)), (end, whole)]
    return _ordered(start, found)


def _pushes(text: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(behind one push, behind two and before a call, behind one pop, behind two) as offsets."""
    done = 0
    for call in _POPPED_CALL.finditer(text):
        at = call.start()
        pushes = _TWO_PUSHES.search(text, max(at - _PUSHES_MAX, done), at)
        if pushes:
            yield pushes.end(1), at, call.end(1), call.end(2)
            done = call.end(2)


def _kept_registers(text: bytes) -> Iterator[tuple[int, int, int]]:
    """(behind the sub, behind the add of the same number, the number) of rooms with a call in them."""
    for sub in _KEEPS.finditer(text):
        room = int.from_bytes(sub[1] or sub[2], "little")
        add = _add_or_sub(room, 0xC4).search(text, sub.end(), sub.end() + _KEEPS_MAX)
        if add and 8 < room < 1 << 15 and not room & 7 and b"\xe8" in text[sub.end():add.start()]:
            yield sub.end(), add.end(), room


def rows_of_stub(start: int, text: bytes, frame_size: int) -> Rows:
    """The rows of a stub with a frame of its own."""
    whole = compiled(frame_size)
    if text[:1] != b"\x55":
        return ((start, whole),)
    return ((start, FRAMELESS), (start + 1, PUSHED), (start + (4 if _LINKED.match(text, 1) else 1), whole))


def rows_of_stubs(start: int, call_stub_return: int) -> Rows:
    """The rows of the stub routines in which C++ calls Java somewhere."""
    return ((start, HOLE), (call_stub_return - 1, CALL_STUB), (call_stub_return + 1, HOLE))


def _prologues(text: bytes, frame_size: int) -> list[tuple[int, int, int, int]]:
    """(push or sub, behind the push or 0, end of the sub, where the caller's fp is saved) as offsets."""
    found = []
    for room, is_pushed in ((frame_size - 16, True), (frame_size - 8, False)):
        for sub in _add_or_sub(room, 0xEC).finditer(text):
            at, end = sub.span()
            if is_pushed:
                before = at - 3 if at >= 4 and _LINKED.match(text, at - 3) else at
                if before and text[before - 1] == 0x55:
                    found.append((before - 1, before, end, end))
            elif _stores_link(text, end, frame_size - 16):
                found.append((at, 0, end, end + (5 if frame_size - 16 < 128 else 8)))
    if frame_size == 16 and not found and (push := re.search(rb"\x55(?:\x48\x8b\xec|\x48\x89\xe5)?", text[:64])):
        behind = push.start() + 1
        found.append((push.start(), behind, behind, behind))
    return sorted(found)


def _epilogues(text: bytes, frame_size: int, is_native: bool) -> list[tuple[int, int, int]]:
    """(behind the add or 0, behind the pop, behind the return) as offsets."""
    found = []
    for add in _add_or_sub(frame_size - 16, 0xC4).finditer(text):
        pop = add.end()
        if text[pop:pop + 1] == b"\x5d" and (returns := _TO_RETURN.match(text, pop + 1)):
            found.append((pop, pop + 1, returns.end()))
    found += [(0, leave.end(), returns.end()) for leave in (_LEAVE.finditer(text) if is_native else ())
              if (returns := _TO_RETURN.match(text, leave.end()))]
    return found + [(0, *poll.span()) for poll in _POLL.finditer(text)]


@lru_cache(1 << 10)
def _add_or_sub(room: int, how: int) -> re.Pattern[bytes]:
    """add or sub of a number and rsp, which may have been written longer than is needed."""
    long = bytes((0x48, 0x81, how)) + max(room, 0).to_bytes(4, "little")
    short = bytes((0x48, 0x83, how, room)) if 0 <= room < 128 else long
    return re.compile(b"%b|%b" % (re.escape(short), re.escape(long)))


def _stores_link(text: bytes, at: int, place: int) -> bool:
    if 0 <= place < 128:
        return text.startswith(b"\x48\x89\x6c\x24" + bytes((place,)), at)
    return text.startswith(b"\x48\x89\xac\x24" + place.to_bytes(4, "little"), at)


def _ordered(start: int, found: Sequence[tuple[int, Rule | int]]) -> Rows:
    """Sorted, the last of those that begin at one address."""
    by_start = {start + at: rule for at, rule in sorted(found, key=lambda row: row[0])}
    return tuple(by_start.items())
