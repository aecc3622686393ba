"""The kernel's binary interfaces that we use: perf_event_attr, the ring's header page and the records in the ring.

Source: include/uapi/linux/perf_event.h and perf_event_open(2). Numbers are the kernel's and never change.
"""

from __future__ import annotations

import struct

from collector.layout import Field, Record

# --- perf_event_attr, as of PERF_ATTR_SIZE_VER5 (Linux 4.8): all that we need, accepted by every later kernel
_ATTR = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
ATTR_SIZE = _ATTR.size

TYPE_SOFTWARE, TYPE_TRACEPOINT = 1, 2
SW_CPU_CLOCK, SW_TASK_CLOCK, SW_PAGE_FAULTS, SW_CONTEXT_SWITCHES, SW_PAGE_FAULTS_MAJOR, SW_DUMMY = 0, 1, 2, 3, 6, 9

SAMPLE_TID, SAMPLE_TIME, SAMPLE_ADDRESS, SAMPLE_READ = 1 << 1, 1 << 2, 1 << 3, 1 << 4
READ_GROUP, READ_LOST = 1 << 3, 1 << 4  # the latter since Linux 6.0
SAMPLE_CALLCHAIN, SAMPLE_CPU, SAMPLE_RAW = 1 << 5, 1 << 7, 1 << 10
SAMPLE_REGS_USER, SAMPLE_STACK_USER = 1 << 12, 1 << 13

# Bits of the attribute's flag word, in the order of the header's bit field.
DISABLED, INHERIT, EXCLUDE_KERNEL, FREQUENCY = 1 << 0, 1 << 1, 1 << 5, 1 << 10
MMAP, COMM, ENABLE_ON_EXEC, TASK, WATERMARK = 1 << 8, 1 << 9, 1 << 12, 1 << 13, 1 << 14
SAMPLE_ID_ALL, EXCLUDE_CALLCHAIN_USER, MMAP2, COMM_EXEC = 1 << 18, 1 << 22, 1 << 23, 1 << 24
USE_CLOCKID, CONTEXT_SWITCH = 1 << 25, 1 << 26
INHERIT_THREAD = 1 << 35  # since Linux 5.13

FLAG_FD_CLOEXEC = 8
IOC_ENABLE, IOC_DISABLE, IOC_REFRESH, IOC_SET_OUTPUT = 0x2400, 0x2401, 0x2402, 0x2405
IOC_PERIOD, IOC_SET_FILTER, IOC_PAUSE_OUTPUT = 0x4008_2404, 0x4008_2406, 0x4004_2409
CLOCK_MONOTONIC = 1

# --- the ring's header page: data_head and data_tail are the only words that move
RING_HEAD_OFFSET, RING_TAIL_OFFSET = 1024, 1032

# --- records in the ring
RECORD_LOST, RECORD_COMM, RECORD_EXIT, RECORD_THROTTLE, RECORD_UNTHROTTLE = 2, 3, 4, 5, 6
RECORD_FORK, RECORD_SAMPLE, RECORD_MMAP2, RECORD_LOST_SAMPLES, RECORD_SWITCH = 7, 9, 10, 13, 14

MISC_CPUMODE_MASK, MISC_CPUMODE_KERNEL, MISC_CPUMODE_USER = 7, 1, 2
MISC_COMM_EXEC = 1 << 13
MISC_SWITCH_OUT, MISC_SWITCH_OUT_PREEMPT = 1 << 13, 1 << 14  # PREEMPT since Linux 4.17

CONTEXT_MAX = 0xFFFF_FFFF_FFFF_F001  # words of a call chain from here up are context marks, not addresses

REGS_ABI_NONE, REGS_ABI_32, REGS_ABI_64 = 0, 1, 2

# Every record of our events ends with these words: sample_id_all with TID, TIME and CPU.
TRAILER = Record(-1, "sample_id", Field("pid", "<u4"), Field("tid", "<u4"), Field("time", "<u8"),
                 Field("cpu", "<u4"), Field("res", "<u4"))
