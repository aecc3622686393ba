"""What tracing tells, as lines of text in the form of the Performance Analyzer's er_print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from collector.clock import NS_PER_S
from collector.export.text import printable
from collector.report.traces import (
    ALLOCATED,
    ALLOCATIONS,
    ERROR_NS,
    ERRORS,
    LEAKED,
    LEAKS,
    OTHER_NS,
    OTHERS,
    READ_BYTES,
    READ_NS,
    READS,
    SIZE_CLASSES,
    WRITE_BYTES,
    WRITE_NS,
    WRITES,
    Peak,
    Sizes,
    Stack,
    Stacks,
)

_LABEL = 34


def leaks(found: Stacks, limit: int) -> Iterator[str]:
    """What was never released."""
    return _pieces(found, limit, "Leak", "Leaks", "Bytes Leaked", LEAKED, LEAKS)


def allocations(found: Stacks, limit: int) -> Iterator[str]:
    """What was allocated."""
    return _pieces(found, limit, "Allocation", "Allocations", "Bytes Allocated", ALLOCATED, ALLOCATIONS)


def _pieces(found: Stacks, limit: int, one: str, many: str, what: str, n_bytes: int, count: int) -> Iterator[str]:
    if not found.stacks:
        yield from (f"No {one.lower()} information", "")
        return
    yield (f"Summary Results: Distinct {many} = {len(found.stacks)}, Total Instances = {found.total[count]}, "
           f"Total {what} = {found.total[n_bytes]}")
    yield ""
    for number, stack in enumerate(found.stacks[:limit or None], 1):
        yield f"{one} #{number}, Instances = {stack.figures[count]}, {what} = {stack.figures[n_bytes]}"
        yield from (*_frames(stack), "")


def heap(found: Stacks, limit: int) -> Iterator[str]:
    """Both, stack by stack."""
    return _listed(found, limit, _heap_figures)


def io_stacks(found: Stacks, limit: int) -> Iterator[str]:
    """Input and output, stack by stack."""
    return _listed(found, limit, _io_figures)


def _listed(found: Stacks, limit: int, say: Callable[[Sequence[int]], Iterator[str]]) -> Iterator[str]:
    yield from ("<Total>", *say(found.total))
    for number, stack in enumerate(found.stacks[:limit - 1 if limit else None], 1):
        yield from ("", f"Stack {number}", *say(stack.figures), *_frames(stack))


def _frames(stack: Stack) -> Iterator[str]:
    return (f"  {printable(frame)}" for frame in stack.frames)


def _heap_figures(figures: Sequence[int]) -> Iterator[str]:
    for count, n_bytes, what in ((ALLOCATIONS, ALLOCATED, "Allocated"), (LEAKS, LEAKED, "Leaked")):
        if figures[count]:
            yield f"Instances = {figures[count]}  Bytes {what} = {figures[n_bytes]}"


def _io_figures(figures: Sequence[int]) -> Iterator[str]:
    for what, time_ns, n_bytes, count in (("Write", WRITE_NS, WRITE_BYTES, WRITES),
                                          ("Read", READ_NS, READ_BYTES, READS)):
        if figures[count]:
            yield (f"{what} Time={_seconds(figures[time_ns])} (secs.)  {what} Bytes={figures[n_bytes]}  "
                   f"{what} Count={figures[count]}")
    for what, time_ns, count in (("Other I/O", OTHER_NS, OTHERS), ("I/O Error", ERROR_NS, ERRORS)):
        if figures[count]:
            yield f"{what} Time={_seconds(figures[time_ns])} (secs.)  {what} Count={figures[count]}"


def heap_sizes(peak: Peak | None, allocated: Sizes | None, leaked: Sizes | None) -> Iterator[str]:
    """The peak, and how large the pieces were."""
    if peak:
        yield from ("", "Process With Highest Peak Memory Usage", "-" * 55, _said("Heap size bytes", peak.n_bytes),
                    _said("Experiment Id", peak.number), _said("Process Id", peak.pid))
        yield from (_said("Time of peak", f"{time_ns / NS_PER_S:.3f} (secs.)") for time_ns in peak.times_ns)
    if allocated:
        yield from ("", "Memory Allocations Statistics", "Allocation Size Range             Allocations          ",
                    "-" * 55, *_classes(allocated), "", _said("Smallest allocation bytes", allocated.smallest),
                    _said("Largest allocation bytes", allocated.largest), _said("Total allocations", allocated.count),
                    _said("Total bytes", allocated.total))
    if leaked:
        yield from ("", "Memory Leaks Statistics", "Leak Size Range                   Leaks              ", "-" * 55,
                    *_classes(leaked), "", _said("Smallest leaked bytes", leaked.smallest),
                    _said("Largest leaked bytes", leaked.largest), _said("Total leaked", f"{leaked.count} "),
                    _said("Total bytes", leaked.total))
    yield ""


def io_sizes(writes: Sizes | None, reads: Sizes | None, others: tuple[int, int],
             errors: tuple[int, int]) -> Iterator[str]:
    """How large the pieces were that were written and read, and how long it all took."""
    for sizes, what, longest, padding, rule in ((writes, "write", "Longest write", " " * 10, 55),
                                                (reads, "read", "Longest time", " " * 9, 54)):
        if sizes:
            heading = f"{'I/O Size Range'.ljust(_LABEL)}{what.title()} Calls{padding}"
            yield from ("", f"{what.title()} Statistics", heading, "-" * rule, *_classes(sizes), "",
                        _said(longest, f"{_seconds(sizes.longest_ns)} (secs.)"),
                        _said(f"Smallest {what} bytes", sizes.smallest), _said(f"Largest {what} bytes", sizes.largest),
                        _said("Total time", f"{_seconds(sizes.time_ns)} (secs.)"), _said("Total calls", sizes.count),
                        _said("Total bytes", sizes.total))
    for (time_ns, count), what in ((others, "Other I/O"), (errors, "I/O Error")):
        if count:
            yield from ("", f"{what} Statistics", "-" * 53, _said("Total time", f"{_seconds(time_ns)} (secs.)"),
                        _said("Total calls", f"{count} "))
    yield ""


def _classes(sizes: Sizes) -> Iterator[str]:
    return (f"  {name.ljust(_LABEL - 2)}{count}" for (name, _), count in zip(SIZE_CLASSES, sizes.classes, strict=True)
            if count)


def _said(label: str, value: object) -> str:
    return f"{label.ljust(_LABEL)}{value}"


def _seconds(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:.6f}"
