"""What is known of a Java machine's code when its process is gone."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

from collector.elf import object_of_bytes
from collector.runtimes.hotspot import Machine
from collector.runtimes.made_up import MadeUp
from collector.session.java import JavaFrames, _Process
from collector.unwind.table import Tables
from collector.unwind.trampoline import image
from tests.runtimes.conftest import JavaTarget

IMAGE = 1


def test_code_that_no_stack_has_led_to_has_its_name_when_its_process_is_gone(java: JavaTarget) -> None:
    """It was compiled behind the last samples; the next ones come behind the end."""
    machine = java.machine(java.read)
    assert isinstance(machine, Machine), machine
    objects = SimpleNamespace(tables=(tables := Tables()), by_number={})
    frames = JavaFrames(objects, MadeUp(1 << 60), wanted=True)  # type: ignore[arg-type]
    number = tables.add_told(object_of_bytes(image(machine.high - machine.low), "[code cache]"), machine)
    process = frames._processes[IMAGE] = _Process(machine, number, time.monotonic_ns())
    process.lately = False
    before_ns = time.monotonic_ns()
    assert frames.due_ns <= before_ns
    assert not frames.look(), "no samples are wanted for it"
    assert process.has_new
    assert process.code_due_ns > before_ns, "once"

    os.kill(java.pid, signal.SIGKILL)
    while java.read([machine.low], [1]) != [b""]:
        time.sleep(0.001)
    codes = [frames.code_at(IMAGE, blob.code) for blob in machine.blobs]
    names = {code.name.rpartition(b"] ")[2] for code in codes if code is not None}
    assert any(name.startswith(b"Waits.warm") for name in names), names
