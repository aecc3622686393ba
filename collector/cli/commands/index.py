"""Tables of threads, CPUs, samples and the like: of what packets say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collector.cli.commands.session import Session
from collector.cli.commands.session import lines as as_lines
from collector.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from collector.experiment.reader import Experiment
    from collector.report.documents import Document
    from collector.report.profile import I8

    Packets = npt.NDArray[Any]


def _key_table(session: Session, name: str, names: Sequence[bytes], weights: I8,
               ranks: Sequence[int] = ()) -> Document:
    """``weights`` (n, states) of the ``names`` (n); among equals in the order of ``ranks``, else as they stand."""
    from collector.report.tables import Labels, key_rows, table

    view = session.derived("e")
    labels = Labels.of_names([*names, b"<Total>"], len(names), [*(ranks or range(len(names))), len(names)])
    return table(name, (f"Objects sorted by metric: {view.sort_title}",), key_rows(weights, view, labels), view, labels,
                 limit=session.limit)


def threads(session: Session) -> Document:
    """By thread."""
    names: list[bytes] = []
    first: dict[int, int] = {}
    for number, experiment in enumerate(session.experiments, 1):
        first[id(experiment)] = len(names)
        names += [b"Process %d, Thread %d" % (number, i + 1) for i in range(len(experiment.threads))]

    def keys(experiment: Experiment, packets: Packets) -> I8:
        return first[id(experiment)] + _index_of(packets["THRID"], experiment.threads)

    return _key_table(session, "threads", names, session.data.weights_by(keys, len(names)))


def samples(session: Session) -> Document:
    """By sample."""
    import numpy as np

    from collector.report.query.facts import sample_numbers

    numbers = sorted({sample.id for experiment in session.experiments for sample in experiment.samples})

    def keys(experiment: Experiment, packets: Packets) -> I8:
        found = sample_numbers(experiment, packets["TSTAMP"])
        return np.where(found > 0, np.searchsorted(numbers, found), len(numbers)).astype(np.int64)

    names = [*(b"Sample %d" % number for number in numbers), b"<Unknown>"]
    return _key_table(session, "samples", names, session.data.weights_by(keys, len(names)))


def cpus(session: Session) -> Document:
    """By CPU."""
    cpus = sorted({cpu for experiment in session.experiments for cpu in experiment.cpus})
    weights = session.data.weights_by(lambda _, packets: _index_of(packets["CPUID"], cpus), len(cpus))
    return _key_table(session, "cpus", [b"CPU %d" % cpu for cpu in cpus], weights)


def processes(session: Session) -> Document:
    """By experiment."""
    names = [b"%s, Process %3d, PID %d" % (_program(experiment), i, experiment.log.pid)
             for i, experiment in enumerate(session.experiments, 1)]
    # By name; those without one come last.
    ordered = sorted(range(len(names)), key=lambda i: (names[i].startswith(b"("), names[i]))
    return _experiment_table(session, "processes", names, [ordered.index(i) for i in range(len(names))])


def experiment_ids(session: Session) -> Document:
    """By experiment, with the number of its founder."""
    names, founder = list[bytes](), 0
    for number, experiment in enumerate(session.experiments, 1):
        founder += not experiment.lineage
        names.append(b"Base Experiment %d, Process %d, PID %d, %s" % (
            max(founder, 1), number, experiment.log.pid, _program(experiment)))
    return _experiment_table(session, "experiment_ids", names)


def _experiment_table(session: Session, name: str, names: Sequence[bytes], ranks: Sequence[int] = ()) -> Document:
    """``names``, and ``ranks`` among equals, of each experiment."""
    import numpy as np

    number = {id(experiment): i for i, experiment in enumerate(session.experiments)}
    weights = session.data.weights_by(
        lambda experiment, packets: np.full(len(packets), number[id(experiment)], np.int64), len(names))
    return _key_table(session, name, names, weights, ranks)


def _program(experiment: Experiment) -> bytes:
    """The base name of what runs in the process; a forked child has no name of its own."""
    words = experiment.log.arguments.split()
    if not words or experiment.log.arguments == b"(fork)":
        return b"(unknown)"
    return words[0].rsplit(b"/", 1)[-1]


def _index_of(values: npt.NDArray[Any], known: Sequence[int]) -> I8:
    """For each value its place in ``known``, which holds them all."""
    import numpy as np

    order = np.argsort(np.array(known, np.int64))
    return np.asarray(order[np.searchsorted(np.array(known, np.int64)[order], values)], np.int64)


# -- what expressions are


@dataclass(frozen=True)
class IndexObject:
    """Packets grouped by what an expression is for them; ``name_of`` a value, and ``table`` if there is one already."""

    expression: str
    name_of: Callable[[int], bytes] | None = None
    table: Callable[[Session], Document] | None = None


def _second(value: int) -> bytes:
    return b"Second of execution %d" % value


_STEPS = (b"0s", b"1us", b"10us", b"100us", b"1ms", b"10ms", b"100ms", b"1s", b"10s", b"100s", b"1000s", b"10000s")
_STEPS_NS = [10 ** (power + 3) for power in range(len(_STEPS) - 1)]
_LONGER_NS = _STEPS_NS[-1] + 1


def _duration(value_ns: int) -> bytes:
    """The powers of ten of microseconds between which a time lies, ``value_ns`` the upper one."""
    if value_ns == 0:
        return b"   0s"
    if value_ns == _LONGER_NS:
        return b"n > %s" % _STEPS[-1]
    step = _STEPS_NS.index(value_ns)
    return b"%5s < n <= %5s" % (_STEPS[step], _STEPS[step + 1])


_SIZE_UNITS = (b"", b"KB", b"MB", b"GB", b"TB", b"PB")
_SIZES = [1 << step for step in range(0, 51, 2)]


def _size(value: int) -> bytes:
    """The powers of four between which a number of bytes lies, ``value`` the upper one."""
    if value in (0, 1):
        return b"%5d Byte%s" % (value, b"" if value else b"s")
    if value not in _SIZES:
        return b"     n > 1PB"
    low, high = (b"%d%s" % (n >> power * 10, _SIZE_UNITS[power])
                 for n, power in ((n, (n.bit_length() - 1) // 10) for n in (value // 4, value)))
    return b"%5s < n <= %5s%s" % (low, high, b" Bytes" if value < 1024 else b"")


def _collection(_value: int) -> bytes:
    """No collector writes of Java's."""
    return b"Not in any GCEvent"


