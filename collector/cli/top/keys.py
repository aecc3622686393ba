"""What keys do: each changes the settings. Some ask for a word, which is typed in the last line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from collector.cli.top.settings import DELAY_MAX_S, DELAY_MIN_S, FUNCTIONS, STATES, THREADS, WINDOW_MAX_S, Settings
from collector.errors import UsageError

HELP = """\
q           quit: ends a program started here, leaves a process attached to
f  t  s     functions, threads, states
m           functions by the next metric: CPU time, its parts, waits, ...
c           all since the start, or the last interval
w           the last SECONDS instead of the last interval
<  >        sort by the column to the left, to the right
R           the other way round
i           without threads that did not run
/           only names that hold a text; an empty one shows all again
space       pause and go on; what is recorded meanwhile is not lost
d           seconds between looks
up down     scroll, also page up, page down, home, end
h  ?        this text
Ctrl-L      draw everything anew"""
_ENTER, _ESCAPE, _ERASE = ("\r", "\n"), "\x1b", ("\x7f", "\b")
_PAGE = 20
_ROWS_MAX = 1 << 30


@dataclass
class Prompt:
    """A word that is being typed; ``take`` gets it as it is so far, and whether it is all. Raises UsageError."""

    question: str
    take: Callable[[str, bool], None]
    text: str = ""


class Keys:
    """Changes ``settings`` by what is typed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.prompt: Prompt | None = None
        self.quits = False
        self.redraws = False
        self._actions: dict[str, Callable[[], None]] = {
            "q": self._quit, "h": self._help, "?": self._help, "f": lambda: self._view(FUNCTIONS),
            "t": lambda: self._view(THREADS), "s": lambda: self._view(STATES), "c": self._cumulative,
            "m": self._metric, "i": self._idle, " ": self._pause, "d": self._ask_delay, "w": self._ask_window,
            "/": self._ask_search, "<": lambda: self._sort(-1), ">": lambda: self._sort(1), "R": self._reverse,
            "up": lambda: self._scroll(-1), "down": lambda: self._scroll(1), "page up": lambda: self._scroll(-_PAGE),
            "page down": lambda: self._scroll(_PAGE), "home": lambda: self._scroll(-_ROWS_MAX),
            "end": lambda: self._scroll(_ROWS_MAX), "\x0c": self._redraw}

    def typed(self, key: str) -> None:
        """A key."""
        self.settings.message = ""
        if self.prompt is not None:
            self._prompted(self.prompt, key)
        elif self.settings.shows_help:
            self.settings.shows_help = False
            self.quits = key == "q"
        elif key in self._actions:
            self._actions[key]()

    def _prompted(self, prompt: Prompt, key: str) -> None:
        if key == _ESCAPE:
            self.prompt = None
        elif key in _ENTER:
            self.prompt = None
            try:
                prompt.take(prompt.text, True)
            except UsageError as error:
                self.settings.message = str(error)
        else:
            prompt.text = prompt.text[:-1] if key in _ERASE else prompt.text + key * (len(key) == 1 and key >= " ")
            prompt.take(prompt.text, False)

    def _quit(self) -> None:
        self.quits = True

    def _help(self) -> None:
        self.settings.shows_help = True

    def _redraw(self) -> None:
        self.redraws = True

    def _view(self, view: str) -> None:
        self.settings.view, self.settings.first = view, 0

    def _cumulative(self) -> None:
        self.settings.is_cumulative = not self.settings.is_cumulative

    def _metric(self) -> None:
        self.settings.metric = 0 if self.settings.metric is None else self.settings.metric + 1
        self._view(FUNCTIONS)

    def _idle(self) -> None:
        self.settings.hides_idle = not self.settings.hides_idle

    def _pause(self) -> None:
        self.settings.is_paused = not self.settings.is_paused

    def _sort(self, step: int) -> None:
        self.settings.sort[self.settings.view] += step

    def _reverse(self) -> None:
        self.settings.is_reversed = not self.settings.is_reversed

    def _scroll(self, rows: int) -> None:
        self.settings.first = max(self.settings.first + rows, 0)

    def _ask_delay(self) -> None:
        def take(text: str, is_all: bool) -> None:
            if is_all and text:
                self.settings.delay_s = seconds("delay", text, DELAY_MIN_S, DELAY_MAX_S)

        self.prompt = Prompt(f"seconds between looks [{self.settings.delay_s:g}]: ", take)

    def _ask_window(self) -> None:
        def take(text: str, is_all: bool) -> None:
            if is_all:
                self.settings.window_s = seconds("window", text, 0, WINDOW_MAX_S) if text else 0.0
                self.settings.is_cumulative = False

        self.prompt = Prompt("show the last ... seconds (nothing: the last interval): ", take)

    def _ask_search(self) -> None:
        def take(text: str, is_all: bool) -> None:
            self.settings.search, self.settings.first = text, 0

        self.prompt = Prompt("/", take)
        self.settings.search = ""


def seconds(what: str, text: str, low: float, high: float) -> float:
    """A number of seconds. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise UsageError(f"{what} {text}: give seconds from {low:g} to {high:g}")
    return value
