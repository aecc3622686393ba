"""Code without call frame information, and threads of which only sp and pc are known; gdb is the judge."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.elf import Symbols, open_object
from collector.unwind import frame_pointer
from collector.unwind.batch import Frames, Maps, Proof, Stacks, Stop, unwind
from collector.unwind.frame_pointer import AFTER_CALL, NOT_CODE, Found, Grades
from collector.unwind.memory import Memory
from collector.unwind.table import Tables
from collector.unwind.x86_64 import RBP, RIP, RSP

HERE = Path(__file__).parent
NO_CFI = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-omit-frame-pointer")

CHAIN = """
#include <unistd.h>
volatile long sink;
long leaf(long n) { for (long i = 0; i < 50; i++) sink += i * n; return sink; }
long through(long n) { long (*volatile f)(long) = leaf; return f(n) + leaf(n + 1); }
long deep(long n) { return n ? deep(n - 1) + 1 : through(n); }
void _exit_never(void) { for (;;) sink += deep(7); }
int main(int n, char **v) { if (n > 1) { char c; return read(0, &c, 1); } _exit_never(); return 0; }
"""

BLOCKED = """
#include <unistd.h>
char c;
int waits(int n) { volatile char room[64]; room[n] = n; return pause() + room[n]; }
int deep(int n) { volatile char room[128]; room[n] = 1; return n ? deep(n - 1) + room[n] : waits(n); }
int main(void) { return deep(9); }
"""


def pcs_of(frames: Frames, index: int) -> list[int]:
    found: list[int] = frames.pcs[index][:frames.length[index]].tolist()
    return found


def gdb_pcs(stop: dict[str, Any]) -> list[int]:
    kinds = ["signal", *(kind for _, kind in stop["frames"])]
    return [pc - (before != "signal") for (pc, _), before in zip(stop["frames"], kinds, strict=False)]


@pytest.mark.parametrize("flags", [("-O0",), ("-O1",), ("-O0", "-m32")], ids=" ".join)
def test_frame_pointers_where_there_is_nothing_else(flags: tuple[str, ...], world: Any, gdb_stops: Callable[..., Any],
                                                    compile_c: Callable[..., Path]) -> None:
    """Every instruction of these functions is stopped at: before, in and after the making of the frame."""
    world.stops = gdb_stops([compile_c("chain", CHAIN, *flags, *NO_CFI)], 61, ["stepi", "stepi", "stepi 7", "stepi 31"])
    frames = world.unwind()
    is_i386 = "-m32" in flags
    # On i386 main realigns its stack, which frame pointers cannot tell: gdb stops at its caller as well, or one later,
    # at a number that is no code.
    wanted = [gdb_pcs(stop)[:frames.length[i] if is_i386 else None] for i, stop in enumerate(world.stops)]
    assert [pcs_of(frames, i) for i in range(len(world.stops))] == wanted
    assert max(len(stop["frames"]) - frames.length[i] for i, stop in enumerate(world.stops)) <= is_i386
    assert (frames.stop == (Stop.NO_MAP if is_i386 else Stop.ROOT)).all()
    assert world.tables.counters.fallback_frames > 500
    assert world.tables.counters.fallback_failures == 0


def test_code_without_a_file(world: Any, gdb_stops: Callable[..., Any], compile_c: Callable[..., Path]) -> None:
    """The same stacks with the program's code as if it had been made at run time."""
    program = compile_c("chain", CHAIN, "-O0", *NO_CFI)
    world.stops = gdb_stops([program], 13, ["stepi 101"])
    maps = world.maps()
    maps.object[maps.object == world.objects[str(program)]] = -1
    frames = unwind(world.stacks(), maps, world.tables)
    for i, stop in enumerate(world.stops):
        expected, found = gdb_pcs(stop), pcs_of(frames, i)
        # A leaf that has no frame yet hides its caller: there is no code to look into.
        assert found in (expected, [expected[0], *expected[2:]])
    assert (frames.stop == Stop.ROOT).all()