HEADER_SIZE = 8
SWITCH = Record(RECORD_SWITCH, "switch", Field("type", "<u4"), Field("misc", "<u2"), Field("size", "<u2"),
                Field("pid", "<u4"), Field("tid", "<u4"), Field("time", "<u8"), Field("cpu", "<u4"),
                Field("res", "<u4"))

# Samples of one size each, with their header in front.
_SAMPLE_HEAD = SWITCH.fields
SITE = Record(RECORD_SAMPLE, "site", *_SAMPLE_HEAD, Field("abi", "<u8"), Field("bp", "<u8"), Field("sp", "<u8"),
              Field("ip", "<u8"))
FAULT = Record(RECORD_SAMPLE, "fault", *_SAMPLE_HEAD[:5], Field("time", "<u8"), Field("address", "<u8"),
               Field("cpu", "<u4"), Field("res", "<u4"), Field("abi", "<u8"), Field("bp", "<u8"), Field("sp", "<u8"),
               Field("ip", "<u8"))

# sched:sched_waking as a tracepoint's raw data: 8 bytes common to all, comm[16], pid, prio, target_cpu. The head names
# the waker; ``woken`` is whom it woke, and whose name is ``comm``. (Before Linux 5.14 a word more: such records are of
# another size and not used.)
WAKING = Record(RECORD_SAMPLE, "waking", *_SAMPLE_HEAD, Field("raw_size", "<u4"),
                Field("common_type", "<u2"), Field("common_flags", "<u1"), Field("common_preempt_count", "<u1"),
                Field("common_pid", "<u4"), Field("comm", "<u4"), Field("comm_4", "<u4"), Field("comm_8", "<u4"),
                Field("comm_12", "<u4"), Field("woken", "<u4"), Field("prio", "<u4"), Field("target_cpu", "<u4"))

# sched:sched_switch: prev_comm[16], prev_pid, prev_prio, prev_state, next_comm[16], next_pid, next_prio; and 4
# bytes of padding.
HANDOVER = Record(RECORD_SAMPLE, "handover", *_SAMPLE_HEAD, Field("raw_size", "<u4"), Field("common", "<u8"),
                  Field("leaves_comm", "<u8"), Field("leaves_comm_8", "<u8"), Field("leaves", "<u4"),
                  Field("leaves_prio", "<u4"), Field("leaves_state", "<u8"),
                  Field("comes_comm", "<u8"), Field("comes_comm_8", "<u8"), Field("comes", "<u4"),
                  Field("comes_prio", "<u4"), Field("padding", "<u4"))

FIRST_PID_NAMESPACE = 0xEFFF_FFFC  # PROC_PID_INIT_INO: the inode of the one in which the kernel's numbers are told

# Bits of common_flags (linux/trace_events.h): in which kind of interrupt.
TRACE_FLAG_HARDIRQ, TRACE_FLAG_SOFTIRQ, TRACE_FLAG_NMI = 0x08, 0x10, 0x40

# A sample in a group of three events that are read together: the CPU's switches so far are the second one's count.
END = Record(RECORD_SAMPLE, "end", *_SAMPLE_HEAD, Field("n_values", "<u8"), Field("n_dying", "<u8"),
             Field("n_switches", "<u8"), Field("n_dead", "<u8"))

