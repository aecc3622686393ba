"""Collapsed stacks: a line for each, from the root to the leaf, and what it counts for.

    main;work;read 30021

Times are microseconds. What is counted is all time, or the metric chosen. A semicolon in a name becomes a colon.
Inlined functions have ``_[i]`` behind their names, as flamegraph.pl knows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from collector.export.choices import Choices, by_stack, chosen, names, put, thread_names
from collector.report.samples import Samples

_INLINED = "_[i]"


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The lines, in the order in which stacks were first met."""
    put(out, _lines(samples, choices))


def _lines(samples: Samples, choices: Choices) -> Iterator[str]:
    called = [_frame(name) for name in names(samples, _INLINED)]
    stacks, owner = samples.function_stacks
    lists = [";".join(called[frame] for frame in reversed(stack)) for stack in stacks.lists()]
    quantity = chosen(samples, choices.metric)
    if not choices.by_thread:
        sums = by_stack(samples, quantity, owner, len(stacks))
        for stack in np.flatnonzero(sums).tolist():
            yield f"{lists[stack]} {sums[stack]}\n"
        return
    threads, values = [_frame(name) for name in thread_names(samples)], samples.groups.of(quantity)
    codes, inverse = np.unique(owner[samples.groups.stack] * max(len(threads), 1) + samples.groups.thread,
                               return_inverse=True)
    sums = np.zeros(len(codes), np.int64)
    np.add.at(sums, inverse, values)
    for place in np.flatnonzero(sums).tolist():
        stack, thread = divmod(int(codes[place]), len(threads))
        yield f"{threads[thread]};{lists[stack]} {sums[place]}\n"


def _frame(name: str) -> str:
    return name.replace(";", ":")
