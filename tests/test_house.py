"""The plan of the house, checked: who may import whom, who keeps which dependency, where bytes are declared.

Every rule is a function from a tree of source files to a list of violations, ``file:line: what``. The
project's own tree must give an empty list, and for every rule there is a small tree with a planted violation
that must not.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# --- the rules as tables --------------------------------------------------------------------------

# What each room (a package or module directly in collector/) may import besides itself. Imports go down only.
# Every room may have the package's version; clock is at the ground, for its units and intervals.
RECORDING = frozenset(
    ["errors", "layout", "arrays", "clock", "elf", "events", "linux", "processes", "timing", "unwind", "runtimes",
     "engines", "experiment"]
)
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "layout": frozenset({"errors"}),
    "arrays": frozenset(),
    "clock": frozenset({"errors"}),
    "pclntab": frozenset({"errors"}),
    "elf": frozenset({"errors", "pclntab"}),
    "dwarf": frozenset({"errors", "elf"}),
    "suggestions": frozenset(),
    "installed": frozenset(),
    "interrupts": frozenset(),
    "environment": frozenset(),
    "leftovers": frozenset(),
    "limits": frozenset(),
    "wording": frozenset(),
    "events": frozenset({"errors", "layout"}),
    "linux": frozenset({"errors", "layout"}),
    # arrays: keys are numbered there, and only there.
    "aggregate": frozenset({"errors", "layout", "arrays", "suggestions"}),
    "processes": frozenset({"errors", "arrays", "events"}),
    "timing": frozenset({"errors", "arrays", "events"}),
    "unwind": frozenset({"errors", "arrays", "elf", "pclntab"}),
    "runtimes": frozenset({"errors", "arrays", "layout", "elf", "unwind"}),
    "engines": frozenset({"errors", "arrays", "layout", "clock", "events", "linux"}),
    "experiment": frozenset({"errors", "leftovers", "arrays", "clock", "layout", "elf", "dwarf"}),
    "report": frozenset({"errors", "suggestions", "arrays", "clock", "elf", "dwarf", "experiment", "aggregate"}),
    "export": frozenset({"errors", "leftovers", "wording", "clock", "report", "aggregate"}),
    "session": RECORDING | {"aggregate", "suggestions", "wording", "interrupts", "environment", "limits"},
    "service": frozenset({"errors", "installed", "wording", "clock", "elf", "linux", "session", "experiment"}),
    "cli": frozenset({"errors", "suggestions", "installed", "interrupts", "environment", "leftovers", "limits",
                      "wording", "clock", "session", "service", "experiment", "aggregate", "report", "export"}),
}

# Each foreign dependency has one keeper: a module, or a room.
KEEPERS: dict[str, str] = {
    "elftools": "dwarf.py",
    "psutil": "linux/proc.py",
    "lxml": "experiment/xml.py",
    "ctypes": "linux/libc.py",
    "capstone": "report/disassembly.py",
    "symbolic": "report/symbols.py",
    "pydemumble": "report/symbols.py",
    "cxxfilt": "report/symbols.py",
    "rich": "cli/",
    "google": "export/protobuf.py",
    "pyarrow": "export/parquet.py",
    "msgspec": "service/",
    "re2": "service/targets.py",
    "prometheus_client": "service/metrics.py",
}

# Where the layout of bytes may be declared. elf.py is there for ELF's own symbol table, read as one array; pclntab.py
# for Go's table of functions.
LAYOUTS = frozenset({"layout.py", "linux/abi.py", "experiment/records.py", "aggregate/dtrace.py", "elf.py",
                     "pclntab.py", "runtimes/abi.py"})
STRUCT_FORMAT = re.compile(r"[@=<>!](\s*\d*[xcbB?hHiIlLqQnNefdspP])+")
ARRAY_FORMAT = re.compile(r"[<>=|]?[biufcSVU]\d+")

# Names that say nothing about what is inside.
NAMELESS = frozenset({"utils", "util", "common", "core", "shared", "misc", "lib"})

# --- walking the source ---------------------------------------------------------------------------


def sources(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file below ``package``, with its path relative to it, parsed."""
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package), parsed(path, path.read_text(encoding="utf-8"))


