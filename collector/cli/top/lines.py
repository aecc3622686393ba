"""What stands on the screen, line by line: text in pieces, each with its style. Names come last in their lines.

A name is anybody's: control characters, what turns the direction of writing, what has no width of its own and bytes
that are no UTF-8 become escapes; wide characters count as two; what does not fit is cut.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size

from collector.cli.top.settings import FUNCTIONS, STATES, THREADS, Settings
from collector.cli.top.shot import Shot
from collector.clock import NS_PER_S
from collector.export.text import printable, seconds
from collector.report.live import Figures
from collector.report.metrics import TOTAL, TOTAL_CPU, Metric
from collector.report.profile import I8

Line = list[tuple[str, str]]  # text, style
HEADING, TITLE, PLAIN, HOT, GRAPH, FAINT = "reverse", "bold", "", "bold", "green", "dim"
HOT_PERCENT = 10.0
_BARS = "▁▂▃▄▅▆▇█"
_NAME_BYTES = 4096
_NAME_WIDTH_MIN = 8
_N_SPARKS = 8  # intervals of a thread
_SHORT_STATES = (("user", (0,)), ("sys", (1,)), ("trap", (2,)), ("wait", (8,)), ("lock", (6,)), ("sleep", (7,)),
                 ("fault", (3, 4, 5)), ("stop", (9,)))
_RARE = ("fault", "stop")


class Column(NamedTuple):
    """A column of a table: ``values`` (n,) of all rows, for sorting; ``cell`` makes the text of a row."""

    title: str
    width: int
    values: I8
    cell: Callable[[int], str]


class Rows(NamedTuple):
    """A table: rows by number (n,) in their order, their columns and names; row -1 is the total."""

    order: Sequence[int]
    columns: list[Column]
    name: Callable[[int], str]
    title: str
    is_hot: Callable[[int], bool]


@lru_cache(maxsize=1 << 14)
def shown(name: bytes) -> str:
    """A name as one line of characters that have a width."""
    text = printable(name[:_NAME_BYTES])
    if text.isascii():
        return text
    return "".join(c if cell_len(c) and not unicodedata.combining(c) else c.encode("unicode_escape").decode()
                   for c in text)


def fitted(text: str, width: int) -> str:
    """At most ``width`` cells of a text in which every character has one at least."""
    if len(text) <= width and cell_len(text) <= width:
        return text
    return set_cell_size(text[:width], max(width - 1, 0)).rstrip(" ") + "…" * (width > 0)


def spark(values: Sequence[float], top: float) -> str:
    """A bar for each value, up to ``top``; blanks where there is nothing."""
    return "".join(" " if value <= 0 else _BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)]
                   for value in values) if top > 0 else " " * len(values)


# -- the lines above the table


def head(shot: Shot, settings: Settings, width: int) -> list[Line]:
    """Four lines: what, how much CPU, which states, what is shown."""
    figures = shot.figures(settings)
    length_s = max(figures.length_ns, 1) / NS_PER_S
    return [_what(shot, settings), _cpu(shot, figures, length_s, width),
            _states(figures, length_s), _shown_is(shot, settings, figures)]


def _what(shot: Shot, settings: Settings) -> Line:
    clock = _clock(shot.cumulative.length_ns)
    state = "paused" if settings.is_paused else "ended" if shot.is_over else "live"
    if shot.quiet_s > 5 and state == "live":
        state = f"nothing new for {shot.quiet_s:.0f} s"
    return [("er_top ", TITLE), (f"{shown(os.fsencode(shot.name))}  {clock}  {state}  pid {shot.pid}  ", PLAIN),
            (shown(shot.program), FAINT)]


def _clock(length_ns: int) -> str:
    minutes, rest_s = divmod(length_ns // NS_PER_S, 60)
    return f"{minutes // 60:d}:{minutes % 60:02d}:{rest_s:02d}"


def _cpu(shot: Shot, figures: Figures, length_s: float, width: int) -> Line:
    cores = _of(figures.total, TOTAL_CPU) / 1e6 / length_s
    text = f"CPU {cores:6.2f} cores "
    history = [_cores(length_ns, total) for length_ns, total in shot.history[-max(width - len(text) - 12, 1):]]
    top = max([1.0, *history])
    return [(text, TITLE), (spark(history, top), GRAPH), (f" max {top:.2f}" if history else "", FAINT)]


def _cores(length_ns: int, total: I8, metric: Metric = TOTAL_CPU) -> float:
    return _of(total, metric) * 1e3 / length_ns if length_ns > 0 else 0.0


def _of(total: I8, metric: Metric) -> float:
    return float(total[list(metric.states)].sum())


def _states(figures: Figures, length_s: float) -> Line:
    """How many threads were in each state, on the average; rare states where there are any, for 80 columns."""
    line: Line = [("Threads ", TITLE)]
    for name, states in _SHORT_STATES:
        number = float(figures.total[list(states)].sum()) / 1e6 / length_s
        if name in _RARE and not number:
            continue
        line += [(f" {name} ", FAINT), (f"{number:.2f}", PLAIN if number else FAINT)]
    return line


def _shown_is(shot: Shot, settings: Settings, figures: Figures) -> Line:
    when = "all of" if settings.is_cumulative or shot.window is shot.cumulative else "last"
    line: Line = [(f"{when} {figures.length_ns / NS_PER_S:.1f} s", TITLE)]
    active = int((figures.by_thread != 0).any(axis=1).sum())
    running = int((figures.by_thread[:, list(TOTAL_CPU.states)] != 0).any(axis=1).sum())
    processes = f"{shot.n_experiments} process{'es' * (shot.n_experiments != 1)}"
    threads = f"{active} thread{'s' * (active != 1)}"
    line.append((f", {threads}, {running} of them ran, {processes}", PLAIN))
    if settings.hides_idle:
        line.append(("  without idle ones", FAINT))
    if settings.search:
        line.append((f"  /{shown(settings.search.encode('utf-8', 'surrogateescape'))}", HOT))
    return line


# -- tables


def table(shot: Shot, settings: Settings) -> Rows:
    """The rows of the view, sorted."""
    return _TABLES[settings.view](shot, settings)


def _functions(shot: Shot, settings: Settings) -> Rows:
    figures, metric = shot.figures(settings), shot.metric(settings)
    states, n = list(metric.states), len(figures.functions)
    own, inclusive = figures.own[:n, states].sum(axis=1), figures.inclusive[:n, states].sum(axis=1)
    total = int(figures.total[states].sum())
    percent = 100 / total if total else 0.0

    def value(values: I8) -> Callable[[int], str]:
        return lambda row: seconds(int(values[row]) if row >= 0 else total)

    def share(values: I8) -> Callable[[int], str]:
        return lambda row: f"{(int(values[row]) if row >= 0 else total) * percent:.1f}"

    columns = [Column("Excl. s", 10, own, value(own)), Column("%", 6, own, share(own)),
               Column("Incl. s", 10, inclusive, value(inclusive)), Column("%", 6, inclusive, share(inclusive))]
    names = [function.name for function in figures.functions]
    some = _found(np.flatnonzero((own != 0) | (inclusive != 0)), names, settings)
    return Rows(_sorted(some, columns, names, settings, FUNCTIONS), columns,
                lambda row: shown(names[row]) if row >= 0 else "<Total>", f"{metric.title} by function",
                lambda row: row >= 0 and own[row] * percent >= HOT_PERCENT)


def _threads(shot: Shot, settings: Settings) -> Rows:
    figures = shot.figures(settings)
    n, length_us = len(figures.threads), max(figures.length_ns / 1e3, 1)
    weights, total = figures.by_thread[:n], figures.total
    in_seconds = settings.is_cumulative or shot.window is shot.cumulative

    def column(title: str, states: Sequence[int]) -> Column:
        values, all_ = weights[:, list(states)].sum(axis=1), int(total[list(states)].sum())
        return Column(f"{title} {'s' if in_seconds else '%'}", 10 if in_seconds else 8, values, lambda row: _amount(
            int(values[row]) if row >= 0 else all_, 0 if in_seconds else length_us))

    tids = np.array([one.tid for one in figures.threads], np.int64)
    cpu = column("CPU", TOTAL_CPU.states)
    rest = [("User", (0,)), ("Sys", (1, 2)), ("Wait", (8,)), ("Lock", (6,)), ("Sleep", (7,)), ("Fault", (3, 4, 5, 9))]
    columns = [Column("TID", 8, tids, lambda row: str(tids[row]) if row >= 0 else ""), cpu,
               *(column(title, states) for title, states in rest), _sparks(shot, n)]
    names = [_thread_name(one.name, one.pid, one.tid) for one in figures.threads]
    some = np.flatnonzero(cpu.values if settings.hides_idle else weights.any(axis=1))
    return Rows(_sorted(_found(some, names, settings), columns, names, settings, THREADS), columns,
                lambda row: shown(names[row]) if row >= 0 else "<Total>", "threads",
                lambda row: row >= 0 and cpu.values[row] * 100 / length_us >= HOT_PERCENT)


def _thread_name(name: bytes, pid: int, tid: int) -> bytes:
    return name if pid == tid else b"%s  (%d)" % (name, pid)


def _amount(value_us: int, length_us: float) -> str:
    """Seconds, or percent of a length."""
    return (f"{100 * value_us / length_us:.1f}" if value_us else "0. ") if length_us else seconds(value_us)


def _sparks(shot: Shot, n: int) -> Column:
    """How much of a core each thread had in the last intervals."""
    recent = shot.recent[-_N_SPARKS:]
    cores = np.zeros((n, len(recent)))
    for number, one in enumerate(recent):
        if one.length_ns > 0:
            mine = one.by_thread[:, list(TOTAL_CPU.states)].sum(axis=1)
            cores[one.threads, number] = mine * 1e3 / one.length_ns
    return Column("CPU", _N_SPARKS + 1, np.zeros(n, np.int64),
                  lambda row: spark(cores[row].tolist(), 1.0) if row >= 0 else "")


def _states_table(shot: Shot, settings: Settings) -> Rows:
    figures, metrics = shot.figures(settings), shot.metrics
    length_us, total = max(figures.length_ns / 1e3, 1), figures.total
    values = np.array([total[list(metric.states)].sum() for metric in metrics], np.int64)
    all_us = int(total[list(TOTAL.states)].sum())
    columns = [Column("Seconds", 12, values, lambda row: seconds(int(values[row]))),
               Column("%", 6, values, lambda row: f"{100 * values[row] / all_us:.1f}" if all_us else "0. "),
               Column("Threads", 9, values, lambda row: f"{values[row] / length_us:.2f}"),
               Column("", 26, values, lambda row: _state_spark(shot, metrics[row]))]
    return Rows(range(len(metrics)), columns, lambda row: "  " * metrics[row].level + metrics[row].title, "states",
                lambda row: False)


def _state_spark(shot: Shot, metric: Metric) -> str:
    history = [_cores(length_ns, total, metric) for length_ns, total in shot.history[-24:]]
    return spark(history, max(history, default=0.0))


_TABLES: dict[str, Callable[[Shot, Settings], Rows]] = {
    FUNCTIONS: _functions, THREADS: _threads, STATES: _states_table}


def _found(rows: I8, names: Sequence[bytes], settings: Settings) -> list[int]:
    """Those whose names hold what is searched for."""
    every: list[int] = rows.tolist()
    if not settings.search:
        return every
    wanted = settings.search.lower()
    return [row for row in every if wanted in shown(names[row]).lower()]


def _sorted(rows: Sequence[int], columns: Sequence[Column], names: Sequence[bytes], settings: Settings,
            view: str) -> list[int]:
    """By the column asked for, the largest first, then by name; the total is always the first."""
    place = settings.sort[view] % (len(columns) + 1)
    if place == len(columns):
        ordered = sorted(rows, key=lambda row: names[row])
    else:
        values = columns[place].values
        ordered = sorted(rows, key=lambda row: (-int(values[row]), names[row]))
    return [-1, *(ordered[::-1] if settings.is_reversed else ordered)]


def fitting(columns: list[Column], width: int) -> list[Column]:
    """On a narrow screen columns give way to the name; ``width`` 0: there is no end."""
    kept = list(columns)
    while width and len(kept) > 1 and sum(column.width for column in kept) + 2 + _NAME_WIDTH_MIN > width:
        kept.pop()
    return kept


def heading(rows: Rows, settings: Settings, width: int = 0) -> str:
    """The line above a table; the column it is sorted by is marked."""
    place = settings.sort[settings.view] % (len(rows.columns) + 1) if settings.view != STATES else -1
    cells = [f"{'*' * (number == place) + column.title:>{column.width}}"
             for number, column in enumerate(fitting(rows.columns, width))]
    return "".join(cells) + "  " + "*" * (place == len(rows.columns)) + "Name"


def row_line(rows: Rows, row: int, width: int = 0) -> Line:
    """A row; ``width`` 0: whatever it takes."""
    text = "".join(f"{column.cell(row):>{column.width}}" for column in fitting(rows.columns, width)) + "  "
    name = rows.name(row)
    return [(text, PLAIN), (fitted(name, width - len(text)) if width else name, HOT if rows.is_hot(row) else PLAIN)]


def cut(line: Line, width: int) -> Line:
    """As much of a line as fits."""
    kept: Line = []
    for text, style in line:
        if width <= 0:
            break
        text = fitted(text, width)
        kept.append((text, style))
        width -= cell_len(text)
    return kept
