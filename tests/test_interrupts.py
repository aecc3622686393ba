"""An interrupt while a recording begins: it does not begin, wherever Python was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import prefork
import pytest

# Interrupts itself in a callback, from which no exception comes out, when one of its modules is imported.
PROGRAM = """
import os, signal, sys, weakref
from collector.cli import main

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "collector.session.control":
            thing = Interrupting()
            told = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del thing

sys.meta_path.insert(0, Interrupting())
sys.unraisablehook = lambda lost: print("lost:", lost.exc_type.__name__)
sys.exit(main.collect())
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignored"])
@pytest.mark.parametrize("way", ["launch", "attach"])
def test_an_interrupt_that_python_loses_is_noted(way: str, ignored: bool, tmp_path: Path) -> None:
    path, ran = tmp_path / "x.er", tmp_path / "ran"
    options = ["-t", "0.2", "-P", str(os.getpid())] if way == "attach" else ["touch", str(ran)]
    command = [sys.executable, "-c", PROGRAM, "--engine", "signal", "-p", "off", "-o", str(path), *options]
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command] if ignored else command
    done = prefork.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == ((0, "") if ignored else (130, "lost: KeyboardInterrupt\n"))
    assert path.exists() == ignored
    assert ran.exists() == (ignored and way == "launch")
