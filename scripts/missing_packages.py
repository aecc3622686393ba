"""Prints the Debian packages that the tests need and this machine lacks, one a line.

The tests say themselves what they need, by ``need("tool", "package")``; this file finds those calls, so that
there is no second list.
"""

from __future__ import annotations

import ast
import glob
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"


def needs(source: str) -> Iterator[tuple[str, str]]:
    """(tool, package) of every call ``need("tool", "package")`` in a test's source."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name("need" | "_need"), args=[ast.Constant(str(tool)), ast.Constant(str(package))]
            ):
                yield tool, package


def is_present(tool: str) -> bool:
    """A tool is a command's name, or a path in which ``*`` is allowed."""
    return bool(glob.glob(tool)) if "/" in tool else shutil.which(tool) is not None


def missing(tests: Path) -> list[str]:
    """The packages, sorted, each once."""
    found = {need for path in tests.rglob("*.py") for need in needs(path.read_text(encoding="utf-8"))}
    return sorted({package for tool, package in found if not is_present(tool)})


if __name__ == "__main__":
    sys.stdout.writelines(f"{package}\n" for package in missing(TESTS))
