"""Records several programs in this process, by one poll loop: ``several.py DIRECTORY DELAY [WINDOW:]PROGRAM ...``.

The loop begins DELAY seconds after the last program. A program is a command line in one word; one that has a WINDOW
before it (as behind ``-t``) is recorded in that. How long after its start each had its exec is in a file beside its
experiment, ``NUMBER.released``, in ns. A line for each that is closed: its number, and the numbers of those
that are still recorded then. A program that fails to be recorded gives ``failed`` and why.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from collector.clock import INTERVAL_ON_NS
from collector.engines.perf import opening as perf_opening
from collector.limits import raise_descriptor_limit
from collector.linux.perf import Birth
from collector.session import launch
from collector.session.control import Window, parse_window
from collector.session.options import Options
from collector.session.recording import Recording, engine_on
from collector.session.runner import Observer, Runner


def started(path: Path, command: str, inherited: launch.Inherited) -> tuple[Recording, int]:
    """A program and its recording."""
    window, colon, rest = command.partition(":")
    arguments = tuple((rest if colon else command).split())
    options = Options(arguments=arguments, interval_ns=INTERVAL_ON_NS, archive="off",
                      window=parse_window(window) if colon else Window())
    child = launch.HeldChild(launch.find_program(arguments[0]), arguments, inherited)
    opened = perf_opening.open_events(Birth(child.maker_tid, child.make), INTERVAL_ON_NS, on_exec=True, follow=True)
    path.mkdir()
    start_ns = time.monotonic_ns()
    opened.guard(child.pid)
    opened.before = child.release()
    path.with_suffix(".released").write_text(str(time.monotonic_ns() - start_ns))
    return Recording(options, path, child.pid, engine_on(opened), start_ns), child.pid


def main(directory: Path, delay: str, *commands: str) -> None:
    """Records them all."""
    runner, going_on = Runner(), set(range(len(commands)))

    def add(number: int, recording: Recording) -> None:
        def say(line: str) -> None:
            going_on.discard(number)
            print(number, *sorted(going_on), "|", line, flush=True)

        runner.add(recording, Observer(say, lambda err: print(number, "failed", repr(err), flush=True)))

    inherited = launch.inherited()
    raise_descriptor_limit()
    found = [started(directory / f"{number}.er", command, inherited) for number, command in enumerate(commands)]
    for number, (recording, _) in enumerate(found):
        add(number, recording)
    time.sleep(float(delay))
    runner.run()
    for recording, pid in found:
        if recording.status is None:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
