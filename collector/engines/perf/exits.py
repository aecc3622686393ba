"""The accounts that the kernel tells of threads as they end, as columns; see ``linux.taskstats``."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.events import Array, Exits
from collector.linux import abi
from collector.linux.libc import Messages
from collector.linux.taskstats import MOST, SIZE, ExitMessages

_MESSAGE, _MOVED = (np.dtype({
    "names": list(fields),
    "formats": [kind for kind, _ in fields.values()],
    "offsets": [at for _, at in fields.values()],
    "itemsize": SIZE}) for fields in (abi.TASKSTATS, abi.TASKSTATS_MOVED))


class ExitAccounts:
    """Those of all threads of the machine of whose ends there are messages."""

    def __init__(self, told: ExitMessages) -> None:
        self._told = told
        self._messages = Messages(MOST, SIZE)
        self._rows: Any = np.frombuffer(self._messages.view, dtype=_MESSAGE)

    def read(self, read_ns: int) -> Exits | None:
        """What has come by a time, which is now; None where nobody has ended."""
        parts, n = [], len(self._rows)
        while n == len(self._rows) and (n := self._told.receive(self._messages)):
            parts.append(_columns(self._rows[:n]))
        if not parts:
            return None
        pid, tid, elapsed_us, run_ns, delay_ns, turns = np.concatenate(parts, axis=1)
        return Exits(pid, tid, 1000 * elapsed_us, run_ns, delay_ns, turns, read_ns)


def _columns(rows: Any) -> Array:
    """Those (6, n) of messages that tell of threads."""
    told = ((rows["command"] == abi.TASKSTATS_CMD_NEW) & (rows["of"] == abi.TASKSTATS_TYPE_AGGR_PID)
            & (rows["id"] == abi.TASKSTATS_TYPE_PID) & (rows["statistics"] == abi.TASKSTATS_TYPE_STATS))
    if (rows["version"] == abi.TASKSTATS_VERSION_MOVED).any():  # all are of one kernel
        rows = rows.view(_MOVED)
    columns = np.array([rows[name] for name in ("pid", "tid", "elapsed_us", "run_ns", "delay_ns", "turns")], np.int64)
    columns[0, rows["version"] < abi.TASKSTATS_VERSION_WITH_TGID] = -1
    return columns[:, told]
