"""Bytes as instructions: the keeper of capstone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from collector.elf import EM_386, EM_AARCH64, EM_X86_64
from collector.errors import UsageError


class Instruction(NamedTuple):
    """``vaddr``, its bytes, and its text as binutils writes it (AT&T's syntax on x86)."""

    vaddr: int
    code: bytes
    text: str


def instructions(code: bytes, vaddr: int, machine: int) -> Iterator[Instruction]:
    """What ``code`` says that lies at ``vaddr``; bytes that say nothing are ``.byte``. Raises UsageError."""
    import capstone

    kinds = {EM_386: (capstone.CS_ARCH_X86, capstone.CS_MODE_32),
             EM_X86_64: (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
             EM_AARCH64: (capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN)}
    if machine not in kinds:
        raise UsageError(f"instructions of this machine (ELF number {machine}) cannot be shown")
    reader = capstone.Cs(*kinds[machine])
    reader.skipdata = True
    if machine != EM_AARCH64:
        reader.syntax = capstone.CS_OPT_SYNTAX_ATT
    for at, size, name, operands in reader.disasm_lite(code, vaddr):
        begin = at - vaddr
        yield Instruction(at, code[begin:begin + size], f"{name:<6} {operands.replace(', ', ',')}".rstrip())
