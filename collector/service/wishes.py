"""Which options of ``collect`` a client may give: those that say what is recorded, not where or by whose signals. Pure.

Their values are for ``collect`` to judge, in the session's process and with its rights.
"""

from __future__ import annotations

import getopt
from collections.abc import Sequence
from typing import NamedTuple

from collector.clock import INTERVAL_MAX_NS, NS_PER_US, format_ms, parse_interval
from collector.errors import UsageError

_SHORT = "p:S:t:L:F:A:a:C:"
_LONG = ("engine=", "tree", "aggregate=")
_NO_COPIES = ("-A", "off")
_SIZE_DIGITS = 6


class Wishes(NamedTuple):
    """The options without the interval, which is lengthened where the budget asks for it."""

    interval_ns: int
    options: tuple[str, ...]
    megabytes: int = 0  # -L; 0: none asked for

    @property
    def is_bounded(self) -> bool:
        """Whether it ends by itself at a time."""
        return "-t" in self.options

    def argv(self, stretched: float, megabytes: int, *, copies: bool) -> list[str]:
        """Of ``collect``, at most ``megabytes`` (0: no limit). ``copies``: whether it may copy files; what it reads
        with rights that its owner lacks, it may not."""
        interval_us = self._stretched_us(stretched)
        interval = ["-p", f"{interval_us}u" if interval_us else "off"]
        sizes = [size for size in (self.megabytes, megabytes) if size]
        limit = ["-L", str(min(sizes))] if sizes else []
        return [*interval, *self.options, *limit, *([] if copies else _NO_COPIES)]

    def _stretched_us(self, stretched: float) -> int:
        return min(round(self.interval_ns * stretched), INTERVAL_MAX_NS) // NS_PER_US

    def changed(self, stretched: float) -> str:
        """What is said of an interval that the budget has lengthened; empty where it has not."""
        interval_ns = self._stretched_us(stretched) * NS_PER_US
        if interval_ns <= self.interval_ns:
            return ""
        return f"every {format_ms(interval_ns)} ms instead of {self.interval}, to stay within the budget"

    @property
    def interval(self) -> str:
        """As text."""
        return f"{format_ms(self.interval_ns)} ms" if self.interval_ns else "off"


def parse(words: Sequence[str]) -> Wishes:
    """Raises UsageError with what is not among them."""
    try:
        pairs, rest = getopt.getopt(list(words), _SHORT, list(_LONG))
    except getopt.GetoptError as err:
        raise UsageError(f"{err.msg}: a session takes of collect's options -p -S -t -L -F -A -C --engine --tree "
                         "--aggregate") from None
    if rest:
        raise UsageError(f"{rest[0]}: a session takes options of collect, and no program")
    last = dict(pairs)
    size = last.get("-L", "0")
    if not size.isascii() or not size.isdigit() or len(size) > _SIZE_DIGITS:
        raise UsageError(f"-L {size}: give a size in MB from 1")
    return Wishes(parse_interval(last.get("-p", "on")),
                  tuple(word for name, value in pairs if name not in ("-p", "-L") for word in _words(name, value)),
                  int(size))


def _words(name: str, value: str) -> list[str]:
    if name.startswith("--"):
        return [f"{name}={value}" if value else name]
    return [name, value]
