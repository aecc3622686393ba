"""A program that is started and recorded: from the command line to the closed experiment.

Before the target runs: names, directory, child, events; standard library only. While it runs: everything else is
imported, and the rings are drained now and then. Afterwards: the last drain, the closing lines, the archives.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from collector import interrupts
from collector.clock import format_ms
from collector.engines.perf import opening as perf_opening
from collector.errors import CollectorError, EngineRefused, ExperimentError, UsageError, reason
from collector.experiment import names
from collector.limits import raise_descriptor_limit
from collector.linux import own_proc
from collector.linux.crowd import Crowd
from collector.linux.perf import Birth
from collector.session import launch, room
from collector.session.control import Action, Signals
from collector.session.heir import Heir
from collector.session.options import Options
from collector.session.standing_back import standing_back

# What only some recordings need is imported where they do: the target waits for every module here.
if TYPE_CHECKING:
    from collector.engines.ptrace import opening
    from collector.session.recording import Recording
    from collector.session.runner import Stepper

Say = Callable[[str], None]
WAKERS_UNTOLD = ("--aggregate: who wakes whom is told by the tracepoint sched:sched_waking, which root may read: run "
                 "as root, with the perf engine, and not in a container with thread numbers of its own")
CALLS_UNTOLD = ("--aggregate: in which system call a thread waits is told by call chains of the kernel, whose "
                "addresses root sees: run as root, with the perf engine (and sysctl kernel.kptr_restrict below 2)")
KERNEL_UNTOLD = ("-k on: the kernel does not show this user its part of stacks, or where its functions lie: sudo "
                 "sysctl kernel.perf_event_paranoid=1 kernel.kptr_restrict=0, or run as root (kptr_restrict below 2)")
KERNEL_UNSEEN = ("-k on: perf events are refused, and the signal engine does not see the kernel's part of stacks; run "
                 "as root, or without -k")
# What goes on beside a recording in a directory that began at a time (CLOCK_MONOTONIC), until it is closed.
Beside: TypeAlias = Callable[[Path, int], AbstractContextManager[None]]
SIGNAL_TAKEN = "engine signal, right within a few per cent, since {}"
OpenedEvents: TypeAlias = "perf_opening.Opened | opening.Opened | None"


def nothing(directory: Path, start_ns: int) -> AbstractContextManager[None]:
    """Nothing goes on beside."""
    return nullcontext()


def record(options: Options, say: Say, beside: Beside = nothing) -> int:
    """Runs the target and records it; returns the exit status of the command."""
    own_proc.check()
    program = launch.find_program(options.arguments[0])
    if room.is_scarce():
        import_all()
    place, made = _make_directory(options, say)
    inherited = launch.inherited()
    launch.keep_children()
    try:
        child = launch.HeldChild(program, options.arguments, inherited)
        handed_on = launch.HandedOn()
        try:
            raise_descriptor_limit()
            with room.kept_back():
                opened = _open_engine(child, options, say)
                check_asked(options, opened)
            handed_on.take_keys()
            launch.outlive_group()
            interrupts.raise_noted()
        except BaseException:
            child.abandon()
            raise
        start_ns = time.monotonic_ns()
        signals = Signals(options.signals(), options.orders)
        if isinstance(opened, perf_opening.Opened):
            opened.ends_with_us = True
            opened.guard(child.pid)
        handed_on.hold(child.pid)
        before = child.release()
        if isinstance(opened, perf_opening.Opened):
            opened.before = before
    except BaseException:
        place.remove()
        raise
    handed_on.release(lambda: signals.ask(Action.STOP))
    status = None
    try:
        place.take_place()
    except ExperimentError as err:
        place.remove()
        _let_go_on(options, say, opened, err)
    else:
        founder = place.path.parent if made else None
        with beside(place.path, start_ns):
            status = _recorded(options, say, place, child.pid, opened, signals, start_ns, founder)
    return launch.exit_status(os.waitpid(child.pid, 0)[1] if status is None else status)


@contextmanager
def forgetting_replaced(place: names.NewDirectory, say: Say) -> Iterator[None]:
    """An older experiment in the place of one that is recorded goes beside what goes on: it may have thousands of
    descendants, and rings do not wait."""
    if not place.replaces:
        yield
        return
    from threading import Thread

    refusals: list[ExperimentError] = []

    def forget() -> None:
        try:
            place.forget_replaced()
        except ExperimentError as err:
            refusals.append(err)

    beside = Thread(target=forget, name="forget")
    finish: Callable[[], None] = beside.join
    try:
        beside.start()
    except RuntimeError:  # there can be no thread
        finish = forget
    try:
        yield
    finally:
        finish()
        for err in refusals:
            say(f"warning: {err}")


def _make_directory(options: Options, say: Say) -> tuple[names.NewDirectory, bool]:
    """The directory to record into, and whether the MPI job's founder around it is new and ours to fill."""
    if not options.mpi:
        return names.prepare_directory(options.name, options.overwrite, options.directory, options.group), False
    from collector.session import mpi

    rank = mpi.rank()
    founder, made = names.join_founder(rank.job, options.name, options.overwrite, options.directory)
    with forgetting_replaced(founder, say):
        pass
    return names.NewDirectory(names.create_rank_directory(founder.path, rank.number)), made


