"""Recording the kernel of the whole machine (-k kernel): from the command line to the closed experiment.

It lasts until the time is over (-t), the load that was given on the command line has ended, or we are told to stop. The
load is a program like any other here: what it does is in the kernel's experiment or, if it is followed, in its own.
"""

from __future__ import annotations

import os
import time

from collector import interrupts
from collector.engines.perf import opening as perf_opening
from collector.engines.perf.machine import open_machine
from collector.errors import EngineRefused
from collector.experiment import names
from collector.limits import raise_descriptor_limit
from collector.linux import own_proc
from collector.linux.kernel_symbols import shows_addresses
from collector.session import launch, room
from collector.session.control import Action, Signals, stopping
from collector.session.heir import Ids
from collector.session.options import Options
from collector.session.session import Beside, Say, enter_into_group, forgetting_replaced, import_all, nothing, run

STEM = "ktest"
_HIDDEN = ("-k kernel: the kernel does not show this user where its functions lie: run as root, with "
           "kernel.kptr_restrict below 2 (sudo sysctl kernel.kptr_restrict=1)")


def record_kernel(options: Options, say: Say, beside: Beside = nothing) -> int:
    """Records the machine; returns the exit status, which is the load's if there is one."""
    options = _named(options)
    program = launch.find_program(options.arguments[0]) if options.arguments else ""
    if options.dry_run:
        path = names.choose(options.name, options.overwrite, options.directory, options.group)
        say(f"would record the kernel on all CPUs{f', while {program!r} runs,' if program else ''} and create "
            f"experiment {str(path)!r}")
        return 0
    own_proc.check()
    if not shows_addresses():
        raise EngineRefused(_HIDDEN)
    import_all()
    from collector.session.kernel_recording import KernelRecording

    inherited = launch.inherited()
    launch.keep_children()
    raise_descriptor_limit()
    opened = _opened(options)
    try:
        place = names.prepare_directory(options.name, options.overwrite, options.directory, options.group)
        try:
            load = launch.HeldChild(program, options.arguments, inherited) if program else None
            handed_on = launch.HandedOn() if load is not None else None
            if handed_on is not None:
                handed_on.take_keys()
            # Those that end it are the load's, if there is one.
            signals = Signals(options.signals(stopping() if load is None else ()), options.orders)
            interrupts.raise_noted()
            start_ns = time.monotonic_ns()
            place.take_place()
            recording = KernelRecording(options, place.path, opened, start_ns, Ids.ours())
            if load is not None and handed_on is not None:
                load.make()
                launch.outlive_group()
                handed_on.hold(load.pid)
                load.release()
                handed_on.release(lambda: signals.ask(Action.STOP))
                recording.lasts_as_long_as(load.pid)
        except BaseException:
            place.remove()
            raise
    except BaseException:
        opened.close()
        raise
    directory = place.path
    enter_into_group(options, directory, say)
    if options.verbose:
        say(f"experiment {directory}, the kernel on all CPUs{f', process {load.pid}' if load is not None else ''}")
    with beside(directory, start_ns), forgetting_replaced(place, say):
        is_well = run(recording, signals, say)
    if load is None:
        return 0 if is_well and not recording.has_failed else 1
    return launch.exit_status(os.waitpid(load.pid, 0)[1] if recording.status is None else recording.status)


def _named(options: Options) -> Options:
    """With the name that experiments on the kernel have by themselves."""
    if options.name is not None or options.group is not None:
        return options
    return options._replace(name=f"{STEM}.1{names.SUFFIX}")


def _opened(options: Options) -> perf_opening.Opened:
    try:
        with room.kept_back():
            return open_machine(options.interval_ns, stacks=options.follow != "off")
    except EngineRefused as err:
        raise EngineRefused(f"-k kernel: {err}") from err
