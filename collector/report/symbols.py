"""Names and source lines from debug information: the keeper of symbolic, cxxfilt and pydemumble.

Plain function names come from symbol tables (``functions``); nothing here is imported before it is needed. C++ names
are demangled by the C++ library's own demangler (cxxfilt), because its spelling is the one that binutils prints;
where that library is missing, LLVM's (pydemumble) takes its place. Rust's newer names are LLVM's business as well; its
older ones are C++ names with an encoding on top.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from collector.dwarf import LineTables, Row, Unit
from collector.elf import LoadObject
from collector.errors import ElfError

# Making 1 MB of debug information readable takes some 0.1 s.
_KEPT_FROM_BYTES, _KEPT_FILES_MAX = 1 << 20, 40
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"
_RUST_HASH = re.compile(rb"17h[0-9a-f]{16}E(?:[.@][A-Za-z0-9_.$@]*)?\Z")
_RUST_ESCAPES = {b"SP": "@", b"BP": "*", b"RF": "&", b"LT": "<", b"GT": ">", b"LP": "(", b"RP": ")", b"C": ","}
_RUST_ESCAPE = re.compile(rb"\$([A-Z]+|u[0-9a-f]{1,6})\$")


@lru_cache(maxsize=1 << 16)
def demangle(linkage: bytes) -> bytes:
    """The name that a programmer would write; the linkage name itself if it is not a mangled one."""
    if linkage.startswith(b"_ZN") and _RUST_HASH.search(linkage):
        parts = _rust_parts(linkage)
        if parts is not None:
            return parts
    if linkage.startswith(b"_Z"):
        return _cplusplus()(linkage)
    if linkage.startswith(b"_R"):
        return _llvm(linkage)
    return linkage


def _rust_parts(linkage: bytes) -> bytes | None:
    """``_ZN4core3fmt5write17h0123456789abcdefE`` -> ``core::fmt::write``; None if it is not built like that."""
    rest, parts = linkage[3:], []
    while match := re.match(rb"([1-9][0-9]{0,8})", rest):
        length, begin = int(match[1]), match.end()
        if begin + length > len(rest):
            return None
        parts.append(rest[begin:begin + length])
        rest = rest[begin + length:]
    if not rest.startswith(b"E") or len(parts) < 2:
        return None
    return b"::".join(_rust_part(part) for part in parts[:-1])


def _rust_part(part: bytes) -> bytes:
    if part.startswith(b"_$"):
        part = part[1:]

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code.startswith(b"u"):
            try:
                return chr(int(code[1:], 16)).encode()
            except ValueError:  # there is no such character
                return match[0]
        return _RUST_ESCAPES.get(code, match[0].decode("ascii")).encode()

    return _RUST_ESCAPE.sub(character, part).replace(b"..", b"::")


@lru_cache(maxsize=1)
def _cplusplus() -> Callable[[bytes], bytes]:
    try:
        import cxxfilt
    except Exception:
        return _llvm

    def by_library(linkage: bytes) -> bytes:
        try:
            return bytes(cxxfilt.demangleb(linkage))
        except cxxfilt.Error:
            return linkage

    return by_library


def _llvm(linkage: bytes) -> bytes:
    """LLVM's spelling, with the older ``> >`` of nested templates."""
    import pydemumble

    try:
        text = linkage.decode("ascii")
    except UnicodeDecodeError:
        return linkage
    shown = pydemumble.demangle(text)
    if not shown:
        return linkage
    return re.sub(r"(?<!operator)>(?=>)", "> ", shown).encode()


@dataclass(frozen=True)
class Frame:
    """One level at an address: an inlined function or, last, the function itself. ``line`` 0: unknown."""

    function: bytes
    path: str
    line: int


