"""The environment that our caller gave us. Variables have been set since, for ourselves: by Python, where no locale was
chosen (PEP 538), and by us, for numpy. /proc has the environment as it was at our exec."""

from __future__ import annotations

import os

_SET_SINCE = b"LC_CTYPE", b"OPENBLAS_NUM_THREADS"


def changed() -> dict[bytes, bytes | None]:
    """What our caller gave us of the variables that may have been set since; None: it did not. Nothing where /proc does
    not tell."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    given = dict(entry.split(b"=", 1) for entry in reversed(entries) if b"=" in entry)  # of two the first one counts
    return {name: given.get(name) for name in _SET_SINCE}


def given() -> dict[bytes, bytes]:
    """What programs are to have that we start for our caller."""
    both: dict[bytes, bytes | None] = {**os.environb, **changed()}
    return {name: value for name, value in both.items() if value is not None}
