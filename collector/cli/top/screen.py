"""The terminal: taken over, drawn on, given back as it was. Whatever ends us, ``close`` is called.

Lines are drawn where they belong, each by itself and only if it has changed, and the terminal breaks none: one whose
width it sees otherwise than we do spoils nothing but itself.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.style import Style

from collector.cli.top.lines import Line, cut

_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_ERASE_TO_END = 0
_READ = 4096
# What keys send besides characters; a lone ESC is one.
_SEQUENCES = {"[A": "up", "[B": "down", "[5~": "page up", "[6~": "page down", "[H": "home", "[F": "end", "OA": "up",
              "OB": "down", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end"}


def is_usable() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


class Screen:
    """The terminal of standard output, with the keys of standard input or, if that is none, of /dev/tty."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._keys = self._keyboard()
        self._before = termios.tcgetattr(self._keys) if self._keys >= 0 else None
        self._drawn: list[Line] = []
        self._is_open = False

    @staticmethod
    def _keyboard() -> int:
        if sys.stdin is not None and sys.stdin.isatty():
            return sys.stdin.fileno()
        with suppress(OSError):
            return os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        return -1

    @property
    def keys_fd(self) -> int:
        """What becomes readable with a key; -1: there are no keys."""
        return self._keys

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        with suppress(OSError):
            size = os.get_terminal_size(sys.stdout.fileno())
            if size.columns and size.lines:
                return size.columns, size.lines
        return 80, 24

    def open(self) -> None:
        """Take the terminal over. Raises OSError."""
        self._is_open = True
        if self._before is not None:
            input_, output, control, local, *rest = self._before
            termios.tcsetattr(self._keys, termios.TCSANOW,
                              [input_, output, control, local & ~(termios.ICANON | termios.ECHO), *rest])
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        sys.stdout.write(_NO_WRAP)
        sys.stdout.flush()
        self._drawn = []

    def close(self) -> None:
        """Give it back. A terminal that has gone is no error."""
        if not self._is_open:
            return
        self._is_open = False
        with suppress(OSError):
            sys.stdout.write(_WRAP)
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
            sys.stdout.flush()
        if self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._before)

    def draw(self, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Show these lines, and nothing else. Raises OSError."""
        columns, rows = self.size
        wanted = [cut(line, columns) for line in lines[:rows]]
        wanted += [[] for _ in range(rows - len(wanted))]
        if anew or len(self._drawn) != rows:
            self._drawn = []
            self._console.control(Control((ControlType.CLEAR,)))
        segments: list[Segment] = []
        for number, line in enumerate(wanted):
            if self._drawn and self._drawn[number] == line:
                continue
            segments += [Control.move_to(0, number).segment, *(Segment(text, _style(style)) for text, style in line),
                         Control((ControlType.ERASE_IN_LINE, _ERASE_TO_END)).segment]
        if segments:
            self._console.print(Segments(segments), end="", crop=False, no_wrap=True)
        self._drawn = wanted
        sys.stdout.flush()

    def read_keys(self) -> list[str]:
        """The keys that were typed: characters, and names of others. Raises EOFError where none can come any more."""
        data = os.read(self._keys, _READ)
        if not data:
            raise EOFError
        return keys_of(data.decode("utf-8", "replace"))


def keys_of(text: str) -> list[str]:
    """``a\\x1b[A`` -> ``["a", "up"]``; sequences that are not known are left out."""
    keys, rest = [], text
    while rest:
        if rest[0] == "\x1b" and rest[1:2] in ("[", "O"):
            end = next((i for i, c in enumerate(rest[2:], 2) if "@" <= c <= "~"), len(rest) - 1)
            keys.append(_SEQUENCES.get(rest[1:end + 1], ""))
            rest = rest[end + 1:]
        else:
            keys.append(rest[0])
            rest = rest[1:]
    return [key for key in keys if key]


_STYLES: dict[str, Style] = {}


def _style(text: str) -> Style | None:
    if not text:
        return None
    if text not in _STYLES:
        _STYLES[text] = Style.parse(text)
    return _STYLES[text]
