"""What a recording counts of itself: above all, what was lost or could not be told. Shown at the end, never hidden."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collector import errors
from collector.events import Array, LetGo
from collector.experiment.names import shown
from collector.unwind.batch import Stop
from collector.unwind.table import Counters
from collector.wording import many

# Beside the unwinder's reasons: the thread had no memory any more, in the middle of an exec or at its end.
GONE = max(Stop) + 1


# What the loss of some records means; their times are exact all the same.
_MEANING = {"leave": "stacks of threads that left their CPU too often, told by their last known stacks",
            "birth": "the makings of processes, which are told as forks",
            "map": "mappings that are read from /proc instead",
            "task": "births and ends of threads and processes",
            "touch": "page faults, of which text and data cannot be told apart",
            "waking": "wake-ups, which are told by their sum"}
_NAMED = 3  # processes that a line names
_SWITCHED_OUT = "process was switched out while it ended", "processes were switched out while they ended"


@dataclass(eq=False, repr=False)
class Tally:
    """Counters of one recording."""

    n_packets: int = 0
    n_samples: int = 0  # clock samples
    n_stacks: int = 0  # stacks unwound
    n_gone: int = 0  # stacks that the kernel could copy nothing of: in an exec, at the end, in a new page
    n_settled_ticks: int = 0  # ticks given for time that no clock sample stood for
    n_untold_ends: int = 0  # processes whose work behind their last event is not known
    n_guessed_ends: int = 0  # processes whose work there includes that of a stranger for a moment
    n_likely_ends: int = 0  # processes whose work there is taken to be that of others of their program
    counted_ns: int = 0  # for how long switches were counted, not recorded
    unmapped_ns: int = 0  # for how long mappings were read from /proc, not recorded
    n_estimated_ends: int = 0  # threads that ended then, with the rest of their times estimated
    n_estimated_waits: int = 0  # threads whose waits for a CPU are told as a part of their waits, as of others
    n_throttled: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    stops: Counter[Stop] = field(default_factory=Counter)
    unsampled_ns: int = 0  # running time of images that no sample fell into
    n_guessed_faults: int = 0  # waits for pages of which nothing told whether text or data was missing
    n_host_faults: int = 0  # waits for pages that a hypervisor had taken
    n_unknown_sites: int = 0  # switch-outs of which only the leaf is known
    n_borrowed_stacks: int = 0  # packets with the thread's last stack, since their own is unknown
    n_site_stacks: int = 0  # switch-outs with a stack that was seen at the same place
    n_lent_stacks: int = 0  # short waits for a CPU with the stack of another one of their thread
    steal_ns: int = 0  # for which a hypervisor had taken the CPU of running threads
    not_traced: list[str] = field(default_factory=list)  # processes that could not be, the first of them
    n_not_traced: int = 0
    n_unaggregated: int = 0  # values of keys for which an aggregation had no room
    n_code_frames: int = 0  # frames of code that a runtime made, named by its maps
    n_unnamed_frames: int = 0  # and those that no map names
    failures: list[str] = field(default_factory=list)  # of what could be done without
    n_repaired: int = 0  # switch records that are missing, by what came next

    def lost(self, source: str, count: int) -> None:
        """``count`` records of ``source`` did not reach us."""
        self.losses[source] += count

    def failed(self, what: str, err: Exception) -> None:
        """Something that could be done without has failed: it is told no longer, all else is."""
        import traceback
        place = traceback.extract_tb(err.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        self.failures.append(f"{what} are told no longer: {errors.reason(err)} ({where})")

    def let_go(self, change: LetGo) -> str:
        """A process could not be recorded; what that is called."""
        self.n_not_traced += 1
        line = f"process {change.pid} ({shown(os.fsdecode(change.program))}) {change.why}"
        if self.n_not_traced <= _NAMED:
            self.not_traced.append(line)
        return line

    def stacks(self, stop: Array) -> None:
        """How the unwinding of a batch ended."""
        self.n_stacks += len(stop)
        *counts, n_gone = np.bincount(stop, minlength=GONE + 1).tolist()
        self.n_gone += n_gone
        for reason, count in enumerate(counts):
            if count:
                self.stops[Stop(reason)] += count

    def completed(self, count: int) -> None:
        """The rest of ``count`` stacks that were cut short has been found."""
        self.stops[Stop.TRUNCATED] -= count
        self.stops[Stop.ROOT] += count

    def remarks(self) -> list[str]:
        """What a reader of the figures may want to know, though nothing is amiss."""
        lines = []
        if self.n_settled_ticks:
            ticks = many(self.n_settled_ticks, "tick stands", "ticks stand")
            lines.append(f"{ticks} for time between the last sample and the end of threads")
        if self.n_untold_ends:
            ends = many(self.n_untold_ends, *_SWITCHED_OUT)
            lines.append(f"{ends}: what was used of a CPU from there on is not counted")
        if self.n_likely_ends:
            ends = many(self.n_likely_ends, *_SWITCHED_OUT)
            lines.append(f"{ends}: what was used of a CPU from there on is estimated, as what others of the same "
                         "program used")
        if self.n_guessed_ends:
            ends = many(self.n_guessed_ends, "process had to leave its CPU for a moment while it ended",
                        "processes had to leave their CPU for a moment while they ended")
            lines.append(f"{ends}: what others used of it then, much less than a millisecond, is counted as "
                         f"{'its own' if self.n_guessed_ends == 1 else 'theirs'}")
        if self.counted_ns:
            lines.append(f"for {self.counted_ns / 1e9:.1f} s threads switched too often for a record of each: how long "
                         "they ran and waited is the kernel's account of it then, where they waited is sampled")
        if self.unmapped_ns:
            lines.append(f"for {self.unmapped_ns / 1e9:.1f} s executable memory was mapped too often for a record of "
                         "each: what was mapped is read from /proc then")
        if self.steal_ns:
            lines.append(f"for {self.steal_ns / 1e9:.2f} s the hypervisor let others have the CPU of running threads, "
                         "which waited for it")
        if self.n_site_stacks:
            waits = many(self.n_site_stacks, "switch-out is", "switch-outs are")
            lines.append(f"{waits} told with a stack that its thread had at the same place: too many for one of each")
        if self.n_lent_stacks:
            waits = many(self.n_lent_stacks, "short wait for a CPU is", "short waits for a CPU are")
            lines.append(f"{waits} told with the stack of another one, as much of a thread's waits for a CPU as clock "
                         "samples are of its time on one")
        if self.n_estimated_ends:
            lines.append(f"{many(self.n_estimated_ends, 'thread')} ended then: the last tenth of a second is estimated")
        if self.n_estimated_waits:
            lines.append(f"{many(self.n_estimated_waits, 'thread')} ended before the kernel's account was read, while "
                         "wake-ups came too often for a record of each: the time waited for a CPU is estimated, "
                         "as of others")
        n_gone = self.n_gone - self.losses["stack"]  # that found no room
        if n_gone > 0:
            stacks = many(n_gone, "stack is cut, of a thread", "stacks are cut, of threads")
            lines.append(f"{stacks} whose memory was not there: in an exec, at the end, or where a stack grew")
        return lines

    def warnings(self) -> list[str]:
        """A line for everything that is not as it should be."""
        lines = [f"{many(count, f'{source} record')} lost: "
                 f"{_MEANING.get(source, 'the collector was too slow for them')}"
                 for source, count in sorted(self.losses.items()) if count]
        lines += self.failures
        if self.not_traced:
            more = self.n_not_traced - len(self.not_traced)
            lines += self.not_traced
            lines += [f"{many(more, 'more process', 'more processes')} likewise"] if more else []
        if self.n_throttled:
            lines.append(f"the kernel throttled clock samples {many(self.n_throttled, 'time')}")
        broken = {stop: n for stop, n in self.stops.items() if stop is not Stop.ROOT and n}
        if broken:
            detail = ", ".join(f"{n} {stop.name.lower().replace('_', ' ')}" for stop, n in sorted(broken.items()))
            do = "does" if sum(broken.values()) == 1 else "do"
            lines.append(f"{sum(broken.values())} of {many(self.n_stacks, 'stack')} {do} not reach the root ({detail})")
        if self.unsampled_ns:
            lines.append(f"{self.unsampled_ns / 1e9:.3f} s of CPU time in processes too short for a sample")
        if self.n_unknown_sites:
            waits = many(self.n_unknown_sites, "wait with only its", "waits with only their")
            lines.append(f"{waits} leaf known")
        if self.n_unaggregated:
            values = many(self.n_unaggregated, "value is", "values are")
            lines.append(f"{values} in no aggregation, which had no room for more keys: "
                         "er_print -aggregations tells in which; a condition, or fewer keys, leave room")
        if self.n_repaired:
            lines.append(many(self.n_repaired, "switch record is missing", "switch records are missing"))
        if self.n_guessed_faults:
            waits = many(self.n_guessed_faults, "wait for a page", "waits for pages")
            lines.append(f"{waits} counted as data, though nothing told text from data")
        if self.n_host_faults:
            waits = many(self.n_host_faults, "wait for a page", "waits for pages")
            lines.append(f"{waits} that a hypervisor had taken, counted as data")
        return lines


def of_unwinding(counters: Counters) -> list[str]:
    """A line for everything that is not as it should be with call frame information, and stacks found without."""
    lines = []
    if counters.stacks_unproven:
        lines.append(many(counters.stacks_unproven,
                          "stack was found by searching for frame pointers, and is not proven",
                          "stacks were found by searching for frame pointers, and are not proven"))
    if counters.objects_damaged:
        lines.append(f"damaged call frame information in {many(counters.objects_damaged, 'load object')}")
    if counters.fdes_damaged:
        lines.append(f"damaged call frame information of functions, met {many(counters.fdes_damaged, 'time')}")
    if counters.expressions_unsupported:
        lines.append("expressions in call frame information that cannot be worked out, met "
                     + many(counters.expressions_unsupported, "time"))
    return lines
