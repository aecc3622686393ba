"""Register numbers and byte patterns of x86-64 (System V ABI, figure 3.36)."""

from __future__ import annotations

import re

from collector.unwind.rules import Architecture, Cfa, CfaKind, How, Kind, LeafHint, Rule, Trampoline, sigreturn_rule

NAMES = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
         "r15", "rip")
RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8, R9, R10, R11, R12, R13, R14, R15, RIP = range(17)

# struct ucontext begins at sp when the trampoline runs; its uc_mcontext is at 40 (asm/sigcontext.h, struct
# sigcontext_64): r8..r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
_CONTEXT = dict(zip((R8, R9, R10, R11, R12, R13, R14, R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP),
                    range(40, 176, 8), strict=True))


def is_call_before(code: bytes) -> bool:
    """Whether the bytes end with a call instruction: ``e8 rel32``, or ``ff /2`` with the length its ModRM asks for."""
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    return any(len(code) >= size and code[-size] == 0xFF and (code[1 - size] >> 3) & 7 == 2
               and _indirect_size(code[1 - size], code[2 - size] if size > 2 else 0x100) == size
               for size in (2, 3, 4, 6, 7))


def _indirect_size(modrm: int, sib: int) -> int:
    """Bytes of ``ff /2`` from the opcode on; ``sib`` 0x100 where there is no room for one."""
    mode, base = modrm >> 6, modrm & 7
    if mode == 3:
        return 2
    has_sib = base == 4
    if mode == 0 and (base == 5 or (has_sib and sib & 7 == 5)):
        return 6 + has_sib
    return 2 + has_sib + (0, 1, 4)[mode]


def go_rule(depth: int) -> Rule:
    """The rule of a frame of Go's: ``depth`` is what lies between sp and the return address. Who makes a frame keeps
    the caller's frame pointer below that."""
    link = ((RBP, How(Kind.SAVED, -16)),) if depth else ()
    return Rule(Cfa(CfaKind.REGISTER, RSP, depth + 8), (*link, (RIP, How(Kind.SAVED, -8))))


def hint(before: bytes, after: bytes, return_word: int, fp_word: int = -1, may_begin: bool = False) -> LeafHint:
    """A leaf hint from two patterns, each matched at the pc."""
    return LeafHint(b"(?s:" + before + rb")\Z", b"(?s:" + after + b")", return_word, fp_word, may_begin)


def beginning(*code: tuple[bytes, int]) -> tuple[LeafHint, ...]:
    """Hints for the system call that makes a thread and what both threads do next, as patterns of one instruction each;
    with each goes the word, from sp up, that is its maker's return address when it is next."""
    texts = [text for text, _ in code]
    return tuple(hint(b"".join(texts[:i]), b"".join(texts[i:]), word, may_begin=True)
                 for i, (_, word) in enumerate(code))


# The first that matches counts.
LEAF_HINTS = (
    hint(rb"\xff\x35.{4}", rb"\xf2?\xff\x25", 2),  # first PLT entry: push link map; here: jmp resolver
    hint(b"", rb"\xff\x35.{4}\xf2?\xff\x25", 1),
    hint(rb"\x68.{4}", rb"\xf2?\xe9", 1),  # PLT entry: jmp *slot; push index; here: jmp first entry
    hint(b"", rb"\x68.{4}\xf2?\xe9", 0),
    hint(b"", rb"(?:\xf3\x0f\x1e\xfa)?\xf2?\xff\x25", 0),  # PLT entry: here: jmp *slot
    hint(b"", rb"(?:\xf2|\xf3)?\xc3", 0),  # ret
    hint(b"", rb"\xc2", 0),  # ret n
    hint(b"", rb"(?:\xf3\x0f\x1e\xfa)?\x55\x48(?:\x89\xe5|\x8b\xec)", 0),  # here: push rbp; mov rbp, rsp
    hint(rb"\x55", rb"\x48(?:\x89\xe5|\x8b\xec)", 1, 0),  # push rbp; here: mov rbp, rsp
    # clone(2) in glibc: syscall; test rax, rax; jl failed; je child
    *beginning((rb"\x0f\x05", 0), (rb"\x48\x85\xc0", 0), (rb"\x7c.", 0), (rb"\x74.", 0)),
    # in musl: syscall; test eax, eax; jne parent; and then xor ebp, ebp
    *beginning((rb"\x0f\x05", 0), (rb"\x85\xc0", 0), (rb"\x75.\x31\xed", 0)),
)

# How a function begins that makes a frame: push rbp; mov rbp, rsp.
FRAME_PROLOGUE = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\x55\x48(?:\x89\xe5|\x8b\xec)")
# jmp *slot(%rip), and what a lazy PLT entry with branch tracking has before it: push index; jmp first entry.
PLT_JUMP = re.compile(rb"(?s:(?:\xf3\x0f\x1e\xfa)?(?:\xf2?\xff\x25|\x68.{4}\xf2?\xe9))")
# _init calls what begins a profiler of the program's own (gcc -pg):
# sub $8, %rsp; lea, or mov, to %rax; test %rax, %rax; je; call *%rax; add $8, %rsp; ret
INIT = re.compile(rb"(?s:\x48\x83\xec\x08(\x48[\x8b\x8d\xc7].{5}\x48\x85\xc0\x74\x02\xff\xd0\x48\x83\xc4\x08)\xc3)")

X86_64 = Architecture(
    name="x86-64", machine=62, word_size=8, n_registers=17, sp=RSP, fp=RBP, ip=RIP,
    callee_saved=frozenset((RBX, RBP, R12, R13, R14, R15)), register_names=NAMES,
    is_call_before=is_call_before, longest_call=7, frame_prologue=FRAME_PROLOGUE,
    plt_jump=PLT_JUMP, leaf_hints=LEAF_HINTS,
    # mov $15, %eax or %rax; syscall
    trampolines=(Trampoline(b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05", sigreturn_rule(RSP, _CONTEXT[RSP], _CONTEXT)),
                 Trampoline(b"\xb8\x0f\x00\x00\x00\x0f\x05", sigreturn_rule(RSP, _CONTEXT[RSP], _CONTEXT))),
    known_code=((INIT, Rule(Cfa(CfaKind.REGISTER, RSP, 16), ((RIP, How(Kind.SAVED, -8)),))),))
