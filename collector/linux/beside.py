"""Work beside ours, in a thread of its own; where a limit leaves no room for one more, it is done before we go on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class Beside:
    """Some work, which has begun."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread: Thread | None = Thread(target=work)
        try:
            self._thread.start()
        except RuntimeError:  # pids.max or RLIMIT_NPROC, which whom we record may have used up
            self._thread = None
            work()

    def is_done(self) -> bool:
        """Whether it is."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Returns when it is done."""
        if self._thread is not None:
            self._thread.join()