@cache
def parsed(path: Path, text: str) -> ast.Module:
    """A file, which all rules look at."""
    return ast.parse(text, str(path))


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All that is in a file."""
    return tuple(ast.walk(tree))


@cache
def imports(relative: Path, tree: ast.Module) -> tuple[tuple[int, str], ...]:
    """(line, absolute module) of every import, also inside functions and by ``import_module("...")``."""
    return tuple(_imports(relative, tree))


def _imports(relative: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    parents = ("collector", *relative.parts[:-1])
    for node in nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [*parents[: len(parents) - level + 1]] if level else []
                prefix = ".".join([*base, *([module] if module else [])])
                yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(module)), *_],
            ):
                yield node.lineno, module


def room_of(relative: Path) -> str:
    """The room that a file of the package belongs to."""
    return relative.parts[0].removesuffix(".py")


# --- the rules ------------------------------------------------------------------------------------


def upward_imports(package: Path) -> list[str]:
    """Imports from a room that the importing room must not know."""
    found = []
    for relative, tree in sources(package):
        room = room_of(relative)
        for line, module in imports(relative, tree):
            parts = module.split(".")
            if parts[0] != "collector" or len(parts) < 2 or room == "__init__":
                continue
            if parts[1] not in {room, "__version__"} and parts[1] not in MAY_IMPORT.get(room, ()):
                found.append(f"{relative}:{line}: {room} imports {module}")
    return found


def rooms_without_a_rule(package: Path) -> list[str]:
    """Rooms that the table of imports does not know: a new room needs a line there."""
    names = {room_of(relative) for relative, _ in sources(package)} - {"__init__"}
    return [f"{name}: not in the table of imports" for name in sorted(names - MAY_IMPORT.keys())]


def doors_that_know_each_other(package: Path) -> list[str]:
    """The experiment's writing door and its reading door do not import each other."""
    other = {"experiment/recorder.py": "reader", "experiment/reader.py": "recorder"}
    return [
        f"{relative}:{line}: imports {module}"
        for relative, tree in sources(package)
        for line, module in imports(relative, tree)
        if str(relative) in other
        and f"{module}.".startswith(f"collector.experiment.{other[str(relative)]}.")
    ]


def kept_by_others(package: Path) -> list[str]:
    """Foreign dependencies imported outside their keeper."""
    return [
        f"{relative}:{line}: {module} belongs to {keeper}"
        for relative, tree in sources(package)
        for line, module in imports(relative, tree)
        if (keeper := KEEPERS.get(module.split(".")[0])) is not None
        and not str(relative).startswith(keeper)
    ]


def layouts_elsewhere(package: Path) -> list[str]:
    """Byte layouts outside their places: the struct module, its formats, fields of an array's records.

    The type of a plain array (``"<u8"``) is no layout.
    """
    found = []
    for relative, tree in sources(package):
        if str(relative) in LAYOUTS:
            continue
        found += [f"{relative}:{line}: struct" for line, name in imports(relative, tree) if _is_struct(name)]
        found += [f"{relative}:{line}: {text!r}" for line, text in _texts(tree) if _is_struct_format(text)]
        found += [f"{relative}:{line}: field {name!r}" for line, name in _fields(tree)]
    return found


def _is_struct(module: str) -> bool:
    return module.split(".")[0] == "struct"


def _is_struct_format(text: str) -> bool:
    return STRUCT_FORMAT.fullmatch(text) is not None


def _fields(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Declarations of a record's field: ``("name", "<u8")`` or ``("name", "<u8", (4,))``."""
    for node in nodes(tree):
        match node:
            case ast.Tuple(elts=[ast.Constant(str(name)), ast.Constant(str(kind)), *_]):
                if ARRAY_FORMAT.fullmatch(kind):
                    yield node.lineno, name


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String constants, but for the format parts of f-strings (``>10d`` there aligns text)."""
    aligning = {
        id(part)
        for node in nodes(tree)
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None
        for part in ast.walk(node.format_spec)
    }
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in aligning:
            yield node.lineno, node.value


def nameless_folders(package: Path) -> list[str]:
    """Folders and modules whose name says nothing."""
    return [
        f"{path.relative_to(package)}: the name says nothing"
        for path in sorted(package.rglob("*"))
        if path.name.removesuffix(".py") in NAMELESS
    ]


def talks_outside_the_door(package: Path) -> list[str]:
    """Only ``cli`` prints and exits."""
    return [
        f"{relative}:{node.lineno}: {ast.unparse(node.func)}"
        for relative, tree in sources(package)
        if room_of(relative) != "cli"
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "exit", "quit", "sys.exit"}
    ]


ISSUE_NUMBER = re.compile(r"\bissues?\s*[#:]?\s*\d{1,3}\b", re.IGNORECASE)
NOT_OURS = frozenset({".git", ".venv", "build", "__pycache__", "node_modules"})


def issue_numbers(tree: Path) -> list[str]:
    """Text that only makes sense beside an issue tracker, anywhere in the project."""
    return [
        f"{path.relative_to(tree)}:{number}: {line.strip()}"
        for path in sorted(_own_files(tree))
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if ISSUE_NUMBER.search(line)
    ]


def torn_tables(tree: Path) -> list[str]:
    """Tables of Markdown that are none: a row is a line, with as many cells as the head; the second is a rule."""
    return [
        f"{path.relative_to(tree)}:{number}: {line.strip()}"
        for path in sorted(_own_files(tree))
        if path.suffix == ".md"
        for table in _tables(path.read_text(encoding="utf-8").splitlines())
        for row, (number, line) in enumerate(table)
        if _n_cells(line) != _n_cells(table[0][1]) or (row == 1) != (set(line.strip()) == set("|-")) or len(table) < 3
    ]


def _tables(lines: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Successive lines that begin with a bar, with their numbers; not those of code, fenced or indented."""
    table: list[tuple[int, str]] = []
    is_code = False
    for number, line in enumerate([*lines, ""], 1):
        is_code ^= line.lstrip().startswith("```")
        if re.match(" {0,3}[|]", line) and not is_code:
            table.append((number, line))
        elif table:
            yield table
            table = []


def _n_cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row)) - 1 if row.endswith("|") else 0