# Of code without a file, a loop, whose caller has the address of two words of its own in the frame pointer.
OTHER_USE = """
#include <string.h>
#include <sys/mman.h>
volatile long n_calls;
__attribute__((noinline)) void *follows_a_call(void) { return __builtin_return_address(0); }
__attribute__((noinline)) void *elsewhere(void) { void *volatile found = follows_a_call(); return found; }
__attribute__((noinline)) void calls(void *code) {
    void *volatile words[2] = {0, elsewhere()};
    __asm__ volatile("mov %0, %%rbp; call *%1" : : "r"(words), "r"(code) : "memory");
    n_calls++;
}
int main(void) {
    void *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\\xeb\\xfe", 2);
    calls(code);
    return 0;
}
"""


def test_a_frame_pointer_that_has_another_use(world: Any, gdb_stops: Callable[..., Any],
                                              compile_c: Callable[..., Path]) -> None:
    """What seems a link there ends the chain, so it is not believed against the word at the stack pointer; one that
    leads on would be."""
    world.stops = gdb_stops([compile_c("other", OTHER_USE, "-O2", "-mno-red-zone")], 1, ["echo"])
    stacks, maps = world.stacks(), world.maps()
    fp, sp = (int(stacks.regs[0, register]) for register in (RBP, RSP))
    link = int(stacks.base[0] + ((stacks.first[0] + (fp - int(stacks.low[0])) // 8) & stacks.mask[0]))
    assert fp > sp and stacks.words[link] == 0
    found = unwind(stacks, maps, world.tables)
    stacks.regs[0, RBP] = 0x1234
    without = unwind(stacks, maps, world.tables)
    assert (found.stop[0], pcs_of(found, 0)) == (Stop.ROOT, pcs_of(without, 0))
    stacks.regs[0, RBP] = fp
    stacks.words[link] = fp + 64
    leads_on = unwind(stacks, maps, world.tables)
    assert pcs_of(leads_on, 0)[1] == int(stacks.words[link + 1]) - 1 != pcs_of(found, 0)[1]


@pytest.mark.parametrize("flags", [("-O1",), ("-O1", "-m32")], ids=" ".join)
def test_a_trampoline_known_by_its_bytes(flags: tuple[str, ...], world: Any, gdb_stops: Callable[..., Any],
                                         compile_c: Callable[..., Path]) -> None:
    steps = ["tbreak handler;signal SIGALRM", "stepi", "stepi 101", "tbreak realigned;continue", "stepi 7"]
    world.stops = gdb_stops([compile_c("restorer", HERE / "restorer.c", *flags)], 23, steps)
    frames = world.unwind()
    assert [pcs_of(frames, i) for i in range(len(world.stops))] == [gdb_pcs(stop) for stop in world.stops]
    assert (frames.stop == Stop.ROOT).all()
    assert sum(any(kind == "signal" for _, kind in stop["frames"]) for stop in world.stops) >= 10


# A program without a library. What comes before its code in the same 64 KiB is no code.
ALONE = r"""
__asm__("nop; __restore_rt: mov $15, %rax; syscall;"
        ".globl _start; _start: xor %ebp, %ebp; call begin; hlt; .skip 200, 0x90");
extern char __restore_rt[];
struct { void (*handler)(int); unsigned long flags; void *restorer; unsigned long mask; } action;
volatile long sink;
static long ask(long number, long a, long b, long c) {
    long answer;
    register long d __asm__("r10") = 8;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d) : "rcx", "r11", "memory");
    return answer;
}
__attribute__((noinline)) void spin(long n) { for (long i = 0; i < 1000; i++) sink += n; }
void handler(int number) { for (;;) { spin(number); sink++; } }
__attribute__((noinline)) void interrupted(void) { ask(62, ask(39, 0, 0, 0), 14, 0); for (;;) sink++; }
void begin(void) {
    action.handler = handler, action.flags = 0x04000000, action.restorer = __restore_rt;
    ask(13, 14, (long)&action, 0);
    interrupted();
}
"""


@pytest.mark.parametrize("cfi", [(), NO_CFI], ids=["with CFI", "without CFI"])
def test_a_trampoline_in_a_program_without_a_library(cfi: tuple[str, ...], world: Any, gdb_stops: Callable[..., Any],
                                                     compile_c: Callable[..., Path]) -> None:
    program = compile_c("alone", ALONE, "-O1", "-nostdlib", "-static", "-Wl,-z,separate-code", "-fno-stack-protector",
                        "-fno-omit-frame-pointer", *cfi)
    world.stops = gdb_stops([program], 9, ["stepi 7", "stepi 101"])
    frames = world.unwind()
    assert [pcs_of(frames, i) for i in range(len(world.stops))] == [gdb_pcs(stop) for stop in world.stops]
    assert all(any(kind == "signal" for _, kind in stop["frames"]) for stop in world.stops)
    assert (frames.stop == Stop.ROOT).all()


@pytest.mark.parametrize("flags", [("-O0",), ("-O0", *NO_CFI)], ids=["with CFI", "without CFI"])
def test_only_sp_and_pc_are_known(flags: tuple[str, ...], world: Any, gdb_stops: Callable[..., Any],
                                  compile_c: Callable[..., Path]) -> None:
    world.stops = gdb_stops([compile_c("blocked", BLOCKED, *flags)], 1, ["echo"])
    stacks = world.stacks()
    stacks.regs[:, [r for r in range(17) if r not in (RSP, RIP)]] = 0x1234
    stacks.known = np.full(1, 1 << RSP | 1 << RIP, np.uint64)
    frames = unwind(stacks, world.maps(), world.tables)
    assert pcs_of(frames, 0) == gdb_pcs(world.stops[0])
    assert (frames.stop[0], frames.proof[0]) == (Stop.ROOT, Proof.PROVEN)
    assert world.tables.counters.frame_chain_searches == 1


def test_a_broken_chain_is_unproven(world: Any, gdb_stops: Callable[..., Any], compile_c: Callable[..., Path]) -> None:
    """The third link is cut: what was found counts as unproven, also what is searched for from there on; where nothing
    is found, no frame is invented."""
    world.stops = gdb_stops([compile_c("blocked", BLOCKED, "-O0", *NO_CFI)], 1, ["echo"])
    whole = world.unwind()
    stacks = world.stacks()
    fp = world.stops[0]["regs"][RBP]
    assert fp > world.stops[0]["low"]
    at = fp
    for _ in range(3):
        place = int(stacks.base[0] + ((stacks.first[0] + (at - int(stacks.low[0])) // 8) & stacks.mask[0]))
        at = int(stacks.words[place])
    stacks.words[place] = 0x10
    stacks.known = np.full(1, 1 << RSP | 1 << RIP, np.uint64)
    frames = unwind(stacks, world.maps(), world.tables)
    assert pcs_of(frames, 0) == pcs_of(whole, 0)
    assert frames.proof[0] == Proof.UNPROVEN
    behind = np.arange((place - int(stacks.base[0] + stacks.first[0])) & int(stacks.mask[0]), int(stacks.n_words[0]))
    stacks.words[stacks.base[0] + ((stacks.first[0] + behind) & stacks.mask[0])] = 0x10
    frames = unwind(stacks, world.maps(), world.tables)
    found = pcs_of(frames, 0)
    assert 3 <= len(found) < whole.length[0]
    assert found == pcs_of(whole, 0)[:len(found)]
    assert frames.proof[0] == Proof.UNPROVEN
    assert frames.stop[0] == Stop.NO_RULE
    n_unproven = world.tables.counters.stacks_unproven
    cut = unwind(stacks, world.maps(), world.tables, max_depth=len(found) - 1)
    assert (cut.stop[0], cut.proof[0]) == (Stop.DEPTH, Proof.UNPROVEN)
    assert world.tables.counters.stacks_unproven == n_unproven == 2


STACK, CODE_AT = 0x7FFC_0000_0000, 0x5555_0000_0000
FRAME_WORDS = 6


def recursion(n_frames: int, return_address: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The stack of a function that calls itself, of which each frame has four words of its own below its link."""
    words = np.zeros(1 << (n_frames * FRAME_WORDS + 8).bit_length(), np.uint64)
    links = np.arange(n_frames) * FRAME_WORDS + 4
    words[links] = STACK + 8 * (links + FRAME_WORDS)
    words[links[-1]] = 0
    words[links + 1] = return_address
    return words


class Asked:
    """One function, which calls itself; counts what it is asked."""

    def __init__(self) -> None:
        self.n_calls = self.n_needs = 0

    def grade(self, words: frame_pointer.U64) -> Grades:
        return np.where(words == CODE_AT, np.int8(AFTER_CALL), np.int8(NOT_CODE))

    def call_between(self, return_address: int, pc: int) -> int:
        self.n_calls += 1
        return 2

    def needs_fp(self, return_address: int) -> bool:
        self.n_needs += 1
        return True


@pytest.mark.parametrize("n_frames", [7, 63, 64, 65, 500])
def test_a_link_that_many_chains_lead_through_is_looked_at_once(n_frames: int) -> None:
    words, judge = recursion(n_frames, CODE_AT), Asked()
    region = np.array([[STACK], [len(words)], [0], [len(words) - 1], [0]], np.uint64)
    assert frame_pointer.search(Memory(words, region), 0, STACK, CODE_AT, judge) == Found(STACK + 4 * 8, True)
    assert judge.n_calls <= 2 * n_frames and judge.n_needs <= n_frames


def test_what_is_known_of_a_call_is_worked_out_once_for_all_stacks(compile_c: Callable[..., Path]) -> None:
    """Threads that wait in a recursion of which sp and pc alone are known."""
    n_threads, n_frames = 17, 61
    source = "int deep(int n) { volatile int x = n; return n ? deep(n - 1) + x : 0; } int main() { return deep(9); }"
    with open_object(str(compile_c("recursion", source, "-O0"))) as load_object:
        tables, symbols = Tables(), load_object.symbols()
        number = tables.add_object(load_object)
        begin = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == b"deep")
        code = next(load for load in load_object.loads if load.is_executable)
        call = re.search(rb"\xe8.\xff{3}", load_object.read_at(begin, 64), re.DOTALL)
        assert call is not None
        pc = CODE_AT + begin + call.end()
        words = recursion(n_frames, pc)
        all_, zero = np.arange(n_threads), np.zeros(n_threads, np.int64)
        regs = np.zeros((n_threads, 17), np.uint64)
        regs[:, [RIP, RSP]] = pc, STACK
        stacks = Stacks(zero, regs, np.tile(words, n_threads), all_ * len(words), zero + len(words) - 1, zero,
                        regs[:, RSP], zero + len(words), np.full(n_threads, 1 << RSP | 1 << RIP, np.uint64))
        start, end = CODE_AT + code.vaddr, CODE_AT + code.vaddr + code.memory_size
        maps = Maps(zero[:1], *np.array([[start], [end], [CODE_AT]], np.uint64), np.array([number]))
        frames = unwind(stacks, maps, tables)
    assert frames.length.tolist() == [n_frames + 1] * n_threads
    assert (frames.proof == Proof.PROVEN).all()
    assert tables.counters.frame_chain_searches == n_threads
    assert tables.counters.fdes_decoded < 10


# Code of which gdb has call frame information, and we have none.
BARE = """.cfi_sections %s
.globl bare, around
.type bare, @function
bare: .cfi_startproc; %s; .cfi_endproc
.size bare, .-bare
.section .note.GNU-stack
"""
CALLER = "long bare(void); int main(void) { for (;;) bare(); }"


@pytest.fixture
def bare_stops(gdb_stops: Callable[..., Any], compile_c: Callable[..., Path], need: Callable[[str, str], str],
               tmp_path: Path) -> Callable[..., Any]:
    """``bare_stops("-m32", code, n)``: stops at n instructions of such code, from its label ``around`` on."""

    def collect(mode: str, code: str, n_stops: int, section: str = ".debug_frame") -> list[dict[str, Any]]:
        source = tmp_path / "bare.s"
        source.write_text(BARE % (section, code))
        program = compile_c("caller", CALLER, "-O2", mode, str(source))
        steps = ["tbreak around;continue", *["stepi"] * (n_stops - 1)]
        stops: list[dict[str, Any]] = gdb_stops([program], n_stops + 1, steps)
        subprocess.run([need("objcopy", "binutils"), "--remove-section=.debug_frame", program], check=True, timeout=60)
        return stops[1:]

    return collect


# Functions of a program without a library; what calls others has a label behind the call.
WITH_CFI = """
.globl _start
.type _start, @function
_start: .cfi_startproc; .cfi_undefined rip; xor %ebp, %ebp; call main; in_start: hlt; .cfi_endproc
.size _start, .-_start
.type other, @function
other: .cfi_startproc; .cfi_undefined rip; call *%rdx; in_other: hlt; .cfi_endproc
.size other, .-other
"""
WITHOUT_FRAMES = WITH_CFI + """
.type main, @function
main: .cfi_startproc; sub $8, %rsp; .cfi_def_cfa_offset 16; call waits; in_main: add $8, %rsp; ret; .cfi_endproc
.size main, .-main
.type waits, @function
waits: sub $24, %rsp; call asks; in_waits: add $24, %rsp; ret
.size waits, .-waits
.type asks, @function
asks: mov $35, %eax; syscall; in_asks: ret
.size asks, .-asks
.section .note.GNU-stack
"""
LEAF_WITHOUT_FRAME = WITH_CFI + """
.macro framed name, callee
.type \\name, @function
\\name: .cfi_startproc; push %rbp; .cfi_def_cfa_offset 16; .cfi_offset rbp, -16; mov %rsp, %rbp
.cfi_def_cfa_register rbp; sub $16, %rsp; call \\callee; in_\\name: leave; .cfi_def_cfa rsp, 8; ret; .cfi_endproc
.size \\name, .-\\name
.endm
framed main, calls
framed calls, asks
.type asks, @function
asks: push %rbx; sub $24, %rsp; mov $35, %eax; syscall; in_asks: add $24, %rsp; pop %rbx; ret
.size asks, .-asks
.section .note.GNU-stack
"""


@dataclass
class Program:
    """A program without a library, and stacks of it that are made by hand."""

    tables: Tables
    maps: Maps
    labels: dict[str, int]
    symbols: Symbols

    @classmethod
    def of(cls, path: Path, nm: str) -> Program:
        """Nothing of it has to run."""
        lines = subprocess.run([nm, path], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
        load_object, tables = open_object(str(path)), Tables()
        code = next(load for load in load_object.loads if load.is_executable)
        bounds = np.array([[code.vaddr], [code.vaddr + code.memory_size], [0]], np.uint64)
        maps = Maps(np.zeros(1, np.int64), *bounds, np.array([tables.add_object(load_object)]))
        return cls(tables, maps, {line.split()[2]: int(line.split()[0], 16) for line in lines}, load_object.symbols())

    def unwound(self, words: list[int | str], fp: int, *, is_known: bool = True) -> tuple[list[str], Stop, Proof]:
        """From ``in_asks`` on with these words, or addresses of labels, from sp on; names of the functions found."""
        stack = np.zeros(64, np.uint64)
        stack[:len(words)] = [self.labels[word] if isinstance(word, str) else word for word in words]
        zero, regs = np.zeros(1, np.int64), np.zeros((1, 17), np.uint64)
        regs[0, [RIP, RSP, RBP]] = self.labels["in_asks"], STACK, fp
        stacks = Stacks(zero, regs, stack, zero, zero + 63, zero, regs[:, RSP].copy(), zero + len(words),
                        None if is_known else np.full(1, 1 << RSP | 1 << RIP, np.uint64))
        frames = unwind(stacks, self.maps, self.tables)
        found = [self.symbols.at(pc) for pc in pcs_of(frames, 0)]
        names = [self.symbols.name(at).decode() if at is not None else "" for at in found]
        return names, Stop(frames.stop[0]), Proof(frames.proof[0])


@pytest.fixture
def program(need: Callable[[str, str], str], compile_c: Callable[..., Path], tmp_path: Path) -> Callable[..., Program]:
    """A program of such assembly."""

    def build(source: str) -> Program:
        (tmp_path / "bare.s").write_text(source)
        path = compile_c("bare", tmp_path / "bare.s", "-nostdlib", "-static")
        return Program.of(path, need("nm", "binutils"))

    return build


@pytest.mark.parametrize("is_known", [True, False], ids=["all registers", "sp and pc"])
@pytest.mark.parametrize("fp", [0, 1, 0x1234])
def test_code_that_has_another_use_for_the_frame_pointer(fp: int, is_known: bool,
                                                         program: Callable[..., Program]) -> None:
    """As it is built with -fomit-frame-pointer, which is zero in it now and then: that is not the end of a chain."""
    stack: list[int | str] = ["in_waits", 5, 6, 7, "in_main", 9, "in_start"]
    found = program(WITHOUT_FRAMES).unwound(stack, fp, is_known=is_known)
    assert found == (["asks", "waits", "main", "_start"], Stop.ROOT, Proof.PROVEN)


def test_a_stack_is_whole_where_nothing_behind_it_follows_a_call(program: Callable[..., Program]) -> None:
    bare = program(WITHOUT_FRAMES)
    assert bare.unwound(["in_waits", 5, 6, 7, 8, 9], 0) == (["asks", "waits"], Stop.ROOT, Proof.CERTAIN)
    assert bare.unwound(["in_waits", 5, 6, 7, 8, 9, "in_start"], 0) == (["asks", "waits"], Stop.NO_RULE, Proof.CERTAIN)


def test_what_is_searched_for_in_vain_is_not_searched_for_again_and_again(program: Callable[..., Program]) -> None:
    """Each search costs more than all else that a sample does."""
    bare, counts = program(WITHOUT_FRAMES), list[int]()
    for _ in range(50):
        assert bare.unwound(["in_waits", 5, 6, 7, 8, 9, "in_start"], 1)[1] == Stop.NO_RULE
        counts.append(bare.tables.counters.frame_chain_searches)
    assert 0 < counts[9] == counts[-1]


def test_code_that_makes_the_frame_pointer_zero_is_the_outermost(program: Callable[..., Program]) -> None:
    """As where a thread begins: whatever lies behind its stack."""
    begins = WITH_CFI + ".type main, @function; main: xor %ebp, %ebp; pop %rdi; call *%r9; in_main: hlt;"
    begins += ".size main, .-main; .type asks, @function; asks: syscall; in_asks: ret; .size asks, .-asks;"
    begins += ".section .note.GNU-stack"
    assert program(begins).unwound(["in_main", 9, "in_start", 0, "in_other"], 0) == (
        ["asks", "main"], Stop.ROOT, Proof.CERTAIN)


@pytest.mark.parametrize("is_known", [True, False], ids=["all registers", "sp and pc"])
def test_a_leaf_that_makes_no_frame_has_its_caller_in_the_register(is_known: bool,
                                                                   program: Callable[..., Program]) -> None:
    """The link there is the caller's own, whose call did not lead to the leaf."""
    stack: list[int | str] = [1, 2, 3, 0, "in_calls", 7, 8, STACK + 8 * 11, "in_main", 7, 8, 0, "in_start"]
    found = program(LEAF_WITHOUT_FRAME).unwound(stack, STACK + 8 * 7, is_known=is_known)
    assert found == (["asks", "calls", "main", "_start"], Stop.ROOT, Proof.PROVEN)


def test_a_chain_that_leads_past_a_caller_is_not_believed(program: Callable[..., Program]) -> None:
    """Also where no word tells who that is."""
    stack: list[int | str] = [1, 2, 3, 0, 4, 7, 8, STACK + 8 * 11, "in_main", 7, 8, 0, 9]
    found = program(LEAF_WITHOUT_FRAME).unwound(stack, STACK + 8 * 7)
    assert found == (["asks"], Stop.NO_RULE, Proof.CERTAIN)


def test_a_frame_that_is_made_late_has_its_link_all_the_same(program: Callable[..., Program]) -> None:
    """As in builtins of V8, which look at what they are to call first, and come to each other in ways that are not
    seen. Neither the words of the stack are asked for that, nor is a chain searched for."""
    main = ".type %s, @function; %s: %s; push %%rbp; mov %%rsp, %%rbp; call %s; in_%s: leave; ret; .size %s, .-%s;"
    late = WITH_CFI + main % ("main", "main", "nop", "jumps", "main", "main", "main")
    late += ".type jumps, @function; jumps: push %rcx; ret; .size jumps, .-jumps;"
    late += main % ("asks", "asks", "test %rdi, %rdi; je in_asks", "other", "asks", "asks", "asks")
    bare = program(late + ".section .note.GNU-stack")
    stack: list[int | str] = [1, STACK + 8 * 4, "in_main", 7, 0, "in_start"]
    assert bare.unwound(stack, STACK + 8) == (["asks", "main", "_start"], Stop.ROOT, Proof.CERTAIN)
    assert bare.tables.counters.frame_chain_searches == 0


# clone(2) of glibc, with another call in it.
BEGINNINGS = {
    "-m64": (4, "mov $39, %eax; around: syscall; test %rax, %rax; jl 1f; je 1f; ret; 1: hlt"),
    "-m32": (7, "push %ebx; push %esi; push %edi; .cfi_adjust_cfa_offset 12; mov $20, %eax; around: int $0x80;"
                "pop %edi; .cfi_adjust_cfa_offset -4; pop %esi; .cfi_adjust_cfa_offset -4;"
                "pop %ebx; .cfi_adjust_cfa_offset -4; test %eax, %eax; jl 1f; je 1f; ret; 1: hlt"),
    # clone3(2) there
    "-m32 clone3": (6, "push %ebx; push %esi; .cfi_adjust_cfa_offset 8; mov $20, %eax; around: int $0x80;"
                       "test %eax, %eax; je 1f; pop %esi; .cfi_adjust_cfa_offset -4; pop %ebx;"
                       ".cfi_adjust_cfa_offset -4; .byte 0x0f, 0x8c; .long 1f - . - 4; ret; 1: hlt")}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_where_a_thread_begins(case: str, world: Any, bare_stops: Callable[..., Any]) -> None:
    """Around the call that makes it: its maker has a return address there, itself an empty stack or what to call."""
    mode, (n_places, code) = case.split()[0], BEGINNINGS[case]
    world.stops = makers = bare_stops(mode, code, n_places)
    frames = world.unwind()
    assert [pcs_of(frames, i) for i in range(n_places)] == [gdb_pcs(stop) for stop in makers]
    assert (frames.stop == Stop.ROOT).all()
    width = 8 if mode == "-m64" else 4
    for word in (0, makers[1]["regs"][-1]):  # which no call leads to
        world.stops = [stop | {"stack": (word.to_bytes(width, "little") * 8).hex()} for stop in makers[1:]]
        frames = world.unwind()
        assert [pcs_of(frames, i) for i in range(n_places - 1)] == [[stop["regs"][-1]] for stop in makers[1:]]
        assert (frames.stop == Stop.ROOT).all()


def test_a_call_before_the_frame_is_made(world: Any, bare_stops: Callable[..., Any]) -> None:
    """As in the vDSO of i386."""
    world.stops = bare_stops("-m32", "around: call 1f; add $0x1234567, %eax; push %ebp; .cfi_def_cfa_offset 8;"
                             ".cfi_offset %ebp, -8; mov %esp, %ebp; .cfi_def_cfa_register %ebp; push %ebx; pop %ebx;"
                             "leave; .cfi_def_cfa %esp, 4; xor %edx, %edx; ret; .cfi_endproc;"
                             "1: .cfi_startproc; mov (%esp), %eax; ret", 11)
    frames = world.unwind()
    assert [pcs_of(frames, i) for i in range(11)] == [gdb_pcs(stop) for stop in world.stops]
    assert (frames.stop == Stop.ROOT).all()


def test_pushes_that_are_told_as_pops(world: Any, bare_stops: Callable[..., Any]) -> None:
    """As in glibc's strchrnul for i386."""
    push, pop = ".cfi_adjust_cfa_offset -4;", ".cfi_adjust_cfa_offset 4;"
    code = f"around: push %edi; {push} push %esi; {push} nop; pop %esi; {pop} pop %edi; {pop} ret"
    world.stops = bare_stops("-m32", code, 6, ".eh_frame")
    frames = world.unwind()
    _, *callers = pcs_of(frames, 0)
    assert callers[0] == gdb_pcs(world.stops[0])[1]
    assert [pcs_of(frames, i) for i in range(6)] == [[stop["regs"][-1], *callers] for stop in world.stops]
    assert (frames.stop == Stop.ROOT).all()
