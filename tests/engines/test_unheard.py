"""Threads that have no events: their end is told all the same, once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from collector.engines.perf.engine import PerfEngine
from collector.engines.perf.opening import open_events
from collector.events import Exited

FOREVER_NS, SOON_NS = 2**62, 20_000_000
TWO = "import threading; threading.Thread(target=input).start(); print(flush=True); threading.Event().wait()"


@pytest.mark.usefixtures("perf_allowed", "attach_allowed")
def test_the_end_of_a_thread_without_events_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        (other,) = (int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()
                    if path.name != str(process.pid))
        engine = PerfEngine(open_events([process.pid], 997_000, on_exec=False, follow=False), "")
        engine.start()
        before_ns = time.monotonic_ns()
        engine.unheard.watch(process.pid, [process.pid, other])
        began_ns = time.monotonic_ns()

        def ends(is_over: Callable[[], bool]) -> list[tuple[int, int]]:
            """Who ends until then, and in the drain behind it."""
            found, was_over = [], False
            while not was_over:
                was_over = is_over()
                found += [(change.pid, change.tid) for change in engine.drain(FOREVER_NS).changes
                          if isinstance(change, Exited)]
                engine.release()
            return found

        try:
            looks_ns = []
            for _ in range(3):
                assert ends(lambda: True) == []
                came_ns = time.monotonic_ns()
                looks_ns.append(engine.pressed_ns - began_ns)
                # Soon at first; then, or where we come late, when as much time has passed again at most.
                assert engine.pressed_ns <= came_ns + max(came_ns - before_ns, SOON_NS)
                time.sleep(max(engine.pressed_ns - time.monotonic_ns(), 0) * 1e-9)  # as a recording does
            assert looks_ns[0] > 0
            assert all(2 * look_ns <= later_ns for look_ns, later_ns in pairwise(looks_ns))
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert ends(lambda: not Path(f"/proc/{process.pid}/task/{other}").exists()) == [(process.pid, other)]
            assert ends(lambda: True) == []
        finally:
            process.kill()
            engine.close()
