"""What the tests of unwinding share: tools that must be there, and real stacks packed as the pipeline packs them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.elf import LoadObject, object_of_bytes, open_object
from collector.errors import ElfError
from collector.unwind.batch import Frames, Maps, Stacks, unwind
from collector.unwind.table import Tables

HERE = Path(__file__).parent


@dataclass
class World:
    """Stacks of several processes put together as one batch, with the tables of all their objects."""

    tables: Tables = field(default_factory=Tables)
    objects: dict[str, int] = field(default_factory=dict)
    opened: dict[str, LoadObject] = field(default_factory=dict)
    stops: list[dict[str, Any]] = field(default_factory=list)

    def object_at(self, path: str, vdso: str) -> tuple[int, LoadObject | None]:
        """The number and object of a mapping's path; -1 where there is no such file."""
        if path == "[vdso]":
            path += vdso
        if path not in self.objects:
            try:
                found = object_of_bytes(bytes.fromhex(vdso), "[vdso]") if path[:6] == "[vdso]" else open_object(path)
            except ElfError:
                self.objects[path] = -1
                return -1, None
            self.opened[path] = found
            self.objects[path] = self.tables.add_object(found)
        return self.objects[path], self.opened.get(path)

    def maps(self) -> Maps:
        """The executable mappings of all stops, one space per stop."""
        rows = []
        for space, stop in enumerate(self.stops):
            for start, end, _, offset, path in stop["maps"]:
                number, load_object = self.object_at(path, stop["vdso"])
                vaddr = load_object.vaddr_of(offset) if load_object else None
                bias = (start - vaddr) % (1 << 64) if vaddr is not None else 0
                rows.append((space, start, end, bias, number if vaddr is not None else -1))
        rows.sort()
        return Maps(*(np.array([row[i] for row in rows], kind)
                      for i, kind in enumerate(("i8", "u8", "u8", "u8", "i8"))))

    def stacks(self, cut_words: int = 1 << 20) -> Stacks:
        """All stops as one batch; every stack in a ring of its own, begun in the middle of it."""
        width = 8 if len(self.stops[0]["regs"]) == 17 else 4
        rings, columns, base = [], [], 0
        for i, stop in enumerate(self.stops):
            words = np.frombuffer(bytes.fromhex(stop["stack"]), f"<u{width}")[:cut_words]
            size = 1 << max(len(words) - 1, 1).bit_length()
            first = (i * 7919) % size
            ring = np.full(size, 0xDEADBEEF, words.dtype)
            ring[(first + np.arange(len(words))) % size] = words
            rings.append(ring)
            columns.append((i, base, size - 1, first, stop["low"], len(words)))
            base += size
        space, bases, mask, first_at, low, n_words = (np.array(c, np.int64) for c in zip(*columns, strict=True))
        regs = np.array([stop["regs"] for stop in self.stops], np.uint64)
        return Stacks(space, regs, np.concatenate(rings), bases, mask, first_at, low.view(np.uint64), n_words)

    def unwind(self, **options: Any) -> Frames:
        """The batch unwound."""
        return unwind(self.stacks(), self.maps(), self.tables, **options)


Stop = dict[str, Any]
BEGUN_S = 0.15  # of CPU time: then the start of a program that works is behind it


def used_s(pid: int) -> float:
    """CPU time of all threads of a process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def is_paused(pid: int) -> bool:
    """Whether it is in pause(2)."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("34 ")


@pytest.fixture
def world() -> World:
    """An empty batch."""
    return World()


@pytest.fixture
def compile_c(need: Callable[[str, str], str], tmp_path: Path) -> Callable[..., Path]:
    """``compile_c("name", source text or path, "-O2")``: a program made by gcc."""

    def build(name: str, source: str | Path, *flags: str) -> Path:
        code = source if isinstance(source, Path) else tmp_path / f"{name}.c"
        if isinstance(source, str):
            code.write_text(source)
        if "-m32" in flags:
            need("/usr/lib32/libc.so.6", "gcc-multilib")
        program = tmp_path / name
        subprocess.run([need("gcc", "gcc"), "-w", "-o", program, code, *flags], check=True, timeout=60)
        return program

    return build


@pytest.fixture
def gdb_stops(need: Callable[[str, str], str], tmp_path: Path) -> Callable[..., list[Stop]]:
    """``gdb_stops(command, n, steps)``: a program started, and its stops as gdb sees them (see ``gdb_stops.py``)."""

    def collect(command: list[str | Path], n_stops: int, steps: list[str], **options: Any) -> list[Stop]:
        gdb, out = need("gdb", "gdb"), tmp_path / "stops"
        with open("/dev/zero", "rb") as zeros:
            target = subprocess.Popen(command, stdin=zeros, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      **options)
        try:
            deadline = time.monotonic() + 60
            while used_s(target.pid) < BEGUN_S and not is_paused(target.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            setup = f"python OUT, PID, STOPS, STEPS = {str(out)!r}, {target.pid}, {n_stops}, {steps!r}"
            done = subprocess.run([gdb, "-nx", "-q", "-batch", "-ex", setup, "-x", HERE / "gdb_stops.py"], timeout=40,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        finally:
            target.kill()
            target.wait()
        assert out.exists(), done.stdout + done.stderr
        found = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(found) >= n_stops, done.stdout + done.stderr
        return found

    return collect


@pytest.fixture
def own_vdso() -> bytes:
    """The image of this process's vDSO."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(start)
                return memory.read(end - start)
    raise AssertionError("no vDSO")
