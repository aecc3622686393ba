"""Recording running processes: from the command line to the closed experiment."""

from __future__ import annotations

from collector import interrupts
from collector.engines.perf import opening as perf_opening
from collector.engines.ptrace import opening
from collector.errors import EngineRefused
from collector.experiment import names
from collector.limits import raise_descriptor_limit
from collector.linux import own_proc
from collector.linux.crowd import Crowd
from collector.session import room
from collector.session.control import Signals, stopping
from collector.session.launch import keep_children
from collector.session.options import Options
from collector.session.session import (
    SIGNAL_TAKEN,
    Beside,
    OpenedEvents,
    Say,
    check_asked,
    enter_into_group,
    forgetting_replaced,
    import_all,
    nothing,
    run,
    told,
)


def attach(options: Options, say: Say, beside: Beside = nothing) -> int:
    """Records running processes until they end, the time is over, or we are told to stop; returns the exit status."""
    own_proc.check()
    raise_descriptor_limit()
    keep_children()
    Crowd().look()
    import_all()  # before there are events that would wait for it
    from collector.session.attach import Targets

    targets = Targets(options.pids, options.tree, say, dict(options.pidfds))
    if options.dry_run:
        path = names.choose(options.name, options.overwrite, options.directory, options.group)
        say(f"would attach to {', '.join(map(str, targets.pids))} and create experiment {str(path)!r}")
        return 0
    from collector.session.recording import Recording, engine_on

    place: names.NewDirectory | None = None
    opened: OpenedEvents = None
    try:
        place = names.prepare_directory(options.name, options.overwrite, options.directory, options.group)
        with room.kept_back():
            opened = told(targets.open(_Opener(options, say)) if options.interval_ns else None, say)
        check_asked(options, opened)
        if isinstance(opened, perf_opening.Opened):
            opened.ends_with_us = True
        engine = engine_on(opened)
        options = options._replace(arguments=targets.command_line())
        taken = targets.begin(engine)
        start_ns = taken[0].seen.until_ns
        signals = Signals(options.signals(stopping()), options.orders)
        interrupts.raise_noted()
        place.take_place()
        recording = Recording(options, place.path, targets.pids[0], engine, start_ns, targets.pidfds())
        recording.take_over(taken)
    except BaseException:
        if opened is not None:
            opened.close()
        if place is not None:
            place.remove()
        raise
    directory = place.path
    enter_into_group(options, directory, say)
    if options.verbose:
        say(f"experiment {directory}, attached to {', '.join(map(str, targets.pids))}, engine {recording.engine_text}")
    with beside(directory, start_ns), forgetting_replaced(place, say):
        is_well = run(recording, signals, say)
    return 0 if is_well and not recording.has_failed else 1


class _Opener:
    """Opens the engine asked for on running processes; once perf was refused, it stays with the other one."""

    def __init__(self, options: Options, say: Say) -> None:
        self._options = options
        self._say = say
        self._refusal = ""

    def __call__(self, pids: list[int]) -> perf_opening.Opened | opening.Opened:
        """Raises EngineRefused, TargetGone, OSError."""
        interval_ns, follow = self._options.interval_ns, self._options.follow != "off"
        if self._options.engine != "signal" and not self._refusal:
            try:
                return perf_opening.open_running(pids, interval_ns, follow=follow, asked=self._options.asked)
            except EngineRefused as err:
                if self._options.engine == "perf":
                    raise
                self._refusal = str(err)
                self._say(SIGNAL_TAKEN.format(self._refusal))
        reason = self._refusal or "asked for by --engine"
        return opening.open_attached(pids, interval_ns, follow=follow, reason=reason)
