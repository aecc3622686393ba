"""How often a program of ``workloads/states`` has napped, by what it says of itself."""

from __future__ import annotations

import json


def n_naps(said: str) -> int:
    """Of its one thread: a nap whose timer fires before the thread has left its CPU is none."""
    truth = json.loads(said)
    (thread,) = truth["threads"]
    return int(truth["turns"] - thread["n_awake"])
