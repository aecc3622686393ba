"""Tables of threads, CPUs, samples and the like: of what packets say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collector.cli.commands.session import Session

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

    numbers = sorted({sample.id for experiment in session.experiments for sample in experiment.samples})
    unknown, place = len(numbers), {number: i for i, number in enumerate(numbers)}

    def keys(experiment: Experiment, packets: Packets) -> I8:
        if not experiment.samples:
            return np.full(len(packets), unknown, np.int64)
        starts = np.array([sample.start_ns for sample in experiment.samples], np.int64)
        ends = np.array([sample.end_ns for sample in experiment.samples], np.int64)
        ids = np.array([place[sample.id] for sample in experiment.samples], np.int64)
        # A packet at the very time of a sample point belongs to the sample that ends there.
        at = np.searchsorted(starts, packets["TSTAMP"], side="left") - 1
        inside = (at >= 0) & (packets["TSTAMP"] <= ends[at])
        return np.where(inside, ids[at], unknown).astype(np.int64)

    names = [*(b"Sample %d" % number for number in numbers), b"<Unknown>"]
    return _key_table(session, "samples", names, session.data.weights_by(keys, len(names)))


def cpus(session: Session) -> Document:
    """By CPU."""
    cpus = sorted({cpu for experiment in session.experiments for cpu in experiment.cpus})
    weights = session.data.weights_by(lambda _, packets: _index_of(packets["CPUID"], cpus), len(cpus))
    return _key_table(session, "cpus", [b"CPU %d" % cpu for cpu in cpus], weights)


def processes(session: Session) -> Document:
    """By experiment."""
    import numpy as np

    experiments = session.experiments
    number = {id(experiment): i for i, experiment in enumerate(experiments)}
    names = [b"%s, Process %3d, PID %d" % (_program(experiment), i, experiment.log.pid)
             for i, experiment in enumerate(experiments, 1)]
    weights = session.data.weights_by(
        lambda experiment, packets: np.full(len(packets), number[id(experiment)], np.int64), len(names))
    # By name; those without one come last.
    ordered = sorted(range(len(names)), key=lambda i: (names[i].startswith(b"("), names[i]))
    return _key_table(session, "processes", names, weights, [ordered.index(i) for i in range(len(names))])


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