class Lines:
    """Source lines and inlined functions of one file, from DWARF. Opening reads all of it: 0.2 s for 30 MB.

    Where symbolic knows a function but no line, as with split debug information, the tables of lines themselves tell,
    and nothing is known of inlined functions.
    """

    def __init__(self, cache: Any, tables: LineTables) -> None:
        self._cache = cache
        self._tables = tables
        self._read: set[Unit] = set()  # whose paths are among these
        self._spelled: dict[str, str] = {}

    @classmethod
    def of(cls, found: LoadObject) -> Lines:
        """Those of an open file; closed, it has no lines of split debug information."""
        return cls(_symcache(found), LineTables(found))

    def at(self, vaddr: int, base: int) -> list[Frame]:
        """Innermost first; empty where nothing is known. ``base``: the lowest address of the object."""
        if self._cache is None:
            return []
        found = [Frame(location.symbol.encode("utf-8", "surrogateescape"), location.full_path or "", location.line)
                 for location in self._cache.lookup(vaddr - base)]
        if len(found) == 1 and not found[0].path:
            row = self._row(vaddr)
            return found if row is None else [Frame(found[0].function, row.path, row.line)]
        return [replace(one, path=self._spelling(one.path, vaddr)) if _NO_TEXT in one.path else one for one in found]

    def _spelling(self, path: str, vaddr: int) -> str:
        """A path as the tables of lines have it: symbolic gives a mark for each byte that is no UTF-8."""
        path = os.path.normpath(path)
        if path not in self._spelled:
            with suppress(ElfError):
                unit = self._tables.unit_at(vaddr)
                if unit is not None and unit not in self._read:
                    self._read.add(unit)
                    self._spelled |= {os.fsencode(row.path).decode("utf-8", "replace"): row.path for row in unit.rows}
        return self._spelled.get(path, path)

    def _row(self, vaddr: int) -> Row | None:
        with suppress(ElfError):
            unit = self._tables.unit_at(vaddr)
            return unit.at(vaddr) if unit is not None else None
        return None


def _symcache(found: LoadObject) -> Any:
    """What symbolic makes of a file; None if there is nothing that could be read. Kept for large files."""
    from symbolic.exceptions import SymbolicError
    from symbolic.symcache import SymCache

    kept = _kept_as(found)
    if kept and os.path.isfile(kept):
        with suppress(SymbolicError, OSError):
            cache: Any = SymCache.open(kept)  # type: ignore[no-untyped-call]
            if cache.is_latest_version:
                os.utime(kept)
                return cache
    with suppress(SymbolicError, OSError):
        cache = _made(found.name)
        if kept and cache is not None:
            _keep(cache, kept)
        return cache
    return None


def _made(path: str) -> Any:
    from symbolic.debuginfo import Archive

    with open(path, "rb") as file:  # by its descriptor: paths that are no UTF-8 are not taken
        for one in Archive.open(f"/proc/self/fd/{file.fileno()}").iter_objects():
            return one.make_symcache()
    return None


def _kept_as(found: LoadObject) -> str:
    """Where what was made of a file is kept, by its build id, its size and who made it; empty for small files."""
    from importlib.metadata import version

    try:
        build_id = found.build_id
    except ElfError:
        return ""
    if not build_id or found.size < _KEPT_FROM_BYTES:
        return ""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{folder}/er_print/{build_id.hex()[:64]}-{found.size}-{version('symbolic')}"


def _keep(cache: Any, path: str) -> None:
    """Whole or not at all; the least used go when there are too many. Whatever goes wrong, nothing is kept."""
    folder, unfinished = os.path.dirname(path), f"{path}.{os.getpid()}.new"
    with suppress(OSError):
        os.makedirs(folder, 0o700, exist_ok=True)
        try:
            with open(unfinished, "xb") as file:
                cache.dump_into(file)
            os.rename(unfinished, path)
        finally:
            with suppress(OSError):
                os.unlink(unfinished)
        files = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
        for entry in files[_KEPT_FILES_MAX:]:
            os.unlink(entry.path)
