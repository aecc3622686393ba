"""The kernel's functions as /proc/kallsyms tells them: names and addresses of this boot, those of its modules included.

What code lies between two symbols belongs to the first. Symbols of padding before functions (``__pfx_``, ``__cfi_``)
end what comes before them, and a function begins with the padding before it: a function that was interrupted on its
first instruction is a caller in the kernel's call chain, and of a caller's address, which is behind its call elsewhere,
readers take a byte off.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

_LINE = re.compile(rb"^([0-9a-f]+) ([tTwW]) (\S+)(?:\t\[(\S+)\])?$", re.MULTILINE)
_ADDRESS = re.compile(rb"^0*[1-9a-f][0-9a-f]* ", re.MULTILINE)  # not zero
_HEAD_BYTES = 4096
_PADDING = (b"__pfx_", b"__cfi_")
# Of what is made while the kernel runs: programs of BPF, trampolines of tracers.
_MADE = (b"bpf", b"__builtin__")
_SIZE_MAX = 1 << 20  # behind the last function of a section there is a gap
_PAGE = 4096
_HALF = 1 << 63  # of all addresses: the kernel's begin there, but for numbers that are no addresses
KERNEL = b"kernel"


class KernelObject(NamedTuple):
    """Functions that lie together: the kernel's own, or a module's. ``start``: of its first page."""

    name: bytes  # ``kernel`` or ``[module]``
    start: int
    end: int
    functions: list[tuple[int, int, bytes]]  # address, size and name, sorted, one per address


class KernelSymbols(NamedTuple):
    """``objects`` do not overlap; ``made``: functions (address, size, name) that belong to none."""

    objects: list[KernelObject]
    made: list[tuple[int, int, bytes]]


def shows_addresses() -> bool:
    """Whether the kernel shows its addresses to us: they are zero where it does not."""
    try:
        with open("/proc/kallsyms", "rb") as file:
            return tells_addresses(file.read(_HEAD_BYTES))
    except OSError:
        return False


def tells_addresses(head: bytes) -> bool:
    """Whether there are addresses in the beginning of a text like that of /proc/kallsyms. Before Linux 6.15 that of
    x86-64 begins with offsets in the memory of each CPU, of which the first two are zero for root, too."""
    return _ADDRESS.search(head) is not None


def read_kernel_symbols() -> KernelSymbols:
    """All functions there are now. Takes some 0.2 s. Nothing where they are hidden."""
    try:
        with open("/proc/kallsyms", "rb") as file:
            return parsed(file.read())
    except OSError:
        return KernelSymbols([], [])


def parsed(text: bytes) -> KernelSymbols:
    """The functions in a text like that of /proc/kallsyms."""
    of: dict[bytes, list[tuple[int, bytes, bytes]]] = {}
    for address, kind, name, module in _LINE.findall(text):
        of.setdefault(module, []).append((int(address, 16), kind, name))
    objects: list[KernelObject] = []
    made: list[tuple[int, int, bytes]] = []
    for module, symbols in of.items():
        functions = _functions(sorted(symbol for symbol in symbols if symbol[0] >= _HALF))
        if module.startswith(_MADE):
            made += functions
        elif functions:
            start, end = functions[0][0] // _PAGE * _PAGE, functions[-1][0] + functions[-1][1]
            objects.append(KernelObject(b"[%s]" % module if module else KERNEL, start, end, functions))
    return KernelSymbols(_apart(sorted(objects, key=lambda one: one.start)), sorted(made))


def _functions(symbols: list[tuple[int, bytes, bytes]]) -> list[tuple[int, int, bytes]]:
    """Functions with their sizes, of symbols by address: of those of one address the best."""
    found: list[tuple[int, int, bytes]] = []
    padding = None  # where that of the next function begins
    at = 0
    while at < len(symbols):
        address, end = symbols[at][0], at + 1
        while end < len(symbols) and symbols[end][0] == address:
            end += 1
        names = symbols[at:end]
        if any(name.startswith(_PADDING) for _, _, name in names):
            padding = address if padding is None else padding
        else:
            name = names[0][2] if len(names) == 1 else min(names, key=_rank)[2]
            start, padding = address if padding is None else padding, None
            size = symbols[end][0] - address if end < len(symbols) else _PAGE - address % _PAGE
            found.append((start, address - start + min(size, _SIZE_MAX), name))
        at = end
    return found


def _rank(symbol: tuple[int, bytes, bytes]) -> tuple[bool, bool, bool, int, int, bytes]:
    """The least of several names of one address is the function's own: no mark of the linker's, nor what code of the
    early boot calls it, no weak or local one, one with fewer underscores before it, the shorter one (``__x64_sys_sync``
    and not ``__ia32_sys_sync``), the first of the alphabet."""
    _, kind, name = symbol
    return (name in (b"_text", b"_stext") or name.startswith(b"__pi_"), kind in b"wW", kind != b"T",
            len(name) - len(name.lstrip(b"_")), len(name), name)


def _apart(objects: list[KernelObject]) -> list[KernelObject]:
    """Objects that end before the next one begins: the last function of each has a size that is made up."""
    return [*(one._replace(end=min(one.end, after.start)) for one, after in pairwise(objects)), *objects[-1:]]
