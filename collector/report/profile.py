"""Neutral tables: what stacks weigh, per object, per pair of objects, and as a tree. Pure arrays in, pure arrays out.

A ``Weighted`` holds n stacks, each a run of object ids (functions, lines, instructions), **leaf first**, and k weights
per stack (microseconds in k states). Everything below is a sum of rows of ``weights`` over some stacks::

    exclusive(o)         stacks whose leaf is o
    inclusive(o)         stacks in which o occurs, each once
    callers(o)[c]        stacks in which o occurs and whose occurrence of o nearest to the leaf was called by c
    callees(o)[c]        ... called c; a stack whose leaf is o counts for o itself
    tree node            stacks that begin, from the root, with the path to the node

So the callers of o add up to its inclusive weight, and so do its callees and its own. A pair (caller, callee) that
occurs only in the outer turns of a recursion exists with weight zero. Loops run over depth, never over stacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.arrays import gathered

I8 = npt.NDArray[np.int64]
I4 = npt.NDArray[np.int32]
Objects = npt.NDArray[Any]  # ids: int32 where there are many of them
Bool = npt.NDArray[np.bool_]

ROOT = -1
_EXACT_MAX = 1 << 53
# What is worked on at a time stays in the CPU's caches: frames, and cells of a table.
_AT_ONCE, _CELLS = 1 << 18, 1 << 20


@dataclass(frozen=True)
class Weighted:
    """``offsets`` (n + 1), ``objects`` CSR leaf first, ``weights`` (n, k); ``n_objects``: all ids are below it."""

    offsets: I8
    objects: Objects
    weights: I8
    n_objects: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def depths(self) -> I8:
        """Frames per stack (n)."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> I8:
        """The stack to which each element of ``objects`` belongs."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.depths)


class Pairs(NamedTuple):
    """Edges ``caller`` -> ``callee``, each once, and what they carry (p, k)."""

    caller: I8
    callee: I8
    weights: I8


class Tree(NamedTuple):
    """Nodes, level by level; the parent of a top node is ROOT. ``levels``: where each level begins, and the end."""

    parent: I8
    object: I8
    weights: I8
    levels: list[int]


def total(stacks: Weighted) -> I8:
    """The sum over all stacks, also empty ones (k)."""
    return np.asarray(stacks.weights.sum(axis=0), np.int64)


def present(stacks: Weighted) -> I8:
    """The ids of all objects that occur, sorted."""
    return np.flatnonzero(np.bincount(stacks.objects, minlength=1))


def seen_as(stacks: Weighted, columns: I8) -> Weighted:
    """The same stacks with other weights: ``columns`` (k, c) says what each one adds up."""
    return replace(stacks, weights=stacks.weights @ columns)


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each value once, sorted. Sorting is quicker than what numpy does for large arrays."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def distinct_places(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], I8]:
    """Each value once, sorted, and the place of every one among these. For many values of which few are distinct."""
    found = distinct(values)
    return found, np.searchsorted(found, values).astype(np.int64, copy=False)


def exclusive(stacks: Weighted) -> I8:
    """Per object (n_objects, k), the stacks whose leaf it is."""
    has_leaf = stacks.depths > 0
    leaves = stacks.objects[stacks.offsets[:-1][has_leaf]]
    return _sum_by(leaves, stacks.weights[has_leaf], stacks.n_objects)


def inclusive(stacks: Weighted) -> I8:
    """Per object (n_objects, k), the stacks in which it occurs."""
    sums = np.zeros((stacks.n_objects, stacks.weights.shape[1]), np.int64)
    for begin, end, is_first in _firsts(stacks):
        frames = slice(int(stacks.offsets[begin]), int(stacks.offsets[end]))
        rows = np.repeat(np.arange(begin, end), np.diff(stacks.offsets[begin:end + 1]))[is_first]
        sums += _sum_by(stacks.objects[frames][is_first], stacks.weights, stacks.n_objects, rows)
    return sums


def pairs(stacks: Weighted) -> tuple[Pairs, Pairs]:
    """Callers and callees: ``(callers, callees)``, both as Pairs; a top function's caller is ROOT.

    Their weights differ where there is recursion: see the module's text.
    """
    objects, rows = stacks.objects, stacks.rows
    at = np.arange(len(objects), dtype=np.int64)
    is_leaf = at == stacks.offsets[:-1][rows] if len(objects) else np.zeros(0, bool)
    is_top = at == stacks.offsets[1:][rows] - 1 if len(objects) else np.zeros(0, bool)
    innermost = np.concatenate([np.zeros(0, np.bool_), *(is_first for _, _, is_first in _firsts(stacks))])
    above = np.where(is_top, ROOT, np.append(objects[1:], ROOT))
    below = np.append(ROOT, objects[:-1])
    callers = _pairs_of(above, objects, innermost, stacks.weights[rows], stacks.n_objects)
    inner = ~is_leaf
    callees = _pairs_of(objects[inner], below[inner], innermost[inner], stacks.weights[rows[inner]], stacks.n_objects)
    return callers, callees


def places_of(stacks: Weighted, wanted: Sequence[int]) -> tuple[I8, Bool]:
    """Wherever ``wanted``, leaf first, begins in the stacks; and which of these lie nearest to the leaf of theirs."""
    n = len(stacks.objects)
    begins, ends = np.arange(n), stacks.offsets[1:][stacks.rows]
    is_here = begins + len(wanted) <= ends
    for step, one in enumerate(wanted):
        is_here &= stacks.objects[np.minimum(begins + step, n - 1)] == one
    here = np.flatnonzero(is_here)
    rows = stacks.rows[here]
    return here, np.append(True, rows[1:] != rows[:-1])[:len(here)]


def sums_of(objects: I8, weights: I8) -> tuple[I8, I8]:
    """Each object once, and the sum of its weights."""
    found, places = distinct_places(objects)
    return found, _sum_by(places, weights, len(found))


def hidden(stacks: Weighted, group: I8, is_hidden: Bool) -> Weighted:
    """Each object replaced by ``group[object]``; frames of one hidden group that follow each other become one."""
    objects = group[stacks.objects]
    same = (objects[1:] == objects[:-1]) & is_hidden[stacks.objects[1:]] & is_hidden[stacks.objects[:-1]]
    same &= stacks.rows[1:] == stacks.rows[:-1]
    keep = np.append(True, ~same)[:len(objects)]
    kept = np.append(0, np.cumsum(keep))
    return merge_equal(Weighted(kept[stacks.offsets].astype(np.int64), objects[keep], stacks.weights, stacks.n_objects))


def tops(stacks: Weighted) -> Pairs:
    """What lies directly under the root: the objects at the top of the stacks, called by ROOT, all stacks counted."""
    some = stacks.depths > 0
    callee = stacks.objects[stacks.offsets[1:][some] - 1]
    return _pairs_of(np.full(len(callee), ROOT, np.int64), callee, np.ones(len(callee), bool), stacks.weights[some],
                     stacks.n_objects)


def tree(stacks: Weighted) -> Tree:
    """The call tree of all stacks with at least one frame."""
    return tree_and_leaves(stacks)[0]


def tree_and_leaves(stacks: Weighted) -> tuple[Tree, I8]:
    """The same, and the node of each stack's leaf (n); ROOT of one without frames."""
    depths = stacks.depths
    order = np.argsort(-depths, kind="stable")
    depths, weights = depths[order], stacks.weights[order]
    ends = stacks.offsets[1:][order]
    node_of = np.full(len(order), ROOT, np.int64)
    parents, objects, sums = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [weights[:0]]
    n_nodes, levels = 0, [0]
    for level in range(int(depths.max(initial=0))):
        live = int(np.searchsorted(-depths, -level, side="left"))  # stacks deeper than ``level`` come first
        here = stacks.objects[ends[:live] - 1 - level]
        keys, inverse = np.unique((node_of[:live] + 1) * np.int64(stacks.n_objects) + here, return_inverse=True)
        above, objects_here = np.divmod(keys, np.int64(stacks.n_objects))
        parents.append(above - 1)
        objects.append(objects_here)
        sums.append(_sum_by(inverse, weights[:live], len(keys)))
        node_of[:live] = n_nodes + inverse
        n_nodes += len(keys)
        levels.append(n_nodes)
    leaves = np.full(len(order), ROOT, np.int64)
    leaves[order] = node_of
    return Tree(np.concatenate(parents), np.concatenate(objects), np.concatenate(sums), levels), leaves