def _own_files(tree: Path) -> Iterator[Path]:
    """Files below ``tree``, without what tools leave there (hidden caches, the environment, experiments)."""
    for path in tree.iterdir():
        leftover = path.name in NOT_OURS or path.name.endswith(("_cache", ".egg-info", ".er", ".erg"))
        if leftover or path.name == ".hypothesis" or path.is_symlink():
            continue
        if path.is_dir():
            yield from _own_files(path)
        elif path.is_file():
            yield path


Rule = Callable[[Path], list[str]]
PACKAGE_RULES: tuple[Rule, ...] = (
    upward_imports,
    rooms_without_a_rule,
    doors_that_know_each_other,
    kept_by_others,
    layouts_elsewhere,
    nameless_folders,
    talks_outside_the_door,
)


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_house_follows_its_plan(rule: Rule) -> None:
    violations = rule(ROOT / "collector")
    assert not violations, "\n".join(violations)


def test_no_file_needs_an_issue_tracker_to_be_understood() -> None:
    assert issue_numbers(ROOT) == []


def test_rows_of_tables_are_rows() -> None:
    assert torn_tables(ROOT) == []


def test_the_table_of_imports_has_no_circle() -> None:
    left = dict(MAY_IMPORT)
    while bottom := {room for room, below in left.items() if not below & left.keys()}:
        for room in bottom:
            del left[room]
    assert left == {}


# (rule, file, source, the violation as reported): each is clean but for what is planted.
PLANTED: tuple[tuple[Rule, str, str, str], ...] = (
    (
        upward_imports,
        "unwind/cfi.py",
        "import numpy\nimport collector.session.pipeline\n",
        "unwind/cfi.py:2: unwind imports collector.session.pipeline",
    ),
    (
        upward_imports,
        "linux/perf.py",
        "def late():\n    from ..engines import base\n",
        "linux/perf.py:2: linux imports collector.engines.base",
    ),
    (
        upward_imports,
        "session/attach.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from collector import report\n",
        "session/attach.py:3: session imports collector.report",
    ),
    (
        upward_imports,
        "layout.py",
        "from . import clock\n",
        "layout.py:1: layout imports collector.clock",
    ),
    (
        upward_imports,
        "processes/a/b.py",
        "from ... import errors\nfrom ...linux.abi import X\n",
        "processes/a/b.py:2: processes imports collector.linux.abi.X",
    ),
    (
        upward_imports,
        "processes/space.py",
        "import importlib\nimportlib.import_module('collector.cli.main')\n",
        "processes/space.py:2: processes imports collector.cli.main",
    ),
    (rooms_without_a_rule, "attic/old.py", "", "attic: not in the table of imports"),
    (
        doors_that_know_each_other,
        "experiment/recorder.py",
        "from collector.experiment.reader import read\n",
        "experiment/recorder.py:1: imports collector.experiment.reader.read",
    ),
    (
        doors_that_know_each_other,
        "experiment/reader.py",
        "from collector.experiment import recorder\n",
        "experiment/reader.py:1: imports collector.experiment.recorder",
    ),
    (
        kept_by_others,
        "session/launch.py",
        "def f():\n    import psutil\n",
        "session/launch.py:2: psutil belongs to linux/proc.py",
    ),
    (
        kept_by_others,
        "linux/perf.py",
        "from ctypes import util\n",
        "linux/perf.py:1: ctypes.util belongs to linux/libc.py",
    ),
    (kept_by_others, "report/a.py", "import rich.table\n", "report/a.py:1: rich.table belongs to cli/"),
    (layouts_elsewhere, "linux/perf.py", "import struct\n", "linux/perf.py:1: struct"),
    (layouts_elsewhere, "unwind/cfi.py", "F = '<IH4x'\n", "unwind/cfi.py:1: '<IH4x'"),
    (layouts_elsewhere, "engines/base.py", "D = [('a', '<u8')]\n", "engines/base.py:1: field 'a'"),
    (layouts_elsewhere, "engines/base.py", "D = ('a', 'u8', (3,))\n", "engines/base.py:1: field 'a'"),
    (nameless_folders, "linux/utils/a.py", "", "linux/utils: the name says nothing"),
    (nameless_folders, "common.py", "", "common.py: the name says nothing"),
    (talks_outside_the_door, "session/a.py", "print('x')\n", "session/a.py:1: print"),
    (talks_outside_the_door, "engines/a.py", "import sys\nsys.exit(1)\n", "engines/a.py:2: sys.exit"),
    (issue_numbers, "cli/main.py", "\n# see issue" + " #7\n", "cli/main.py:2: # see issue" + " #7"),
    (issue_numbers, "a.md", "Fixes issue" + " 12.\n", "a.md:1: Fixes issue" + " 12."),
    (torn_tables, "a.md", "| a | b | |---|---| | 1 | 2 |\n", "a.md:1: | a | b | |---|---| | 1 | 2 |"),
    (torn_tables, "a.md", "  | a |\n  |---|\n  | 1\n", "a.md:3: | 1"),
    (torn_tables, "a.md", "| a |\n|---|\n| 1 | 2 |\n", "a.md:3: | 1 | 2 |"),
)