# Bodies behind the 8-byte header (before the trailer), as struct formats for the few records that come one by one.
HEADER_FORMAT = struct.Struct("<IHH")  # type, misc, size
LOST_FORMAT = struct.Struct("<QQ")  # id, lost
READ_LOST_FORMAT = struct.Struct("<QQ")  # of an event read with READ_LOST: value, lost
LOST_SAMPLES_FORMAT = struct.Struct("<Q")  # lost
COMM_FORMAT = struct.Struct("<II")  # pid, tid; then the name
# Births and ends begin with four words of 32 bits: pid, the parent's, tid, the parent's.
MMAP2_FORMAT = struct.Struct("<IIQQQIIQQII")  # pid tid addr len pgoff maj min ino ino_generation prot flags; then name
# task:task_newtask as a tracepoint's raw data has it: 8 bytes common to all, pid, comm[16], 4 bytes of padding, flags.
NEWTASK = Record(RECORD_SAMPLE, "newtask", Field("common", "<u8"), Field("child", "<i4"), Field("comm", "<u8"),
                 Field("comm_8", "<u8"), Field("padding", "<u4"), Field("flags", "<u8"))
CLONE_VM, CLONE_VFORK, CLONE_THREAD = 0x100, 0x4000, 0x10000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x200000, 0x1000000
TRAILER_FORMAT = struct.Struct("<IIQII")  # pid, tid, time, cpu, res


def pack_attr(*, config: int, period: int, sample_type: int, flags: int, watermark: int, regs_user: int = 0,
              stack_user: int = 0, kind: int = TYPE_SOFTWARE, read_format: int = 0) -> bytes:
    """A perf_event_attr of a sampling event on CLOCK_MONOTONIC; ``watermark`` in bytes of ring."""
    return _ATTR.pack(kind, ATTR_SIZE, config, period, sample_type, read_format, flags, watermark, 0, 0, 0, 0,
                      regs_user, stack_user, CLOCK_MONOTONIC, 0, 0, 0, 0)


# --- ptrace(2): requests, options, events (include/uapi/linux/ptrace.h)
PTRACE_CONT, PTRACE_DETACH, PTRACE_SYSCALL = 7, 17, 24
PTRACE_SETOPTIONS, PTRACE_GETEVENTMSG = 0x4200, 0x4201
PTRACE_GETREGSET, PTRACE_SETREGSET = 0x4204, 0x4205
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_LISTEN = 0x4206, 0x4207, 0x4208
PTRACE_O_TRACESYSGOOD, SYSCALL_SIGNAL = 1, 5 | 0x80
PTRACE_O_TRACEFORK, PTRACE_O_TRACEVFORK, PTRACE_O_TRACECLONE = 1 << 1, 1 << 2, 1 << 3
PTRACE_O_TRACEEXEC, PTRACE_O_TRACEEXIT = 1 << 4, 1 << 6
EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_EXIT, EVENT_STOP = 1, 2, 3, 4, 6, 128
NT_PRSTATUS = 1
WAIT_ALL = 0x4000_0000  # __WALL: threads, too
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK, PR_SET_PTRACER = 1, 29, 0x5961_6D61

# What a system call that was interrupted holds for its result until the thread is in user mode (linux/errno.h).
EINTR, EAGAIN = 4, 11
ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK = 512, 513, 514, 516
CUT_RESULTS = frozenset({EINTR, ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK})

# The general registers as PTRACE_GETREGSET gives them (asm/user_64.h, asm/user32.h), by the size that tells them apart:
# words, index of the result and of the number of the system call, and the DWARF columns of x86-64.
#   64: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs gs ds es fs gs
#   32: ebx ecx edx esi edi ebp eax ds es fs gs orig_eax eip cs eflags esp ss
REGISTERS_64 = struct.Struct("<27Q")
REGISTERS_32 = struct.Struct("<17I")
RESULT_64, CALL_64, RESULT_32, CALL_32 = 10, 15, 6, 11
DWARF_OF_64 = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)
DWARF_OF_32 = (6, 2, 1, 0, 3, 4, 5, 15, 12)  # rax rdx rcx rbx rsi rdi rbp rsp, then rip
WORD = struct.Struct("<Q")