def depth_first(tree: Tree, siblings: I8) -> tuple[I8, I8]:
    """The nodes in depth-first order, and their depths, 0 for those at the top.

    ``siblings`` (n): all nodes, sorted by parent and then as children of one parent are to follow each other.
    """
    n_nodes = len(tree.parent)
    sizes = np.ones(n_nodes + 1, np.int64)  # of subtrees; the last one is the root's
    for begin, end in reversed(list(pairwise(tree.levels))):
        np.add.at(sizes, tree.parent[begin:end], sizes[begin:end])
    before = np.cumsum(sizes[siblings]) - sizes[siblings]  # of all nodes ahead in ``siblings``
    parents = tree.parent[siblings]
    is_first = np.diff(parents, prepend=ROOT - 1) != 0
    place, depths = np.full(n_nodes + 1, -1, np.int64), np.zeros(n_nodes, np.int64)
    ahead = np.zeros(n_nodes, np.int64)
    ahead[siblings] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    for depth, (begin, end) in enumerate(pairwise(tree.levels)):
        place[begin:end] = place[tree.parent[begin:end]] + 1 + ahead[begin:end]
        depths[begin:end] = depth
    order = np.zeros(n_nodes, np.int64)
    order[place[:-1]] = np.arange(n_nodes)
    return order, depths[order]


