"""Register numbers and byte patterns of i386 (System V ABI, Linux numbering; nine registers, eip last)."""

from __future__ import annotations

import re

from collector.unwind.rules import Architecture, Trampoline, sigreturn_rule
from collector.unwind.x86_64 import beginning, hint, is_call_before

NAMES = ("eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip")
EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI, EIP = range(9)

# asm/sigcontext.h, struct sigcontext_32: four segment words, then edi, esi, ebp, esp, ebx, edx, ecx, eax, two words,
# eip.
_ORDER = {EDI: 16, ESI: 20, EBP: 24, ESP: 28, EBX: 32, EDX: 36, ECX: 40, EAX: 44, EIP: 56}
# At the trampoline sp points behind the return address of struct sigframe_ia32 (the context follows the signal number)
# or rt_sigframe_ia32 (signal number, two pointers, 128 bytes of siginfo, then ucontext with its context at 20).
_PLAIN = {register: 4 + offset for register, offset in _ORDER.items()}
_RT = {register: 160 + offset for register, offset in _ORDER.items()}

# How functions of the vDSO begin, which has no tables of them: call thunk; add register, offset; push ebp; mov ebp, esp
_THUNK, _GOT, _FRAME = rb"\xe8.{4}", rb"(?:\x05|\x81[\xc0-\xc7]).{4}", rb"\x55(?:\x89\xe5|\x8b\xec)"
BEHIND_THUNK = hint(_THUNK, _GOT + _FRAME, 0)

LEAF_HINTS = (
    hint(rb"\xff[\x35\xb3].{4}", rb"\xff[\x25\xa3]", 2),  # first PLT entry: push link map; here: jmp resolver
    hint(b"", rb"\xff[\x35\xb3].{4}\xff[\x25\xa3]", 1),
    hint(rb"\x68.{4}", rb"\xe9", 1),  # PLT entry: jmp *slot; push index; here: jmp first entry
    hint(b"", rb"\x68.{4}\xe9", 0),
    hint(b"", rb"(?:\xf3\x0f\x1e\xfb)?\xff[\x25\xa3]", 0),  # PLT entry: here: jmp *slot
    hint(b"", rb"(?:\xf3)?\xc3", 0),  # ret
    hint(b"", rb"\xc2", 0),  # ret n
    hint(b"", rb"(?:\xf3\x0f\x1e\xfb)?\x55(?:\x89\xe5|\x8b\xec)", 0),  # here: push ebp; mov ebp, esp
    hint(rb"\x55", rb"(?:\x89\xe5|\x8b\xec)", 1, 0),  # push ebp; here: mov ebp, esp
    hint(b"", _THUNK + _GOT + _FRAME, 0),
    BEHIND_THUNK,
    hint(b"", rb"\x8b[\x04\x0c\x14\x1c\x34\x3c]\x24\xc3", 0),  # the thunk: mov register, (esp); ret
    # clone(2) in glibc: int $0x80; pop edi; pop esi; pop ebx; test eax, eax; jl failed; je child
    *beginning((rb"\xcd\x80", 3), (rb"\x5f", 3), (rb"\x5e", 2), (rb"\x5b", 1), (rb"\x85\xc0", 0),
               (rb"(?:\x7c.|\x0f\x8c.{4})", 0), (rb"\x74.", 0)),
    # clone3(2): int $0x80; test eax, eax; je child; pop esi; pop ebx; jl failed
    *beginning((rb"\xcd\x80", 2), (rb"\x85\xc0", 2), (rb"\x74.", 2), (rb"\x5e", 2), (rb"\x5b", 1),
               (rb"\x0f\x8c.{4}", 0)),
)

# push ebp; mov ebp, esp; or, in functions that realign the stack: lea 4(esp), ecx
FRAME_PROLOGUE = re.compile(rb"(?:\xf3\x0f\x1e\xfb)?(?:\x55(?:\x89\xe5|\x8b\xec)|\x8d\x4c\x24\x04)")
PLT_JUMP = re.compile(rb"(?s:(?:\xf3\x0f\x1e\xfb)?(?:\xff[\x25\xa3]|\x68.{4}\xe9))")

I386 = Architecture(
    name="i386", machine=3, word_size=4, n_registers=9, sp=ESP, fp=EBP, ip=EIP,
    callee_saved=frozenset((EBX, EBP, ESI, EDI)), register_names=NAMES,
    is_call_before=is_call_before, longest_call=7, frame_prologue=FRAME_PROLOGUE,
    plt_jump=PLT_JUMP, leaf_hints=LEAF_HINTS, caller_hints=(BEHIND_THUNK,),
    # pop %eax; mov $119, %eax; int $0x80      mov $173, %eax; int $0x80
    trampolines=(Trampoline(b"\x58\xb8\x77\x00\x00\x00\xcd\x80", sigreturn_rule(ESP, _PLAIN[ESP], _PLAIN)),
                 Trampoline(b"\xb8\xad\x00\x00\x00\xcd\x80", sigreturn_rule(ESP, _RT[ESP], _RT))))
