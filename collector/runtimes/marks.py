"""How sure a frame of a managed runtime is, whatever its language. Pure."""

from __future__ import annotations

from collections.abc import Sequence

VERIFIED, TORN, UNKNOWN = range(3)


def remark(counts: Sequence[int], language: str) -> str:
    """How sure frames of a language are, by how many have each mark; empty if there are none."""
    _, torn, unknown = counts
    if not any(counts):
        return ""
    doubts = [f"{n} {what}" for n, what in ((torn, "torn"), (unknown, "unknown")) if n]
    return f"{sum(counts)} {language} frames" + (f" ({', '.join(doubts)})" if doubts else "")
