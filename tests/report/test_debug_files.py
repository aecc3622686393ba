"""Which separate debug file beside an object is the object's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.elf import open_object
from collector.report.resolve import debug_object_beside

SOURCE = "int %s(int n) { return n + 1; } int main(int n, char **v) { return %s(n); }"


@pytest.fixture
def separated(need: Callable[[str, str], str], tmp_path: Path) -> Callable[..., Path]:
    """``separated("name", function, "-Wl,--build-id")``: a stripped program, with its debug file at ``debug``."""

    def build(name: str, function: str, debug: Path, *flags: str) -> Path:
        path, objcopy = tmp_path / name, need("objcopy", "binutils")
        subprocess.run([need("gcc", "gcc"), "-x", "c", "-", "-o", path, *flags], check=True, timeout=60,
                       input=(SOURCE % (function, function)).encode())
        subprocess.run([objcopy, "--only-keep-debug", path, debug], check=True, timeout=60)
        subprocess.run([objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True, timeout=60)
        return path

    return build


def names_beside(path: Path) -> list[bytes] | None:
    """The symbols of the debug file found."""
    with open_object(str(path)) as elf:
        debug = debug_object_beside(elf, os.fsencode(path))
        if debug is None:
            return None
        with debug:
            symbols = debug.symbols()
            return [symbols.name(index) for index in range(len(symbols))]


def test_an_object_is_not_its_own_debug_file(separated: Callable[..., Path], tmp_path: Path) -> None:
    """Where that has the same name, in a folder of its own."""
    (tmp_path / ".debug").mkdir()
    assert names_beside(separated("program", "own", tmp_path / ".debug/program", "-Wl,--build-id")) is None


@pytest.mark.parametrize("later", ["-Wl,--build-id", "-Wl,--build-id=none"])
def test_without_a_build_id_the_checksum_tells(later: str, separated: Callable[..., Path], tmp_path: Path) -> None:
    program = separated("program", "own", tmp_path / "p.debug", "-Wl,--build-id=none")
    found = names_beside(program)
    assert found is not None
    assert b"own" in found
    separated("another", "strange", tmp_path / "p.debug", later)
    assert names_beside(program) is None
