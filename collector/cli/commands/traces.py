"""What was traced: memory, input and output."""

from __future__ import annotations

from collector.cli.commands.session import Session, lines
from collector.report.documents import Document

_NO_HEAP = "Heap trace information was not requested when recording experiments"
_NO_IO = "I/O trace information was not requested when recording experiments"


def leaks(session: Session) -> Document:
    """What was allocated and never released, by call stack."""
    from collector.export.traces import leaks
    from collector.report.traces import LEAKED, LEAKS, heap_stacks

    if not _has(session, "heaptrace"):
        return lines("leaks", ["", _NO_HEAP, ""])
    return lines("leaks", leaks(heap_stacks(session.data, (LEAKED, LEAKS)), session.limit))


def allocs(session: Session) -> Document:
    """What was allocated, by call stack."""
    from collector.export.traces import allocations
    from collector.report.traces import ALLOCATED, ALLOCATIONS, heap_stacks

    if not _has(session, "heaptrace"):
        return lines("allocs", ["", _NO_HEAP, ""])
    return lines("allocs", allocations(heap_stacks(session.data, (ALLOCATED, ALLOCATIONS)), session.limit))


def heap(session: Session) -> Document:
    """Allocations and leaks together, by call stack."""
    from collector.export.traces import heap
    from collector.report.traces import ALLOCATED, LEAKED, heap_stacks

    if not _has(session, "heaptrace"):
        return lines("heap", [_NO_HEAP, ""])
    return lines("heap", heap(heap_stacks(session.data, (LEAKED, ALLOCATED), every=True), session.limit))


def heapstat(session: Session) -> Document:
    """The peak of memory in use, and how large the pieces were."""
    from collector.export.traces import heap_sizes as text
    from collector.report.traces import heap_sizes

    return lines("heapstat", text(*heap_sizes(session.data)) if _has(session, "heaptrace") else [_NO_HEAP, ""])


def ioactivity(session: Session) -> Document:
    """Input and output by file."""
    return _files(session, "ioactivity", by_channel=False)


def iodetail(session: Session) -> Document:
    """Input and output by the life of each descriptor."""
    return _files(session, "iodetail", by_channel=True)


def iocallstack(session: Session) -> Document:
    """Input and output by call stack."""
    from collector.export.traces import io_stacks as text
    from collector.report.traces import io_stacks

    found = text(io_stacks(session.data), session.limit) if _has(session, "iotrace") else [_NO_IO, ""]
    return lines("iocallstack", found)


def iostat(session: Session) -> Document:
    """How large the pieces were that were read and written."""
    from collector.export.traces import io_sizes as text
    from collector.report.traces import io_sizes

    return lines("iostat", text(*io_sizes(session.data)) if _has(session, "iotrace") else [_NO_IO, ""])


def deadlocks(session: Session) -> Document:
    """What nobody records any more."""
    return lines("deadlocks", ["Deadlock information was not requested when recording experiments"])


def dataspace(session: Session) -> Document:
    """What collectors on SPARC record with counters."""
    return lines("dataspace", ["Dataspace information was not requested when recording experiments"])


def data_single(session: Session, name: str, number: str = "") -> Document:
    """One of them."""
    return dataspace(session)


def memobj(session: Session, kind: str) -> Document:
    """Pages, cache lines and the like, which are known by the same counters."""
    return dataspace(session)


def mobj_define(session: Session, name: str, expression: str) -> None:
    """Nothing would be of such a type."""


def openmp(session: Session) -> Document:
    """What a library of the compiler's tells."""
    return lines("openmp", ["OpenMP information was not requested when recording experiments"])


def races(session: Session) -> Document:
    """What instrumented programs tell."""
    return lines("races", ["Data race information was not requested when recording experiments"])


def rdetail(session: Session, number: str) -> Document:
    """One of them."""
    return races(session)


def ddetail(session: Session, number: str) -> Document:
    """One deadlock."""
    return deadlocks(session)


def ifreq(session: Session) -> Document:
    """What nobody records here."""
    return lines("ifreq", ["", "Instruction frequency data was not requested when recording experiments", ""])


def mapfile(session: Session, loaded: str, file: str) -> Document:
    """What linkers of other systems take."""
    return lines("mapfile", [f"No mapfile of {loaded} was written: linkers on Linux take none"])


def procstats(session: Session) -> None:
    """What the reference reader says of its own work: nothing."""


def _has(session: Session, kind: str) -> bool:
    return any(kind in experiment.kinds for experiment in session.experiments)


def _files(session: Session, name: str, by_channel: bool) -> Document:
    from collector.report.file_tables import file_table

    if not _has(session, "iotrace"):
        return lines(name, [_NO_IO, ""])
    return file_table(session.data, name, by_channel, session.limit)
