"""Files of defaults: ``.gprofng.rc`` as binutils' reader has them, ``.er.rc`` as the Performance Analyzer has them.

    ./.gprofng.rc           else ./.er.rc
    ~/.gprofng.rc           else ~/.er.rc
    /etc/gprofng.rc         of binutils; in $GPROFNG_SYSCONFDIR where that is set

Each line is a command; ``#`` begins a remark. Files are read in this order, each once. Of settings with one value the
first counts: the nearest file's, its first line's. Lists grow: ``dmetrics``, ``dsort``, ``addpath``, ``pathmap``,
``indxobj_define``. What is wrong with a line is said, and the others hold.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from collector.cli.commands.session import ALL, Session
from collector.errors import CollectorError, UsageError
from collector.experiment.names import shown

_NAMES = (".gprofng.rc", ".er.rc")
_QUOTED_OR_REMARK = re.compile(r""""[^"]*"|'[^']*'|(?<!\S)#""")
_SYSTEM_NAME, _SYSTEM_FOLDER = "gprofng.rc", "/etc"
_SIZE_MAX = 1 << 20  # a device or somebody's core file is no file of defaults

LISTS = ("dmetrics", "dsort", "addpath", "pathmap", "indxobj_define")
OBJECT_SETTINGS = ("object_show", "object_hide", "object_api")
SETTINGS = ("name", "viewmode", "compare", "printmode", "limit", "setpath", "scc", "dcc", "cc", "sthresh", "dthresh",
            "en_desc", "inlines", "debug_files")
IGNORED = ("preload_libdirs", "ignore_no_xhwcprof", "ignore_fs_warn", "tabs", "rtabs", "tlmode", "tldata", "rdtmode",
           "mobj_define", "stack_align", "machinemodel")
_AS_IT_IS = (("compare", "off"), ("addpath", "$expts:."), ("en_desc", "on"))  # said by the system's file
ALLOWED = (*LISTS, *OBJECT_SETTINGS, *SETTINGS, *IGNORED)


class Line(NamedTuple):
    """A line that says something, without its remark."""

    path: str
    number: int
    text: str

    @property
    def where(self) -> str:
        """For what is said of it."""
        return f"{self.path}: line {self.number}"


def files() -> list[Path]:
    """Those that are there, the nearest first."""
    folders = [Path(os.path.expanduser("~"))]
    with suppress(FileNotFoundError):  # it has been deleted
        folders.insert(0, Path.cwd())
    wanted = [*(next((folder / name for name in _NAMES if _is_file(folder / name)), None) for folder in folders),
              Path(os.environ.get("GPROFNG_SYSCONFDIR") or _SYSTEM_FOLDER, _SYSTEM_NAME)]
    found = {os.path.realpath(path): path for path in reversed(wanted) if path is not None and _is_file(path)}
    return list(found.values())[::-1]


def lines(path: Path) -> Iterator[Line]:
    """What a file says. Raises OSError."""
    with path.open("rb") as file:
        text = file.read(_SIZE_MAX).decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.splitlines(), 1):
        said = without_remark(line)
        if said:
            yield Line(str(path), number, said)


def command_of(line: Line) -> str | None:
    """The command of a line, which may be cut short as long as it stays unique among those allowed."""
    word = line.text.split()[0].removeprefix("-")
    found = [name for name in ALLOWED if name == word] or [name for name in ALLOWED if word and name.startswith(word)]
    return found[0] if len(found) == 1 else None


def without_remark(line: str) -> str:
    """Without what follows a ``#`` at the beginning of a word; one in quotes is none."""
    found = (one.start() for one in _QUOTED_OR_REMARK.finditer(line) if one[0] == "#")
    return line[:next(found, len(line))].strip()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


class Defaults:
    """What the lines of these files do to a session, file after file."""

    def __init__(self, session: Session, carry_out: Callable[[str], None], called: str = "er_print") -> None:
        """``carry_out(text)`` a command, what it prints left out; ``called``: who says which files hold."""
        self._session = session
        self._carry_out = carry_out
        self._called = called
        self._done: set[str] = set()  # settings, and load objects, that are decided

    def read(self) -> None:
        """Every file; what is wrong in them is added to the session's warnings."""
        for path in files():
            try:
                if path.name != _SYSTEM_NAME:
                    print(f"{self._called}: defaults of {shown(str(path))} hold", file=sys.stderr)
                for line in lines(path):
                    self._try(line)
            except OSError as err:
                self._session.warnings.append(f"{path}: {err.strerror}")

    def _try(self, line: Line) -> None:
        try:
            self._hold(line)
        except CollectorError as err:
            self._session.warnings.append(f"{line.where}: {err}")

    def _hold(self, line: Line) -> None:
        word, *rest = line.text.split(None, 1)
        name, text = command_of(line), "".join(rest)
        if name is None:
            raise UsageError(f"{word!r} is no command for files of defaults")
        if name in IGNORED or (name, text) in _AS_IT_IS:
            return
        if not text:
            raise UsageError(f"{name} needs an argument")
        if name in ("dmetrics", "dsort"):
            self._add(name, text)
        elif name in OBJECT_SETTINGS:
            self._set_objects(name, text)
        elif name == "indxobj_define":
            self._define(text)
        elif name in LISTS:
            self._carry_out(f"{name} {text}")
        else:
            self._set(("scc", "dcc") if name == "cc" else (name,), text)

    def _set(self, names: tuple[str, ...], text: str) -> None:
        for name in names:
            if name not in self._done:
                self._carry_out(f"{name} {text}")
                self._done.add(name)

    def _add(self, name: str, text: str) -> None:
        from collector.report.metrics import checked_default

        spec, *more = text.split()
        checked_default(name, spec)
        (self._session.default_metrics if name == "dmetrics" else self._session.default_sorts).append(spec)
        if more:
            raise UsageError(f"{name} {text}: {' '.join(more)!r} is left out; put colons between metrics")

    def _set_objects(self, name: str, text: str) -> None:
        """The first setting of a load object counts. They are not looked up: that would read all packets."""
        names = {os.fsencode(one) for one in text.split(",") if one}
        if os.fsencode(ALL) in names:
            raise UsageError(f"{name} {text}: name the load objects; all can be said on the command line only")
        for one in names:
            key = os.fsdecode(one.strip(b"<>"))
            if f"<{key}>" not in self._done:
                self._done.add(f"<{key}>")
                self._session.set_object(one, name.removeprefix("object_"))

    def _define(self, text: str) -> None:
        from collector.cli.commands.index import define
        from collector.report.query.language import parse

        name, *rest = text.split(None, 1)
        expression = "".join(rest).strip("'\"")
        if name not in self._session.index_objects:
            try:
                parse(expression)
            except UsageError as err:
                raise UsageError(f"indxobj_define {text}: {str(err).splitlines()[0]}") from err
            define(self._session, name, expression)
