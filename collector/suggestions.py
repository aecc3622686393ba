"""What somebody may have meant who wrote a name that there is not."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES_MAX = 3
_LIKE = 0.6  # of 1, that two names have in common


def meant(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'work' or 'worker'?``: the names most like ``word``; empty where none is."""
    from difflib import get_close_matches

    wanted = word.lower()
    by_lower = {one.lower(): one for one in known if one}
    like = get_close_matches(wanted, by_lower, _NAMES_MAX, _LIKE)
    within = sorted((one for one in by_lower if len(wanted) > 1 and wanted in one), key=lambda one: (len(one), one))
    found = [repr(by_lower[one]) for one in dict.fromkeys([*like, *within])][:_NAMES_MAX]
    return f"; did you mean {' or '.join(found)}?" if found else ""