# System calls by number, 64-bit and 32-bit programs: the lock of user mode; those that a stop makes begin anew, so that
# they might never end; and those that only wait, for nothing in memory.
LOCK_CALLS = {64: frozenset({202, 449, 455}), 32: frozenset({240, 422, 449, 455})}
BEGUN_ANEW_CALLS = {64: frozenset({56, 57, 58, 59, 321, 322, 435}), 32: frozenset({2, 11, 120, 190, 357, 358, 435})}
CLONE_CALL, CLONE3_CALL = {64: 56, 32: 120}, 435
# Calls that ask for CPU time: at their end leaves who has had his CPU for long, since the scheduler looks at the clock.
CPU_TIME_CALLS = {64: frozenset({98, 100, 228}), 32: frozenset({43, 77, 265, 403})}
MAKING_CALLS = {64: frozenset({56, 57, 58, 435}), 32: frozenset({2, 120, 190, 435})}  # they return twice
# Calls that read without end: the columns of their file (-1: none), buffer and size.
READ_CALLS = {64: {0: (5, 4, 1), 17: (5, 4, 1), 318: (-1, 5, 4)}, 32: {3: (3, 2, 1), 180: (3, 2, 1), 355: (-1, 3, 2)}}
# Calls that write all of it, or read all with MSG_WAITALL, to and from streams that block: likewise.
WRITE_CALLS, SEND_CALLS = {64: frozenset({1}), 32: frozenset({4})}, {64: frozenset({44}), 32: frozenset({369})}
STREAM_CALLS = {64: {1: (5, 4, 1), 44: (5, 4, 1), 45: (5, 4, 1)}, 32: {4: (3, 2, 1), 369: (3, 2, 1), 371: (3, 2, 1)}}
MSG_WAITALL, MSG_PARTLY = 0x100, 0x1 | 0x2 | 0x40 | 0x2000_0000  # the latter: OOB, PEEK, DONTWAIT, FASTOPEN
# Calls that any signal ends, without effect: epoll_wait, epoll_pwait, epoll_pwait2, semop, semtimedop, rt_sigtimedwait,
# io_getevents. They have no time limit, and leave signals blocked as they are, where a number is negative and pointers
# are null: their columns (of the number -1: none).
WAITING_CALLS: dict[int, dict[int, tuple[int, tuple[int, ...]]]] = {
    64: {232: (10, ()), 281: (10, (8,)), 441: (-1, (10, 8)), 65: (-1, ()), 220: (-1, (10,)), 128: (-1, (1,)),
         208: (-1, (8,))},
    32: {256: (4, ()), 319: (4, (5,)), 177: (-1, (1,))}}
FORK_CALLS = {64: {57: 0, 58: CLONE_VM | CLONE_VFORK}, 32: {2: 0, 190: CLONE_VM | CLONE_VFORK}}
ARGUMENTS_64 = (5, 4, 1, 10, 8, 9)  # their columns
ARGUMENTS = {64: ARGUMENTS_64, 32: (3, 2, 1, 4, 5, 6)}
FIRST_ARGUMENT = {64: 5, 32: 3}
EXIT_SIGNAL_MASK = 0xFF  # in clone(2)'s flags
BPF_CALL = {64: 321, 32: 357}

# A program that begins executes itself once more: mov $59,%eax; syscall, and exit_group(126) where that fails.
EXECUTE_AGAIN_64 = bytes.fromhex("b83b000000 0f05 bf7e000000 b8e7000000 0f05").ljust(24, b"\xcc")
PTRACE_POKETEXT = 4
AT_EXECFN = 31
AUXILIARY_64 = struct.Struct("<QQ")

# ELF (elf.h), as far as the names go that a program shares with its libraries: place, size and number of segments;
# type, offset, address and size of a segment; tag and value in the dynamic section.
ELF_64_MAGIC = b"\x7fELF\x02"
ELF_64 = struct.Struct("<16s16xQ14xHH6x")
ELF_64_SEGMENT = struct.Struct("<I4xQQ8xQ16x")
ELF_64_DYNAMIC = struct.Struct("<QQ")
PT_LOAD, PT_DYNAMIC, DT_STRTAB, DT_STRSZ = 1, 2, 5, 10