def shown(value: object) -> str:
    """Part of a test's id, which must be the same in every process."""
    return getattr(value, "__name__", str(value))[:40]


@pytest.mark.parametrize(("rule", "name", "source", "violation"), PLANTED, ids=shown)
def test_a_planted_violation_is_found(
    tmp_path: Path, rule: Rule, name: str, source: str, violation: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert rule(tmp_path) == [violation]


# A tree that uses everything rightly.
CLEAN = {
    "__init__.py": "",
    "dwarf.py": "import elftools.elf\nfrom . import errors\n",
    "linux/abi.py": "import struct\nHEADER = struct.Struct('<IHH')\n",
    "linux/libc.py": "import ctypes\n",
    "experiment/recorder.py": "from collector.experiment import records\nfrom .records import A\n",
    "experiment/records.py": "D = [('a', '<u8')]\n",
    "report/symbols.py": "def f():\n    import symbolic\n",
    "cli/main.py": "import sys\nfrom rich import table\nfrom .. import session\nprint('x')\nsys.exit(0)\n",
    "engines/base.py": "from .. import __version__\nWORDS = '<u8'\nPAIR = ('user', 'unit')\n",
    "a.md": "| a | b |\n|---|---|\n| `1\\|2` | 3 |\n```\n| code\n```\n\n    | code\n",
    "session/launch.py": "text = f'{1:>10d}' + ' > ' + 'issues'\nfrom collector.linux import abi\n",
}


@pytest.mark.parametrize("rule", [*PACKAGE_RULES, issue_numbers, torn_tables], ids=lambda rule: rule.__name__)
def test_no_rule_objects_to_a_clean_tree(tmp_path: Path, rule: Rule) -> None:
    for name, source in CLEAN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    assert rule(tmp_path) == []


# --- the linters ----------------------------------------------------------------------------------

# Those in Python, also without a suffix, which the linters do not find by themselves.
SCRIPTS = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "scripts").glob("*[!~]") if path.is_file() and (
    path.suffix == ".py" or b"python" in path.read_bytes().partition(b"\n")[0])))


def _passes(*command: str) -> None:
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_is_content() -> None:
    _passes("-m", "ruff", "check", "--no-cache", "--output-format=concise", ".", *SCRIPTS)


TOOLS = (
    "tests/workloads/test_fixtures.py",
    "tests/workloads/test_workloads.py",
    "tests/test_house.py",
    "tests/conftest.py",
    "tests/session/kept.py",
    "tests/workloads/build.py",
    *SCRIPTS,
)


# mypy has all that it has read until its end: to look for garbage there takes a third of its time.
MYPY = "import gc; gc.enable = gc.disable; gc.disable(); from mypy.__main__ import console_entry; console_entry()"


@pytest.mark.long
def test_mypy_strict_is_content_with_the_package_and_the_tools() -> None:
    """All at once, so that each file is read once; those that are no modules are called by their names."""
    _passes("-c", MYPY, "--strict", "--scripts-are-modules", "collector", *TOOLS)


@pytest.mark.parametrize("script", ["cpuprof-check", "jstack-check", "pyspy-check"])
def test_scripts_go_on_with_the_python_of_the_environment(script: str) -> None:
    result = subprocess.run(["/usr/bin/python3", ROOT / "scripts" / script, "--help"], capture_output=True, text=True)
    assert (result.returncode, result.stderr, result.stdout[:6]) == (0, "", "usage:")


# --- the recording path stays light ---------------------------------------------------------------


def test_starting_collect_imports_nothing_that_recording_does_not_need() -> None:
    heavy = "numpy rich symbolic pydemumble lxml psutil elftools collector.report collector.export"
    code = f"import sys, collector.cli.main; print(*sorted(set({heavy.split()!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
