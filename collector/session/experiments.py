"""The experiments of a recording: one for every image that is followed, from its birth to its end.

What is said of an image before its experiment exists is kept in a journal. So names can wait until the whole batch is
known: how a process was made is read off its maker's stack, which is unwound together with everything else. A process
that lived and died between two drains gets its experiment in one stroke, and nothing in the target waits for any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import numpy as np

from collector.events import Array
from collector.experiment import names
from collector.experiment.names import Lineage
from collector.experiment.recorder import Header, Recorder, Usage
from collector.processes.lineage import EXEC, FOUNDER, UNTOLD, Making
from collector.processes.process import Image
from collector.session.follow import Follow
from collector.session.recent import Recent
from collector.timing.ticks import N_STATES
from collector.wording import many

FOUNDERS = Lineage()
Said = ParamSpec("Said")
LABEL_EXEC = "suspend_for_exec"
LABEL_CLOSE = "collector_close_experiment"


@dataclass(slots=True, eq=False)
class Recorded:
    """An image (or, for a spawned process, its two) and its experiment; ``recorder`` is None until it has a name and
    for good if it is not followed."""

    image: Image
    start_ns: int
    parent: Recorded | None
    making: Making | None = None  # None: not told yet
    lineage: Lineage = FOUNDERS
    arguments: bytes = b"(fork)"
    parent_pid: int = 0
    recorder: Recorder | None = None
    journal: list[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    followed: bool = True
    counters: dict[str, int] = field(default_factory=dict)  # descendants so far, by letter
    adopted: bool = False  # a spawned process that has come to its new image
    end_ns: int | None = None
    end_label: str = LABEL_CLOSE
    state_ticks: Array = field(default_factory=lambda: np.zeros(N_STATES, dtype=np.int64))
    waited_ns: Array = field(default_factory=lambda: np.zeros(N_STATES, dtype=np.int64))  # exact, by state
    n_switches: Array = field(default_factory=lambda: np.zeros(2, dtype=np.int64))  # because it blocked, was preempted
    n_live_switches: Array = field(default_factory=lambda: np.zeros(2, dtype=np.int64))  # by the kernel's count
    n_counted_switches: int = 0  # of either kind, while they were not recorded
    ended_cpu_ns: int = 0  # of threads that have ended
    # Time of ended threads that no tick stands for yet, by state; running time as USER.
    pool_ns: Array = field(default_factory=lambda: np.zeros(N_STATES, dtype=np.int64))
    last: tuple[int, int, int, int] | None = None  # tid, cpu, uid, state of the last sample
    recent: Recent = field(default_factory=Recent)
    n_threads: int = 0
    earlier: list[int] = field(default_factory=list)  # numbers of images that it has gone on from

    @property
    def numbers(self) -> list[int]:
        """Those of all its images."""
        return [self.image.number, *self.earlier]

    def tell(self, what: Callable[Concatenate[Recorder, Said], None], *arguments: Said.args,
             **named: Said.kwargs) -> None:
        """Calls ``what``, a method of Recorder's, now or when there is a recorder."""
        if self.recorder is not None:
            what(self.recorder, *arguments, **named)
        elif self.followed:
            self.journal.append((what, arguments, named))

    def thread_started(self, tid: int, time_ns: int, name: bytes) -> None:
        """Threads are numbered in the order of these calls."""
        self.n_threads += 1
        self.tell(Recorder.thread_started, tid, time_ns, name)

    def threads_started(self, threads: Sequence[tuple[int, int]], name: bytes) -> None:
        """The same of several: their tids and times."""
        if self.recorder is None:
            for tid, time_ns in threads:
                self.thread_started(tid, time_ns, name)
            return
        self.n_threads += len(threads)
        self.recorder.threads_started(threads, name)


HeaderFor = Callable[[Recorded], Header]