DIRECTORY_ENTRY = struct.Struct("<QqHB")  # struct linux_dirent64: inode, offset, length, type; then the name

# --- what the signal engine's tracer hands over, through memory that it shares with us
_TRACED = (Field("time", "<i8"), Field("pid", "<i4"), Field("tid", "<i4"))
TRACED_SWITCH = Record(-1, "switch", *_TRACED, Field("edge", "<i4"), Field("res", "<i4"))
TRACED_SITE = Record(-1, "site", *_TRACED, Field("ip", "<u8"), Field("sp", "<u8"))
TRACED_FAULT = Record(-1, "fault", *_TRACED, Field("address", "<u8"), Field("ip", "<u8"), Field("in_kernel", "<i8"))
# A sample: the stack's copy is n_words words from ``first`` on and ends at ``end``, both counted from the beginning.
TRACED_SAMPLE = Record(-1, "sample", *_TRACED, Field("kind", "<i4"), Field("mode", "<i4"), Field("cpu", "<i4"),
                       Field("abi", "<i4"), Field("known", "<u8"), Field("low", "<u8"), Field("first", "<u8"),
                       Field("n_words", "<i8"), Field("end", "<u8"), Field("child", "<i8"), Field("flags", "<i8"),
                       *(Field(f"r{i}", "<u8") for i in range(17)))
LENGTH_FORMAT = struct.Struct("<I")

# sched_setattr(2): size, policy, flags, nice, priority; runtime (of SCHED_OTHER, since Linux 6.12, the slice in ns),
# deadline, period.
SCHED_ATTR = struct.Struct("<IIQiIQQQ")

# --- generic netlink (linux/netlink.h, genetlink.h): length, kind, flags, number, port; command, version; length and
# kind of an attribute
NETLINK_HEADER, NETLINK_COMMAND = struct.Struct("=IHHII"), struct.Struct("=BBxx")
NETLINK_ATTRIBUTE, NETLINK_ERRNO, NETLINK_FAMILY = struct.Struct("=HH"), struct.Struct("=i"), struct.Struct("=H")
NETLINK_GENERIC, NETLINK_CONTROLLER, NLMSG_ERROR, NLM_F_REQUEST, NLM_F_ACK = 16, 16, 2, 1, 4
CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 3, 1, 2

# linux/taskstats.h: a message of a thread has an attribute with two in it, its id and at 36 struct taskstats, which has
# the process's id since version 12. If the thread was its process's last one, those of that follow.
TASKSTATS_CMD_GET, TASKSTATS_CMD_NEW, TASKSTATS_CMD_ATTR_REGISTER_CPUMASK = 1, 2, 3
TASKSTATS_TYPE_PID, TASKSTATS_TYPE_STATS, TASKSTATS_TYPE_AGGR_PID = 1, 3, 4
TASKSTATS_VERSION_WITH_TGID = 12
TASKSTATS = {
    "command": ("u1", 16), "of": ("u2", 22), "id": ("u2", 26), "statistics": ("u2", 34),
    "version": ("u2", 36), "turns": ("u8", 52), "delay_ns": ("u8", 60), "run_ns": ("u8", 108), "tid": ("u4", 164),
    "elapsed_us": ("u8", 180), "pid": ("u4", 404)}  # each field's type and place in the message
# Version 15 (Linux 6.14, up to 6.14.8) had fields in between, which 16 put behind all others (commit 0bf2d838de1f,
# "taskstats: fix struct taskstats breaks backward compatibility since version 15").
TASKSTATS_VERSION_MOVED = 15
TASKSTATS_MOVED = TASKSTATS | {"run_ns": ("u8", 156), "tid": ("u4", 212), "elapsed_us": ("u8", 228), "pid": ("u4", 500)}
