"""How a process came to be, told from its maker's stack and the flags of clone(2). Pure.

    letter  call                                          evidence
    f       fork, vfork                                   a function of that name makes the call, or fork's usual flags
    c       posix_spawn, system, popen                    posix_spawn is on the stack; below it system or popen
    C       clone(2) as a process                         no copy-on-write fork and no spawn
    x       exec                                          (of a process that is there already)

Without flags (they take privileges) every new process counts as forked, which the lineage cannot tell from the others.
A spawned process runs its new image under the lineage that it was born with, because the call makes both in one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

_VM, _VFORK, _SETTID, _CLEARTID = 0x100, 0x4000, 0x1000000, 0x200000

# Compiled when a process is made, which in many recordings never happens.
_SPAWN = rb"_*posix_spawnp?(?:_\w+)?(?:@.*)?\Z|_*spawnix?\Z"
_POPEN = rb"_*(?:IO_)?(?:new_)?(?:popen|proc_open)\Z"
_SYSTEM = rb"_*(?:libc_)?system\Z|do_system\Z"
_FORK = rb"_*(?:libc_|GI_|I_)*fork\w*\Z|_Fork\Z|forkpty\Z|daemon\Z"
_VFORK_NAME = rb"_*(?:libc_)?vfork\Z"
# How far from the leaf the C library's own frames reach.
_DEPTH = 8


class Making(NamedTuple):
    """How a process was made: its letter in the lineage and the call as the log names it."""

    letter: str
    call: str

    @property
    def spawned(self) -> bool:
        """The call makes a process and its new image in one."""
        return self.letter == "c"


UNTOLD = Making("f", "fork")
EXEC = Making("x", "execve")
FOUNDER = Making("", "")


def making(flags: int | None, functions: Sequence[bytes]) -> Making:
    """Tells it from clone's flags (None: not known) and the maker's functions, leaf first (empty: no name)."""
    return UNTOLD if flags is None else _making(flags, tuple(functions))


@lru_cache(maxsize=256)  # a build makes thousands in the same few ways
def _making(flags: int, functions: tuple[bytes, ...]) -> Making:
    near = functions[:_DEPTH]
    leaf = near[0] if near else b""
    if any(re.match(_SPAWN, name) for name in near):
        return _spawn(near)
    if any(re.match(_VFORK_NAME, name) for name in near[:2]):
        return Making("f", "vfork")
    if flags & _VM and flags & _VFORK:
        return Making("C", "clone") if leaf else Making("c", "posix_spawn")
    if any(re.match(_FORK, name) for name in near) or (flags & _SETTID and flags & _CLEARTID and not flags & _VM):
        return Making("f", "fork")
    return Making("C", "clone") if leaf else UNTOLD


def _spawn(functions: Sequence[bytes]) -> Making:
    """posix_spawn by itself, or on behalf of system or popen."""
    outermost = max(i for i, name in enumerate(functions) if re.match(_SPAWN, name))
    callers = functions[outermost + 1:]
    if any(re.match(_POPEN, name) for name in callers):
        return Making("c", "popen")
    # system jumps into a function of its library that has no public name.
    if any(re.match(_SYSTEM, name) for name in callers) or callers[:1] == (b"",):
        return Making("c", "system")
    return Making("c", "posix_spawn")