_DURATION = "TSTAMP_HI-TSTAMP_LO"
OBJECTS: dict[str, IndexObject] = {
    "Threads": IndexObject("((EXPID_CMP<<32) | THRID)", table=threads),
    "CPUs": IndexObject("(CPUID)", table=cpus),
    "Samples": IndexObject("(SAMPLE_MAP)", table=samples),
    "GCEvents": IndexObject("(GCEVENT_MAP)", _collection),
    "Seconds": IndexObject("(TSTAMP/1000000000)", _second),
    "Processes": IndexObject("(EXPID_CMP)", table=processes),
    "Experiment_IDs": IndexObject("((EXPGRID<<60) | (EXPID<<32))", table=experiment_ids),
    "Datasize": IndexObject("(IOHEAPBYTES)", _size),
    "Duration": IndexObject(f"({_DURATION})"),
}


def indxobj(session: Session, kind: str) -> Document:
    """A table of an index object."""
    every = {**OBJECTS, **session.index_objects}
    found = [name for name in every if name.lower() == kind.lower()]
    if not found:
        raise UsageError(f"-indxobj {kind}: give one of {', '.join(every)}")
    one = every[found[0]]
    return one.table(session) if one.table is not None else _values_table(session, found[0], one)


def seconds(session: Session) -> Document:
    """By second of the run."""
    return indxobj(session, "Seconds")


def gcevents(session: Session) -> Document:
    """By garbage collection."""
    return indxobj(session, "GCEvents")


def datasize(session: Session) -> Document:
    """By how much was allocated, read or written."""
    return indxobj(session, "Datasize")


def duration(session: Session) -> Document:
    """By how long what was traced took."""
    return indxobj(session, "Duration")


def indxobj_define(session: Session, name: str, expression: str) -> None:
    """An index object of one's own."""
    session.selection.values(expression)
    define(session, name, expression)


def define(session: Session, name: str, expression: str) -> None:
    """The same of an expression that has been checked. Raises UsageError."""
    if not name.isidentifier() or name in OBJECTS:
        raise UsageError(f"-indxobj_define {name}: give another name: letters and digits, and none of "
                         f"{', '.join(OBJECTS)}")
    session.index_objects[name] = IndexObject(expression)


def indxobj_list(session: Session) -> Document:
    """The index objects that there are."""
    return as_lines("indxobj_list", [" Index Object Types Available:", *(
        f"  {name} \t{one.expression}" for name, one in {**OBJECTS, **session.index_objects}.items()), ""])


def _values_table(session: Session, name: str, one: IndexObject) -> Document:
    import numpy as np

    values = session.selection.values(one.expression)
    if name == "Duration":
        steps = np.array(_STEPS_NS, np.int64)
        values = [np.where(each > 0, np.append(steps, _LONGER_NS)[np.searchsorted(steps, each)], 0) for each in values]
    if name == "Datasize":
        steps = np.array(_SIZES, np.int64)
        values = [np.where(each > 0, np.append(steps, 2 << 50)[np.searchsorted(steps, each)], 0) for each in values]
    distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *values]))
    groups = [np.searchsorted(distinct, each) for each in values]
    name_of = one.name_of or (_duration if name == "Duration" else
                              lambda value: b"%s 0x%016x (%d)" % (name.encode(), value % (1 << 64), value))
    return _key_table(session, name, [name_of(value) for value in distinct.tolist()],
                      session.data.weights_of(groups, len(distinct)))
