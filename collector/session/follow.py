"""Which descendants are recorded: all, none, or those that a regular expression names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from collector.errors import UsageError


class Follow:
    """The choice of ``-F on|off|=REGEX``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.descendants = text != "off"
        self._pattern = self._compiled(text[1:]) if text.startswith("=") else None

    def wants(self, lineage: str, programs: Iterable[bytes]) -> bool:
        """Whether a descendant with this lineage that runs one of these (its names: path, comm) is recorded."""
        if self._pattern is None:
            return self.descendants
        names = [lineage.encode(), *(name.rpartition(b"/")[2] for name in programs)]
        return any(self._pattern.search(name) for name in names)

    @staticmethod
    def _compiled(pattern: str) -> re.Pattern[bytes]:
        try:
            return re.compile(pattern.encode("utf-8", "surrogateescape"))
        except re.error as err:
            raise UsageError(f"-F ={pattern}: not a regular expression: {err}") from None


def checked(text: str) -> str:
    """``text`` if -F can take it. Raises UsageError."""
    if text not in ("on", "off", "all") and not text.startswith("="):
        raise UsageError(f"-F {text}: give on, off, or =REGEX")
    Follow(text)
    return "on" if text == "all" else text