def import_all() -> None:
    """The larger part of ourselves, which takes its time, beside many threads a long one. Raises CollectorError where
    there is no room for it, and what else keeps libraries from being loaded."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's, which would start threads that we have no work for
    if room.is_scarce() and "numpy" not in sys.modules:
        room.check_libraries()
    from collector.session import attach, recording, runner  # noqa: F401


def dry_run(options: Options) -> list[str]:
    """What ``record`` would do, in lines; nothing is created."""
    program = launch.find_program(options.arguments[0])
    path = names.choose(options.name, options.overwrite, options.directory, options.group)
    interval = format_ms(options.interval_ns)
    clock = f"clock profiling every {interval} ms" if options.interval_ns else "no clock profiling"
    period = f"every {options.sample_period_s} s" if options.sample_period_s else "only at start and end"
    lines = [f"would run {program!r} with {len(options.arguments) - 1} arguments",
             f"would create experiment {str(path)!r}{' (overwriting it)' if options.overwrite else ''}",
             f"{clock}; overview samples {period}; archive {options.archive}"]
    lines += [f"would export it as {name}" for name, _ in options.exports]
    return lines + ([f"would add it to group {options.group!r}"] if options.group else [])


def _open_engine(child: launch.HeldChild, options: Options, say: Say) -> OpenedEvents:
    """The engine asked for, opened for a held child, which is made here."""
    if not options.interval_ns:
        child.make()
        return None
    follow, why = options.follow != "off", "asked for by --engine"
    if options.engine != "signal":
        try:
            whose = Birth(child.maker_tid, child.make) if follow else [child.make()]
            return told(perf_opening.open_events(whose, options.interval_ns, on_exec=True, follow=follow,
                                              asked=options.asked), say)
        except EngineRefused as err:
            if options.engine == "perf":
                raise
            why = str(err)
            say(SIGNAL_TAKEN.format(why))
    from collector.engines.ptrace import opening

    pid = child.pid or child.make()
    child.await_traceable()
    return opening.open_held(pid, options.interval_ns, follow=follow, reason=why)


def check_asked(options: Options, opened: OpenedEvents) -> None:
    """Raises UsageError where the events do not tell what aggregations ask for."""
    perf = opened if isinstance(opened, perf_opening.Opened) else None
    if "waker" in options.asked and not (perf and perf.tells_wakers):
        raise UsageError(WAKERS_UNTOLD)
    if "syscall" in options.asked and not (perf and perf.tells_kernel):
        raise UsageError(CALLS_UNTOLD)
    if options.kernel and not (perf and perf.tells_kernel):
        raise UsageError(KERNEL_UNTOLD if perf else KERNEL_UNSEEN)


def told(opened: OpenedEvents, say: Say) -> OpenedEvents:
    """``opened``, having said what it does not see."""
    if isinstance(opened, perf_opening.Opened) and opened.limits:
        say(f"engine perf, {opened.limits}")
    return opened


def _recorded(options: Options, say: Say, place: names.NewDirectory, pid: int, opened: OpenedEvents,
              signals: Signals, start_ns: int, new_founder: Path | None) -> int | None:
    """Everything from the target's first instruction on. Whatever fails, the target runs on; returns its wait status,
    None where it has not been waited for.
    """
    directory = place.path
    heir = Heir(opened if isinstance(opened, perf_opening.Opened) and _may_come_late(options, opened) else None, pid)
    try:
        recording = _begun(options, directory, pid, opened, start_ns, heir)
        if heir.is_us:
            recording.close()
            with suppress(ExperimentError):
                place.forget_replaced()
            os._exit(0)
        if new_founder is not None:
            from collector.session import mpi

            mpi.fill_founder(new_founder, options, pid, start_ns)
    except Exception as err:  # of whatever kind: the program runs
        if heir.is_us:
            os._exit(1)
        heir.see_off()
        place.remove()
        _let_go_on(options, say, opened, err)
        return None
    enter_into_group(options, directory, say)
    if options.verbose:
        say(f"experiment {directory}, process {pid}, engine {recording.engine_text}")
    with forgetting_replaced(place, say):
        run(recording, signals, say)
    heir.see_off()
    return recording.status


def _may_come_late(options: Options, opened: perf_opening.Opened) -> bool:
    """Whether records tell of waits, which we need not look at while they last; nobody asked for overview samples at
    certain moments; and nothing is to be said to others, which an heir would not know of: a group, the ranks of an MPI
    job."""
    is_asked_for = options.sample_period_s not in (0, Options().sample_period_s)
    return opened.kernel and not (is_asked_for or options.group or options.mpi)


def _begun(options: Options, directory: Path, pid: int, opened: OpenedEvents, start_ns: int, heir: Heir) -> Recording:
    gc.disable()
    is_read = {"python": options.python, "java": options.java, "node": options.js}
    is_looked_at = options.asks_for_moments or any(is_read[one] for one in launch.runtimes_of(options.arguments[0]))
    with nullcontext() if is_looked_at else standing_back(pid, opened, start_ns, heir):
        import_all()
        from collector.session.recording import Recording, engine_on
    Crowd().look()

    gc.freeze()  # modules live as long as we do: nothing to collect, now or at the end
    gc.enable()
    if heir.is_us:
        names.begin_again(directory)
    return Recording(options, directory, pid, engine_on(opened), start_ns, heir.pidfds, heir)


def enter_into_group(options: Options, directory: Path, say: Say) -> None:
    """Lists the experiment in the group that was asked for. Recording goes on where it can be written no more."""
    if options.group:
        try:
            names.add_to_group(options.group, directory, options.directory)
        except ExperimentError as err:
            say(f"warning: {err}; the experiment is not in that group")


def run(recording: Stepper, signals: Signals, say: Say) -> bool:
    """Records until the end, and says what is to be said of it. A fault of ours is told, and not the target's; returns
    whether there was none."""
    from collector.session.runner import Observer, Runner
    is_well = True

    def failed(err: Exception) -> None:
        nonlocal is_well
        is_well = False
        _trace(err)
        say(f"{reason(err)}; recording ends here")

    runner = Runner(signals)
    runner.add(recording, Observer(say, failed))
    try:
        runner.run()
    except Exception as err:
        failed(err)
    gc.freeze()
    return is_well


def _let_go_on(options: Options, say: Say, opened: OpenedEvents, why: Exception) -> None:
    """The target is not recorded any more."""
    _trace(why)
    say(f"{reason(why)}; nothing more is recorded, {options.arguments[0]} runs on")
    with suppress(Exception):
        _let_go(opened)


def _let_go(opened: OpenedEvents) -> None:
    """Nobody takes what the events would tell."""
    if isinstance(opened, perf_opening.Opened):
        opened.rings.disable()
    elif opened is not None:
        opened.close()


def _trace(err: Exception) -> None:
    """Where something failed that no user can mend."""
    if not isinstance(err, CollectorError | OSError | MemoryError | ImportError):
        with suppress(OSError):
            import traceback

            traceback.print_exception(err)