def picked(values: Objects, offsets: I8, rows: I8) -> tuple[Objects, I8]:
    """The runs of ``values`` of some ``rows``, one behind the other, and where each begins; row -1: no frames."""
    depths = np.where(rows >= 0, np.diff(offsets)[rows] if len(offsets) > 1 else 0, 0)
    begins = np.where(rows >= 0, offsets[rows], 0)
    return gathered(values, begins, depths), np.append(0, np.cumsum(depths)).astype(np.int64)


def merge_equal(stacks: Weighted) -> Weighted:
    """The same weights on fewer rows: stacks with the same frames become one. Order of first occurrence."""
    text = stacks.objects.astype("<i4").tobytes()
    bounds = (stacks.offsets * 4).tolist()
    place: dict[bytes, int] = {}
    owner = np.array([place.setdefault(text[a:b], len(place)) for a, b in pairwise(bounds)],
                     np.int64)
    keep = np.unique(owner, return_index=True)[1]
    objects, offsets = picked(stacks.objects, stacks.offsets, keep)
    return Weighted(offsets, objects, _sum_by(owner, stacks.weights, len(keep)), stacks.n_objects)


def _firsts(stacks: Weighted) -> Iterator[tuple[int, int, Bool]]:
    """Rows from ``begin`` to ``end``, some at a time, and which of their frames hold an object for the first time in
    their row, that is nearest to the leaf.
    """
    n_objects = stacks.n_objects or 1
    n_rows = max(_CELLS // n_objects, 1)
    is_few = n_objects <= _CELLS
    seen_at = np.zeros(n_rows * n_objects if is_few else 0, np.int32)  # in a row and object's cell: by which frame
    begin = 0
    while begin < len(stacks):
        ahead = int(np.searchsorted(stacks.offsets, stacks.offsets[begin] + _AT_ONCE, side="right")) - 1
        end = min(max(ahead, begin + 1), begin + n_rows if is_few else len(stacks), len(stacks))
        depths = np.diff(stacks.offsets[begin:end + 1])
        cells = np.repeat(np.arange(end - begin) * n_objects, depths)
        cells += stacks.objects[stacks.offsets[begin]:stacks.offsets[end]]
        if not is_few:
            cells = distinct_places(cells)[1]
            seen_at = np.zeros(len(cells), np.int32)
        places = np.arange(len(cells), dtype=np.int32)
        seen_at[cells[::-1]] = places[::-1]  # the last one written stays
        yield begin, end, seen_at[cells] == places
        begin = end


def _pairs_of(caller: I8, callee: I8, counts: Bool, weights: I8, n_objects: int) -> Pairs:
    keys, inverse = distinct_places((caller + 1) * np.int64(n_objects) + callee)
    above, below = np.divmod(keys, np.int64(n_objects or 1))
    return Pairs(above - 1, below, _sum_by(inverse, weights * counts[:, None], len(keys)))


def _sum_by(groups: Objects, weights: I8, n_groups: int, rows: I8 | None = None) -> I8:
    """Sum the rows of ``weights`` (m, k), or those that ``rows`` (n) names, by their group; exact in integers."""
    sums = np.zeros((n_groups, weights.shape[1]), np.int64)
    for number, column in enumerate(weights.T):
        values = column if rows is None else column[rows]
        if not values.any():
            continue
        if int(np.abs(values).max()) * len(values) < _EXACT_MAX:  # as doubles
            sums[:, number] = np.bincount(groups, values, n_groups)
        else:
            np.add.at(sums[:, number], groups, values)
    return sums
