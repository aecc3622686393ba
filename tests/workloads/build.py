"""Builds the workloads: one C source and a set of compiler flags make one program.

Used by the tests (``tests/conftest.py``) and by ``scripts/bench``. A program is named after its source and
flags, so that the same request gives the same file and is compiled once per directory.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
ALWAYS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread")
DEFAULT = ("-O2",)


class BuildError(Exception):
    """The compiler refused a workload; the message is the command and what the compiler said."""


def compiler() -> list[str]:
    """The C compiler: ``$CC`` or gcc."""
    return shlex.split(os.environ.get("CC", "gcc"))


def build(name: str, directory: Path, *flags: str) -> Path:
    """Compile ``<name>.c`` into ``directory`` with ``flags`` (``-O2`` if none are given).

    Raises ``BuildError`` if the compiler fails, ``FileNotFoundError`` if there is no compiler.
    """
    flags = flags or DEFAULT
    program = directory / "".join((name, *flags)).replace("/", "_")
    if not program.exists():
        half_done = program.with_name(program.name + ".part")
        _compile(SOURCES / f"{name}.c", half_done, flags)
        half_done.rename(program)
    return program


def _compile(source: Path, program: Path, flags: tuple[str, ...]) -> None:
    command = [*compiler(), *ALWAYS, *flags, str(source), "-o", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")
