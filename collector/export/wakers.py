"""Whose wake-ups ended whose waits, as a table."""

from __future__ import annotations

from collector.export.text import printable
from collector.report.wakers import AllWakes

_HEADS = ("Wake-ups", "Blocked", "Average", "State", "Waker", "Woken")
_UNITS = ("", "sec.", "ms", "", "", "")
_N_NUMBERS = 3  # of the columns, which stand to the right


def lines(wakes: AllWakes, limit: int = 0) -> list[str]:
    """A row for each waker, woken thread and state; ``limit`` of them, 0 for all."""
    rows = [(str(row.times), f"{row.blocked_ns / 1e9:.3f}", f"{row.blocked_ns / max(row.times, 1) / 1e6:.3f}",
             printable(row.state), _thread(row.waker, row.waker_tid), _thread(row.woken, row.woken_tid))
            for row in wakes.rows[:limit or None]]
    table = [_HEADS, _UNITS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_HEADS))]
    found = ["Wake-ups by the time of the waits that they ended", ""]
    found += ["  ".join(cell.rjust(width) if i < _N_NUMBERS else cell.ljust(width)
                        for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in table]
    if wakes.unseen_ns:
        found += ["", f"{wakes.unseen_ns / 1e9:.3f} s of waits were not seen one by one: who ended them is not known"]
    return found


def _thread(name: bytes, tid: int) -> str:
    return f"{printable(name)} ({tid})" if tid > 0 else printable(name)
