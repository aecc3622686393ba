"""Programs of Java that wait, for tests that read their memory."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest
from living import ready

from collector import elf
from collector.linux import proc, tasks
from collector.runtimes import hotspot
from collector.runtimes.hotspot import Machine

# The distribution's, and further ones by a pattern, where somebody asks for it.
JAVAS = ["java", *sorted(glob.glob(os.environ.get("JAVAS", "")))]

PROGRAM = """
import java.util.*;
public class Waits {
    static int n;
    static int deep(int k, Runnable end) { if (k == 0) { end.run(); return n; } return deep(k - 1, end) + 1; }
    static void nap() { try { Thread.sleep(900_000); } catch (InterruptedException e) { n++; } }
    static long leaf(long y) { return y * 31 + n; }
    static long inlined(long y) { return leaf(y) + 1; }
    static long \\ud835\\udc65(long y) { return y * 37 + n; }
    static long warm(long[] a) { long x = 1; for (long y : a) x += inlined(y); return x; }
    public static void main(String[] arguments) throws Exception {
        long[] numbers = new long[10];
        for (int i = 0; i < 30_000; i++) n += warm(numbers) + \\ud835\\udc65(i) == 3 ? 1 : 0;
        Thread napper = new Thread(() -> deep(5, Waits::nap), "napper");
        napper.start();
        while (napper.getState() != Thread.State.TIMED_WAITING) Thread.sleep(1);
        Thread.sleep(200);
        System.out.println("ready");
    }
}
"""


@dataclass(frozen=True)
class JavaTarget:
    """A waiting process of Java, and how its memory is read."""

    pid: int
    read: hotspot.Read

    @cached_property
    def symbols(self) -> dict[bytes, tuple[int, int]]:
        """The exported tables' symbols, at run-time addresses."""
        for mapped in tasks.executables(self.pid, self.pid):
            if mapped.path.endswith(b"/libjvm.so"):
                with elf.open_object(os.fsdecode(mapped.path)) as file:
                    bias = mapped.start - (file.vaddr_of(mapped.file_offset) or 0)
                    return {name: (value + bias, size) for name, (value, size) in file.exported(
                        hotspot.SYMBOLS).items()}
        return {}

    def machine(self, read: hotspot.Read) -> Machine | str:
        """Anew, by this reader."""
        return hotspot.recognise(self.symbols, read, 0)


@pytest.fixture(scope="module", params=JAVAS)
def java(request: pytest.FixtureRequest, need: Callable[[str, str], str],
         tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTarget]:
    program = need(request.param, "openjdk-17-jdk-headless")
    folder: Path = tmp_path_factory.mktemp("java")
    (folder / "Waits.java").write_text(PROGRAM)
    subprocess.run([need("javac", "openjdk-17-jdk-headless"), "-d", folder, folder / "Waits.java"], check=True)
    # What is compiled, and inlined, is always the same.
    how = ["-Xbatch", "-XX:+UseSerialGC", "-Xmx64m", "-XX:CompileCommand=quiet",
           "-XX:CompileCommand=dontinline,Waits.leaf", "-XX:CompileCommand=inline,Waits.inlined"]
    command = [program, *how, "-cp", str(folder), "Waits"]
    with ready(*command) as pid:
        yield JavaTarget(pid, partial(proc.read_pieces, pid))
