"""A data set as columns for whoever draws it: every packet, the tree of stacks, what its instructions are. Pure.

    pieces     (n,)   sorted by thread, then by time: when, which node is the leaf, which column counts it, how much
    nodes      (m,)   of the tree of stacks, parents first: the parent, and the instruction
    instructions (k,) the function and the line of each

A *piece* is what a packet is worth in one column of weights (``kinds``): a clock packet has one, its ticks in its
state; a packet of other kinds has one for each column that it counts in. Whatever ``er_print`` sums up is a sum of
pieces. A piece that is worth nothing is left out, as ``er_print`` leaves out stacks without weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collector.report.build import DataSet, Experiment
from collector.report.kinds import CLOCK
from collector.report.latency import latency_us
from collector.report.lines import line_of_instructions
from collector.report.profile import I8, ROOT, Weighted, tree_and_leaves
from collector.report.query.facts import PacketFacts
from collector.report.resolve import known_states

_TIME_MAX_NS = 1 << 53  # what a double holds exactly, which pages count in


@dataclass(frozen=True)
class Thread:
    """``experiment``: its number, from 0; ``number``: from 1, as it is shown; ``tid``: the kernel's."""

    experiment: int
    number: int
    tid: int
    name: bytes


@dataclass(frozen=True)
class Pieces:
    """Columns (n,). ``thread``: from 0; ``time_ns`` since the founder's start; ``leaf``: a node, ROOT for none.

    ``column``: that of the weights; ``amount``: ticks in columns of states, else what is counted; ``latency_us``.
    """

    thread: I8
    time_ns: I8
    leaf: I8
    column: I8
    amount: I8
    cpu: I8
    latency_us: I8

    def __len__(self) -> int:
        return len(self.thread)


@dataclass(frozen=True)
class Picture:
    """See the module's text. ``lines``: their names; the first is the total."""

    threads: list[Thread]
    pieces: Pieces
    parents: I8
    instructions: I8
    function_of: I8
    line_of: I8
    lines: list[bytes]


def picture(data: DataSet) -> Picture:
    """All packets of a data set that was loaded with latency."""
    assert data.instructions is not None
    threads = [Thread(number, place, tid, experiment.log.threads.get(tid, b""))
               for number, experiment in enumerate(data.experiments)
               for place, tid in enumerate(experiment.threads, 1)]
    parents, instructions, leaves = _tree(data)
    line_of, lines = line_of_instructions(data)
    return Picture(threads, _sorted(_pieces(data, leaves)), parents, instructions,
                   np.array([function for function, _ in data.places], np.int64), line_of, lines)


def _tree(data: DataSet) -> tuple[I8, I8, list[I8]]:
    """The tree of all stacks, and for each experiment the leaf of each of its packets."""
    stacks = data.stacks_of_packets()
    depths = [np.diff(offsets) for offsets, _, _ in stacks]
    offsets = np.append(0, np.cumsum(np.concatenate([np.zeros(0, np.int64), *depths]))).astype(np.int64)
    objects = np.concatenate([np.zeros(0, np.int64), *(found for _, found, _ in stacks)])
    tree, leaves = tree_and_leaves(Weighted(offsets, objects, np.zeros((len(offsets) - 1, 0), np.int64),
                                            len(data.places)))
    ends = np.cumsum([0, *map(len, depths)]).tolist()
    mine = [np.append(leaves[begin:end], ROOT)[of_packet] for begin, end, (_, _, of_packet) in
            zip(ends[:-1], ends[1:], stacks, strict=True)]
    return tree.parent, tree.object, mine


def _pieces(data: DataSet, leaves: list[I8]) -> Iterator[Pieces]:
    """Those of each experiment, in the order of its packets."""
    first = 0
    for number, (experiment, leaf) in enumerate(zip(data.experiments, leaves, strict=True), 1):
        facts = PacketFacts(data, number)
        thread, time_ns, cpu = (_numbers(facts, name) for name in ("THRID", "TSTAMP", "CPUID"))
        packet, column, amount = _amounts(data, experiment)
        latency = np.zeros(len(leaf), np.int64)
        begin = _begin_of(experiment, CLOCK)
        if CLOCK in experiment.kinds:
            latency[begin:begin + len(experiment.packets(CLOCK))] = latency_us(experiment)
        yield Pieces(thread[packet] + (first - 1), np.clip(time_ns[packet], -_TIME_MAX_NS, _TIME_MAX_NS), leaf[packet],
                     column, amount, cpu[packet], latency[packet])
        first += len(experiment.threads)


def _numbers(facts: PacketFacts, name: str) -> I8:
    found = facts.number(name)
    return np.zeros(facts.n, np.int64) if found is None else found.astype(np.int64)


def _begin_of(experiment: Experiment, kind: str) -> int:
    """Where the packets of a kind begin among those of all."""
    before = experiment.kinds[:experiment.kinds.index(kind)] if kind in experiment.kinds else []
    return sum(len(experiment.packets(one)) for one in before)


def _amounts(data: DataSet, experiment: Experiment) -> tuple[I8, I8, I8]:
    """Of each piece its packet, its column, and what it counts there."""
    packets, columns, amounts = ([np.zeros(0, np.int64)] for _ in range(3))
    for kind in experiment.kinds:
        begin = _begin_of(experiment, kind)
        if kind == CLOCK:
            found = experiment.packets(CLOCK)
            values, first = found["NTICK"].astype(np.int64)[:, None], known_states(found["MSTATE"]).astype(np.int64)
        else:
            column, values = data.columns.values(experiment, kind)
            first = np.full(len(values), column, np.int64)
        row, place = np.nonzero(values)
        packets.append(begin + row)
        columns.append(first[row] + place)
        amounts.append(values[row, place])
    return np.concatenate(packets), np.concatenate(columns), np.concatenate(amounts)


def _sorted(parts: Iterator[Pieces]) -> Pieces:
    """All of them by thread and time; equals in the order in which they were recorded."""
    every = list(parts)
    columns = {name: np.concatenate([np.zeros(0, np.int64), *(getattr(one, name) for one in every)])
               for name in Pieces.__dataclass_fields__}
    order = np.lexsort((columns["time_ns"], columns["thread"]))
    return Pieces(**{name: column[order] for name, column in columns.items()})


def extents(experiments: Sequence[Experiment]) -> list[tuple[int, int]]:
    """For each experiment the nanoseconds from its founder's start to its own, and to its end."""
    starts = [(one.founder or one).log.start_ns for one in experiments]
    return [(one.log.start_ns - start, one.end_ns - start) for one, start in zip(experiments, starts, strict=True)]
