"""Numbers in sentences."""

from __future__ import annotations


def many(count: int, one: str, more: str = "") -> str:
    """So many, in words that fit the number; ``more`` is by default that with an s: ``1 thread``, ``2 threads``."""
    return f"{count} {one if count == 1 else more or one + 's'}"
