"""Trampolines: made code of one pattern, over and over, whose frames are known without any table. Pure.

CPython 3.12 and later, with ``-X perf``, gives every function a copy of ::

    sub  $8, %rsp
    call *%rcx
    add  $8, %rsp
    ret

Whoever is above has been called by its second instruction: the frame address is rsp + 16. Nothing tells so but the code
itself, so it is recognised by its bytes.
"""

from __future__ import annotations

from collector.elf import LoadObject, object_of_bytes
from collector.unwind.rules import Cfa, CfaKind, How, Kind, Rule
from collector.unwind.table import Tables
from collector.unwind.x86_64 import X86_64

N_BYTES = 64  # of the code that are looked at
_CODE = bytes.fromhex("4883ec08ffd14883c408c3")
_STRIDES = (11, 16)  # 3.12; since 3.13 each begins at a multiple of 16
_SP = 7
_RULE = Rule(Cfa(CfaKind.REGISTER, _SP, 16), ((16, How(Kind.SAVED, -8)),))
_HEAD, _SEGMENT = 64, 56  # bytes of ELF's heads


def is_trampolines(code: bytes) -> bool:
    """Whether memory that begins with ``code``, N_BYTES of it, is full of trampolines."""
    return any(all(code[at:at + len(_CODE)] == _CODE for at in range(0, N_BYTES - len(_CODE), stride))
               for stride in _STRIDES)


def add_trampolines(tables: Tables, size: int) -> tuple[int, LoadObject]:
    """``size`` bytes of trampolines from address 0 of an object of their own; its number in the tables, and it."""
    made = object_of_bytes(image(size), "[trampolines]")
    return tables.add_object_of_rule(made, _RULE), made


def image(size: int) -> bytes:
    """An ELF file of one executable segment of so many bytes, of which nothing is in the file."""
    def word(value: int, length: int) -> bytes:
        return value.to_bytes(length, "little")

    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = b"".join([ident, word(3, 2), word(X86_64.machine, 2), word(1, 4), word(0, 8), word(_HEAD, 8), word(0, 8),
                     word(0, 4), word(_HEAD, 2), word(_SEGMENT, 2), word(1, 2), word(0, 2), word(0, 2), word(0, 2)])
    segment = b"".join([word(1, 4), word(5, 4), word(0, 8), word(0, 8), word(0, 8), word(0, 8), word(size, 8),
                        word(4096, 8)])
    return head + segment