class Experiments:
    """All experiments by image number. ``header_for`` makes a descendant's header when its time has come."""

    def __init__(self, founder: Path, follow: Follow, header_for: HeaderFor) -> None:
        self.follow = follow
        self.by_image: dict[int, Recorded] = {}
        self.recorders: dict[int, Recorder] = {}  # those that are open, by image number
        self.load_objects: dict[bytes, int] = {}  # of all that are closed: when each was mapped last
        self.n_made = 0
        self.has_failed = False  # a descendant's, by something else than the limit that was asked for
        self._n_failed = 0  # experiments of descendants that are not whole
        self._n_dropped = 0  # packets of theirs
        self._first_failure = ""
        self._founder_path = founder
        self._header_for = header_for
        self._pending: list[Recorded] = []
        self._ended: dict[Recorded, None] = {}  # in this order, and not closed yet
        self._went_on: dict[Recorded, None] = {}  # of which images are over

    def founder(self, image: Image, recorder: Recorder) -> Recorded:
        """Begins with the founder, whose experiment is there already."""
        recorded = Recorded(image, image.start_ns, None, FOUNDER, recorder=recorder)
        self.by_image[image.number] = recorded
        self.recorders[image.number] = recorder
        return recorded

    def go_on(self, recorded: Recorded, image: Image) -> None:
        """The same experiment goes on with another image; what is still to be said of the one before is told, too."""
        recorded.earlier.append(recorded.image.number)
        recorded.image = image
        self.by_image[image.number] = recorded
        self._went_on[recorded] = None
        if recorded.recorder is not None:
            self.recorders[image.number] = recorded.recorder

    def forked(self, parent: Recorded | None, image: Image) -> Recorded:
        """A new process; how it was made is told later. Of an unknown ``parent``, whose birth was lost, it is a
        descendant of the founder's all the same."""
        parent_pid = parent.image.pid if parent else 0
        return self._begin(Recorded(image, image.start_ns, parent or self.by_image.get(0), parent_pid=parent_pid))

    def attached(self, image: Image, lineage: str, arguments: bytes, parent_pid: int) -> Recorded:
        """A process that was found running, beside the founder."""
        recorded = Recorded(image, image.start_ns, self.by_image.get(0), Making("", "attach"), Lineage.named(lineage),
                            arguments, parent_pid)
        self.by_image[image.number] = recorded
        self._create(recorded)
        return recorded

    def executed(self, old: Recorded | None, image: Image, time_ns: int) -> Recorded:
        """A new image in a process that was ``old``, which ends here unless it was only born for this; if that is not
        known, it is a new process."""
        if old is None:
            return self.forked(None, image)
        self.end(old, time_ns, LABEL_EXEC)
        return self._begin(Recorded(image, time_ns, old, EXEC, parent_pid=old.parent_pid))

    def end(self, recorded: Recorded, time_ns: int, label: str = LABEL_CLOSE) -> None:
        """The image is over; its experiment is closed by ``close_ended``."""
        if recorded.end_ns is None:
            recorded.end_ns, recorded.end_label = time_ns, label
            self._ended[recorded] = None

    def open_pending(self, making_of: Callable[[int], Making | None]) -> None:
        """Names and creates what has begun since the last call; ``making_of`` a pid tells how it was made."""
        pending, self._pending = self._pending, []
        founder = self.by_image.get(0)
        below: dict[Recorded | None, list[Recorded]] = {}  # what has begun, by its parent
        for recorded in pending:
            below.setdefault(recorded.parent, []).append(recorded)
        for recorded in pending:
            if recorded.making is EXEC:
                self._name_exec(recorded, below)
            else:
                recorded.making = making_of(recorded.image.pid) or UNTOLD
                self._name_fork(recorded, below)
        for recorded in pending:  # who were its ancestors does not matter any more, and need not be kept
            recorded.parent = recorded.parent and founder

    def ended(self) -> list[Recorded]:
        """Those that are over and not closed yet."""
        return list(self._ended)

    def close_ended(self, usage_of: Callable[[Recorded, int], Usage]) -> None:
        """Closes the experiments of images that are over; the founder's stays open for what is said at the end."""
        ended, self._ended = self._ended, {}
        for recorded in ended:
            assert recorded.end_ns is not None
            usage = usage_of(recorded, recorded.end_ns)  # also of who is not recorded: nothing of him is kept
            if recorded.recorder is not None:
                self._close(recorded, recorded.recorder, usage)
            self.forget(recorded)

    def _close(self, recorded: Recorded, recorder: Recorder, usage: Usage) -> None:
        assert recorded.end_ns is not None
        for name, time_ns in recorder.load_objects.items():
            self.load_objects[name] = max(time_ns, self.load_objects.get(name, 0))
        if recorded.parent is None:
            recorder.sample(usage, recorded.end_ns, recorded.end_label)
        else:
            recorder.close(recorded.end_ns, recorded.end_label, usage)
            self._note_failure(recorder)
            recorded.recorder = None
            recorded.followed = False
        for number in recorded.numbers:
            self.recorders.pop(number, None)

    def failures(self) -> str:
        """A line about the descendants whose experiments are not whole; empty if all of them are."""
        if not self._n_failed:
            return ""
        are = "is not recorded to its end" if self._n_failed == 1 else "are not recorded to their end"
        dropped = many(self._n_dropped, "packet was dropped", "packets were dropped")
        return f"{self._n_failed} of {many(self.n_made, 'descendant')} {are} ({self._first_failure}): {dropped}"

    def _note_failure(self, recorder: Recorder) -> None:
        if recorder.stopped:
            self.has_failed |= recorder.failed
            self._n_failed += 1
            self._n_dropped += recorder.n_dropped
            self._first_failure = self._first_failure or str(recorder.stopped)

    def open_ones(self) -> list[Recorded]:
        """The experiments that go on, each once."""
        return [recorded for recorded in self._going_on() if recorded.recorder is not None]

    def left_out(self) -> list[Recorded]:
        """The images that go on and are not followed; what they execute may be."""
        return [recorded for recorded in self._going_on() if recorded.recorder is None]

    def _going_on(self) -> Iterable[Recorded]:
        return dict.fromkeys(recorded for recorded in self.by_image.values() if recorded.end_ns is None)

    def forget(self, recorded: Recorded) -> None:
        """Nothing will be said of an ended image any more."""
        if recorded.parent is not None:
            for number in recorded.numbers:
                self.by_image.pop(number, None)

    def forget_earlier(self) -> list[int]:
        """Nothing will be said any more of images that experiments have gone on from; their numbers."""
        gone = [number for recorded in self._went_on for number in recorded.earlier]
        for recorded in self._went_on:
            recorded.earlier.clear()
        self._went_on.clear()
        for number in gone:
            self.recorders.pop(number, None)
            if number:  # the founder is found by its first one
                self.by_image.pop(number, None)
        return gone

    def _begin(self, recorded: Recorded) -> Recorded:
        self.by_image[recorded.image.number] = recorded
        self._pending.append(recorded)
        return recorded

    def _name_fork(self, recorded: Recorded, below: dict[Recorded | None, list[Recorded]]) -> None:
        assert recorded.making is not None
        parent, letter = recorded.parent, recorded.making.letter
        number = 1
        if parent is not None:
            number = parent.counters[letter] = parent.counters.get(letter, 0) + 1
        recorded.lineage = (parent.lineage if parent else FOUNDERS).child(letter, number)
        if recorded.making.spawned:
            for new in below.get(recorded, ()):
                if new.making is EXEC:  # the same batch has its exec as well
                    recorded.arguments = new.arguments
                    self._adopt(recorded, new, below)
                    break
        self._create(recorded)
        if parent is not None:
            at = (recorded.start_ns, recorded.making.call, recorded.lineage.name, recorded.followed)
            parent.tell(Recorder.descendant_starting, *at)
            parent.tell(Recorder.descendant_started, *at, f"pid={recorded.image.pid}")

    def _name_exec(self, recorded: Recorded, below: dict[Recorded | None, list[Recorded]]) -> None:
        old = recorded.parent
        if recorded.adopted:
            return
        if old is not None and old.making is not None and old.making.spawned and not old.adopted:
            self._adopt_later(old, recorded, below)
            return
        recorded.lineage = (old.lineage if old else FOUNDERS).child("x", 1)
        self._create(recorded)
        if old is not None:
            old.tell(Recorder.exec_start, recorded.start_ns, EXEC.call, recorded.lineage.name, recorded.followed,
                     recorded.arguments or recorded.image.program)

    def _adopt_later(self, old: Recorded, new: Recorded, below: dict[Recorded | None, list[Recorded]]) -> None:
        """A spawned process goes on in its new image, in a batch behind that of its birth: by its new name it may be
        one that is followed, from then on."""
        if old.followed:
            old.tell(Recorder.comment, b"spawned: " + (new.arguments or new.image.program), new.start_ns)
            self._adopt(old, new, below)
            return
        old.followed, old.start_ns, old.arguments, old.n_threads = True, new.start_ns, new.arguments, 0
        self._adopt(old, new, below)
        old.n_threads = new.n_threads
        self._create(old)

    def _adopt(self, old: Recorded, new: Recorded, below: dict[Recorded | None, list[Recorded]]) -> None:
        """A spawned process goes on under its lineage in its new image."""
        old.adopted = new.adopted = True
        self.go_on(old, new.image)
        old.n_switches += new.n_switches  # of this batch
        old.n_counted_switches += new.n_counted_switches
        old.end_ns = None
        self._ended.pop(old, None)
        if new in self._ended:
            del self._ended[new]
            self.end(old, new.end_ns or 0, new.end_label)
        for child in below.pop(new, ()):
            child.parent = old
            below.setdefault(old, []).append(child)
        for what, arguments, named in new.journal:
            is_known = what is Recorder.thread_started and arguments[0] == new.image.pid and old.n_threads > 0
            old.tell(Recorder.thread_named if is_known else what, *arguments, **named)

    def _create(self, recorded: Recorded) -> None:
        recorded.followed = self.follow.wants(recorded.lineage.text, recorded.image.names())
        journal, recorded.journal = recorded.journal, []
        if not recorded.followed:
            return
        path = names.descendant_path(self._founder_path, recorded.lineage)
        founder = self.by_image[0].recorder if 0 in self.by_image else None
        recorded.recorder = Recorder.draft(path, self._header_for(recorded), founder=founder)
        self.recorders.update(dict.fromkeys(recorded.numbers, recorded.recorder))
        self.n_made += 1
        if recorded.lineage.is_cut:
            recorded.tell(Recorder.comment, f"lineage {recorded.lineage.text}", recorded.start_ns)
        for what, arguments, named in journal:
            recorded.tell(what, *arguments, **named)
