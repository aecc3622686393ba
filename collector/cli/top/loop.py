"""Looking and showing, until somebody or something ends it.

Whatever that is: the terminal is given back first; then ``collect`` is asked to end, where we started it, and what is
left is read; what the program wrote to the terminal is copied there; last comes what it all adds up to.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from collector.cli import streams
from collector.cli.er_top import Options
from collector.cli.top import page, screen
from collector.cli.top.keys import Keys
from collector.cli.top.recorder import Recorder, SilentFailure
from collector.cli.top.settings import Settings
from collector.cli.top.shot import Shot, taken
from collector.cli.top.signals import Signals
from collector.clock import NS_PER_MS, NS_PER_S
from collector.errors import ExperimentError
from collector.report.live import Live

_STARTING_NS = 100 * NS_PER_MS  # between looks while there is no experiment yet
_LAST_ROWS = 10


class Loop:
    """One run of er_top."""

    def __init__(self, options: Options, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._keys = Keys(settings)
        self._is_text = options.is_batch or not screen.is_usable()
        self._signals = Signals(on_screen=not self._is_text)
        self._terminals = [fd for fd in (1, 2) if os.isatty(fd)]  # one that has hung up is none
        self._screen: screen.Screen | None = None
        self._recorder: Recorder | None = None
        self._live: Live | None = None
        self._shot: Shot | None = None
        self._n_looks = 0
        self._ends = False
        self._has_shown_end = False

    def run(self) -> int:
        """The exit status. Raises CollectorError."""
        options = self._options
        if options.path is not None:
            self._live = Live(options.path)
        else:
            self._recorder = Recorder(options.program, options.pid, options.name, options.collect,
                                      keeps_terminal=not self._is_text)
        try:
            return self._shown_and_ended()
        except SilentFailure as failure:
            return failure.status
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _shown_and_ended(self) -> int:
        try:
            if not self._is_text:
                self._screen = screen.Screen()
                self._screen.open()
            self._go_on()
        except OSError:
            if self._screen is None:  # a pipe that nobody reads
                raise
            self._signals.ended_by = self._signals.ended_by or signal.SIGHUP
        finally:
            if self._screen is not None:
                self._screen.close()
            if self._recorder is not None:
                is_closing = self._live is not None and self._live.is_over and not self._signals.ended_by
                self._recorder.end(self._signals.ended_by or signal.SIGTERM, is_closing=is_closing,
                                   is_late=self._say_that_we_wait)
        last = self._last_shot()
        if self._signals.ended_by == signal.SIGHUP:
            _leave(self._terminals)
        if self._recorder is not None:
            self._recorder.close()
        self._say_last(last)
        return self._status()

    def _say_that_we_wait(self) -> None:
        """To somebody who sits before a terminal that shows nothing any more."""
        if 2 in self._terminals and self._signals.ended_by != signal.SIGHUP:
            streams.say("er_top: collect closes the experiment, which may take some seconds")

    def _status(self) -> int:
        if self._recorder is not None and (self._recorder.is_started or not self._signals.ended_by):
            return self._recorder.status
        return 128 + self._signals.ended_by if self._signals.ended_by else 0

    def _last_shot(self) -> Shot | None:
        """What there is when everything has ended; None where that has been shown, or there is nothing."""
        if self._live is None or self._settings.is_paused:
            return None
        if self._recorder is not None:
            with suppress(ExperimentError):
                self._live.finish()
        is_shown = self._is_text and (self._has_shown_end or self._is_enough())
        return None if is_shown else taken(self._live, self._settings)

    def _say_last(self, last: Shot | None) -> None:
        if last is None:
            return
        settings = replace(self._settings, is_cumulative=True, first=0)
        limit = self._options.limit if self._is_text else _LAST_ROWS
        for line in page.snapshot(last, settings, self._views(), limit):
            print(line)

    def _views(self) -> tuple[str, ...]:
        return self._options.views or (self._settings.view,)

    # -- looking and waiting

    def _go_on(self) -> None:
        """Looks and shows until it ends."""
        due_ns = time.monotonic_ns()
        while not self._ends and not self._signals.ended_by:
            now_ns = time.monotonic_ns()
            if now_ns >= due_ns:
                self._look()
                due_ns = self._next_due_ns(due_ns)
                continue
            self._wait(due_ns - now_ns)

    def _next_due_ns(self, due_ns: int) -> int:
        """One that was missed is left out."""
        now_ns = time.monotonic_ns()
        if self._live is None:
            return now_ns + _STARTING_NS
        delay_ns = round(self._settings.delay_s * NS_PER_S)
        return max(due_ns + delay_ns, now_ns + delay_ns // 2)

    def _look(self) -> None:
        """Looks, and shows what there is then."""
        has_ended = self._recorder is not None and self._recorder.has_ended
        if self._live is None:
            self._begin()
        if self._live is not None:
            was_over = self._live.is_over
            if has_ended:
                self._live.finish()
            else:
                self._live.look()
            self._ends = has_ended or (self._live.is_over and (self._is_text or not was_over))
            self._show_new()
        elif has_ended:
            self._ends = True

    def _begin(self) -> None:
        """The experiment, as soon as there is one. Raises RecordingFailed."""
        if self._recorder is None:
            return
        self._recorder.check()
        with suppress(ExperimentError):
            self._live = Live(self._recorder.path)

    def _show_new(self) -> None:
        if self._live is None or not (self._live.has_begun or self._live.is_over):
            self._draw()
            return
        self._n_looks += 1
        if self._n_looks == 2:
            gc.freeze()  # modules and the first figures live as long as we do
        if self._shot is None or not self._settings.is_paused:
            self._shot = taken(self._live, self._settings)
        if not self._is_text:
            self._draw()
            self._ends |= bool(self._options.count) and self._n_looks > self._options.count
        elif (self._n_looks > 1 or self._live.is_over) and not (self._ends and self._recorder is not None):
            self._print(self._shot)
            self._ends |= self._is_enough()

    def _is_enough(self) -> bool:
        """Whether as many were shown as were asked for; the first look is that from which the first interval begins."""
        return bool(self._options.count) and self._n_looks > self._options.count

    def _print(self, shot: Shot) -> None:
        for line in page.snapshot(shot, self._settings, self._views(), self._options.limit):
            print(line)
        sys.stdout.flush()
        self._has_shown_end = shot.is_over

    def _draw(self, *, anew: bool = False) -> None:
        if self._screen is None:
            return
        width, height = self._screen.size
        if self._shot is None:
            text = "nothing is recorded yet: collect begins when a CPU is free, or after a second"
            self._screen.draw(page.waiting(text), anew=anew)
        else:
            self._screen.draw(page.screen(self._shot, self._keys, width, height), anew=anew)

    def _wait(self, length_ns: int) -> None:
        """Until then, or something happens, which is dealt with."""
        poller = select.poll()
        poller.register(self._signals.fd, select.POLLIN)
        keys_fd = self._screen.keys_fd if self._screen is not None else -1
        if keys_fd >= 0:
            poller.register(keys_fd, select.POLLIN)
        ends_fd = self._recorder.ends_fd if self._recorder is not None else -1
        if ends_fd >= 0:
            poller.register(ends_fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(max(length_ns, 0) / NS_PER_MS + 1)}
        if self._signals.fd in ready:
            self._signalled()
        if keys_fd in ready:
            self._typed()
        if ends_fd in ready:
            self._look()
            self._ends = True

    def _signalled(self) -> None:
        came = self._signals.take()
        if signal.SIGTSTP in came and self._screen is not None:
            self._screen.close()
            self._signals.stop()
            self._screen.open()
        if came & {signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP}:
            self._draw(anew=True)

    def _typed(self) -> None:
        if self._screen is None:
            return
        try:
            keys = self._screen.read_keys()
        except (EOFError, OSError):
            self._signals.ended_by = self._signals.ended_by or signal.SIGHUP
            return
        was_paused, window_s = self._settings.is_paused, self._settings.window_s
        for key in keys:
            self._keys.typed(key)
        self._ends |= self._keys.quits
        is_other = window_s != self._settings.window_s or (was_paused and not self._settings.is_paused)
        if is_other and self._live is not None:
            self._shot = taken(self._live, self._settings)
        self._draw(anew=self._keys.redraws)
        self._keys.redraws = False


def _leave(terminals: Sequence[int]) -> None:
    """Nobody reads what we write there any more."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in terminals:
        os.dup2(null, fd)
    os.close(null)
